//! The strings of a value.

use std::borrow::{Borrow, Cow};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use smol_str::SmolStr;

/// A string: a value, or the name of a member. A string of up to 23 bytes is stored in place. Copies of a longer one share
/// its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonString(SmolStr);

impl JsonString {
    /// The string of a constant. It allocates nothing, whatever its length.
    pub const fn from_static(text: &'static str) -> Self {
        JsonString(SmolStr::new_static(text))
    }

    /// The bytes that the string has allocated, whatever number of copies shares them.
    pub fn heap_bytes(&self) -> usize {
        const COUNTERS: usize = 2 * size_of::<usize>();
        if self.0.is_heap_allocated() { self.len() + COUNTERS } else { 0 }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::ops::Deref for JsonString {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for JsonString {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for JsonString {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for JsonString {
    fn from(text: &str) -> Self {
        JsonString(SmolStr::new(text))
    }
}

impl From<String> for JsonString {
    fn from(text: String) -> Self {
        JsonString(SmolStr::new(text))
    }
}

impl From<&String> for JsonString {
    fn from(text: &String) -> Self {
        JsonString(SmolStr::new(text))
    }
}

impl From<Cow<'_, str>> for JsonString {
    fn from(text: Cow<'_, str>) -> Self {
        JsonString(SmolStr::new(text))
    }
}

impl From<&JsonString> for JsonString {
    fn from(text: &JsonString) -> Self {
        text.clone()
    }
}

impl From<JsonString> for SmolStr {
    fn from(text: JsonString) -> Self {
        text.0
    }
}

impl From<JsonString> for String {
    fn from(text: JsonString) -> Self {
        text.as_str().to_owned()
    }
}

impl From<&JsonString> for String {
    fn from(text: &JsonString) -> Self {
        text.as_str().to_owned()
    }
}

impl<'a> From<&'a JsonString> for Cow<'a, str> {
    fn from(text: &'a JsonString) -> Self {
        Cow::Borrowed(text.as_str())
    }
}

impl PartialEq<str> for JsonString {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for JsonString {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for JsonString {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<JsonString> for str {
    fn eq(&self, other: &JsonString) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<JsonString> for &str {
    fn eq(&self, other: &JsonString) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<JsonString> for String {
    fn eq(&self, other: &JsonString) -> bool {
        self == other.as_str()
    }
}

impl fmt::Display for JsonString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for JsonString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for JsonString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for JsonString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(JsonStringVisitor)
    }
}

struct JsonStringVisitor;

impl Visitor<'_> for JsonStringVisitor {
    type Value = JsonString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonString, E> {
        Ok(text.into())
    }
}
