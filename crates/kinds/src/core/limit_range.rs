//! `LimitRange (v1)`: limitranges.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    short_names: &["limits"],
    create_on_update: true,
    defaults: &crate::defaults::table::LIMIT_RANGE,
    validate: crate::validate::quotas::limit_range,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Object,
        consequence: "it neither sets nor limits resources of pods",
    }),
    ..Kind::namespaced("", "v1", "limitranges", "LimitRange")
};
