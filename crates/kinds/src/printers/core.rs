//! The core group's small kinds, and those of other groups that are much like them.

use super::Printer;
use super::text::condition;
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

pub(crate) static LEASE: Printer = Printer {
    columns: &[NAME, Column::text("Holder", "Who holds the lease."), AGE],
    cells: |lease| vec![lease.name().into(), lease.at("spec.holderIdentity").string().into(), lease.age().into()],
};

pub(crate) static PRIORITY_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::integer("Value", "The priority that pods of this class get."),
        Column::boolean("Global-Default", "Whether pods without a class get this one."),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of this class may displace others."),
    ],
    cells: |class| {
        vec![
            class.name().into(),
            class.get("value").int().unwrap_or(0).into(),
            class.get("globalDefault").bool().unwrap_or(false).into(),
            class.age().into(),
            class.get("preemptionPolicy").string_or("PreemptLowerPriority").into(),
        ]
    },
};

pub(crate) static RUNTIME_CLASS: Printer = Printer {
    columns: &[NAME, Column::text("Handler", "The runtime's handler for pods of this class."), AGE],
    cells: |class| vec![class.name().into(), class.get("handler").string().into(), class.age().into()],
};

/// The status of a condition in a cell: its value, with the reason when it does not hold.
pub(crate) fn condition_cell(conditions: Json<'_>, type_: &str) -> String {
    let Some(condition) = condition(conditions, type_) else {
        return "Unknown".to_owned();
    };
    let status = condition.get("status").string();
    match condition.get("reason").string().as_str() {
        reason if status != "True" && !reason.is_empty() => format!("{status} ({reason})"),
        _ => status,
    }
}
