//! The name of a member of an object.

use std::borrow::{Borrow, Cow};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use smol_str::SmolStr;

/// The name of a member of an object. Names of up to 23 bytes are stored in place; copies of longer ones share their text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapKey(SmolStr);

impl MapKey {
    /// The text of the name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::ops::Deref for MapKey {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for MapKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for MapKey {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for MapKey {
    fn from(name: &str) -> Self {
        MapKey(SmolStr::new(name))
    }
}

impl From<String> for MapKey {
    fn from(name: String) -> Self {
        MapKey(SmolStr::new(name))
    }
}

impl From<&String> for MapKey {
    fn from(name: &String) -> Self {
        MapKey(SmolStr::new(name))
    }
}

impl From<Cow<'_, str>> for MapKey {
    fn from(name: Cow<'_, str>) -> Self {
        MapKey(SmolStr::new(name))
    }
}

impl From<&MapKey> for MapKey {
    fn from(name: &MapKey) -> Self {
        name.clone()
    }
}

impl From<MapKey> for SmolStr {
    fn from(name: MapKey) -> Self {
        name.0
    }
}

impl From<MapKey> for String {
    fn from(name: MapKey) -> Self {
        name.as_str().to_owned()
    }
}

impl From<&MapKey> for String {
    fn from(name: &MapKey) -> Self {
        name.as_str().to_owned()
    }
}

impl From<MapKey> for crate::Value {
    fn from(name: MapKey) -> Self {
        crate::Value::String(name.into())
    }
}

impl PartialEq<str> for MapKey {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for MapKey {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for MapKey {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<MapKey> for str {
    fn eq(&self, other: &MapKey) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<MapKey> for &str {
    fn eq(&self, other: &MapKey) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<MapKey> for String {
    fn eq(&self, other: &MapKey) -> bool {
        self == other.as_str()
    }
}

impl fmt::Display for MapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for MapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for MapKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for MapKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(MapKeyVisitor)
    }
}

struct MapKeyVisitor;

impl Visitor<'_> for MapKeyVisitor {
    type Value = MapKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, name: &str) -> Result<MapKey, E> {
        Ok(name.into())
    }
}
