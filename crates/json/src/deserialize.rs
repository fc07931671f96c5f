//! Deserializes values, and types from values.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number};

use crate::serialize::RAW_VALUE;
use crate::{JsonString, Map, Value};

/// Reads a type from a value.
///
/// # Errors
/// If the value does not have the type.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(value)
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<Value, E> {
        Number::from_i128(value).map(Value::Number).ok_or_else(|| E::custom("JSON number out of range"))
    }

    fn visit_u128<E: serde::de::Error>(self, value: u128) -> Result<Value, E> {
        Number::from_u128(value).map(Value::Number).ok_or_else(|| E::custom("JSON number out of range"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Value, A::Error> {
        MapVisitor.visit_map(members).map(Value::Object)
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MapVisitor)
    }
}

struct MapVisitor;

impl<'de> Visitor<'de> for MapVisitor {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_unit<E>(self) -> Result<Map, E> {
        Ok(Map::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Map, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<JsonString>()? {
            let value = members.next_value()?;
            map.insert(name, value);
        }
        Ok(map)
    }
}

/// A value to be read: owned or borrowed.
trait Source<'de>: Deserializer<'de, Error = Error> {
    fn value(&self) -> &Value;
}

impl Source<'_> for Value {
    fn value(&self) -> &Value {
        self
    }
}

impl<'de> Source<'de> for &'de Value {
    fn value(&self) -> &Value {
        self
    }
}

/// The methods that are the same for owned and borrowed values.
macro_rules! deserialize_by_type {
    () => {
        fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
        }

        fn deserialize_newtype_struct<V: Visitor<'de>>(
            self,
            name: &'static str,
            visitor: V,
        ) -> Result<V::Value, Error> {
            if name == RAW_VALUE {
                let text = std::iter::once((RAW_VALUE, self.to_string()));
                return visitor.visit_map(MapDeserializer::new(text));
            }
            visitor.visit_newtype_struct(self)
        }

        fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_unit()
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
            tuple_struct map struct identifier
        }
    };
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_str(&text),
            Value::Array(items) => visit_items(items.into_iter(), visitor),
            Value::Object(map) => {
                visit_members(map.into_iter().map(|(name, value)| (Name::Owned(name), value)), visitor)
            }
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Value::String(variant) => visitor.visit_enum(Variant { name: Name::Owned(variant), value: None::<Value> }),
            Value::Object(map) => {
                let mut members = map.into_iter();
                match (members.next(), members.next()) {
                    (Some((name, value)), None) => {
                        visitor.visit_enum(Variant { name: Name::Owned(name), value: Some(value) })
                    }
                    _ => Err(not_one_member()),
                }
            }
            other => Err(not_a_variant(&other)),
        }
    }

    deserialize_by_type!();
}

impl<'de> Deserializer<'de> for &'de Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visit_items(items.iter(), visitor),
            Value::Object(map) => map.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Value::String(variant) => {
                visitor.visit_enum(Variant { name: Name::Borrowed(variant), value: None::<&Value> })
            }
            Value::Object(map) => map.visit_variant(visitor),
            other => Err(not_a_variant(other)),
        }
    }

    deserialize_by_type!();
}

impl Map {
    /// Visits the only member as a variant.
    fn visit_variant<'de, V: Visitor<'de>>(&'de self, visitor: V) -> Result<V::Value, Error> {
        let mut members = self.iter();
        match (members.next(), members.next()) {
            (Some((name, value)), None) => {
                visitor.visit_enum(Variant { name: Name::Borrowed(name), value: Some(value) })
            }
            _ => Err(not_one_member()),
        }
    }
}

impl<'de> Deserializer<'de> for &'de Map {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visit_members(self.iter().map(|(name, value)| (Name::Borrowed(name), value)), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.visit_variant(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

/// Visits a list. Fails if the visitor leaves items.
fn visit_items<'de, S, V>(items: impl ExactSizeIterator<Item = S>, visitor: V) -> Result<V::Value, Error>
where
    S: IntoDeserializer<'de, Error>,
    V: Visitor<'de>,
{
    let len = items.len();
    let mut items = SeqDeserializer::new(items);
    let read = visitor.visit_seq(&mut items)?;
    items.end().map_err(|_| Error::invalid_length(len, &"fewer elements in array"))?;
    Ok(read)
}

/// Visits an object. Fails if the visitor leaves members.
fn visit_members<'de, S, V>(
    members: impl ExactSizeIterator<Item = (Name<'de>, S)>,
    visitor: V,
) -> Result<V::Value, Error>
where
    S: IntoDeserializer<'de, Error>,
    V: Visitor<'de>,
{
    let len = members.len();
    let mut members = MapDeserializer::new(members);
    let read = visitor.visit_map(&mut members)?;
    members.end().map_err(|_| Error::invalid_length(len, &"fewer elements in map"))?;
    Ok(read)
}

/// The name of a member, or of a variant.
enum Name<'de> {
    Borrowed(&'de str),
    Owned(JsonString),
}

impl Name<'_> {
    fn as_str(&self) -> &str {
        match self {
            Name::Borrowed(name) => name,
            Name::Owned(name) => name.as_str(),
        }
    }
}

impl<'de> IntoDeserializer<'de, Error> for Name<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The method that reads a number or a boolean from the text of a name.
macro_rules! name_as {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.as_str().parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Name<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Name::Borrowed(name) => visitor.visit_borrowed_str(name),
            Name::Owned(name) => visitor.visit_str(&name),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Variant { name: self, value: None::<Value> })
    }

    name_as! {
        deserialize_bool visit_bool bool, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128, deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A variant: a string, or an object with one member.
struct Variant<'de, S> {
    name: Name<'de>,
    value: Option<S>,
}

impl<'de, S: Source<'de>> EnumAccess<'de> for Variant<'de, S> {
    type Error = Error;
    type Variant = VariantValue<S>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), Error> {
        Ok((seed.deserialize(self.name)?, VariantValue(self.value)))
    }
}

/// The value of a variant that was an object.
struct VariantValue<S>(Option<S>);

impl<'de, S: Source<'de>> VariantAccess<'de> for VariantValue<S> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Deserialize::deserialize)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        match self.0 {
            Some(value) => seed.deserialize(value),
            None => Err(Error::invalid_type(Unexpected::UnitVariant, &"newtype variant")),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Some(items) if items.value().is_array() => items.deserialize_any(visitor),
            other => Err(Error::invalid_type(unexpected_variant(&other), &"tuple variant")),
        }
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Some(members) if members.value().is_object() => members.deserialize_any(visitor),
            other => Err(Error::invalid_type(unexpected_variant(&other), &"struct variant")),
        }
    }
}

fn unexpected_variant<'a, 'de>(value: &'a Option<impl Source<'de> + 'a>) -> Unexpected<'a> {
    value.as_ref().map_or(Unexpected::UnitVariant, |value| unexpected(value.value()))
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => Unexpected::Unsigned(number),
            (_, Some(number), _) => Unexpected::Signed(number),
            (.., number) => Unexpected::Float(number.unwrap_or_default()),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

/// The error for a variant that is neither a string nor an object.
fn not_a_variant(value: &Value) -> Error {
    Error::invalid_type(unexpected(value), &"string or map")
}

/// The error for a variant that is an object without members, or with several.
fn not_one_member() -> Error {
    Error::invalid_value(Unexpected::Map, &"map with a single key")
}

impl IntoDeserializer<'_, Error> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl std::str::FromStr for Value {
    type Err = Error;

    /// Reads JSON.
    fn from_str(text: &str) -> Result<Value, Error> {
        serde_json::from_str(text)
    }
}
