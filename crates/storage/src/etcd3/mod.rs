//! etcd v3 behind the [`Storage`] contract, as kube-apiserver uses it.
//!
//! ```text
//!   get, list ───▶ pager ──────▶┐
//!   create, update, delete ────▶│ endpoints: one member after the other, ──gRPC──▶ etcd
//!        └─ TTL ─▶ lease book ─▶│ safe requests are retried at another
//!   watch ───────▶ watch_stream ┘
//!                    └─ reader ─▶ incoming channel ─▶ fold ─▶ result channel ─▶ Watch
//! ```
//!
//! - **Layout.** An object is stored unchanged at `<prefix><key>`. `etcdctl get --prefix /registry/` therefore shows
//!   it, and the JSON that a kube-apiserver stored (custom resources) is readable. Foreign keys below the prefix are
//!   skipped, logged and counted ([`Etcd3::foreign_keys`]).
//! - **Order.** Revisions are etcd's. Every write is a transaction on the key's `mod_revision`.
//! - **Watches recover.** A lost connection is resumed after the last delivered revision, at
//!   another member if necessary, without loss or repetition. A silent peer is detected within
//!   [`DEAD_AFTER`]. If the store no longer has the history, the watch ends with
//!   [`Expired`](crate::WatchItem::Expired).
//! - **A replaced history is detected** (an older backup, an emptied directory, another cluster). The call that detects
//!   the replacement fails with [`StoreFault::Corrupt`], every watch ends with `Expired`, and later calls use the new
//!   state.
//! - **Limits.** See [`INCOMING_RESPONSES`], [`RESULT_MESSAGES`], [`WATCH_BYTES`], [`WATCHES_BYTES`],
//!   [`WATCH_WINDOW_BYTES`].
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use listwatch_meta::{KeyRange, Revision};
//! use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
//! use listwatch_storage::Storage;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Etcd3::connect(Etcd3Options::new(["http://127.0.0.1:2379"])).await?;
//! store.start_compactor(Duration::from_secs(300));
//! let mut watch = store.watch(KeyRange::resource("pods"), store.current_revision().await?).await?;
//! while let Some(item) = watch.next().await {
//!     println!("{item:?}");
//! }
//! # Ok(()) }
//! ```

mod client;
mod compact;
mod endpoints;
mod entry_sizes;
mod fault;
mod history;
mod keys;
mod lease;
mod liveness;
mod options;
mod pager;
mod proto;
mod replacement;
mod tls;
mod transfer;
mod version;
mod watch;
mod watch_budget;
mod watch_stream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::endpoints::{Connection, Endpoints, VersionAnswer};
use self::entry_sizes::EntrySizes;
use self::fault::{Cause, Failure};
use self::history::{Floor, History, Replaced};
use self::keys::{Keyspace, number, revision};
use self::lease::{LeaseBook, LeaseChoice};
use self::pager::{Page, PageRequest, Pager};
use self::proto::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use self::version::Version;
use self::watch_budget::SharedBudget;
use self::watch_stream::AbortOnDrop;
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
use crate::types::{Capabilities, KeyValue, ListPage, ListQuery, Reread, Storage, StoreStats, VALUE_BYTES_MAX, Watch};

pub use self::compact::COMPACT_KEY;
pub use self::liveness::DEAD_AFTER;
pub use self::options::{ConnectError, DEFAULT_PREFIX, Etcd3Options, WATCH_WINDOW_BYTES};
pub use self::watch_budget::{WATCH_BYTES, WATCH_RESERVE_BYTES, WATCHES_BYTES};
pub use self::watch_stream::{INCOMING_RESPONSES, RESULT_MESSAGES};

/// Time within which [`Storage::health`] answers.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the other members to report their versions after the first one answered.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of version requests to the members whose version is unknown.
const LEARN_INTERVAL: Duration = Duration::from_secs(10);

