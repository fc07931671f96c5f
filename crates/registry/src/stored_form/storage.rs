//! [`TransformedStorage`]: a store that converts values between their stored form and JSON, and times its requests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, ReadError, Reread, Storage, StoreFault,
    StoreStats, UpdateError, ValueReader, Watch, WatchError,
};

use super::requests::{Operation, RequestTimer};
use super::{PlainJson, StoredForm};

/// The number of bytes that a list converts before it yields to other tasks.
const YIELD_BYTES: usize = 256 << 10;

/// A store with values in a [`StoredForm`].
pub(super) struct TransformedStorage {
    inner: Arc<dyn Storage>,
    form: Arc<StoredForm>,
}

impl TransformedStorage {
    pub(super) fn new(inner: Arc<dyn Storage>, form: Arc<StoredForm>) -> Self {
        TransformedStorage { inner, form }
    }

    fn read(&self, mut entry: KeyValue) -> KeyValue {
        let read = self.form.read(&entry.key, std::mem::take(&mut entry.value), true);
        KeyValue { value: read.value, stale: read.stale, ..entry }
    }
}

/// Awaits a request to the inner store. The timer ends with the request, before values are converted.
async fn timed<T>(timer: Option<RequestTimer>, request: impl Future<Output = T>) -> T {
    let result = request.await;
    drop(timer);
    result
}

#[async_trait]
impl Storage for TransformedStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let timer = self.form.start_request(Operation::Get, key.as_str());
        let (found, revision) = timed(timer, self.inner.get(key)).await?;
        Ok((found.map(|found| self.read(found)), revision))
    }

    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        let timer = self.form.start_request(Operation::Get, key.as_str());
        let (read, revision) = timed(timer, self.inner.get_unless(key, known)).await?;
        let read = match read {
            Reread::Changed(found) => Reread::Changed(found.map(|found| self.read(found))),
            Reread::Unchanged => Reread::Unchanged,
        };
        Ok((read, revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let plain = self.form.plain_json(&query.range);
        let timer = self.form.start_list(Operation::List, &query.range);
        let mut page = timed(timer, self.inner.list(query)).await?;
        let mut converted = 0;
        for entry in &mut page.items {
            if plain.has(&entry.value) {
                continue;
            }
            converted += entry.value.len();
            let read = self.form.read(&entry.key, std::mem::take(&mut entry.value), false);
            (entry.value, entry.stale) = (read.value, read.stale);
            if converted >= YIELD_BYTES {
                converted = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(page)
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let timer = self.form.start_list(Operation::ListOnlyKeys, &query.range);
        timed(timer, self.inner.list_keys(query)).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let (value, timer) = self.form.start_write(Operation::Create, key, value)?;
        match timed(timer, self.inner.create(key, value, ttl)).await {
            Err(CreateError::AlreadyExists { key, current }) => {
                Err(CreateError::AlreadyExists { key, current: self.read(current) })
            }
            created => created,
        }
    }

    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        self.form.normal_form(key, value)
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        let (value, timer) = self.form.start_write(Operation::Update, key, value)?;
        match timed(timer, self.inner.update(key, expected, value, ttl)).await {
            Err(UpdateError::Conflict { current }) => {
                Err(UpdateError::Conflict { current: current.map(|current| self.read(current)) })
            }
            updated => updated,
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        let timer = self.form.start_request(Operation::Delete, key.as_str());
        match timed(timer, self.inner.delete(key, expected)).await {
            Err(DeleteError::Conflict { current }) => {
                Err(DeleteError::Conflict { current: current.map(|current| self.read(current)) })
            }
            deleted => deleted,
        }
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        let plain = self.form.plain_json(&range);
        let json_is_plain = matches!(plain, PlainJson::All);
        let form = Arc::clone(&self.form);
        let read = Arc::new(move |key: &Key, stored: Bytes| match plain.has(&stored) {
            true => stored,
            false => form.read(key, stored, false).value,
        });
        Ok(self.inner.watch(range, after).await?.with_reader(ValueReader { read, json_is_plain }))
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
