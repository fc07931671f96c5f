//! Cell texts that several printers share: labels, selectors, containers, conditions.
//!
//! Source: `pkg/printers/internalversion/printers.go` of Kubernetes v1.36.

use crate::Json;
use listwatch_validation::label_selector::LabelSelector;

/// The text for an absent value.
pub const NONE: &str = "<none>";
/// The text for a field that is not set.
pub const UNSET: &str = "<unset>";

/// Returns `text`, or `none` if it is empty.
pub fn or(text: String, none: &str) -> String {
    if text.is_empty() { none.to_owned() } else { text }
}

/// The first `shown_max` items and the number of the others: `a,b + 2 more...`. Returns `none` for an empty list.
pub fn with_more(mut list: Vec<String>, shown_max: usize, separator: &str, none: &str) -> String {
    let count = list.len();
    list.truncate(shown_max);
    or(more_than_shown(&list, count, separator), none)
}

/// The shown items of `count` ones, and the number of the others.
pub fn more_than_shown(shown: &[String], count: usize, separator: &str) -> String {
    let text = shown.join(separator);
    match count.saturating_sub(shown.len()) {
        0 => text,
        more => format!("{text} + {more} more..."),
    }
}

/// A map of labels, sorted: `a=1,b=2`; `<none>` when empty.
pub fn labels(map: Json<'_>) -> String {
    let mut pairs: Vec<String> =
        map.entries().into_iter().map(|(name, value)| format!("{name}={}", value.string())).collect();
    pairs.sort();
    or(pairs.join(","), NONE)
}

/// A LabelSelector as `a=1,b in (2,3)`. Empty if the selector is absent or selects everything. `None` if an operator is
/// unknown.
pub fn selector(selector: Json<'_>) -> Option<String> {
    let mut read = LabelSelector::default();
    for (name, value) in selector.get("matchLabels").entries() {
        read.equal(name.to_string(), value.string());
    }
    for expression in selector.get("matchExpressions").items() {
        let values = expression.get("values").items().into_iter().map(Json::string).collect();
        read.expression(expression.get("key").string(), &expression.get("operator").string(), values);
    }
    read.text()
}

/// A LabelSelector as a cell. `<none>` for a selector that selects everything, `<error>` for an unknown operator.
pub fn selector_cell(json: Json<'_>) -> String {
    selector(json).map_or_else(|| "<error>".to_owned(), |text| or(text, NONE))
}

/// The names and the images of the containers of a pod template, each joined by commas.
pub fn containers(template: Json<'_>) -> (String, String) {
    let containers = template.at("spec.containers").items();
    let joined =
        |key: &str| containers.iter().map(|container| container.get(key).string()).collect::<Vec<_>>().join(",");
    (joined("name"), joined("image"))
}

/// Joins the strings of an array.
pub fn joined(list: Json<'_>, separator: &str) -> String {
    list.items().into_iter().map(Json::string).collect::<Vec<_>>().join(separator)
}

/// The condition of the type `type_`.
pub fn condition<'a>(conditions: Json<'a>, type_: &str) -> Option<Json<'a>> {
    conditions.items().into_iter().find(|condition| condition.get("type").is(type_))
}

/// Whether the condition of the type `type_` is `True`.
pub fn holds(conditions: Json<'_>, type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.get("status").is("True"))
}
