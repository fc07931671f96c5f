//! `PersistentVolume (v1)`: persistentvolumes.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["pv"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::PERSISTENT_VOLUME,
    initial_status: || Some(json!({"phase": "Pending"})),
    prepare_for_create: crate::hooks::begin_phase,
    prepare_for_update: crate::hooks::enter_phase,
    validate: crate::validate::volumes::volume,
    printer: &crate::printers::storage::PERSISTENT_VOLUME,
    zero_members: r#""spec":{},"status":{}"#,
    returns_deleted: true,
    ..Kind::cluster("", "v1", "persistentvolumes", "PersistentVolume")
};
