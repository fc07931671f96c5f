//! ServiceAccount (`v1`): an identity for programs.
//!
//! Source: `pkg/registry/core/serviceaccount/strategy.go`.

use crate::printers::NAME_AND_AGE;
use crate::{Kind, Subresource};

pub(crate) static KIND: Kind = Kind {
    short_names: &["sa"],
    subresources: &[Subresource::Token],
    printer: &NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "serviceaccounts", "ServiceAccount")
};