/// A store in etcd v3; see the [module](self).
///
/// Dropping it, or [`Etcd3::close`], ends its watches and its background tasks.
pub struct Etcd3 {
    shared: Arc<Shared>,
    compactor: Mutex<Option<AbortOnDrop>>,
    _learner: AbortOnDrop,
}

/// The state shared by requests and watches.
struct Shared {
    keys: Keyspace,
    endpoints: Endpoints,
    history: History,
    leases: Mutex<LeaseBook>,
    /// The sizes of listed entries, by resource.
    sizes: EntrySizes,
    watch_budget: SharedBudget,
    /// Held while a lease is granted, so that a burst of creates grants one.
    granting: tokio::sync::Mutex<()>,
    /// The newest compaction known to this process; 0 for none.
    compacted: AtomicU64,
    closed: tokio::sync::watch::Sender<bool>,
}

impl Etcd3 {
    /// The normalized prefix of all keys: `/registry` for `registry/`, and an empty one for all of etcd.
    pub fn prefix(&self) -> &str {
        self.shared.keys.prefix()
    }

    /// Connects to etcd and sends one read. Fails as soon as all members have failed. The members
    /// have [`Etcd3Options::dial_timeout`] plus 1 second to answer. The read then has another
    /// `dial_timeout`.
    ///
    /// # Errors
    /// [`ConnectError`]. The message is one line for the operator.
    pub async fn connect(options: Etcd3Options) -> Result<Arc<Self>, ConnectError> {
        let dials = options.prepare()?;
        let shared = Arc::new(Shared {
            keys: Keyspace::new(&options.prefix),
            endpoints: Endpoints::new(&options, dials),
            history: History::new(),
            leases: Mutex::new(LeaseBook::default()),
            sizes: EntrySizes::default(),
            watch_budget: SharedBudget::new(),
            granting: tokio::sync::Mutex::new(()),
            compacted: AtomicU64::new(0),
            closed: tokio::sync::watch::Sender::new(false),
        });
        connect_members(&shared, options.dial_timeout).await?;
        // The version shows that a member answers; a read shows that the cluster works and grants
        // access.
        let first = tokio::time::timeout(options.dial_timeout, shared.current_revision()).await;
        match first {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => return Err(refusal(failure.into_fault())),
            Err(_) => {
                let reasons = "etcd answers, but not to a read: does the cluster have a leader?".to_owned();
                return Err(ConnectError::Unreachable { reasons });
            }
        }
        let learning = shared.clone();
        let learner = AbortOnDrop(tokio::spawn(async move { learning.learn_versions().await }));
        Ok(Arc::new(Etcd3 { shared, compactor: Mutex::new(None), _learner: learner }))
    }

    /// Compacts etcd's history every `interval`, coordinated with every other server on this etcd
    /// (including kube-apiservers): revisions older than two intervals are dropped. Kubernetes'
    /// default is 5 minutes. Zero stops it; a second call replaces the interval.
    pub fn start_compactor(&self, interval: Duration) {
        let task = (!interval.is_zero()).then(|| {
            let shared = self.shared.clone();
            AbortOnDrop(tokio::spawn(async move { shared.run_compactor(interval).await }))
        });
        *self.compactor.lock() = task;
    }

    /// Ends all watches; every later call fails with [`StoreFault::Closed`].
    pub fn close(&self) {
        self.compactor.lock().take();
        self.shared.closed.send_replace(true);
    }

    /// The number of foreign keys found below the prefix. The first keys are logged by name. Foreign keys never hide an
    /// object.
    pub fn foreign_keys(&self) -> u64 {
        self.shared.keys.foreign()
    }
}

impl Drop for Etcd3 {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Etcd3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> =
            (0..self.shared.endpoints.len()).map(|index| self.shared.endpoints.url(index)).collect();
        f.debug_struct("Etcd3").field("endpoints", &endpoints).field("keys", &self.shared.keys).finish_non_exhaustive()
    }
}

