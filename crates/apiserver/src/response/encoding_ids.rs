//! [`EncodingIds`]: the cache ids of the encodings of one resource.
//!
//! An id consists of the number of the resource's generation ([`Resource::encoding_serial`]) and the number of the
//! form. Equal ids mean equal bytes for an object, regardless of the client.

use listwatch_cacher::EncodingId;
use listwatch_registry::Resource;
use listwatch_table::{IncludeObject, MetaVersion};

/// The ids of one resource. Encodings for lists and encodings for events are in separate caches, so a form can use one
/// id for both.
#[derive(Clone, Copy)]
pub(crate) struct EncodingIds(u64);

/// The number of bits of the form in an id.
const FORM_BITS: u32 = 16;

impl EncodingIds {
    pub(crate) fn of(resource: &Resource) -> Self {
        EncodingIds(resource.encoding_serial() << FORM_BITS)
    }

    fn id(self, form: u64) -> EncodingId {
        EncodingId::new(self.0 | form)
    }

    /// The id of Table rows.
    pub(crate) fn table(self, include: IncludeObject, version: MetaVersion) -> EncodingId {
        self.id(0x100 + 8 * number(version) + include as u64)
    }

    /// The id of `PartialObjectMetadata` in JSON.
    pub(crate) fn metadata(self, version: MetaVersion) -> EncodingId {
        self.id(0x200 + number(version))
    }

    /// The id of complete objects in protobuf.
    pub(crate) fn protobuf(self) -> EncodingId {
        self.id(0x300)
    }

    /// The id of `PartialObjectMetadata` in protobuf.
    pub(crate) fn protobuf_metadata(self, version: MetaVersion) -> EncodingId {
        self.id(0x400 + number(version))
    }

    /// The id of complete objects in CBOR.
    pub(crate) fn cbor(self) -> EncodingId {
        self.id(0x500)
    }

    /// The id of `PartialObjectMetadata` in CBOR.
    pub(crate) fn cbor_metadata(self, version: MetaVersion) -> EncodingId {
        self.id(0x600 + number(version))
    }

    /// The id of complete objects in JSON in a version other than the cached version.
    pub(crate) fn converted(self) -> EncodingId {
        self.id(0x700)
    }
}

fn number(version: MetaVersion) -> u64 {
    u64::from(version == MetaVersion::V1Beta1)
}
