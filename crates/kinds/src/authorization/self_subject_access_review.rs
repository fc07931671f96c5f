//! SelfSubjectAccessReview (`authorization.k8s.io/v1`): checks whether the user who sends it can do something.
//!
//! Source: `pkg/registry/authorization/selfsubjectaccessreview/rest.go`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
};
