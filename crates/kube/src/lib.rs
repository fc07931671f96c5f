//! listwatch under kube-rs: code that was written for `kube::runtime` keeps its reconcilers, its
//! `Store`s and its `Controller`, and gets its changes from listwatch's reflector.
//!
//! ```text
//!   kube_runtime::watcher(api, config)   ─┐
//!                                         ├─▶ Event<K> ─▶ reflector(writer, …) ─▶ Store<K> ─▶ your code
//!   listwatch_kube::events(reflection)   ─┘                       └─▶ Controller::for_stream ─▶ reconcile
//! ```
//!
//! Three depths, from least to most change:
//! - [`controller`] is `Controller::new` with another source: one line of a program changes.
//! - [`events()`] is the stream that `watcher` gives, for everything that takes one.
//! - [`KubeStore`] reads listwatch's own cache through the calls of `kube::runtime::reflector::Store`:
//!   objects stay bytes and are decoded when they are read, each version once.
//!
//! What changes for such a program: a watch is resumed after every failure but a 410, deletes in a
//! gap are told as deletes, one object that cannot be decoded does not stop the others, objects that
//! did not change are not told again after a relist, and watches run over HTTP/2 with pings. What
//! stays kube-rs': its scheduler, and that an owner is not told of an object that it lost.
//!
//! kube-rs wants one version of `k8s-openapi` to be chosen in a program. By default this crate chooses
//! `v1_36`; where the program chooses another one, take this crate with `default-features = false`.
//!
//! # Example
//! ```no_run
//! use std::sync::Arc;
//!
//! use futures_util::StreamExt as _;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::runtime::controller::Action;
//! use listwatch_client::{Client, Config, Reflection, ReflectorConfig, Scope};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Config::load(None, None)?)?;
//! let maps = client.discover("configmaps").await?;
//! let source = Reflection::new(client.list_watch(&maps, &Scope::Cluster), ReflectorConfig::default());
//! listwatch_kube::controller::<ConfigMap>(source) // instead of Controller::new(Api::all(..), ..)
//!     .run(
//!         async |_map: Arc<ConfigMap>, _| Ok::<_, std::io::Error>(Action::await_change()),
//!         |_, _: &std::io::Error, _| Action::await_change(),
//!         Arc::new(()),
//!     )
//!     .for_each(async |_| {})
//!     .await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod events;
mod store;

pub use events::{controller, events, reflect};
pub use store::KubeStore;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
