//! `VolumeAttachment (storage.k8s.io/v1)`: volumeattachments.

use crate::Subresource;
use crate::{Kind, WriteScope};
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    subresources: &[Subresource::Status],
    initial_status: || Some(json!({"attached": false})),
    validate: crate::validate::csi::volume_attachment,
    validate_status: crate::validate::csi::volume_attachment_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::storage::VOLUME_ATTACHMENT,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
};
