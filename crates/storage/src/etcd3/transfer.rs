//! Exports everything below the prefix at one revision, with the remaining TTLs of leased keys.
//!
//! etcd returns the lease of each key, also at a former revision, and reports a lease's remaining
//! time on request. Many keys share a lease ([`super::lease`]), so each lease is queried once.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use listwatch_meta::Revision;
use tokio::time::Instant;

use super::keys::number;
use super::proto::{self, RangeRequest};
use super::{Etcd3, Failure, Shared};
use crate::error::ReadError;
use crate::transfer::{PAGE_BYTES, PAGE_RECORDS_MAX, Record, Records, RecordsError, Source};

/// The number of keys of the first page, before their size is known.
const FIRST_PAGE_RECORDS: usize = 128;

/// The largest number of remembered leases.
const LEASES_MAX: usize = 100_000;

#[async_trait]
impl Source for Etcd3 {
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError> {
        self.shared.check_open()?;
        let (next, end) = self.shared.keys.everything();
        let (from, to) = (&next, &end);
        let counted = self.shared.endpoints.read(|connection| async move {
            let (key, range_end) = (from.clone(), to.clone());
            connection.calls.range(RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() }).await
        });
        let counted = counted.await.map_err(Failure::into_fault)?;
        let at = super::header_revision(counted.header.map(|header| header.revision)).map_err(Failure::into_fault)?;
        let count = u64::try_from(counted.count).unwrap_or(0);
        let (page_records, ends) = (FIRST_PAGE_RECORDS, HashMap::new());
        Ok(Box::new(EtcdRecords { shared: &self.shared, next: Some(next), end, at, count, page_records, ends }))
    }
}

struct EtcdRecords<'a> {
    shared: &'a Shared,
    /// The first key of the next page; `None` after the last.
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    at: Revision,
    count: u64,
    page_records: usize,
    /// The end of each lease seen so far.
    ends: HashMap<i64, Instant>,
}

#[async_trait]
impl Records for EtcdRecords<'_> {
    fn revision(&self) -> Revision {
        self.at
    }

    fn count(&self) -> Option<u64> {
        Some(self.count)
    }

    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError> {
        // A page may consist of foreign keys only.
        while let Some(from) = self.next.take() {
            let page = match self.page(from).await {
                Ok(page) => page,
                Err(failure) => return Err(self.shared.read_error(failure, self.at).await.into()),
            };
            let mut records = Vec::with_capacity(page.len());
            for kv in page {
                let ttl = match kv.lease {
                    0 => None,
                    lease => Some(self.left(lease).await.map_err(|failure| ReadError::Fault(failure.into_fault()))?),
                };
                records.extend(self.shared.keys.entry(kv).map(|entry| Record { entry, ttl }));
            }
            if !records.is_empty() {
                return Ok(records);
            }
        }
        Ok(Vec::new())
    }
}

impl EtcdRecords<'_> {
    async fn page(&mut self, from: Vec<u8>) -> Result<Vec<proto::KeyValue>, Failure> {
        let (start, end, at) = (&from, &self.end, number(self.at));
        let limit = i64::try_from(self.page_records).unwrap_or(i64::MAX);
        let response = self.shared.endpoints.read(|connection| async move {
            let (key, range_end) = (start.clone(), end.clone());
            connection
                .calls
                .range(RangeRequest { key, range_end, revision: at, limit, ..RangeRequest::default() })
                .await
        });
        let response = response.await?;
        let bytes: usize = response.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        let average = (bytes / response.kvs.len().max(1)).max(1);
        self.page_records = (PAGE_BYTES / average).clamp(1, PAGE_RECORDS_MAX);
        self.next = response.kvs.last().filter(|_| response.more).map(|last| {
            let mut next = last.key.clone();
            next.push(0);
            next
        });
        Ok(response.kvs)
    }

    /// The remaining time of a lease. A lease that ended meanwhile has the minimum: the key existed
    /// at this revision, and expires at once in the target.
    async fn left(&mut self, lease: i64) -> Result<Duration, Failure> {
        const LEAST: Duration = Duration::from_millis(1);
        let ends = match self.ends.get(&lease) {
            Some(ends) => *ends,
            None => {
                let answer = self
                    .shared
                    .endpoints
                    .read(|connection| async move { connection.calls.lease_time_to_live(lease).await });
                // etcd counts whole seconds down; the current one is not over.
                let seconds = u64::try_from(answer.await?.ttl).map_or(0, |seconds| seconds + 1);
                if self.ends.len() >= LEASES_MAX {
                    self.ends.clear();
                }
                let ends = Instant::now() + Duration::from_secs(seconds);
                self.ends.insert(lease, ends);
                ends
            }
        };
        Ok(ends.saturating_duration_since(Instant::now()).max(LEAST))
    }
}
