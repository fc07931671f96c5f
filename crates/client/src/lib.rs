//! The client half of list-watch: keep a local copy of a resource true.
//!
//! ```text
//!   server ══HTTP══▶ Client ──ListWatch──▶ Reflection ──Change──▶ your code
//!                    transport, config      │ Reflector   what to ask for, what to believe (pure)
//!                    discover               │ StoreWriter the copy
//!                                           └─▶ Store     snapshots, for any number of readers
//! ```
//!
//! In that order: [`Client`] reaches a server (any kube-apiserver, or ours, also in the same
//! process); [`ListWatch`] is the pair of calls everything above lives on; [`Reflector`] is the
//! state machine that lists, watches, resumes and lists again; [`Reflection`] runs it and keeps the
//! [`Store`]. Nothing is parsed but an object's metadata, nothing is spawned, and nothing is read
//! from the network faster than somebody asks for it.
//!
//! What is promised: after a copy is synced it is never older than it was, never misses a change
//! without reporting the difference (deletes included, with the last known state), reports nothing
//! twice, and says at any moment why it is not current ([`ReflectorState`]).
//!
//! # Example
//! Against a cluster it is `Client::new(Config::load(None, None)?)?`, `client.discover("pods")` and
//! `client.list_watch(..)`; here the server is a script:
//! ```
//! use async_trait::async_trait;
//! use bytes::Bytes;
//! use listwatch_client::{
//!     Change, ListItem, ListStream, ListWatch, Notice, Problem, RawObject, Reflection, ReflectorConfig, WatchStream,
//! };
//! use listwatch_meta::{ListOptions, Status};
//! use listwatch_wire::ListMeta;
//!
//! struct Script;
//!
//! #[async_trait]
//! impl ListWatch for Script {
//!     async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
//!         let web = br#"{"metadata":{"namespace":"shop","name":"web","uid":"u","resourceVersion":"3"}}"#;
//!         let web = RawObject::new(Bytes::from_static(web)).unwrap();
//!         let end = ListMeta { resource_version: "7".to_owned(), ..ListMeta::default() };
//!         let items = [Ok(ListItem::Objects(vec![web])), Ok(ListItem::End(end))];
//!         Ok(Box::pin(futures_util::stream::iter(items)))
//!     }
//!     async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
//!         Err(Problem::refused(Status::too_many_requests("not now", 1)))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let config = ReflectorConfig { watch_list: false, ..ReflectorConfig::default() };
//! let mut reflection = Reflection::new(Script, config);
//! let store = reflection.store();
//! loop {
//!     match reflection.next().await {
//!         Notice::Changes(changes) => assert!(matches!(changes[0], Change::Added { .. })),
//!         Notice::Synced => break,
//!         _ => {}
//!     }
//! }
//! assert_eq!(store.snapshot().get("shop/web").unwrap().uid(), "u");
//! assert_eq!(store.snapshot().version(), "7");
//! # });
//! ```
#![forbid(unsafe_code)]

pub mod backoff;
mod client;
pub mod config;
mod discover;
pub mod driver;
mod list_watch;
mod object;
pub mod pager;
mod problem;
pub mod reflector;
mod resource;
mod store;
pub mod transport;

pub use backoff::{Backoff, BackoffPolicy};
pub use client::{Client, DOCUMENT_LIMIT_BYTES, DOCUMENT_WAIT, HttpListWatch, TOKEN_LIFE};
pub use config::{Config, ConfigError, Kubeconfig};
pub use discover::DiscoverError;
pub use driver::{Notice, Reflection};
pub use list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
pub use object::{Object, ObjectKey, RawObject, TypeName, compare_versions};
pub use problem::Problem;
pub use reflector::{FirstRead, Reflector, ReflectorConfig, ReflectorState};
pub use resource::{ApiGroup, ApiResource, ResourceName, Scope, parse_group_list, parse_resource_list};
pub use store::{Applied, Change, Origin, Snapshot, Store, StoreWriter};
