//! LocalSubjectAccessReview (`authorization.k8s.io/v1`): checks whether a user can do something in one namespace.
//!
//! Source: `pkg/registry/authorization/localsubjectaccessreview/rest.go`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::namespaced("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview")
};