/// Requests the versions of all members in parallel. At least one must answer.
async fn connect_members(shared: &Arc<Shared>, dial_timeout: Duration) -> Result<(), ConnectError> {
    let mut asked = tokio::task::JoinSet::new();
    for index in 0..shared.endpoints.len() {
        let shared = shared.clone();
        asked.spawn(async move { (index, shared.learn_version(index, dial_timeout).await) });
    }
    let mut deadline = Instant::now() + dial_timeout + OTHERS_TIMEOUT;
    let mut met = false;
    let mut faults = Vec::new();
    while let Ok(Some(answer)) = tokio::time::timeout_at(deadline, asked.join_next()).await {
        match answer {
            Ok((_, Ok(_))) if !met => {
                met = true;
                deadline = Instant::now() + OTHERS_TIMEOUT;
            }
            Ok((_, Ok(_))) => {}
            // At the first contact this means that two members belong to different clusters.
            Ok((
                index,
                Err(Failure {
                    cause: Cause::Replaced(reason) | Cause::Astray(reason) | Cause::Unconfirmed(reason),
                    ..
                }),
            )) => {
                let endpoint = shared.endpoints.url(index).to_owned();
                return Err(ConnectError::Endpoint { endpoint, reason });
            }
            Ok((_, Err(failure))) => faults.push(failure.into_fault()),
            Err(join) => faults.push(StoreFault::Unavailable(join.to_string())),
        }
    }
    if met {
        return Ok(());
    }
    if let Some(denied) = faults.iter().find(|fault| matches!(fault, StoreFault::Denied(_))) {
        return Err(ConnectError::Denied { fault: denied.clone() });
    }
    let reasons: Vec<_> = faults
        .into_iter()
        .map(|fault| match fault {
            StoreFault::Unavailable(reason) => reason,
            other => other.to_string(),
        })
        .collect();
    Err(ConnectError::Unreachable { reasons: reasons.join("; ") })
}

fn refusal(fault: StoreFault) -> ConnectError {
    match fault {
        StoreFault::Unavailable(reasons) => ConnectError::Unreachable { reasons },
        fault => ConnectError::Denied { fault },
    }
}

/// Whether a list includes values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Carried,
    LeftOut,
}

impl Shared {
    fn check_open(&self) -> Result<(), StoreFault> {
        if *self.closed.borrow() { Err(StoreFault::Closed) } else { Ok(()) }
    }

