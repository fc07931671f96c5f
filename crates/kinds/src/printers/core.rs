//! The core group's small kinds, and those of other groups that are much like them.

use super::text::condition;
use crate::table::Json;

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
