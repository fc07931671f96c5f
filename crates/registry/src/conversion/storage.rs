//! [`ConvertedStorage`]: a store that returns the objects of a definition in one version.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, ReadError, Reread, Storage, StoreFault,
    StoreStats, UpdateError, Watch, WatchError,
};

use super::converter::REVIEW_OBJECTS_MAX;
use super::watch::ConvertedItems;
use crate::custom::Form;
use crate::tree::{encode_tree, parse_tree};

/// The number of bytes that a list converts before the task yields.
const CHUNK_BYTES: usize = 1 << 20;

/// The treatment of the previous values in watch events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviousValues {
    /// Previous values are converted, for a reader without copies of the objects.
    Converted,
    /// Previous values are dropped, because the reader is a cache and has copies.
    Dropped,
}

/// A store whose reads and watches return objects in the version of a [`Form`]. A value that is not an object stays
/// unchanged. A failed conversion returns [`StoreFault::Unconvertible`].
///
/// Caches read through this store. The write pipeline uses the store itself, because it compares stored bytes.
pub(crate) struct ConvertedStorage {
    inner: Arc<dyn Storage>,
    form: Form,
    previous: PreviousValues,
}

impl ConvertedStorage {
    pub(crate) fn new(inner: Arc<dyn Storage>, form: Form, previous: PreviousValues) -> Self {
        ConvertedStorage { inner, form, previous }
    }
}

/// Converts entries in place, in as few reviews as possible.
pub(super) async fn convert_entries(form: &Form, entries: Vec<&mut KeyValue>) -> Result<(), StoreFault> {
    let mut converted = Vec::with_capacity(entries.len());
    let mut trees = Vec::with_capacity(entries.len());
    for entry in entries {
        let Ok(mut tree) = parse_tree(&entry.value) else { continue };
        if tree.contains_key("metadata") {
            form.complete_tree(&mut tree, || parse_tree(&entry.value).unwrap_or_default());
            trees.push(tree);
            converted.push(entry);
        }
    }
    let trees = form.show_completed(trees, None).await.map_err(|error| StoreFault::Unconvertible(error.to_string()))?;
    for (entry, tree) in converted.into_iter().zip(trees) {
        let value = encode_tree(&tree);
        if value != entry.value {
            entry.value = value;
        }
    }
    Ok(())
}

#[async_trait]
impl Storage for ConvertedStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let (mut found, revision) = self.inner.get(key).await?;
        convert_entries(&self.form, found.iter_mut().collect()).await?;
        Ok((found, revision))
    }

    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        let (mut read, revision) = self.inner.get_unless(key, known).await?;
        if let Reread::Changed(found) = &mut read {
            convert_entries(&self.form, found.iter_mut().collect()).await?;
        }
        Ok((read, revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let mut page = self.inner.list(query).await?;
        let mut rest = &mut page.items[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |entry: &&KeyValue| {
                bytes += entry.value.len();
                bytes <= CHUNK_BYTES
            };
            let count = rest.iter().take(REVIEW_OBJECTS_MAX).take_while(fits).count().max(1);
            let (chunk, behind) = rest.split_at_mut(count);
            convert_entries(&self.form, chunk.iter_mut().collect()).await?;
            tokio::task::yield_now().await;
            rest = behind;
        }
        Ok(page)
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.list_keys(query).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.inner.create(key, value, ttl).await
    }

    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        self.inner.normal_form(key, value)
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
        let (items, progress) = self.inner.watch(range, after).await?.into_parts();
        Ok(Watch::new(ConvertedItems::new(items, self.form.clone(), self.previous), progress))
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
