//! Kubernetes' API priority and fairness (KEP-1040) without I/O: assigns requests to priority levels, and decides when
//! a request executes and how many seats it occupies.
//!
//! ```text
//!  FlowSchemas ──▶ Classifier ── schema, flow ──▶ QueueSet of the level ──▶ seats
//!  PriorityLevelConfigurations ──────────────────────┘    ▲
//!  WorkEstimate: seats, additional latency ───────────────┘
//! ```
//!
//! - A request belongs to the first FlowSchema that matches it. The schema names a level, and its distinguisher divides
//!   the requests of the schema into flows.
//! - The seats of the server are divided among the levels. Every 10 seconds, levels lend seats that they do not need.
//! - Within a level, each flow has a few queues (shuffle sharding), and the queues share the seats fairly (fair queuing by
//!   virtual time).
//!
//! [`BootstrapObject`] contains the objects that every cluster has, and the rules of their maintenance.
//!
//! The crate takes the time as an argument, and has no clock, lock, task or random number. The rules are those of
//! kube-apiserver 1.36 (`apiserver/pkg/util/flowcontrol`).
//!
//! # Example
//! ```
//! use std::time::{Duration, Instant};
//!
//! use listwatch_flow_control::{FlowController, RejectReason, RequestDigest, StartError, Started, WorkEstimate};
//! use listwatch_meta::UserInfo;
//!
//! let now = Instant::now();
//! // Without objects there are the levels `exempt` and `catch-all`. Here, `catch-all` has the only seat.
//! let (mut controller, classifier) = FlowController::<()>::new(now, 1, 42);
//! let user = UserInfo { groups: vec!["system:authenticated".to_owned()], ..UserInfo::default() };
//! let request = RequestDigest {
//!     user: &user,
//!     is_resource_request: true,
//!     verb: "get",
//!     api_group: "",
//!     resource: "pods",
//!     subresource: "",
//!     namespace: "default",
//!     path: "/api/v1/namespaces/default/pods/a",
//! };
//! let schema = classifier.classify(&request);
//! assert_eq!((schema.name(), schema.level_name()), ("catch-all", "catch-all"));
//! let mut start = |controller: &mut FlowController<()>| {
//!     controller.start(now, schema, schema.flow_hash(&request), WorkEstimate::ONE_SEAT, || ())
//! };
//! let Ok(Started::Executing(first)) = start(&mut controller) else { panic!("a seat was free") };
//! // `catch-all` does not queue.
//! let rejected = StartError::Rejected { reason: RejectReason::ConcurrencyLimit, retry_after_seconds: 1 };
//! assert_eq!(start(&mut controller), Err(rejected));
//! controller.end(now + Duration::from_millis(2), first, RejectReason::Cancelled);
//! assert!(matches!(start(&mut controller), Ok(Started::Executing(_))));
//! ```
#![forbid(unsafe_code)]

mod allocation;
mod bootstrap;
mod classifier;
mod controller;
mod dealer;
mod demand;
mod flow_hash;
mod objects;
mod queue_set;
mod retry_after;
mod schema;
mod schema_counts;
mod slab;
mod watch_counts;
mod work;

pub use crate::bootstrap::{BootstrapKind, BootstrapObject, is_obsolete};
pub use crate::classifier::{ActiveSchema, Classifier};
pub use crate::controller::{Configured, DanglingCondition, FlowController, LevelView, RequestId, StartError, Started};
pub use crate::demand::DemandStatistics;
pub use crate::objects::{FlowSchema, InvalidObject, PriorityLevel};
pub use crate::queue_set::{Occupancy, RejectReason};
pub use crate::schema::RequestDigest;
pub use crate::schema_counts::{SchemaCounts, WAIT_SECONDS, WaitHistogram};
pub use crate::watch_counts::{WatchKey, WatchScope};
pub use crate::work::{ListWork, WorkEstimate, write_estimate};
