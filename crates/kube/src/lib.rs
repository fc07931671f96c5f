//! Runs kube-rs programs on listwatch. Code for `kube::runtime` keeps its reconcilers, its `Store`s
//! and its `Controller`, and receives its changes from listwatch's reflector.
//!
//! ```text
//!   kube_runtime::watcher(api, config)   ─┐
//!                                         ├─▶ Event<K> ─▶ reflector(writer, …) ─▶ Store<K> ─▶ your code
//!   listwatch_kube::events(reflection)   ─┘                       └─▶ Controller::for_stream ─▶ reconcile
//! ```
//!
//! Three entry points, from the smallest to the largest change of a program:
//! - [`controller`] replaces `Controller::new`: one line of the program changes.
//! - [`events()`] replaces the stream of `watcher`, for everything that takes such a stream.
//! - [`KubeStore`] reads listwatch's own cache through the methods of
//!   `kube::runtime::reflector::Store`. Objects are stored as JSON and decoded when they are read,
//!   once per version.
//!
//! Differences for such a program:
//! - A watch is resumed after every failure except a 410.
//! - Deletions during a gap are reported as deletions.
//! - An object that cannot be decoded does not stop the stream.
//! - Unchanged objects are not reported again after a relist.
//! - Watches use HTTP/2 with pings.
//!
//! The scheduler of kube-rs is unchanged. When an owner reference is removed, the former owner is still not
//! reconciled.
//!
//! kube-rs requires a program to choose one version of `k8s-openapi`. By default this crate chooses
//! `v1_36`. For another version, depend on this crate with `default-features = false`.
//!
//! # Example
//! A kube-rs store that listwatch's reflector keeps up to date. The server is in this process; for a
//! cluster, create the client with `Client::new(Config::load(None, None)?)?`.
//! ```
//! use std::pin::pin;
//!
//! use futures_util::StreamExt as _;
//! use k8s_openapi::api::core::v1::Namespace;
//! use kube::runtime::reflector::ObjectRef;
//! use kube::runtime::watcher::Event;
//! use listwatch_client::transport::ServiceTransport;
//! use listwatch_client::{Client, Reflection, ReflectorConfig, Scope};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let server = listwatch_apiserver::ApiServer::builder().build().await?;
//! let client = Client::with_transport(ServiceTransport::new(server.service()), "default");
//! let namespaces = client.discover("namespaces").await?;
//! let source = Reflection::new(client.list_watch(&namespaces, &Scope::Cluster), ReflectorConfig::default());
//!
//! let (store, events) = listwatch_kube::reflect::<Namespace>(source); // instead of reflector(writer, watcher(..))
//! let mut events = pin!(events);
//! while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
//! assert!(store.get(&ObjectRef::new("default")).is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod events;
mod store;
#[cfg(test)]
mod testing;

pub use events::{controller, events, reflect};
pub use store::KubeStore;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
