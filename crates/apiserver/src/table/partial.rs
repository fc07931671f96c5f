//! `PartialObjectMetadata`: an object cut down to its metadata, as metadata informers and garbage
//! collectors ask for it. The metadata is copied as it stands; nothing is parsed or re-encoded.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::scan::{self, PathSet, Span};

use super::{ListMeta, MetaVersion};

static METADATA: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    paths.add(&["metadata"]);
    paths
});

/// The metadata of an object as its raw JSON; empty when it has none.
fn metadata(object: &[u8]) -> &[u8] {
    let mut span = [Span::default()];
    match scan::find(object, &METADATA, &mut span) {
        Ok(()) => span[0].of(object),
        Err(_) => b"",
    }
}

/// Appends an object with this metadata.
pub(super) fn write(out: &mut BytesMut, metadata: &[u8], version: MetaVersion) {
    let metadata = if metadata.is_empty() { b"{}" } else { metadata };
    out.reserve(metadata.len() + 96);
    out.put_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
    out.put_slice(version.api_version().as_bytes());
    out.put_slice(b"\",\"metadata\":");
    out.put_slice(metadata);
    out.put_u8(b'}');
}

/// One object as `PartialObjectMetadata`, no newline: a watch event's `object`, or, with a newline,
/// the body of a GET.
pub fn object(object: &[u8], version: MetaVersion) -> Bytes {
    let mut out = BytesMut::new();
    write_object(&mut out, object, version);
    out.freeze()
}

/// The body of a LIST as `PartialObjectMetadataList`, with the newline that ends it.
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

/// What stands before the first item of a LIST.
pub(crate) fn head(meta: &ListMeta, version: MetaVersion) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_slice(b"{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"");
    out.put_slice(version.api_version().as_bytes());
    out.put_slice(b"\",\"metadata\":");
    meta.write(&mut out);
    out.put_slice(b",\"items\":[");
    out
}

/// Appends an object as `PartialObjectMetadata`.
pub(crate) fn write_object(out: &mut BytesMut, object: &[u8], version: MetaVersion) {
    write(out, metadata(object), version);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_cut_down_to_its_metadata() {
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
