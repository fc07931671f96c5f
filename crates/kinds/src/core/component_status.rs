//! `ComponentStatus (v1)`: componentstatuses.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["cs"],
    deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
    printer: &crate::printers::core::COMPONENT_STATUS,
    stored: false,
    ..Kind::cluster("", "v1", "componentstatuses", "ComponentStatus")
};
