//! Shared informers: one cache of a resource, and any number of handlers that are told its changes.
//!
//! ```text
//!   Reflection ──▶ SharedInformer ──▶ store: snapshots, indexes
//!   (or one per         │
//!   namespace,          ├──▶ view ──▶ callback     each view holds what its handler has not seen:
//!   or shard)           ├──▶ view ──▶ callback     the latest state of each object, in bounded memory
//!                       └──▶ view ──▶ stream
//! ```
//!
//! - A handler sees a legal history of each object, however slow it is: [`view`] has the rules.
//! - What happens when it is slow is its [`Policy`]. By default it costs nobody else anything.
//! - A handler may join at any time; it is told the state that is there, then what follows.
//! - An event says what and why: [`Event`], [`Reason`].
//! - An informer says why it is not synced ([`SharedInformer::wait_until_synced`],
//!   [`SharedInformer::status`]), and never stops in silence ([`Event::Stopped`], [`Stop`]).
//! - An informer can be stopped and started again; its handlers stay and are told what happened
//!   meanwhile.
//! - [`SharedInformerFactory`] hands out one informer for each resource, scope and projection, for
//!   as long as somebody holds it.
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
pub mod view;

pub use event::{Event, Reason, Stop};
pub use factory::{InformerKey, InformersNotSynced, Namespaces, Shards, SharedInformerFactory};
pub use handler::{EventStream, Handler, HandlerEnd, HandlerOptions, Remaining};
pub use shared_informer::{InformerConfig, SharedInformer};
pub use status::{HandlerStatus, InformerStatus, METRIC_TYPES, NotSynced, PartStatus, Phase, StartError, StillBusy};
pub use view::{
    BLOCK_CHANGES_MAX, BLOCK_PATIENCE, Counts, DROP_OBJECTS_MAX, Lag, Policy, RESYNC_PERIOD_MIN, RESYNC_TICK,
    RESYNC_TURN, View,
};
