//! The objects of the simulation: ConfigMaps with one label and one value.

use std::collections::BTreeMap;

use listwatch_history::{Selector, State};
use serde_json::Value;

/// The namespaces. `default` exists on every server.
pub(crate) const NAMESPACES: [&str; 2] = ["default", "shop"];

/// The names of the objects.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The values of the label `tier`. Selectors choose among them, so objects enter and leave views.
pub(crate) const TIERS: [&str; 3] = ["front", "back", "none"];

/// The path of a collection, in one namespace or in all.
pub(crate) fn collection(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/configmaps"),
        None => "/api/v1/configmaps".to_owned(),
    }
}

/// `namespace/name` of an object.
pub(crate) fn name(object: &Value) -> String {
    let part = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", part("namespace"), part("name"))
}

/// The resource version of an object or a list; 0 if there is none.
pub(crate) fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The state of an object that the checks compare.
pub(crate) fn state(object: &Value) -> State {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    State {
        value: object["data"]["value"].as_str().unwrap_or_default().to_owned(),
        labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
    }
}

/// The state of an object's JSON that the checks compare.
pub(crate) fn state_of_json(json: &[u8]) -> State {
    serde_json::from_slice(json).map(|object| state(&object)).unwrap_or_default()
}

/// The query of a selector's labels, with its leading `&`; empty without labels.
pub(crate) fn label_query(selector: &Selector) -> String {
    let labels: Vec<String> = selector.labels.iter().map(|(key, value)| format!("{key}%3D{value}")).collect();
    if labels.is_empty() { String::new() } else { format!("&labelSelector={}", labels.join(",")) }
}

/// A selector of at most one namespace and one tier.
pub(crate) fn selector(namespace: Option<&str>, tier: Option<&str>) -> Selector {
    let labels = tier.map(|tier| ("tier".to_owned(), tier.to_owned()));
    Selector { namespace: namespace.map(str::to_owned), labels: labels.into_iter().collect() }
}

/// Objects by name, each with the revision of its state.
pub(crate) type Objects = BTreeMap<String, (u64, State)>;
