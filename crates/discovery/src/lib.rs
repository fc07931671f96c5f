//! The documents that describe a Kubernetes API to its clients: discovery, OpenAPI, the version, and the pages about a
//! server.
//!
//! ```text
//!  Registry ─┬▶ Discovery::new        /api, /apis, /apis/{g}, /apis/{g}/{v}; legacy and aggregated
//!            ├▶ openapi::OpenApi::new /openapi/v2, /openapi/v3, /openapi/v3/{path}
//!            └▶ root_paths            /
//!  VersionInfo::current               /version
//!  Zpage::statusz, Zpage::flagz       /statusz, /flagz
//! ```
//!
//! A document is a pure function of a [`Registry`](listwatch_registry::Registry). The caller keeps the documents until
//! the registry changes, compares ETags ([`etag_matches`]) and writes headers.
//!
//! # Example
//! ```
//! use listwatch_discovery::{Discovery, VersionInfo, openapi::{Answer, OpenApi, V3Form}, etag_matches};
//! use listwatch_registry::Registry;
//!
//! let registry = Registry::builtin();
//! let discovery = Discovery::new(&registry);
//! let apps = discovery.resources("apps", "v1").unwrap();
//! assert!(apps.starts_with(b"{\"kind\":\"APIResourceList\",\"apiVersion\":\"v1\",\"groupVersion\":\"apps/v1\""));
//! assert_eq!(discovery.resources("apps", "v2"), None);
//!
//! let openapi = OpenApi::new(&registry, None);
//! let Answer::Document { document, immutable } = openapi.v3("apis/apps/v1", None) else { panic!("it is served") };
//! assert!(document.encode(V3Form::Json).starts_with(b"{\"openapi\":\"3.0.0\""));
//! assert!(etag_matches(document.etag(), "*") && !immutable);
//! assert_eq!(VersionInfo::current().minor, "36");
//! ```
#![forbid(unsafe_code)]

mod discovery;
mod document;
pub mod openapi;
mod root_paths;
mod version;
mod zpage;

pub use self::discovery::{AGGREGATED_CONTENT_TYPE, Discovery};
pub use self::document::{Document, etag_matches};
pub use self::root_paths::{ServedZpages, root_paths};
pub use self::version::{KUBERNETES_VERSION, VersionInfo};
pub use self::zpage::{ZPAGE_DELIMITERS, Zpage};
