//! Periodic check of the cache: [`compare`] walks cache and store side by side at one revision.
//!
//! A difference is caused by a bug of the cache, or by a store that lost or changed data. The cache
//! then stops serving the wrong state.

use std::collections::BTreeSet;
use std::sync::Arc;

use listwatch_meta::{Key, KeyRange};
use listwatch_storage::ListQuery;

use crate::shared::Shared;

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AuditResult {
    /// Cache and store have the same keys and revisions.
    Equal,
    /// Cache and store differ at this key. Further keys may also differ.
    Different(Key),
    /// The store could not be read at the cache's revision.
    Failed,
}

/// Compares keys and revisions of all objects, at the cache's current revision. Values are not
/// read, because a revision determines the value.
pub(crate) async fn compare(shared: Arc<Shared>) -> AuditResult {
    let (snapshot, revision, undecodable) = {
        let cache = shared.cache.read();
        let undecodable: BTreeSet<Key> = cache.undecodable().cloned().collect();
        (cache.snapshot().clone(), cache.revision(), undecodable)
    };
    let mut range = KeyRange::resource(&shared.config.prefix);
    // Both are in key order: a cached key that the store has passed is not stored.
    let mut cached = snapshot.iter().peekable();
    loop {
        let limit = shared.config.limits.list_page_objects;
        let query = ListQuery { range: range.clone(), at: Some(revision), limit };
        let Ok(page) = shared.storage.list_keys(query).await else { return AuditResult::Failed };
        for entry in page.items.iter().filter(|entry| !undecodable.contains(&entry.key)) {
            match cached.next() {
                Some(object) if *object.key() == entry.key && object.revision() == entry.modified => {}
                // Either the cached key is not stored, or a smaller stored key is not cached.
                Some(object) => return AuditResult::Different(object.key().min(&entry.key).clone()),
                None => return AuditResult::Different(entry.key.clone()),
            }
        }
        match page.items.last() {
            Some(last) if page.more => range = range.starting_at(&format!("{}\0", last.key)),
            _ => break,
        }
    }
    cached.next().map_or(AuditResult::Equal, |object| AuditResult::Different(object.key().clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use async_trait::async_trait;
    use bytes::Bytes;
    use listwatch_meta::{Change, Object, ObjectShape, Revision};
    use listwatch_storage::{
        Capabilities, CreateError, DeleteError, KeyValue, ListPage, MemoryStorage, ReadError, Storage, StoreFault,
        StoreStats, UpdateError, Watch, WatchError,
    };

    use super::*;
    use crate::cache::Input;
    use crate::handle::ResourceConfig;
    use crate::limits::Limits;

    /// A store that counts the bytes of the values in its lists.
    struct Counted {
        inner: Arc<MemoryStorage>,
        bytes: AtomicU64,
    }

    impl Counted {
        fn count(&self, page: ListPage) -> ListPage {
            let bytes: usize = page.items.iter().map(|entry| entry.value.len()).sum();
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            page
        }
    }

    #[async_trait]
    impl Storage for Counted {
        async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
            self.inner.get(key).await
        }
        async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
            self.inner.list(query).await.map(|page| self.count(page))
        }
        async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
            self.inner.list_keys(query).await.map(|page| self.count(page))
        }
        async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
            self.inner.create(key, value, ttl).await
        }
        async fn update(
            &self,
            key: &Key,
            expected: Revision,
            value: Bytes,
            ttl: Option<Duration>,
        ) -> Result<Revision, UpdateError> {
            self.inner.update(key, expected, value, ttl).await
        }
        async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
            self.inner.delete(key, expected).await
        }
        async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
            self.inner.watch(range, after).await
        }
        async fn current_revision(&self) -> Result<Revision, ReadError> {
            self.inner.current_revision().await
        }
        async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
            self.inner.compact(revision).await
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
        async fn health(&self) -> Result<(), StoreFault> {
            self.inner.health().await
        }
        async fn stats(&self) -> Result<StoreStats, StoreFault> {
            self.inner.stats().await
        }
    }

    fn key(name: &str) -> Key {
        Key::new("pods", Some("a"), name).unwrap()
    }

    /// Stores objects of these names and caches those of `cached`, each at its revision or one
    /// earlier. Returns the audit's result, and the bytes of values that the audit read.
    async fn audited(stored: &str, cached: &[(&str, bool)]) -> (AuditResult, u64) {
        let store = Arc::new(Counted { inner: MemoryStorage::new(), bytes: AtomicU64::new(0) });
        let mut revision = Revision::new(1);
        let mut at = std::collections::BTreeMap::new();
        for name in stored.split_whitespace() {
            revision = store.create(&key(name), r#"{"metadata":{}}"#.into(), None).await.unwrap();
            at.insert(name, revision);
        }
        let config = ResourceConfig {
            name: "pods".to_owned(),
            prefix: "pods".to_owned(),
            shape: Arc::new(ObjectShape::new(true, Vec::new())),
            indexed_fields: Vec::new(),
            limits: Limits { list_page_objects: 2, ..Limits::default() },
        };
        let shared = Arc::new(Shared::new(store.clone(), config));
        {
            let mut cache = shared.cache.write();
            let mut undispatched = Vec::new();
            let mut inputs: Vec<_> = cached
                .iter()
                .map(|(name, late)| {
                    let revision = at.get(name).copied().unwrap_or(revision);
                    (if *late { revision.previous() } else { revision }, *name)
                })
                .collect();
            inputs.sort_unstable();
            for (revision, name) in inputs {
                let object = Object::from_stored(
                    key(name),
                    revision,
                    Change::Added,
                    br#"{"metadata":{}}"#,
                    &shared.config.shape,
                );
                cache.handle_input(Instant::now(), Input::Put(object.unwrap()), &mut undispatched);
            }
            cache.handle_input(Instant::now(), Input::Progress(revision), &mut undispatched);
        }
        let finding = compare(shared).await;
        (finding, store.bytes.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn audit_names_the_key_that_differs_and_reads_no_values() {
        let (same, late) = (false, true);
        for (stored, cached, expected) in [
            ("a b c d e", &[("a", same), ("b", same), ("c", same), ("d", same), ("e", same)][..], None),
            ("", &[], None),
            ("a b c d e", &[("a", same), ("b", same), ("c", same), ("e", same)], Some("d")),
            ("a b c d e", &[("a", same), ("b", same), ("c", same), ("d", same)], Some("e")),
            ("a b d e", &[("a", same), ("b", same), ("c", same), ("d", same), ("e", same)], Some("c")),
            ("a b c d", &[("a", same), ("b", same), ("c", same), ("d", same), ("e", same)], Some("e")),
            ("b c", &[("a", same), ("b", same), ("c", same)], Some("a")),
            ("", &[("x", same)], Some("x")),
            ("a b c d", &[("a", same), ("b", same), ("c", late), ("d", same)], Some("c")),
        ] {
            let expected = expected.map_or(AuditResult::Equal, |name| AuditResult::Different(key(name)));
            assert_eq!(audited(stored, cached).await, (expected, 0), "stored: {stored}, cached: {cached:?}");
        }
    }
}
