//! `Binding (v1)`: bindings.

use crate::Kind;

pub(crate) static KIND: Kind = Kind { stored: false, ..Kind::namespaced("", "v1", "bindings", "Binding") };
