//! ComponentStatus (`v1`): the health of a control plane component. Deprecated; computed for each request.
//!
//! Source: `pkg/registry/core/componentstatus`.

use crate::Kind;
use listwatch_printers::Printer;
use listwatch_printers::{Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["cs"],
    deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
    printer: &PRINTER,
    stored: false,
    ..Kind::cluster("", "v1", "componentstatuses", "ComponentStatus")
};

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the component is well."),
        Column::text("Message", "What the component says of itself."),
        Column::text("Error", "Why the component could not be asked."),
    ],
    cells: |component| {
        let conditions = component.get("conditions").items();
        let health = conditions.into_iter().find(|condition| condition.get("type").is("Healthy"));
        let status = match &health {
            Some(condition) if condition.get("status").is("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        let text = |member: &str| health.as_ref().map(|condition| condition.get(member).string()).unwrap_or_default();
        vec![component.name().into(), status.into(), text("message").into(), text("error").into()]
    },
};
