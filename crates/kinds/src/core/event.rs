//! `Event (v1)`: events.

use crate::{Field, Kind};
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ev"],
    names: NameRule::PathSegment,
    create_on_update: true,
    ttl_seconds: Some(3600),
    fields: &[
        Field::new("involvedObject.kind"),
        Field::new("involvedObject.namespace"),
        Field::new("involvedObject.name"),
        Field::new("involvedObject.uid"),
        Field::new("involvedObject.apiVersion"),
        Field::new("involvedObject.resourceVersion"),
        Field::new("involvedObject.fieldPath"),
        Field::new("reason"),
        Field::new("reportingComponent"),
        Field {
            label: "source",
            path: "source.component",
            default: "",
            or_field: Some("reportingComponent"),
            ..Field::new("source")
        },
        Field::new("type"),
    ],
    defaults: &crate::defaults::table::EVENT,
    validate: crate::validate::events::event,
    printer: &crate::printers::core::EVENT,
    ..Kind::namespaced("", "v1", "events", "Event")
};
