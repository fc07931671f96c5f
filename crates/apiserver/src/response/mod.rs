//! Responses: negotiate the form, and encode the bytes in that form.
//!
//! ```text
//!  preferences ─┬▶ view ─┬─ object, Status ─▶ encode ─┐
//!               │        └─ collection ─────▶ list ───┼▶ Body (pretty, gzip) ─▶ respond
//!               └▶ watch_view ─ events ─▶ watch_stream ┘
//! ```
//!
//! JSON, YAML, protobuf and CBOR are in `listwatch-wire`, Tables and partial objects in `listwatch-table`.

#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "connections track what they send"))]
pub(crate) mod body;
pub(crate) mod caches;
pub(crate) mod chunks;
pub(crate) mod compressed_blocks;
pub(crate) mod encode;
mod encoding_ids;
pub(crate) mod extensions;
mod gzip;
mod kept_message;
mod list;
pub(crate) mod preferences;
pub(crate) mod request_drain;
pub(crate) mod respond;
pub(crate) mod view;
pub(crate) mod watch_drain;
pub(crate) mod watch_stream;
pub(crate) mod watch_view;

pub use self::chunks::BodyError;
