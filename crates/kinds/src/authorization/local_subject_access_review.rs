//! `LocalSubjectAccessReview (authorization.k8s.io/v1)`: localsubjectaccessreviews.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::namespaced("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview")
};
