//! Encodes a whole JSON document in the negotiated encoding.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::Status;
use listwatch_meta::scan::{self, PathSet, Span};
use listwatch_wire::media_type::Encoding;
use listwatch_wire::{cbor, protobuf, yaml};

/// Encodes a document. `json` has no final newline.
///
/// # Errors
/// 500 if the document cannot be encoded.
pub(crate) fn encode(json: &[u8], encoding: Encoding) -> Result<Bytes, Status> {
    match encoding {
        Encoding::Json => {
            let mut document = BytesMut::with_capacity(json.len() + 1);
            document.put_slice(json);
            document.put_u8(b'\n');
            Ok(document.freeze())
        }
        Encoding::Yaml => yaml::from_json(json),
        Encoding::Protobuf => {
            let (api_version, kind) = type_of(json);
            // The document of `/api` has no version (`stripVersionEncoder`), and the message of `v1`.
            let version_of_message = if api_version.is_empty() { "v1" } else { api_version.as_str() };
            let message = protobuf::message(version_of_message, &kind, json).map_err(Status::internal)?;
            Ok(protobuf::body(&api_version, &kind, &message).into())
        }
        Encoding::Cbor => Ok(cbor::encode(json).map_err(Status::internal)?.into()),
    }
}

/// Returns `apiVersion` and `kind` of a document.
fn type_of(json: &[u8]) -> (String, String) {
    static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
        let mut paths = PathSet::new();
        paths.add(&["apiVersion"]);
        paths.add(&["kind"]);
        paths
    });
    let mut spans = [Span::default(); 2];
    // Invalid JSON has no type, and the encoder rejects it.
    let _ = scan::find(json, &PATHS, &mut spans);
    let [api_version, kind] = spans.map(|span| {
        if span.is_absent() { String::new() } else { serde_json::from_slice(span.of(json)).unwrap_or_default() }
    });
    (api_version, kind)
}
