//! Serializes values, and types to values.

use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use serde_json::{Error, Number};

use crate::{JsonString, Map, Value};

/// Makes a value of any type that can be written as JSON.
///
/// # Errors
/// If the type refuses to be written, if the name of a member is neither a string nor a number nor a boolean, or if an
/// integer does not fit into 64 bits.
pub fn to_value<T: Serialize>(value: T) -> Result<Value, Error> {
    value.serialize(ToValue)
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(number) => number.serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Array(items) => items.serialize(serializer),
            Value::Object(map) => map.serialize(serializer),
        }
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(Some(self.len()))?;
        for (name, value) in self {
            members.serialize_entry(name.as_str(), value)?;
        }
        members.end()
    }
}

/// The name that `serde_json` gives to the struct of its `RawValue`, and to its only field.
pub(crate) const RAW_VALUE: &str = "$serde_json::private::RawValue";

struct ToValue;

/// The method that converts a number or a boolean.
macro_rules! value_from {
    ($($method:ident $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<Value, Error> {
            Ok(value.into())
        }
    )*};
}

impl Serializer for ToValue {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Members;
    type SerializeStruct = Members;
    type SerializeStructVariant = Members;

    value_from! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_u8 u8,
        serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_f32 f32, serialize_f64 f64
    }

    fn serialize_i128(self, value: i128) -> Result<Value, Error> {
        Number::from_i128(value).map(Value::Number).ok_or_else(|| Error::custom("number out of range"))
    }

    fn serialize_u128(self, value: u128) -> Result<Value, Error> {
        Number::from_u128(value).map(Value::Number).ok_or_else(|| Error::custom("number out of range"))
    }

    fn serialize_char(self, value: char) -> Result<Value, Error> {
        Ok(value.to_string().into())
    }

    fn serialize_str(self, text: &str) -> Result<Value, Error> {
        Ok(text.into())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Value, Error> {
        Ok(bytes.into())
    }

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, Error> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(in_variant(Some(variant), to_value(value)?))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items, Error> {
        Ok(Items::new(len, None))
    }

    fn serialize_tuple(self, len: usize) -> Result<Items, Error> {
        Ok(Items::new(Some(len), None))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items, Error> {
        Ok(Items::new(Some(len), None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Items, Error> {
        Ok(Items::new(Some(len), Some(variant)))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Members, Error> {
        Ok(Members { map: Map::with_capacity(len.unwrap_or_default()), ..Members::default() })
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Members, Error> {
        Ok(Members { map: Map::with_capacity(len), is_raw: name == RAW_VALUE, ..Members::default() })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members, Error> {
        Ok(Members { variant: Some(variant), ..Members::default() })
    }
}

/// `{variant: value}`, or the value alone.
fn in_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Value::from_iter([(variant, value)]),
        None => value,
    }
}

struct Items {
    items: Vec<Value>,
    variant: Option<&'static str>,
}

impl Items {
    fn new(len: Option<usize>, variant: Option<&'static str>) -> Self {
        Items { items: Vec::with_capacity(len.unwrap_or_default()), variant }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.items.push(to_value(value)?);
        Ok(())
    }

    fn finish(self) -> Value {
        in_variant(self.variant, Value::Array(self.items))
    }
}

macro_rules! serialize_items {
    ($($trait:ident $method:ident),*) => {$(
        impl $trait for Items {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.push(value)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.finish())
            }
        }
    )*};
}

serialize_items! {
    SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
}

#[derive(Default)]
struct Members {
    map: Map,
    /// The name whose value follows.
    name: Option<JsonString>,
    variant: Option<&'static str>,
    /// Whether the only field is JSON text.
    is_raw: bool,
}

impl Members {
    fn insert<T: Serialize + ?Sized>(&mut self, name: JsonString, value: &T) -> Result<(), Error> {
        self.map.insert(name, to_value(value)?);
        Ok(())
    }

    fn finish(self) -> Result<Value, Error> {
        match self.is_raw.then(|| self.map.get(RAW_VALUE)).flatten() {
            Some(Value::String(text)) => serde_json::from_str(text),
            _ => Ok(in_variant(self.variant, Value::Object(self.map))),
        }
    }
}

impl SerializeMap for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, name: &T) -> Result<(), Error> {
        self.name = Some(name.serialize(ToName)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.name.take().ok_or_else(|| Error::custom("a value before its name"))?;
        self.insert(name, value)
    }

    fn end(self) -> Result<Value, Error> {
        self.finish()
    }
}

impl SerializeStruct for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.insert(name.into(), value)
    }

    fn end(self) -> Result<Value, Error> {
        self.finish()
    }
}

impl SerializeStructVariant for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.insert(name.into(), value)
    }

    fn end(self) -> Result<Value, Error> {
        self.finish()
    }
}

/// Writes the name of a member: a string, or the text of a number or a boolean.
struct ToName;

/// The method that writes the text of a value.
macro_rules! name_of_text {
    ($($method:ident $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<JsonString, Error> {
            Ok(value.to_string().into())
        }
    )*};
}

impl Serializer for ToName {
    type Ok = JsonString;
    type Error = Error;
    type SerializeSeq = Impossible<JsonString, Error>;
    type SerializeTuple = Impossible<JsonString, Error>;
    type SerializeTupleStruct = Impossible<JsonString, Error>;
    type SerializeTupleVariant = Impossible<JsonString, Error>;
    type SerializeMap = Impossible<JsonString, Error>;
    type SerializeStruct = Impossible<JsonString, Error>;
    type SerializeStructVariant = Impossible<JsonString, Error>;

    name_of_text! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128, serialize_char char
    }

    fn serialize_str(self, name: &str) -> Result<JsonString, Error> {
        Ok(name.into())
    }

    fn serialize_f32(self, value: f32) -> Result<JsonString, Error> {
        if value.is_finite() { Ok(serde_json::to_string(&value)?.into()) } else { Err(not_finite()) }
    }

    fn serialize_f64(self, value: f64) -> Result<JsonString, Error> {
        if value.is_finite() { Ok(serde_json::to_string(&value)?.into()) } else { Err(not_finite()) }
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<JsonString, Error> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, name: &T) -> Result<JsonString, Error> {
        name.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_none(self) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_unit(self) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<JsonString, Error> {
        Err(no_name())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        Err(no_name())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        Err(no_name())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        Err(no_name())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(no_name())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        Err(no_name())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        Err(no_name())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(no_name())
    }
}

fn not_finite() -> Error {
    Error::custom("float key must be finite (got NaN or +/-inf)")
}

fn no_name() -> Error {
    Error::custom("key must be a string")
}
