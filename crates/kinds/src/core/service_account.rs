//! `ServiceAccount (v1)`: serviceaccounts.

use crate::Kind;
use crate::Subresource;

pub(crate) static KIND: Kind = Kind {
    short_names: &["sa"],
    subresources: &[Subresource::Token],
    printer: &crate::printers::NAME_AND_AGE,
    ..Kind::namespaced("", "v1", "serviceaccounts", "ServiceAccount")
};
