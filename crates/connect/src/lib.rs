//! Connect requests of a Kubernetes API server, as pure functions: the requests that the server forwards to a kubelet,
//! a node, a pod or a service.
//!
//! ```text
//!  logs                        ─▶ LogOptions ──────────▶ location::kubelet ─▶ log, or kubelet_error::to_status
//!  exec, attach, port-forward  ─▶ stream_query, port_forward_query ─▶ location::kubelet
//!  proxy                       ─▶ location::ProxyId ─▶ location::{node, pod, candidates}
//! ```
//!
//! | to do this | use |
//! |---|---|
//! | find the address of a target | [`location`] |
//! | convert the options of a client to the query for the kubelet | [`LogOptions`], [`stream_query`], [`port_forward_query`] |
//! | convert the error of a kubelet to a Status | [`kubelet_error`] |
//!
//! `listwatch-apiserver` reads the objects, and `listwatch-proxy` makes the connection.
//!
//! # Example
//! ```
//! use listwatch_connect::location::{Location, LocationError, ProxyId, Via, pod};
//! use listwatch_json::json;
//!
//! let web = json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 8080}]}]},
//!     "status": {"podIPs": [{"ip": "10.0.0.7"}]}});
//! let id = ProxyId::parse("pod", "web").unwrap();
//! assert_eq!(pod(&web, &id), Ok(Location { via: Via::Http, host: "10.0.0.7".to_owned(), port: 8080 }));
//!
//! let loopback = json!({"status": {"podIPs": [{"ip": "127.0.0.1"}]}});
//! assert_eq!(pod(&loopback, &id), Err(LocationError::AddressNotAllowed));
//! ```
#![forbid(unsafe_code)]

pub mod kubelet_error;
pub mod location;
mod options;

pub use crate::options::{LogOptions, port_forward_query, stream_query};
