//! `SubjectAccessReview (authorization.k8s.io/v1)`: subjectaccessreviews.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")
};
