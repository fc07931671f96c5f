//! Converts bodies to documents and documents to bodies, by media type: JSON, YAML, protobuf and
//! CBOR.

use std::io::Read as _;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use listwatch_wire::{cbor, protobuf};
use serde_json::Value;

use crate::suite::BodyEncoding;

/// The largest decompressed body, in bytes.
const DECOMPRESSED_BYTES_MAX: u64 = 256 << 20;

/// The value of a header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The media type of a response without its parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = header(headers, &CONTENT_TYPE);
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Decodes the body of a response by its headers. `None` for text, and for an empty body.
///
/// # Errors
/// The body does not have the encoding that its headers name.
pub(crate) fn decode(headers: &HeaderMap, body: &Bytes) -> Result<Option<Value>, String> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut plain = Vec::new();
    let body: &[u8] = if header(headers, &CONTENT_ENCODING).eq_ignore_ascii_case("gzip") {
        let decoder = flate2::read::MultiGzDecoder::new(&body[..]);
        let read = decoder.take(DECOMPRESSED_BYTES_MAX).read_to_end(&mut plain);
        read.map_err(|error| format!("the body is not valid gzip: {error}"))?;
        &plain
    } else {
        body
    };
    decode_as(&media_type(headers), body)
}

fn decode_as(media_type: &str, body: &[u8]) -> Result<Option<Value>, String> {
    let json = |json: &[u8]| serde_json::from_slice(json).map(Some);
    match media_type {
        "application/json" => json(body).map_err(|error| format!("the body is not valid JSON: {error}")),
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| format!("the body is not valid YAML: {error}"))?;
            yaml_serde::from_str(text).map(Some).map_err(|error| format!("the body is not valid YAML: {error}"))
        }
        "application/vnd.kubernetes.protobuf" => {
            let decoded = protobuf::decode(body).map_err(|error| format!("the body is not valid protobuf: {error}"))?;
            let document = json(&decoded.json).map_err(|error| error.to_string())?;
            Ok(document.map(|document| typed(document, &decoded.api_version, &decoded.kind)))
        }
        "application/cbor" => {
            let decoded = cbor::decode(body).map_err(|error| format!("the body is not valid CBOR: {error}"))?;
            json(&decoded).map_err(|error| error.to_string())
        }
        // Bodies of errors without a media type are JSON or text.
        _ => Ok(serde_json::from_slice(body).ok()),
    }
}

/// Adds the `apiVersion` and `kind` of a protobuf envelope to the decoded object.
pub(crate) fn typed(mut document: Value, api_version: &str, kind: &str) -> Value {
    if let Value::Object(members) = &mut document {
        members.entry("apiVersion").or_insert_with(|| Value::from(api_version));
        members.entry("kind").or_insert_with(|| Value::from(kind));
    }
    document
}

/// Encodes the body of a request. Returns it with its media type.
///
/// # Errors
/// The document cannot be encoded this way.
pub(crate) fn encode(body: &Value, encoding: BodyEncoding) -> Result<(Bytes, &'static str), String> {
    let json = body.to_string().into_bytes();
    let member = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
    Ok(match encoding {
        BodyEncoding::Json => (json.into(), "application/json"),
        // JSON is YAML (YAML 1.2, section 1.3); block style shows that a YAML parser reads it.
        BodyEncoding::Yaml => {
            let yaml = listwatch_wire::yaml::from_json(&json).map_err(|status| status.message)?;
            (yaml, "application/yaml")
        }
        BodyEncoding::Protobuf => {
            let encoded = protobuf::encode(member("apiVersion"), member("kind"), &json);
            (encoded.map_err(|error| error.to_string())?.into(), "application/vnd.kubernetes.protobuf")
        }
        BodyEncoding::Cbor => {
            let encoded = cbor::encode(&json).map_err(|error| error.to_string())?;
            (encoded.into(), "application/cbor")
        }
        BodyEncoding::Raw => {
            let text = body.as_str().ok_or("a raw body is text")?;
            (Bytes::copy_from_slice(text.as_bytes()), "application/json")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn headers(media_type: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))])
    }

    #[test]
    fn body_round_trips_in_every_encoding() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
        for encoding in [BodyEncoding::Json, BodyEncoding::Yaml, BodyEncoding::Protobuf, BodyEncoding::Cbor] {
            let (body, media_type) = encode(&object, encoding).unwrap();
            let decoded = decode(&headers(media_type), &body).unwrap().unwrap();
            assert_eq!(decoded["data"], object["data"], "{encoding:?}");
            assert_eq!(decoded["kind"], "ConfigMap", "{encoding:?}");
        }
    }

    #[test]
    fn body_that_contradicts_its_media_type_is_an_error() {
        let body = Bytes::from_static(b"k8s");
        for media_type in ["application/json", "application/vnd.kubernetes.protobuf", "application/cbor"] {
            assert!(decode(&headers(media_type), &body).is_err(), "{media_type}");
        }
        assert_eq!(decode(&headers("text/plain"), &body), Ok(None));
        let gzip = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(decode(&gzip, &Bytes::new()), Ok(None), "the head of a stream has no body");
        assert!(decode(&gzip, &body).is_err());
    }

    #[test]
    fn gzip_with_several_members_is_decompressed() {
        let member = |text: &str| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let mut headers = headers("application/json");
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let body = [member("{\"a\":"), member("1}")].concat();
        assert_eq!(decode(&headers, &body.into()), Ok(Some(json!({"a": 1}))));
    }
}
