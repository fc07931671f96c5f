//! SelfSubjectReview (`authentication.k8s.io/v1`): returns the attributes of the user who sends it.
//!
//! Source: `pkg/registry/authentication/selfsubjectreview/rest.go`.

use crate::Kind;

pub(crate) static KIND: Kind =
    Kind { stored: false, ..Kind::cluster("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview") };