    /// Completes when the store is closed.
    async fn closed(&self) {
        // The sender lives as long as this value.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// The store's revision, from the header of a linearizable read of a key that never exists.
    async fn current_revision(&self) -> Result<Revision, Failure> {
        Ok(self.range(self.probe()).await?.1)
    }

    /// Whether etcd answers a small read within [`HEALTH_TIMEOUT`].
    async fn is_answering(&self) -> bool {
        matches!(tokio::time::timeout(HEALTH_TIMEOUT, self.current_revision()).await, Ok(Ok(_)))
    }

    /// A read that finds nothing, for its response header.
    fn probe(&self) -> RangeRequest {
        RangeRequest { key: self.keys.never(), keys_only: true, limit: 1, ..RangeRequest::default() }
    }

    /// A linearizable read, and the store's revision when it was answered.
    async fn range(&self, request: RangeRequest) -> Result<(RangeResponse, Revision), Failure> {
        let request = &request;
        let mut astray = 0;
        loop {
            let floor = self.history.floor();
            let call = |connection: Arc<Connection>| async move {
                Ok((connection.index, connection.calls.range(request.clone()).await?))
            };
            let (index, response) = self.endpoints.read(call).await?;
            let failure = match self.check_header(floor, response.header.as_ref())? {
                Ok(revision) => return Ok((response, revision)),
                Err(replaced) => Box::pin(self.confirm_replaced(floor, index, replaced)).await,
            };
            astray += 1;
            if !matches!(failure.cause, Cause::Astray(_)) || astray > self.endpoints.len() {
                return Err(failure);
            }
        }
    }

    /// The revision of a linearizable response to a request sent at `floor`, or the evidence that
    /// etcd's history was replaced.
    fn check_header(
        &self,
        floor: Floor,
        header: Option<&ResponseHeader>,
    ) -> Result<Result<Revision, Replaced>, Failure> {
        let header = header.ok_or_else(|| Failure::invalid_answer("a response without a header"))?;
        let now = revision(header.revision);
        Ok(self.history.handle_header(floor, header.cluster_id, now).map(|()| now))
    }

    /// Requests the version of a member (`None` if denied) and the id of its cluster.
    async fn learn_version(&self, index: usize, limit: Duration) -> Result<Option<Version>, Failure> {
        let floor = self.history.floor();
        let (version, cluster) = match self.endpoints.learn_version(index, limit).await? {
            VersionAnswer::Version(version, header) => {
                (version, header.map(|header| (header.cluster_id, revision(header.revision))))
            }
            VersionAnswer::Denied(reason) => {
                // The header of any response names the cluster; this read needs only the prefix,
                // and no leader.
                let request = |connection: Arc<Connection>| async move {
                    connection.calls.range(RangeRequest { serializable: true, ..self.probe() }).await
                };
                let header = self.endpoints.try_call(index, limit, request).await?.header;
                self.endpoints.handle_version_denied(index, &reason);
                (None, header.map(|header| (header.cluster_id, revision(header.revision))))
            }
        };
        if let Some((cluster, now)) = cluster
            && let Err(replaced) = self.history.handle_cluster(cluster, now)
        {
            return Err(Box::pin(self.confirm_replaced(floor, index, replaced)).await);
        }
        Ok(version)
    }

    /// Checks that the history still contains everything delivered up to `after`, with `witness` as the last object.
    /// The request goes to the member of the new watch, which needs the quorum to respond. Returns the store's
    /// revision.
    async fn check_history(
        &self,
        index: usize,
        limit: Duration,
        after: Revision,
        witness: Option<&(Key, Revision)>,
    ) -> Result<Revision, Failure> {
        let floor = self.history.floor();
        let read = async |key: Vec<u8>, at: Revision| {
            let request = &RangeRequest { key, revision: number(at), ..self.probe() };
            let call = |connection: Arc<Connection>| async move { connection.calls.range(request.clone()).await };
            let response = self.endpoints.try_call(index, limit, call).await?;
            let now = match self.check_header(floor, response.header.as_ref())? {
                Ok(now) => now,
                Err(replaced) => return Err(Box::pin(self.confirm_replaced(floor, index, replaced)).await),
            };
            Ok::<_, Failure>((response.kvs.first().map(|kv| revision(kv.mod_revision)), now))
        };
        let (_, now) = read(self.keys.never(), Revision::ZERO).await?;
        if self.history.is_former(after, now) {
            return Err(Failure::replaced(&Replaced::Former { at: after, now }));
        }
        let Some((key, at)) = witness else { return Ok(now) };
        match read(self.keys.full(key.as_str()), *at).await {
            Ok((there, _)) if there == Some(*at) => Ok(now),
            Ok(_) => {
                let replaced = Replaced::Rewritten { key: key.clone(), at: *at, now };
                Err(Box::pin(self.confirm_replaced(floor, index, replaced)).await)
            }
            // Then the watch ends with Expired, or begins right after the compaction.
            Err(Failure { cause: Cause::Compacted, .. }) => Ok(now),
            Err(failure) => Err(failure),
        }
    }

    /// One page of a range.
    async fn page(&self, request: &PageRequest, values: Values) -> Result<Page, Failure> {
        let (response, revision) = self
            .range(RangeRequest {
                key: request.key.clone(),
                range_end: request.end.clone(),
                revision: number(request.at),
                limit: i64::try_from(request.limit).unwrap_or(0),
                keys_only: values == Values::LeftOut,
                ..RangeRequest::default()
            })
            .await?;
        let received = response.kvs.len();
        let bytes = response.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        let last_key = if response.more { response.kvs.last().map(|kv| kv.key.clone()) } else { None };
        Ok(Page {
            items: response.kvs.into_iter().filter_map(|kv| self.keys.entry(kv)).collect(),
            received,
            bytes,
            last_key,
            more: response.more,
            count: usize::try_from(response.count).unwrap_or(received),
            revision,
        })
    }

    /// Returns a lease for a key that lives for `ttl` from now on.
    async fn lease(&self, ttl: Duration) -> Result<i64, Failure> {
        if let LeaseChoice::Under(lease) = self.leases.lock().place(ttl, Instant::now()) {
            return Ok(lease);
        }
        let _granting = self.granting.lock().await;
        let asked = Instant::now();
        let seconds = match self.leases.lock().place(ttl, asked) {
            LeaseChoice::Under(lease) => return Ok(lease),
            LeaseChoice::Grant { seconds } => i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        // A lease granted twice holds no keys and expires by itself, so the grant is as safe as a
        // read.
        let granted =
            self.endpoints.read(|connection| async move { connection.calls.lease_grant(seconds).await }).await?;
        self.leases.lock().handle_granted(ttl, asked, granted.id);
        Ok(granted.id)
    }

    /// If the key is at `expected`, puts the value, else reads the key; 0 means the key is absent.
    async fn put_if(
        &self,
        key: &Key,
        expected: i64,
        value: &Bytes,
        ttl: Option<Duration>,
    ) -> Result<TxnResponse, Failure> {
        let full = self.keys.full(key.as_str());
        let floor = self.history.floor();
        let mut renewed = false;
        loop {
            let lease = match ttl {
                Some(ttl) => self.lease(ttl).await?,
                None => 0,
            };
            let result = self
                .endpoints
                .write(|connection| {
                    let put = PutRequest { key: full.clone(), value: value.clone(), lease };
                    let put = RequestOp::put(put);
                    let txn = TxnRequest::if_else(Compare::mod_revision(full.clone(), expected), put, full.clone());
                    async move { Ok((connection.index, connection.calls.txn(txn).await?)) }
                })
                .await;
            match result {
                Err(Failure { cause: Cause::LeaseGone, .. }) if !renewed => {
                    self.leases.lock().handle_gone(lease);
                    renewed = true;
                }
                Ok((index, response)) => {
                    self.check_write(floor, index, response.header.as_ref()).await?;
                    return Ok(response);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// If the key is at `expected`, deletes it, else reads it.
    async fn delete_if(&self, key: &Key, expected: i64) -> Result<TxnResponse, Failure> {
        let full = self.keys.full(key.as_str());
        let floor = self.history.floor();
        let (index, response) = self
            .endpoints
            .write(|connection| {
                let delete = RequestOp::delete(full.clone());
                let txn = TxnRequest::if_else(Compare::mod_revision(full.clone(), expected), delete, full.clone());
                async move { Ok((connection.index, connection.calls.txn(txn).await?)) }
            })
            .await?;
        self.check_write(floor, index, response.header.as_ref()).await?;
        Ok(response)
    }

    /// Decodes the response of a transaction: the new revision, or the current state of the key after a conflict.
    fn outcome(&self, response: TxnResponse) -> Result<Result<Revision, Option<KeyValue>>, StoreFault> {
        if response.succeeded {
            let revision = header_revision(response.header.map(|header| header.revision));
            return revision.map(Ok).map_err(Failure::into_fault);
        }
        match response.responses.into_iter().next().and_then(|op| op.response) {
            Some(proto::Response::Range(range)) => {
                Ok(Err(range.kvs.into_iter().next().and_then(|kv| self.keys.entry(kv))))
            }
            _ => Err(Failure::invalid_answer("a refused transaction without its read").into_fault()),
        }
    }

    /// Converts a read's failure for a request at `requested`.
    async fn read_error(&self, failure: Failure, requested: Revision) -> ReadError {
        match failure.cause {
            Cause::Compacted => ReadError::Compacted { requested, oldest: self.known_compacted() },
            Cause::Future => match self.current_revision().await {
                Ok(current) => ReadError::Future { requested, current },
                Err(failure) => ReadError::Fault(failure.into_fault()),
            },
            _ => ReadError::Fault(failure.into_fault()),
        }
    }

    async fn compact(&self, at: Revision) -> Result<(), Failure> {
        let compacted =
            self.endpoints.read(|connection| async move { connection.calls.compact(number(at)).await }).await;
        match compacted {
            Ok(_) => {
                self.learn_compacted(at);
                Ok(())
            }
            // Another client compacted before, or this is a retry after a lost response.
            Err(Failure { cause: Cause::Compacted, .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn learn_compacted(&self, at: Revision) {
        self.compacted.fetch_max(at.get(), Ordering::Relaxed);
    }

    fn known_compacted(&self) -> Option<Revision> {
        Some(Revision::new(self.compacted.load(Ordering::Relaxed))).filter(|revision| !revision.is_zero())
    }

    /// The oldest revision that etcd holds. etcd reports it only to a watch that begins too early.
    async fn oldest(&self) -> Result<Revision, Failure> {
        const FIRST: i64 = 1;
        let first =
            self.endpoints
                .read(|connection| async move {
                    connection.calls.range(RangeRequest { revision: FIRST, ..self.probe() }).await
                })
                .await;
        match first {
            Ok(_) => return Ok(Revision::new(1)),
            Err(Failure { cause: Cause::Compacted, .. }) => {}
            Err(failure) => return Err(failure),
        }
        let compacted = self
            .endpoints
            .read(|connection| async move {
                let watch = WatchCreateRequest { key: self.keys.never(), start_revision: FIRST, ..Default::default() };
                let (_requests, mut responses) = connection.watches.watch(watch).await?;
                while let Some(response) = responses.next().await? {
                    if response.compact_revision > 0 {
                        return Ok(response.compact_revision);
                    }
                }
                Ok(FIRST)
            })
            .await?;
        self.learn_compacted(revision(compacted));
        Ok(revision(compacted))
    }

    /// Requests the version of members whose version is unknown: unreachable ones, and those that denied the request
    /// before an upgrade.
    async fn learn_versions(&self) {
        loop {
            tokio::time::sleep(LEARN_INTERVAL).await;
            for index in self.endpoints.unknown() {
                if let Err(failure) = self.learn_version(index, HEALTH_TIMEOUT).await {
                    tracing::debug!(endpoint = self.endpoints.url(index), ?failure, "version still unknown");
                }
            }
        }
    }

    async fn run_compactor(&self, interval: Duration) {
        let mut compactor = compact::Compactor::default();
        loop {
            tokio::time::sleep(interval).await;
            match self.compact_round(&mut compactor).await {
                Ok(None) => {}
                Ok(Some(at)) => tracing::debug!(revision = %at, "compacted etcd's history"),
                Err(failure) => {
                    let fault = failure.into_fault();
                    // All other operations need only the prefix, so this failure may surprise an
                    // operator.
                    let advice = match fault {
                        StoreFault::Denied(_) => {
                            "; only a user with the role root may compact: give this one the role, or let etcd do it \
                             (--auto-compaction-retention)"
                        }
                        _ => "",
                    };
                    tracing::warn!(%fault, "etcd's history was not compacted, trying again in {interval:?}{advice}");
                }
            }
        }
    }

    async fn compact_round(&self, compactor: &mut compact::Compactor) -> Result<Option<Revision>, Failure> {
        let round = compactor.round();
        let response = self
            .endpoints
            .write(|connection| async move {
                let key: Vec<u8> = COMPACT_KEY.into();
                let put = PutRequest { key: key.clone(), value: round.value.to_string().into(), lease: 0 };
                let compare = Compare::version(key.clone(), round.expected_version);
                connection.calls.txn(TxnRequest::if_else(compare, RequestOp::put(put), key)).await
            })
            .await?;
        let now = header_revision(response.header.map(|header| header.revision))?;
        if response.succeeded {
            let Some(at) = compactor.handle_won(now) else { return Ok(None) };
            self.compact(at).await?;
            return Ok(Some(at));
        }
        let there = match response.responses.into_iter().next().and_then(|op| op.response) {
            Some(proto::Response::Range(range)) => range.kvs.into_iter().next(),
            _ => None,
        };
        compactor.handle_lost(there.map_or(0, |kv| kv.version), now);
        Ok(None)
    }
}

fn header_revision(number: Option<i64>) -> Result<Revision, Failure> {
    number.map(revision).ok_or_else(|| Failure::invalid_answer("a response without a header"))
}

fn check_size(value: &Bytes) -> Result<(), StoreFault> {
    if value.len() > VALUE_BYTES_MAX {
        let reason = format!("{} bytes; at most {VALUE_BYTES_MAX} are taken", value.len());
        return Err(StoreFault::TooLarge(reason));
    }
    Ok(())
}

#[async_trait]
impl Storage for Etcd3 {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let shared = &self.shared;
        shared.check_open()?;
        let request = RangeRequest { key: shared.keys.full(key.as_str()), ..RangeRequest::default() };
        let read = shared.range(request).await;
        let (response, revision) = read.map_err(Failure::into_fault)?;
        Ok((response.kvs.into_iter().next().and_then(|kv| shared.keys.entry(kv)), revision))
    }

    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        let shared = &self.shared;
        shared.check_open()?;
        // Most callers know the latest revision, so the second read is rare. A transaction that compares the revision
        // would take one request in any case, and costs etcd and the server as much CPU time as this read.
        let full = shared.keys.full(key.as_str());
        let request = RangeRequest { key: full, keys_only: true, ..RangeRequest::default() };
        let (response, revision) = shared.range(request).await.map_err(Failure::into_fault)?;
        match response.kvs.first() {
            Some(found) if found.mod_revision == number(known) => Ok((Reread::Unchanged, revision)),
            Some(_) => self.get(key).await.map(|(found, revision)| (Reread::of(found, known), revision)),
            None => Ok((Reread::Changed(None), revision)),
        }
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.list_pages(query, Values::Carried).await
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.list_pages(query, Values::LeftOut).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.shared.check_open()?;
        check_size(&value)?;
        let response = self.shared.put_if(key, 0, &value, ttl).await.map_err(Failure::into_fault)?;
        match self.shared.outcome(response)? {
            Ok(revision) => Ok(revision),
            Err(Some(current)) => Err(CreateError::AlreadyExists { key: key.clone(), current }),
            Err(None) => Err(Failure::invalid_answer("a key that exists and is not there").into_fault().into()),
        }
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.shared.check_open()?;
        check_size(&value)?;
        if expected.is_zero() {
            // 0 means "absent" to etcd, which would create the key.
            let current = self.present(key).await?;
            return Err(UpdateError::Conflict { current });
        }
        let response = self.shared.put_if(key, number(expected), &value, ttl).await.map_err(Failure::into_fault)?;
        self.shared.outcome(response)?.map_err(|current| UpdateError::Conflict { current })
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.shared.check_open()?;
        if expected.is_zero() {
            let current = self.present(key).await?;
            return Err(DeleteError::Conflict { current });
        }
        let response = self.shared.delete_if(key, number(expected)).await.map_err(Failure::into_fault)?;
        self.shared.outcome(response)?.map_err(|current| DeleteError::Conflict { current })
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.shared.check_open()?;
        watch_stream::start(&self.shared, range, after).await
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.shared.check_open()?;
        Ok(self.shared.current_revision().await.map_err(Failure::into_fault)?)
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.shared.check_open()?;
        if revision.is_zero() {
            return Ok(());
        }
        match self.shared.compact(revision).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.shared.read_error(failure, revision).await),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: self.shared.endpoints.has_reliable_progress() }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        let shared = &self.shared;
        shared.check_open()?;
        let request = RangeRequest { key: shared.keys.full("/health"), keys_only: true, ..RangeRequest::default() };
        let read = shared.range(request);
        match tokio::time::timeout(HEALTH_TIMEOUT, read).await {
            Ok(answer) => answer.map(|_| ()).map_err(Failure::into_fault),
            Err(_) => Err(StoreFault::Unavailable(format!("etcd did not answer within {}s", HEALTH_TIMEOUT.as_secs()))),
        }
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        let shared = &self.shared;
        shared.check_open()?;
        let status = shared.endpoints.read(|connection| async move { connection.calls.status().await }).await;
        let (description, bytes) = match status {
            Ok(status) => (format!("etcd {}", status.version), u64::try_from(status.db_size).ok()),
            // Some versions report it only to the role root.
            Err(Failure { cause: Cause::Fault(StoreFault::Denied(_)), .. }) => ("etcd".to_owned(), None),
            Err(failure) => return Err(failure.into_fault()),
        };
        let (start, end) = shared.keys.everything();
        let request = RangeRequest { key: start, range_end: end, count_only: true, ..RangeRequest::default() };
        let counted = shared.range(request).await;
        let (counted, revision) = counted.map_err(Failure::into_fault)?;
        Ok(StoreStats {
            description,
            revision,
            oldest: shared.oldest().await.map_err(Failure::into_fault)?,
            keys: u64::try_from(counted.count).ok(),
            disk_bytes: bytes,
        })
    }
}

impl Etcd3 {
    async fn list_pages(&self, query: ListQuery, values: Values) -> Result<ListPage, ReadError> {
        let shared = &self.shared;
        shared.check_open()?;
        let at = query.at.unwrap_or(Revision::ZERO);
        if query.range.is_empty() {
            // etcd rejects such a range, but the revision is checked.
            let probe = PageRequest { key: shared.keys.never(), end: Vec::new(), at, limit: 1 };
            return match shared.page(&probe, values).await {
                Ok(page) => {
                    let revision = if at.is_zero() { page.revision } else { at };
                    Ok(ListPage { items: Vec::new(), revision, more: false, remaining: Some(0) })
                }
                Err(failure) => Err(shared.read_error(failure, at).await),
            };
        }
        let (start, end) = shared.keys.full_range(&query.range);
        // Keys alone are small.
        let first = match values {
            Values::Carried => shared.sizes.first_page_keys(query.range.start()),
            Values::LeftOut => pager::KEYS_ONLY_FIRST_PAGE,
        };
        let mut pager = Pager::new(start, end, at, query.limit, first);
        loop {
            let request = pager.request();
            let page = shared.page(&request, values).await;
            let cause = match &page {
                Err(Failure { cause: Cause::Fault(StoreFault::TooLarge(_)), .. }) if pager.handle_too_large() => {
                    Some("etcd rejects its size")
                }
                // An etcd without a network is not slow.
                Err(failure) if failure.timed_out && (pager.has_page() || shared.is_answering().await) => {
                    pager.handle_timeout().then_some("it did not arrive in time, and etcd answers smaller reads")
                }
                _ => None,
            };
            if let Some(cause) = cause {
                tracing::info!(range = ?query.range, cause, "a page of a list was too large; reading smaller pages");
                continue;
            }
            match page {
                Ok(page) => {
                    let done = pager.handle_page(page);
                    if let Some(bytes) = pager.entry_bytes().filter(|_| values == Values::Carried) {
                        shared.sizes.note(query.range.start(), bytes);
                    }
                    if let Some(done) = done {
                        return Ok(done);
                    }
                }
                Err(failure) if failure.cause == Cause::Compacted && pager.handle_compacted() => {
                    tracing::info!(range = ?query.range, "compaction overtook a list; reading it in one piece");
                }
                Err(failure) => return Err(shared.read_error(failure, request.at).await),
            }
        }
    }

    async fn present(&self, key: &Key) -> Result<Option<KeyValue>, StoreFault> {
        match self.get(key).await {
            Ok((current, _)) => Ok(current),
            Err(ReadError::Fault(fault)) => Err(fault),
            Err(other) => Err(StoreFault::Unavailable(other.to_string())),
        }
    }
}
