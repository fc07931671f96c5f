//! TokenReview (`authentication.k8s.io/v1`): authenticates a token.
//!
//! Source: `pkg/registry/authentication/tokenreview/storage.go`.

use crate::Kind;

pub(crate) static KIND: Kind =
    Kind { stored: false, ..Kind::cluster("authentication.k8s.io", "v1", "tokenreviews", "TokenReview") };
