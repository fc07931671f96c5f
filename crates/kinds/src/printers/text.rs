//! Pieces of text that several printers share: label maps, selectors, container lists.

use crate::table::Json;
use listwatch_validation::label_selector::LabelSelector;

/// What stands where there is nothing.
pub(crate) const NONE: &str = "<none>";
pub(crate) const UNSET: &str = "<unset>";

/// `none` instead of an empty text.
pub(crate) fn or(text: String, none: &str) -> String {
    if text.is_empty() { none.to_owned() } else { text }
}

/// The first few of many, and how many more there are.
pub(crate) fn with_more(mut list: Vec<String>, shown_max: usize, separator: &str, none: &str) -> String {
    let more = list.len().saturating_sub(shown_max);
    list.truncate(shown_max);
    let text = list.join(separator);
    match more {
        0 => or(text, none),
        more => format!("{text} + {more} more..."),
    }
}

/// A map of labels, sorted: `a=1,b=2`; `<none>` when empty.
pub(crate) fn labels(map: Json<'_>) -> String {
    let mut pairs: Vec<String> =
        map.entries().into_iter().map(|(name, value)| format!("{name}={}", value.string())).collect();
    pairs.sort();
    or(pairs.join(","), NONE)
}

/// A LabelSelector as a selector text; empty when it selects everything or is not there, `None`
/// when it has an operator that does not exist.
pub(crate) fn selector(selector: Json<'_>) -> Option<String> {
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

/// A LabelSelector in a cell: `<none>` when it selects everything.
pub(crate) fn selector_cell(json: Json<'_>) -> String {
    selector(json).map_or_else(|| "<error>".to_owned(), |text| or(text, NONE))
}

/// The names and the images of a pod template's containers. `template` has the `spec`.
pub(crate) fn containers(template: Json<'_>) -> (String, String) {
    let containers = template.at("spec.containers").items();
    let joined =
        |key: &str| containers.iter().map(|container| container.get(key).string()).collect::<Vec<_>>().join(",");
    (joined("name"), joined("image"))
}

/// The strings of an array, joined.
pub(crate) fn joined(list: Json<'_>, separator: &str) -> String {
    list.items().into_iter().map(Json::string).collect::<Vec<_>>().join(separator)
}

/// The condition of a type.
pub(crate) fn condition<'a>(conditions: Json<'a>, type_: &str) -> Option<Json<'a>> {
    conditions.items().into_iter().find(|condition| condition.get("type").is(type_))
}

/// Does the condition of a type hold?
pub(crate) fn holds(conditions: Json<'_>, type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.get("status").is("True"))
}
