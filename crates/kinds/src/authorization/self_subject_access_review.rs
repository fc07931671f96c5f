//! `SelfSubjectAccessReview (authorization.k8s.io/v1)`: selfsubjectaccessreviews.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
};
