//! [`Definitions`]: the catalog of CustomResourceDefinitions, and the requests that wait for a catalog update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_meta::{Change, Object, Revision};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::conversion::ConversionCallers;
use crate::custom::catalog::{Catalog, Reserved, SchemaWork, Work};
use crate::resource::Resource;
use listwatch_apiextensions::Condition;

/// The API group of CustomResourceDefinitions.
pub const DEFINITIONS_GROUP: &str = "apiextensions.k8s.io";
/// The API version in which CustomResourceDefinitions are served and stored.
pub const DEFINITIONS_VERSION: &str = "v1";
/// The plural resource name of CustomResourceDefinitions.
pub const DEFINITIONS_PLURAL: &str = "customresourcedefinitions";

/// Maximum time that a request waits until the server serves a stored definition. After this time the request is
/// processed as if the definition did not exist yet.
const CATCH_UP_MAX: Duration = Duration::from_secs(3);

/// The CustomResourceDefinitions known to this server.
pub struct Definitions {
    catalog: Mutex<Catalog>,
    /// The number of completed updates of the catalog.
    applied: watch::Sender<u64>,
}

impl std::fmt::Debug for Definitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Definitions")
    }
}

impl Definitions {
    /// Creates an empty catalog. Definitions cannot replace the group versions of the `builtin` resources.
    pub(crate) fn new(builtin: &[Arc<Resource>], conversion: Arc<ConversionCallers>) -> Self {
        Definitions {
            catalog: Mutex::new(Catalog::new(Reserved::of(builtin), conversion)),
            applied: watch::Sender::new(0),
        }
    }

    /// Reports whether `resource` is the resource of CustomResourceDefinitions.
    pub fn is_resource(&self, resource: &Resource) -> bool {
        !resource.custom && resource.group == DEFINITIONS_GROUP && resource.plural == DEFINITIONS_PLURAL
    }

    /// Applies a change of one definition to the catalog. Changes older than the known revision are ignored.
    pub fn handle(&self, change: Change, object: &Object) {
        self.catalog.lock().handle(change, object);
    }

    /// Adds a list of definitions to the catalog. Definitions for which `keep` returns false are removed; `None`
    /// keeps all.
    pub fn relist(&self, objects: impl IntoIterator<Item = Object>, keep: Option<&dyn Fn(&str) -> bool>) {
        let mut catalog = self.catalog.lock();
        for object in objects {
            catalog.handle(Change::Added, &object);
        }
        if let Some(keep) = keep {
            catalog.retain(keep);
        }
    }

    /// Assigns names to each changed definition, passes the resources to `install` if they changed, and returns the
    /// resulting work. Wakes the requests that wait for a definition.
    ///
    /// Also returns the duration of the steps whose cost grows with the number of all definitions: the collection and
    /// the installation of the resources. `None` if the resources are unchanged.
    pub fn apply_changes(&self, install: impl FnOnce(&[Arc<Resource>])) -> (Vec<Work>, Option<Duration>) {
        let mut catalog = self.catalog.lock();
        catalog.assign_names();
        let begun = Instant::now();
        let replaced_in = catalog.take_changed().map(|resources| {
            install(&resources);
            drop(resources);
            begun.elapsed()
        });
        let work = catalog.work();
        drop(catalog);
        self.applied.send_modify(|count| *count += 1);
        (work, replaced_in)
    }

    /// Returns the work that one definition needs in its current state.
    pub fn pending_work(&self, name: &str) -> Option<Work> {
        self.catalog.lock().pending_work(name)
    }

    /// Records the result of a check of schemas: the condition for the status, or `None` if the schemas are structural.
    /// A result for another generation than the present one is ignored. Wakes the requests that wait for a definition.
    pub fn schemas_checked(&self, work: &SchemaWork, condition: Option<Condition>) {
        self.catalog.lock().schemas_checked(work, condition);
        self.applied.send_modify(|count| *count += 1);
    }

    /// Waits until this server has applied this revision of a definition, or a later one, and has written the
    /// definition's conditions. Returns false after a timeout of three seconds.
    pub async fn has_applied(&self, name: &str, revision: Revision) -> bool {
        let mut applied = self.applied.subscribe();
        let settled = async {
            while !self.catalog.lock().is_settled(name, revision) {
                if applied.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(CATCH_UP_MAX, settled).await.unwrap_or(false)
    }
}
