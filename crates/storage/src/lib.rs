//! The storage contract: [`Storage`] with its guarantees, and its implementations.
//!
//! ```text
//!             create / update / delete                       watch
//!   caller ───────────────────────────▶ Storage ───────────────────────────▶ Watch
//!          ◀── revision, or Conflict ──            WatchItem::{Event, Progress, Expired, Lost}
//!
//!   memory      the executable specification: an MVCC map, nothing on disk
//!   embedded    the same semantics on a durable engine        (feature `embedded`)
//!   etcd3       etcd v3 over gRPC, incoming and result channel (feature `etcd3`)
//!   transfer    export of a store to a file, import, comparison, relocation
//!   update      the optimistic write loop, Kubernetes' GuaranteedUpdate
//! ```
//!
//! The store handles keys, bytes and revisions, and does not interpret the bytes. All stores pass the suite of
//! `listwatch-store-conformance`.
//!
//! # Example
//! List, then watch from the list's revision. Together they miss no change, on any of the stores.
//!
//! ```
//! use listwatch_meta::{Key, KeyRange};
//! use listwatch_storage::{ListQuery, MemoryStorage, Storage, StoreEvent, WatchItem};
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let store = MemoryStorage::new();
//! let web = Key::new("pods", Some("default"), "web")?;
//! let created = store.create(&web, r#"{"kind":"Pod"}"#.into(), None).await?;
//!
//! let pods = KeyRange::resource("pods");
//! let page = store.list(ListQuery { range: pods.clone(), at: None, limit: 500 }).await?;
//! assert_eq!(page.items[0].modified, created);
//!
//! let mut watch = store.watch(pods, page.revision).await?;
//! let removed = store.delete(&web, created).await?;
//! match watch.next().await {
//!     Some(WatchItem::Event(StoreEvent::Delete { key, revision, .. })) => {
//!         assert_eq!((key, revision), (web, removed));
//!     }
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "embedded")]
mod embedded;
mod error;
#[cfg(feature = "etcd3")]
pub mod etcd3;
mod hub;
mod memory;
mod mvcc;
mod page_counts;
mod retention;
pub mod transfer;
mod ttl;
mod types;
mod update;

#[cfg(feature = "embedded")]
pub use embedded::{
    CACHE_BYTES, Defragmented, EmbeddedOptions, EmbeddedStats, EmbeddedStorage, FINDINGS_MAX, Finding, FromExportError,
    OpenError, RESERVE_BYTES, Restore, RestoreError, Verification, WAITING_KIB_MAX,
};
pub use error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
pub use memory::MemoryStorage;
pub use retention::{ENTRY_BYTES, RETENTION_AGE, RETENTION_BYTES, RETENTION_REVISIONS, Retention};
pub use types::*;
pub use update::{
    Decision, GuaranteedUpdateError, Outcome, Step, UPDATE_ATTEMPTS_MAX, UpdateLimits, UpdateLoop, guaranteed_update,
};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
