//! Binding (`v1`): assigns a pod to a node. The server applies it to the pod and does not store it.
//!
//! Source: `BindingREST` in `pkg/registry/core/pod/storage`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind { stored: false, ..Kind::namespaced("", "v1", "bindings", "Binding") };
