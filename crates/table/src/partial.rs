//! Writes `PartialObjectMetadata`: the metadata of an object, for metadata informers and garbage collectors. The bytes
//! of the metadata are copied without parsing.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::scan::{self, PathSet, Span};

use super::{ListMeta, MetaVersion};

static METADATA: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    paths.add(&["metadata"]);
    paths
});

/// Returns the raw JSON of an object's metadata; empty if the object has none.
fn metadata(object: &[u8]) -> &[u8] {
    let mut span = [Span::default()];
    match scan::find(object, &METADATA, &mut span) {
        Ok(()) => span[0].of(object),
        Err(_) => b"",
    }
}

/// Appends a `PartialObjectMetadata` with this metadata.
pub(super) fn write(out: &mut BytesMut, metadata: &[u8], version: MetaVersion) {
    let metadata = if metadata.is_empty() { b"{}" } else { metadata };
    out.reserve(metadata.len() + 96);
    out.put_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
    out.put_slice(version.api_version().as_bytes());
    out.put_slice(b"\",\"metadata\":");
    out.put_slice(metadata);
    out.put_u8(b'}');
}

/// Creates the `PartialObjectMetadata` of an object, without a final newline.
pub fn object(object: &[u8], version: MetaVersion) -> Bytes {
    let mut out = BytesMut::new();
    write_object(&mut out, object, version);
    out.freeze()
}

/// Creates the body of a LIST as `PartialObjectMetadataList`, with a final newline.
pub fn list<'a>(objects: impl IntoIterator<Item = &'a [u8]>, meta: &ListMeta, version: MetaVersion) -> Bytes {
    let mut out = head(meta, version);
    for (position, object) in objects.into_iter().enumerate() {
        if position > 0 {
            out.put_u8(b',');
        }
        write_object(&mut out, object, version);
    }
    out.put_slice(super::TAIL);
    out.freeze()
}

/// Returns the bytes before the first item of a LIST, for callers that stream the items. Such a caller then appends
/// each item with [`write_object`], and finally [`TAIL`](super::TAIL).
pub fn head(meta: &ListMeta, version: MetaVersion) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_slice(b"{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"");
    out.put_slice(version.api_version().as_bytes());
    out.put_slice(b"\",\"metadata\":");
    meta.write(&mut out);
    out.put_slice(b",\"items\":[");
    out
}

/// Appends an object as `PartialObjectMetadata`. `object` is JSON. The caller separates items by commas.
pub fn write_object(out: &mut BytesMut, object: &[u8], version: MetaVersion) {
    write(out, metadata(object), version);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_object_has_type_and_metadata_only() {
        let pod = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"a\"b"},"spec":{"metadata":1}}"#;
        assert_eq!(
            object(pod, MetaVersion::V1),
            r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7","name":"a\"b"}}"#
        );
        let meta = ListMeta {
            resource_version: "9".to_owned(),
            continue_token: Some("abc".to_owned()),
            remaining_item_count: Some(3),
        };
        assert_eq!(
            list([&pod[..], b"{}"], &meta, MetaVersion::V1Beta1),
            concat!(
                r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1beta1","#,
                r#""metadata":{"resourceVersion":"9","continue":"abc","remainingItemCount":3},"items":["#,
                r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":{"resourceVersion":"7","name":"a\"b"}},"#,
                r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":{}}]}"#,
                "\n"
            )
        );
        assert!(list([], &ListMeta::default(), MetaVersion::V1).ends_with(b"\"items\":[]}\n"), "never null");
    }
}
