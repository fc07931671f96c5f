//! [`ChangedNames`]: collects the names of created or changed objects of a cluster-scoped resource. A controller takes
//! the names and processes each object.

use std::collections::BTreeSet;

use listwatch_meta::Object;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::feed::ObjectCopy;

/// The names of objects that may need work.
pub(crate) struct ChangedNames {
    /// Group, version and plural name.
    resource: (&'static str, &'static str, &'static str),
    names: Mutex<BTreeSet<String>>,
    notify: Notify,
}

impl ChangedNames {
    /// Creates an empty set for a resource.
    pub(crate) fn of(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        ChangedNames { resource: (group, version, plural), names: Mutex::default(), notify: Notify::default() }
    }

    pub(crate) fn add(&self, names: impl IntoIterator<Item = String>) {
        self.names.lock().extend(names);
        self.notify.notify_one();
    }

    /// Waits until the set is not empty, then takes all names.
    pub(crate) async fn take(&self) -> BTreeSet<String> {
        loop {
            let names = std::mem::take(&mut *self.names.lock());
            if !names.is_empty() {
                return names;
            }
            self.notify.notified().await;
        }
    }
}

impl ObjectCopy for &ChangedNames {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        self.resource
    }

    fn set(&self, object: &Object) -> bool {
        self.add([object.name().to_owned()]);
        true
    }

    fn remove(&self, _: &str, _: &str) {}

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        self.add(objects.iter().map(|object| object.name().to_owned()));
        Vec::new()
    }
}
