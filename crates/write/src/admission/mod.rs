//! The admission checks that need the server's state: the lifecycle of namespaces and definitions, and the object
//! reader for plugins. The plugins are in the crate `listwatch-admission`.

pub(super) mod definition_lifecycle;
pub(super) mod namespace_lifecycle;
mod objects;

pub(super) use self::objects::{StoredObjects, is_read_from_cache};
