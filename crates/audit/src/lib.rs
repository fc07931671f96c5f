//! Kubernetes' audit log: policies, the events of a request, and the backends that write events to a file or a webhook.
//!
//! ```text
//!  Policy::settings ─▶ Record ─event(stage)─▶ Event ─▶ Batcher ─▶ Event::encode ─▶ LogFile, or a webhook of the caller
//! ```
//!
//! The rules are those of kube-apiserver 1.36 (`apiserver/pkg/audit`, `apiserver/plugin/pkg/audit`). Only [`LogFile`]
//! does I/O. The other types take the time as an argument, and own no task, lock or socket.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use std::time::SystemTime;
//!
//! use listwatch_access::Attributes;
//! use listwatch_audit::{EventForm, Policy, Record, RequestFacts, Stage};
//! use listwatch_meta::UserInfo;
//!
//! let policy = Policy::parse(
//!     "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n  nonResourceURLs: [/healthz*]\n- level: Metadata\n",
//! )?;
//! let user = UserInfo { username: "alice".to_owned(), ..UserInfo::default() };
//! let settings = policy.settings(&Attributes::path(&user, "get", "/version"));
//! let mut record = Record::new(settings, RequestFacts {
//!     audit_id: "1".to_owned(),
//!     request_uri: "/version".to_owned(),
//!     verb: "get".to_owned(),
//!     user: Arc::new(user),
//!     source_ips: vec!["127.0.0.1".to_owned()],
//!     user_agent: "curl".to_owned(),
//!     object_ref: None,
//!     received: SystemTime::now(),
//! });
//! record.set_code(200);
//! let event = record.event(Stage::ResponseComplete, SystemTime::now()).expect("the policy records it");
//! let line = String::from_utf8(event.encode(EventForm::Object, None)?)?;
//! assert!(line.starts_with(r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod counters;
mod event;
mod log_file;
mod payload;
mod policy;
mod rotation;
mod source_ips;

pub use crate::batch::{BatchOptions, Batcher, QUEUE_BYTES_MAX, Throttle, split_batch};
pub use crate::counters::{AUDIT_PLUGINS, AuditCounters, Plugin};
pub use crate::event::{
    Event, EventForm, EventTooLarge, ObjectReference, Record, RequestFacts, Truncation, USER_AGENT_BYTES_MAX,
};
pub use crate::log_file::LogFile;
pub use crate::payload::{OBJECT_BYTES_MAX, Payload, PayloadError};
pub use crate::policy::{Level, Policy, PolicyError, RequestSettings, Stage, StageSet};
pub use crate::rotation::RotationOptions;
pub use crate::source_ips::source_ips;
