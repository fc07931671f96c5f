//! The parts of admission that need the server's state: the life cycles of namespaces and definitions, and the object
//! reader of plugins. The plugins are in the crate `listwatch-admission`.

pub(super) mod definition_lifecycle;
pub(super) mod namespace_lifecycle;
mod objects;

pub(super) use self::objects::{StoredObjects, is_read_from_cache};
