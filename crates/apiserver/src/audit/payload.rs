//! The objects of requests and responses as payloads of audit events. Conversions to JSON run when the event is
//! written.

use bytes::Bytes;
use listwatch_audit::Payload;
use listwatch_wire::media_type::CBOR;
use listwatch_wire::{cbor, protobuf};
use parking_lot::Mutex;

/// The memory that is charged for the snapshot of a list in the audit queue, in bytes: an estimate.
const LIST_BYTES: usize = 256 << 10;

/// Creates the payload of a JSON document.
pub(crate) fn json_payload(json: Bytes) -> Payload {
    Payload::json(json)
}

/// Creates the payload of a request body, in any encoding that the server accepts.
pub(crate) fn request_payload(content_type: Option<&str>, body: Bytes) -> Payload {
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    match media_type {
        "application/vnd.kubernetes.protobuf" => {
            Payload::produced(body.len(), move |_| Some(protobuf::decode(&body).ok()?.json))
        }
        CBOR | "application/apply-patch+cbor" => Payload::produced(body.len(), move |_| cbor::decode(&body).ok()),
        "application/yaml" | "application/apply-patch+yaml" => Payload::produced(body.len(), move |_| {
            // JSON is YAML too, and is not parsed twice.
            if serde_json::from_slice::<&serde_json::value::RawValue>(&body).is_ok() {
                return Some(body.to_vec());
            }
            let value: listwatch_json::Value = yaml_serde::from_slice(&body).ok()?;
            serde_json::to_vec(&value).ok()
        }),
        _ => Payload::json(body),
    }
}

/// Creates the payload of a list in JSON. The chunks are produced once, when the event is written.
pub(crate) fn list_payload<E: 'static>(chunks: impl Iterator<Item = Result<Bytes, E>> + Send + 'static) -> Payload {
    let chunks = Mutex::new(Some(chunks));
    let produced: Mutex<Option<Bytes>> = Mutex::new(None);
    Payload::produced(LIST_BYTES, move |bytes_max| {
        if let Some(chunks) = chunks.lock().take() {
            let mut json = Vec::new();
            for chunk in chunks {
                json.extend_from_slice(&chunk.ok()?);
                if json.len() > bytes_max {
                    break;
                }
            }
            *produced.lock() = Some(json.into());
        }
        produced.lock().as_ref().map(|json| json.to_vec())
    })
}
