//! A Kubernetes client that keeps local copies of resources up to date by list and watch.
//!
//! ```text
//!   server ══HTTP══▶ Client ──ListWatch──▶ Reflection ──Change──▶ SharedInformer ──Event──▶ your handlers
//!                    transport, config      │ Reflector   selects requests, checks responses (pure)
//!                    discover               │ DeltaFifo   new versions, decoded once, in order (pure)
//!                                           │ Indexer     the copy
//!                                           └─▶ Store     snapshots, for any number of readers
//! ```
//!
//! The layers, from the network to your code:
//!
//! | type | purpose |
//! |---|---|
//! | [`Client`] | sends requests to a kube-apiserver or to a listwatch server, which may be in the same process |
//! | [`ListWatch`] | the two calls that all layers above depend on |
//! | [`Reflector`] | the state machine that lists, watches, resumes and relists |
//! | [`DeltaFifo`] | drops duplicates and decodes new versions ([`decode`]: bytes, some fields, or Rust types) |
//! | [`Indexer`] | holds the copy, with indexes |
//! | [`Reflection`] | runs these three; spawns no task and reads from the network only while it is polled |
//! | [`SharedInformer`] | runs a reflection in a task, for any number of handlers ([`informer`]) |
//! | [`SharedInformerFactory`] | shares one informer per resource, scope and projection |
//!
//! Use a [`Reflection`] where one consumer needs the copy, and a [`SharedInformer`] for several.
//!
//! Guarantees, once a copy is synced:
//!
//! - The copy never goes back to an older state.
//! - Each change is reported once. After a gap the differences are reported, including deletions
//!   with their last known state.
//! - [`ReflectorState`] contains the reason whenever the copy is not current.
//!
//! # Features
//!
//! All features are on by default. Without them, the crate contains everything except [`Client`],
//! and the user implements [`ListWatch`].
//!
//! | feature | adds | dependencies |
//! |---|---|---|
//! | `http` | `Client`, `Transport`, credentials, discovery | hyper, flate2 |
//! | `tls` | `https://` servers, client certificates; implies `http` | rustls with ring |
//! | `kubeconfig` | `Config::load` and `Kubeconfig`, proxies of the environment; implies `http` | a YAML parser |
//! | `exec` | credential plugins; implies `http` | time, processes of tokio |
//!
//! # Example
//! The server of this example is a script. For a cluster, call `Client::new(Config::load(None,
//! None)?)?`, `client.discover("pods")` and `client.list_watch(..)`.
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
#[cfg(feature = "http")]
mod client;
#[cfg(feature = "http")]
pub mod config;
pub mod controller;
#[cfg(feature = "http")]
mod credentials;
mod deadline;
pub mod decode;
pub mod delta_fifo;
#[cfg(feature = "http")]
mod discover;
#[cfg(feature = "http")]
mod discovery;
pub mod driver;
pub mod indexer;
pub mod informer;
mod list_watch;
mod object;
pub mod pager;
mod problem;
mod projection;
pub mod reflector;
mod resource;
mod shard;
mod stored;
#[cfg(feature = "http")]
pub mod transport;

pub use backoff::{Backoff, BackoffPolicy};
#[cfg(feature = "http")]
pub use client::{
    Client, DOCUMENT_LIMIT_BYTES, DOCUMENT_WAIT, GET_RECONNECT_WAIT, GET_RETRY_LIMIT, GET_RETRY_WAIT_MAX,
    GET_TRIES_MAX, HttpListWatch,
};
#[cfg(feature = "kubeconfig")]
pub use config::Kubeconfig;
#[cfg(feature = "http")]
pub use config::{Config, ConfigError};
pub use controller::{Controller, ControllerConfig, ControllerHandle, Outcome, Reconcile, Request};
#[cfg(feature = "exec")]
pub use credentials::EXPIRY_MARGIN;
#[cfg(feature = "http")]
pub use credentials::{FAILURE_MEMORY, TOKEN_LIFE};
pub use decode::{Decode, DecodeError, Json, KeepJson, Project, decode_with};
pub use delta_fifo::{Compaction, Delta, DeltaFifo, FifoConfig, PushOutcome, Quarantined};
#[cfg(feature = "http")]
pub use discover::DiscoverError;
pub use driver::{Health, Notice, Reflection};
pub use indexer::{ApplyOutcome, Change, Index, IndexValue, Indexer, Origin, OwnWrites, Snapshot, Store, WaitError};
pub use informer::{InformerConfig, SharedInformer, SharedInformerFactory};
pub use list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
pub use listwatch_work_queue as work_queue;
pub use listwatch_work_queue::{QueueConfig, WorkItem, WorkQueue};
pub use object::{Object, ObjectKey, RawObject, TypeName, compare_versions};
pub use problem::{Cause, Problem};
pub use projection::Projection;
pub use reflector::{FirstRead, Reflector, ReflectorConfig, ReflectorState};
pub use resource::{ApiResource, Scope};
pub use shard::{ShardFallback, ShardListWatch};
pub use stored::{Stored, Typed};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
