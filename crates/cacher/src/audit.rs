//! Is the cache true? [`compare`] walks cache and store side by side at one revision, now and then.
//!
//! It should never find anything. Where it does, a promise was broken (by a bug here, or by a store
//! that lost or invented something), and saying so is better than serving it on.

use std::collections::BTreeSet;
use std::sync::Arc;

use listwatch_meta::{Key, KeyRange};
use listwatch_storage::ListQuery;

use crate::shared::Shared;

/// What a comparison found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Cache and store agree.
    Equal,
    /// They differ at this key, and perhaps at others.
    Different(Key),
    /// The store could not be asked at the cache's revision.
    Skipped,
}

/// Compares keys and revisions of all objects, at the cache's present revision.
pub(crate) async fn compare(shared: Arc<Shared>) -> Finding {
    let (snapshot, revision, undecodable) = {
        let cache = shared.cache.read();
        let undecodable: BTreeSet<Key> = cache.undecodable().cloned().collect();
        (cache.snapshot().clone(), cache.revision(), undecodable)
    };
    let mut range = KeyRange::resource(&shared.config.prefix);
    let mut cached = 0;
    loop {
        let limit = shared.config.limits.list_page_objects;
        let Ok(page) = shared.storage.list(ListQuery { range: range.clone(), at: Some(revision), limit }).await else {
            return Finding::Skipped;
        };
        for entry in page.items.iter().filter(|entry| !undecodable.contains(&entry.key)) {
            match snapshot.get(entry.key.as_str()) {
                Some(object) if object.revision() == entry.modified => cached += 1,
                _ => return Finding::Different(entry.key.clone()),
            }
        }
        match page.items.last() {
            Some(last) if page.more => range = range.starting_at(&format!("{}\0", last.key)),
            _ => break,
        }
    }
    if cached == snapshot.len() {
        return Finding::Equal;
    }
    // Every stored object is cached, so something is cached that is not stored.
    let invented = snapshot.iter().next().map(|object| object.key().clone());
    invented.map_or(Finding::Equal, Finding::Different)
}
