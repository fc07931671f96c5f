//! Updates an [`RbacState`] from the watch caches of the four RBAC kinds.

use std::sync::Arc;

use listwatch_access::rbac::{RbacKind, RbacState};
use listwatch_meta::{Object, Status};
use listwatch_registry::Resource;
use listwatch_write::Writer;

use crate::feed::{self, ObjectCopy};

/// The group and version of the kinds.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";
pub(super) const VERSION: &str = "v1";

/// Updates the state from the objects of one kind.
struct RbacCopy<'a>(&'a RbacState, RbacKind);

impl ObjectCopy for RbacCopy<'_> {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        (GROUP, VERSION, self.1.resource())
    }

    fn set(&self, object: &Object) -> bool {
        self.0.set(self.1, object.namespace(), object.name(), object.json_slice()).is_ok()
    }

    fn remove(&self, namespace: &str, name: &str) {
        self.0.remove(self.1, namespace, name);
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let parts = objects.iter().map(|object| (object.namespace(), object.name(), object.json_slice()));
        self.0.replace(self.1, parts)
    }
}

/// Returns the resource of a kind.
pub(super) fn resource(writer: &Writer, kind: RbacKind) -> Option<Arc<Resource>> {
    writer.backend().registry().find(GROUP, VERSION, kind.resource()).cloned()
}

fn copies(state: &RbacState) -> [RbacCopy<'_>; 4] {
    RbacKind::ALL.map(|kind| RbacCopy(state, kind))
}

/// Lists all roles and bindings into the state. A server calls this before the first request, so that no decision is
/// based on an empty state.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, state: &RbacState) -> Result<(), Status> {
    feed::load(writer, &copies(state), "the roles and bindings").await
}

/// Updates the state until the future is dropped. While a watch fails, the state keeps the last known objects, like
/// upstream's informers.
pub async fn follow(writer: Arc<Writer>, state: Arc<RbacState>) {
    feed::follow(&writer, &copies(&state)).await;
}
