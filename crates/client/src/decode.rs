//! Converts received objects to stored values: [`Decode`], called exactly once for each version of
//! each accepted object.
//!
//! | decoder | the store holds | for |
//! |---|---|---|
//! | [`KeepJson`] | [`Object`], every byte | dynamic objects, proxies, CLIs |
//! | [`Project`] | [`Object`], the wanted fields | metadata-only caches, a few fields of large objects |
//! | [`Json<T>`] | [`Typed<T>`] through serde | `k8s-openapi` types, a struct with the fields of interest |
//! | [`decode_with`] | [`Typed<T>`] | any function of the bytes |
//!
//! [`Json::transform`] adds a function after serde, like client-go's transform. A decoding error
//! concerns one object, which is quarantined ([`Quarantined`]). No list fails and no other event is
//! lost.
//!
//! [`Quarantined`]: crate::delta_fifo::Quarantined

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::object::{Object, ObjectKey, RawObject, TypeName};
use crate::projection::Projection;
use crate::stored::{Stored, Typed};

/// The largest error text that is stored with an object, in bytes. Longer texts are truncated.
pub const DECODE_ERROR_BYTES_MAX: usize = 512;

/// The error of an object that cannot be stored. The object or its decoder is at fault, never the
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DecodeError {
    why: String,
}

impl DecodeError {
    /// Creates an error with this reason, cut to [`DECODE_ERROR_BYTES_MAX`].
    pub fn new(why: impl fmt::Display) -> Self {
        let mut why = why.to_string();
        if why.len() > DECODE_ERROR_BYTES_MAX {
            let end = (0..=DECODE_ERROR_BYTES_MAX).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
            why.truncate(end);
        }
        DecodeError { why }
    }
}

/// Converts received objects to stored values.
pub trait Decode: Send + Sync + 'static {
    /// The stored type.
    type Stored: Stored;

    /// Decodes one object. `raw` is a slice of a network buffer: kept data must be copied, or the
    /// whole buffer stays in memory. `key` is the object's identity; `type_name` the type of a list
    /// item without one.
    ///
    /// Identity, uid and version of the result must be those of `raw`.
    ///
    /// # Errors
    /// [`DecodeError`] puts this object into quarantine.
    fn decode(
        &self,
        raw: &RawObject,
        key: ObjectKey,
        type_name: Option<&TypeName>,
    ) -> Result<Self::Stored, DecodeError>;
}

/// Keeps every object as its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepJson;

impl Decode for KeepJson {
    type Stored = Object;

    fn decode(&self, raw: &RawObject, key: ObjectKey, type_name: Option<&TypeName>) -> Result<Object, DecodeError> {
        Ok(Object::keep(raw, key, type_name))
    }
}

/// Keeps the selected fields of every object, as bytes. Other fields are never copied.
#[derive(Clone, Debug)]
pub struct Project(pub Projection);

impl Decode for Project {
    type Stored = Object;

    fn decode(&self, raw: &RawObject, key: ObjectKey, type_name: Option<&TypeName>) -> Result<Object, DecodeError> {
        let projected = self.0.apply(raw.json()).map_err(DecodeError::new)?;
        let raw = RawObject::new(projected.into()).map_err(DecodeError::new)?;
        Ok(Object::keep(&raw, key, type_name))
    }
}

/// Keeps every object as a Rust value, read from its JSON by serde.
///
/// # Example
/// ```
/// use listwatch_client::Json;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Pod {
///     spec: Spec,
/// }
/// #[derive(Deserialize)]
/// #[serde(rename_all = "camelCase")]
/// struct Spec {
///     node_name: Option<String>,
/// }
///
/// let pods = Json::<Pod>::new();
/// // Only the node is kept; a pod without one goes into quarantine.
/// let nodes = Json::<Pod>::new().transform(|pod| pod.spec.node_name.ok_or("not scheduled"));
/// # let _ = (pods, nodes);
/// ```
pub struct Json<T>(PhantomData<fn() -> T>);

impl<T> Json<T> {
    /// A decoder for this type.
    pub fn new() -> Self {
        Json(PhantomData)
    }

    /// Runs `function` on each value before it is stored. The function runs once per version of an object.
    pub fn transform<U, E: fmt::Display>(
        self,
        function: impl Fn(T) -> Result<U, E> + Send + Sync + 'static,
    ) -> impl Decode<Stored = Typed<U>>
    where
        T: DeserializeOwned + 'static,
        U: Send + Sync + 'static,
    {
        decode_with(move |raw| {
            let value = serde_json::from_slice(raw.json()).map_err(DecodeError::new)?;
            function(value).map_err(DecodeError::new)
        })
    }
}

impl<T> Default for Json<T> {
    fn default() -> Self {
        Json::new()
    }
}

impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        Json::new()
    }
}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json<{}>", std::any::type_name::<T>())
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Decode for Json<T> {
    type Stored = Typed<T>;

    fn decode(&self, raw: &RawObject, key: ObjectKey, _: Option<&TypeName>) -> Result<Typed<T>, DecodeError> {
        let value = serde_json::from_slice(raw.json()).map_err(DecodeError::new)?;
        Ok(Typed::with_key(raw, key, value))
    }
}

/// Creates a decoder from a function. [`Decode::decode`] documents the calls.
pub fn decode_with<T: Send + Sync + 'static>(
    function: impl Fn(&RawObject) -> Result<T, DecodeError> + Send + Sync + 'static,
) -> impl Decode<Stored = Typed<T>> {
    FromFunction { function }
}

struct FromFunction<F> {
    function: F,
}

impl<T, F> Decode for FromFunction<F>
where
    T: Send + Sync + 'static,
    F: Fn(&RawObject) -> Result<T, DecodeError> + Send + Sync + 'static,
{
    type Stored = Typed<T>;

    fn decode(&self, raw: &RawObject, key: ObjectKey, _: Option<&TypeName>) -> Result<Typed<T>, DecodeError> {
        Ok(Typed::with_key(raw, key, (self.function)(raw)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_error_is_truncated_at_a_character_boundary() {
        let long = "\u{e9}".repeat(DECODE_ERROR_BYTES_MAX);
        assert_eq!(DecodeError::new(&long).to_string().len(), DECODE_ERROR_BYTES_MAX);
        assert_eq!(DecodeError::new(format!("x{long}")).to_string().len(), DECODE_ERROR_BYTES_MAX - 1);
        assert_eq!(DecodeError::new("short").to_string(), "short");
    }
}
