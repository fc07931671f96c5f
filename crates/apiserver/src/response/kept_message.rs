//! [`with_message`]: encodes the protobuf message of a cached object once, for events, gets and lists.

use listwatch_cacher::{EncodingCache, EncodingId};
use listwatch_meta::Object;
use listwatch_wire::protobuf::{self, EncodeError};

/// Passes the protobuf message of an object to `take`. Uses the cached message, or encodes a new one. A new message is
/// cached if the watch cache also holds the object. `api_version` must be the version of the object, or `api_version`
/// and `kind` must be those of its metadata.
pub(crate) fn with_message<R>(
    (cache, id): (&EncodingCache, EncodingId),
    (api_version, kind): (&str, &str),
    object: &Object,
    take: impl Fn(&[u8]) -> R,
) -> Result<R, EncodeError> {
    if let Some(taken) = cache.read(object, id, &take) {
        return Ok(taken);
    }
    let message = protobuf::message(api_version, kind, object.json_slice())?;
    if object.is_shared() {
        cache.keep(object, id, &message);
    }
    Ok(take(&message))
}
