//! `APIService (apiregistration.k8s.io/v1)`: apiservices.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart, WriteScope};
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    storage_prefix: "apiregistration.k8s.io/apiservices",
    names: NameRule::PathSegment,
    unconditional_update: false,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::API_SERVICE,
    validate: crate::validate::aggregation::api_service,
    validate_status: crate::validate::aggregation::status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::extension::API_SERVICE,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Field("/spec/service"),
        consequence: "requests are not passed to its service",
    }),
    ..Kind::cluster("apiregistration.k8s.io", "v1", "apiservices", "APIService")
};
