//! `PersistentVolumeClaim (v1)`: persistentvolumeclaims.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["pvc"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::PERSISTENT_VOLUME_CLAIM,
    initial_status: || Some(json!({"phase": "Pending"})),
    prepare_for_create: |claim, _| crate::validate::volumes::prepare_claim(claim, None),
    prepare_for_update: |claim, old, _| crate::validate::volumes::prepare_claim(claim, Some(old)),
    validate: crate::validate::volumes::claim,
    validate_status: crate::validate::volumes::claim_status,
    printer: &crate::printers::storage::PERSISTENT_VOLUME_CLAIM,
    zero_members: r#""spec":{"resources":{}},"status":{}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
};
