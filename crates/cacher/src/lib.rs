//! A byte-native watch cache: one list and watch of a store in, thousands of reads and watches out,
//! each watcher at its own pace.
//!
//! ```text
//!                    ┌───────────────────────── Cacher ──────────────────────────┐
//!   Storage          │            ┌────────── Cache: what is ──────────┐         │
//!    list  ─────────▶│  driver ──▶│ snapshot   ordered, O(1) to clone  │──lists──┼──▶ List (lazy)
//!    watch ─burst───▶│    │       │ history    e₁ e₂ e₃ … shared, 75 s │         │
//!    progress ◀──────┼─ asked     └──────────────────┬─────────────────┘         │
//!                    │  while somebody waits,        │ one event, an Arc         │
//!                    │  else once a minute           │                           │
//!                    │                ┌──────────────▼─────────────┐             │
//!                    │                │ Hub: who wants to know     │             │
//!                    │                │ by key, name, field, label │             │
//!                    │                └──┬──────────┬──────────┬───┘             │
//!                    │             Mailbox │    Mailbox │   Mailbox │  ≤ 128 each │
//!                    └──────────────────┼──────────┼───────────┼─────────────────┘
//!                                       ▼          ▼           ▼
//!                                    Watcher    Watcher     Watcher   stalled? set aside, catches
//!                                                                     up from the history
//! ```
//!
//! # What it promises
//! After its initial state a watcher receives every change of its scope after its start, each once,
//! in the order of revisions, or is told that it does not ([`Delivery::Error`]). A bookmark at R
//! means that everything up to R was handed out. A list or get from the cache never shows an older
//! state than one that a watcher or an earlier read of the cache has shown. A consistent list shows
//! every write that was acknowledged before it. A watcher that does not read costs the others
//! nothing. What happens when the store forgets what the cache has not seen is written down at the
//! top of `cache.rs`: its watches are told `410 Expired`, nothing is silently left out.
//!
//! What happened at one revision (a transaction, the keys of one lease) is recorded at once: the
//! store hands it out together ([`WatchItem::Event`](listwatch_storage::WatchItem::Event)) and a
//! burst is never cut inside a revision, so no list and no bookmark shows a part of it.
//!
//! A cache that fails (its driver panics) is stopped: its watchers are told with a `500`, and
//! [`Cacher::is_stopped`] says so to whoever would replace it.
//!
//! # How it is built
//! The core is three plain values that own no task, lock, channel or clock: `Cache` (`cache.rs`: the
//! state and its history), `Hub` (`hub.rs`: which watchers an event concerns, and their timers) and
//! `Mailbox` (`watcher.rs`: one watcher, from Replay through Live and Lagging to Closed). They take
//! inputs (`handle_*`) and the time, and say what follows (`poll_*`). The shell around them is thin:
//! `shared.rs` puts a lock around each, `driver.rs` is the one task that reads the store,
//! `stream.rs` the reader's end.
//!
//! It knows the [`Storage`](listwatch_storage::Storage) trait and the vocabulary of
//! `listwatch-meta`; it knows no HTTP and no etcd.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use listwatch_cacher::{Cacher, Delivery, Limits, ResourceConfig, Scope};
//! use listwatch_meta::{Key, ListOptions, ObjectShape};
//! use listwatch_storage::{MemoryStorage, Storage};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let store = MemoryStorage::new();
//! let cacher = Cacher::start(store.clone(), ResourceConfig {
//!     name: "pods".to_owned(),
//!     prefix: "pods".to_owned(),
//!     shape: Arc::new(ObjectShape::new(true, Vec::new())),
//!     indexed_fields: Vec::new(),
//!     limits: Limits::default(),
//! });
//!
//! let options = ListOptions { watch: true, ..ListOptions::default() };
//! let request = options.watch(cacher.shape(), false)?;
//! let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
//! let mut watcher = cacher.watch(&Scope::All, &request, deadline).await?;
//!
//! let key = Key::new("pods", Some("default"), "web")?;
//! let revision = store.create(&key, r#"{"metadata":{"name":"web"}}"#.into(), None).await?;
//!
//! let Some(Delivery::Event(event)) = watcher.next().await else { panic!("an event") };
//! assert_eq!(event.object().revision(), revision);
//! assert!(event.json_frame().starts_with(br#"{"type":"ADDED","object":{"metadata":"#));
//!
//! let list = cacher.list(&Scope::All, &ListOptions::default().list(cacher.shape())?).await?;
//! assert_eq!(list.items.count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod audit;
mod bookmark;
mod budget;
mod cache;
mod delivery;
mod direct;
mod driver;
mod encodings;
mod error;
mod filter;
mod freshness;
mod handle;
mod history;
mod hub;
mod interest;
#[cfg(test)]
mod interleaving;
mod limits;
mod pins;
mod readiness;
mod route;
mod shared;
mod snapshot;
mod stats;
mod store_read;
mod stream;
mod watcher;

pub use budget::HistoryBudget;
pub use delivery::{Delivered, Delivery, EncodingId};
pub use error::ReadError;
pub use filter::Scope;
pub use handle::{Cacher, List, ResourceConfig};
pub use limits::Limits;
pub use snapshot::ListItems;
pub use stats::{CacherStats, WatcherStats};
pub use stream::Watcher;
