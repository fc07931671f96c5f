//! `ConfigMap (v1)`: configmaps.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["cm"],
    normalize: crate::hooks::data::decode_config_map,
    validate: crate::validate::storage::config_map,
    validate_transition: crate::hooks::data::judge,
    printer: &crate::printers::core::CONFIG_MAP,
    ..Kind::namespaced("", "v1", "configmaps", "ConfigMap")
};
