//! [`with_message`]: the protobuf message of a cached object, encoded once for its events, gets and lists.

use listwatch_cacher::{EncodingCache, EncodingId};
use listwatch_meta::Object;
use listwatch_wire::protobuf::{self, EncodeError};

/// Passes the message of an object to `take`: the kept one, or a new one, which is kept if a cache also has the object.
/// The object must be of the version `api_version`, or `api_version` and `kind` those of its metadata.
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
