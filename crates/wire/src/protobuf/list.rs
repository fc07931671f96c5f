//! List bodies around items that are encoded already: `ListMeta`, then each item's message without
//! its envelope.
//!
//! ```text
//!   k8s\0 Unknown{ TypeMeta, raw: │ ListMeta │ 2 len item │ 2 len item │ … │ }
//!   └────────────── list_head ───────────────┘ └ push_item ┘               └ LIST_TAIL
//! ```
//!
//! The head says how long the whole list is, so the items have to be there (or their lengths) before
//! the first byte leaves; their bytes may then be sent one after the other.

use super::EncodeError;
use super::encodable;
use super::encode::{push_varint, varint_bytes};
use super::envelope::{Envelope, TAIL, field_bytes, head, push_head};
use crate::list::ListMeta;

/// What stands behind the last item of a list.
pub const LIST_TAIL: &[u8] = TAIL;

/// The bytes that an item of `raw_bytes` takes in a list, with its tag and length.
pub const fn item_bytes(raw_bytes: usize) -> usize {
    field_bytes(raw_bytes)
}

/// What stands before the first item of a list whose items take `items_bytes` in all, each counted
/// with [`item_bytes`].
///
/// # Errors
/// [`EncodeError::UnknownKind`] for a list that has no protobuf.
pub fn list_head(meta: &ListMeta, items_bytes: usize) -> Result<Vec<u8>, EncodeError> {
    encodable(&meta.api_version, &meta.kind)?;
    let (version, token) = (&meta.resource_version, &meta.continue_token);
    // A negative count has ten bytes, as every varint of 64 bits.
    let remaining = meta.remaining_item_count.map(|count| count as u64);
    let meta_bytes = field_bytes(0)
        + field_bytes(version.len())
        + field_bytes(token.len())
        + remaining.map_or(0, |count| 1 + varint_bytes(count));
    let mut out = head(&meta.api_version, &meta.kind, field_bytes(meta_bytes) + items_bytes);
    push_head(&mut out, 1, meta_bytes);
    // `selfLink` is gone, but Go still writes it.
    push_head(&mut out, 1, 0);
    for (number, text) in [(2, version), (3, token)] {
        push_head(&mut out, number, text.len());
        out.extend_from_slice(text.as_bytes());
    }
    if let Some(count) = remaining {
        out.push(4 << 3);
        push_varint(&mut out, count);
    }
    Ok(out)
}

/// What stands before an item of `raw_bytes`.
pub fn push_item_head(out: &mut Vec<u8>, raw_bytes: usize) {
    push_head(out, 2, raw_bytes);
}

/// An item: its message as [`Envelope::raw`] gives it.
pub fn push_item(out: &mut Vec<u8>, raw: &[u8]) {
    push_item_head(out, raw.len());
    out.extend_from_slice(raw);
}

/// A list of objects that are encoded already, each in its envelope; every object is copied once.
///
/// # Errors
/// [`EncodeError::UnknownKind`] for a list that has no protobuf, [`EncodeError::Item`] for an item that
/// is no envelope.
pub fn encode_list<I: AsRef<[u8]>>(meta: &ListMeta, envelopes: &[I]) -> Result<Vec<u8>, EncodeError> {
    let mut raws = Vec::with_capacity(envelopes.len());
    for (index, envelope) in envelopes.iter().enumerate() {
        let body = envelope.as_ref();
        let opened = Envelope::parse(body).map_err(|why| EncodeError::Item { index, why })?;
        raws.push(opened.raw(body));
    }
    let mut out = list_head(meta, raws.iter().map(|raw| item_bytes(raw.len())).sum())?;
    for raw in raws {
        push_item(&mut out, raw);
    }
    out.extend_from_slice(LIST_TAIL);
    Ok(out)
}
