//! A watch cache of encoded objects. One list and one watch of the store serve thousands of reads
//! and watches, each at its own speed.
//!
//! ```text
//!                    ┌───────────────────────── Cacher ──────────────────────────┐
//!   Storage          │            ┌────────── Cache: state ────────────┐         │
//!    list  ─────────▶│  driver ──▶│ snapshot   ordered, O(1) to clone  │──lists──┼──▶ List (lazy)
//!    watch ─burst───▶│    │       │ history    e₁ e₂ e₃ … shared, 75 s │         │
//!    progress ◀──────┼─ requested └──────────────────┬─────────────────┘         │
//!                    │  while a read waits,          │ one event, an Arc         │
//!                    │  else once a minute           │                           │
//!                    │                ┌──────────────▼─────────────┐             │
//!                    │                │ Hub: matches events by     │             │
//!                    │                │ key, name, field, label    │             │
//!                    │                └──┬──────────┬──────────┬───┘             │
//!                    │             Mailbox │    Mailbox │   Mailbox │  ≤ 128 each │
//!                    └──────────────────┼──────────┼───────────┼─────────────────┘
//!                                       ▼          ▼           ▼
//!                                    Watcher    Watcher     Watcher   if stalled: detached, reads
//!                                                                     on from the history
//! ```
//!
//! # Guarantees
//! - After its initial state, a watcher receives every later change of its scope once, in the order
//!   of revisions, or an error ([`Delivery::Error`]).
//! - A bookmark at R means that everything up to R was delivered.
//! - A list or get from the cache never shows an older state than an earlier watcher or read of the
//!   cache has shown.
//! - A consistent list shows every write that was acknowledged before it.
//! - A watcher that does not read does not slow the others down.
//! - If the store loses history that the cache has not read, its watches end with `410 Expired`
//!   (see the top of `cache.rs`). No change is omitted silently.
//!
//! All changes of one revision (a transaction, the keys of one lease) are recorded together. The
//! store delivers them together ([`WatchItem::Event`](listwatch_storage::WatchItem::Event)) and a
//! burst never splits a revision. So no list and no bookmark shows a part of a revision.
//!
//! A cache whose driver panics is stopped. Watchers of the cache receive a `500`, and
//! [`Cacher::is_stopped`] returns true, so that the owner can replace the cache.
//!
//! # Structure
//! The core consists of three plain values without tasks, locks, channels or clocks: `Cache`
//! (`cache.rs`: the state and its history), `Hub` (`hub.rs`: the matching of events to watchers,
//! and timers) and `Mailbox` (`watcher.rs`: one watcher). These values take inputs (`handle_*`) and
//! the time, and return the next action (`poll_*`). The code around them is thin: `shared.rs` puts
//! a lock around each, `driver.rs` is the one task that reads the store, and `stream.rs` is the
//! reader's end.
//!
//! The crate uses the [`Storage`](listwatch_storage::Storage) trait and the types of
//! `listwatch-meta`, but neither HTTP nor etcd.
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
mod encoding_cache;
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
mod label_conditions;
mod limits;
mod offered;
mod pins;
mod readiness;
mod route;
mod shared;
mod snapshot;
mod stats;
mod store_history;
mod store_read;
mod stream;
mod watcher;

pub use budget::HistoryBudget;
pub use delivery::{Delivered, Delivery};
pub use encoding_cache::{EncodingCache, EncodingId};
pub use error::{ReadError, UndecodableValue};
pub use filter::Scope;
pub use handle::{Cacher, List, ResourceConfig};
pub use limits::{Limits, UNDECODABLE_KEYS_MAX};
pub use snapshot::ListItems;
pub use stats::{CacherStats, WatcherStats};
pub use stream::Watcher;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
