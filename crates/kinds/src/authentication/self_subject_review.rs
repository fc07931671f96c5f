//! `SelfSubjectReview (authentication.k8s.io/v1)`: selfsubjectreviews.

use crate::Kind;

pub(crate) static KIND: Kind =
    Kind { stored: false, ..Kind::cluster("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview") };
