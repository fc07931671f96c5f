//! `Secret (v1)`: secrets.

use crate::{Field, Kind};

pub(crate) static KIND: Kind = Kind {
    fields: &[Field::with_default("type", "Opaque")],
    defaults: &crate::defaults::table::SECRET,
    normalize: crate::hooks::data::decode_secret,
    validate: crate::validate::storage::secret,
    validate_update: crate::validate::storage::update_secret,
    validate_transition: crate::hooks::data::judge,
    printer: &crate::printers::core::SECRET,
    ..Kind::namespaced("", "v1", "secrets", "Secret")
};
