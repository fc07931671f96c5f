//! JSON values of Kubernetes objects: [`Value`] and [`Map`]. Their names and methods are those of `serde_json` that the
//! server needs. `serde_json` reads and writes the text.
//!
//! A write parses, copies, compares and drops trees of a few hundred small values. Therefore an object of up to 24
//! members has no hashes, and names and strings of up to 23 bytes are stored in place. Members keep the order of their
//! insertion, except that [`Map::remove`] moves the last one.
//!
//! ```
//! use listwatch_json::{Value, json};
//!
//! let pod: Value = serde_json::from_str(r#"{"metadata":{"name":"web"}}"#)?;
//! assert_eq!(pod, json!({"metadata": {"name": "web"}}));
//! assert_eq!(pod.pointer("/metadata/name").and_then(Value::as_str), Some("web"));
//! assert_eq!(serde_json::to_string(&pod)?, r#"{"metadata":{"name":"web"}}"#);
//! # Ok::<(), serde_json::Error>(())
//! ```

mod deserialize;
mod macros;
pub mod map;
mod plain;
mod serialize;
mod string;
pub mod value;

pub use deserialize::from_value;
pub use map::Map;
pub use plain::{is_plain, plain_len};
pub use serde_json::{Error, Number};
pub use serialize::to_value;
pub use string::JsonString;
pub use value::Value;
