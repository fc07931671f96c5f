//! Shared informers: one cache of a resource whose changes any number of handlers receive.
//!
//! ```text
//!   Reflection ──▶ SharedInformer ──▶ store: snapshots, indexes
//!   (or one per         │
//!   namespace,          ├──▶ view ──▶ callback     each view holds what its handler has not seen:
//!   or shard)           ├──▶ view ──▶ callback     the latest state of each object, in bounded memory
//!                       └──▶ view ──▶ stream
//! ```
//!
//! - A handler receives a legal history of each object, however slow it is. [`view`] has the rules.
//! - A [`Policy`] decides what happens to a slow handler. By default it delays no other handler.
//! - A handler may join at any time, and receives the current state first, then the changes.
//! - Each [`Event`] carries a [`Reason`].
//! - [`SharedInformer::wait_until_synced`] and [`SharedInformer::status`] name the reason when an
//!   informer is not synced. Every handler receives [`Event::Stopped`] when the informer stops.
//! - An informer can be stopped and started again. The handlers stay registered, and receive the
//!   changes that happened in between.
//! - [`SharedInformerFactory`] shares one informer per resource, scope and projection while at least
//!   one handle to it exists.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//!
//! use listwatch_client::informer::{Event, HandlerOptions, InformerConfig, SharedInformer};
//! use listwatch_client::{Client, Config, Scope};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Config::load(None, None)?)?;
//! let pods = client.discover("pods").await?;
//! let informer = SharedInformer::new(client.list_watch(&pods, &Scope::Cluster), InformerConfig::named("pods"));
//! let handler = informer.on(HandlerOptions::named("print"), async |event| match event {
//!     Event::Added { object, reason } => println!("+ {} ({reason:?})", object.key()),
//!     Event::Deleted { last, .. } => println!("- {}", last.key()),
//!     _ => {}
//! });
//! informer.start()?;
//! handler.wait_until_synced(Duration::from_secs(30)).await?;
//! println!("{} pods", informer.store().snapshot().len());
//! # Ok(())
//! # }
//! ```

mod event;
mod factory;
mod handler;
mod hub;
mod merge;
mod run;
mod shared_informer;
mod slot;
mod status;
mod view;

pub use event::{Event, Reason, StopReason};
pub use factory::{InformerKey, InformersNotSynced, Namespaces, Shards, SharedInformerFactory};
pub use handler::{EventStream, Handler, HandlerEnd, HandlerOptions, Remaining};
pub use shared_informer::{InformerConfig, SharedInformer};
pub use status::{DrainTimeout, HandlerStatus, InformerStatus, METRIC_TYPES, NotSynced, PartStatus, Phase, StartError};
pub use view::{
    BLOCK_CHANGES_MAX, BLOCK_WAIT_MAX, Counts, DROP_OBJECTS_MAX, Lag, Policy, RESYNC_PERIOD_MIN, RESYNC_TICK,
    RESYNC_TURN, View,
};
