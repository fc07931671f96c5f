//! Final states that can be compared between two servers: without uids, times, addresses and random suffixes.

use serde_json::{Map, Value, json};

use super::super::model::differences;

/// Fields whose values differ between any two runs.
const DROPPED: &[&str] = &[
    "uid",
    "resourceVersion",
    "managedFields",
    "selfLink",
    "generation",
    "containerID",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    // The controller sets this field only if it has seen the change of a pod in time.
    "endpoints.kubernetes.io/last-change-trigger-time",
];

/// Fields whose values are chosen by an allocator, a scheduler or the machine: only their presence is compared.
const CHOSEN: &[&str] = &["clusterIP", "clusterIPs", "podIP", "podIPs", "hostIP", "hostIPs", "nodeName", "nodePort"];

/// The number of digits from which a suffix counts as a time of a controller.
const TIME_SUFFIX_DIGITS_MIN: usize = 8;

/// Normalizes the items of a list and sorts them.
pub(crate) fn normalize_list(list: &Value) -> Value {
    let mut items: Vec<Value> =
        list["items"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(normalize).collect();
    items.sort_by_cached_key(Value::to_string);
    Value::Array(items)
}

/// Normalizes an object of the API.
pub(crate) fn normalize(object: &Value) -> Value {
    let generation = object["metadata"]["generation"].clone();
    let mut normal = normalize_value(object, &generation);
    let random = object["metadata"]["generateName"].as_str().filter(|prefix| !prefix.is_empty());
    if let Some(prefix) = random {
        normal["metadata"]["name"] = json!(format!("{prefix}*"));
    }
    if let Some(conditions) = normal["status"]["conditions"].as_array_mut() {
        conditions.sort_by_cached_key(|condition| condition["type"].to_string());
    }
    normal
}

fn normalize_value(value: &Value, generation: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !DROPPED.contains(&name.as_str()));
            let normal = kept.map(|(name, value)| {
                let value = match name.as_str() {
                    name if CHOSEN.contains(&name) => json!("<chosen>"),
                    "observedGeneration" if value == generation => json!("<current>"),
                    _ => normalize_value(value, generation),
                };
                (name.clone(), value)
            });
            // Annotations without their only field are treated as absent.
            Value::Object(
                normal.filter(|(name, value)| name != "annotations" || *value != json!({})).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| normalize_value(item, generation)).collect()),
        Value::String(text) => Value::String(normalize_text(text)),
        other => other.clone(),
    }
}

fn normalize_text(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_time = bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && bytes.ends_with(b"Z");
    if is_time {
        return "<time>".to_owned();
    }
    match text.rsplit_once('-') {
        Some((prefix, suffix))
            if suffix.len() >= TIME_SUFFIX_DIGITS_MIN && suffix.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{prefix}-*")
        }
        _ => text.to_owned(),
    }
}

/// The differences between two normalized states, in both directions.
pub(crate) fn compare(upstream: &Value, ours: &Value) -> Vec<String> {
    let mut found: Vec<String> =
        differences(upstream, ours).into_iter().map(|text| format!("{text} (kube-apiserver)")).collect();
    // The first direction finds contradictions; the second adds members that only this server has.
    let only_here = differences(ours, upstream).into_iter().filter(|text| text.contains(" is gone; "));
    found.extend(only_here.map(|text| text.replace(" is gone; wanted ", " is only here: ")));
    found
}

#[cfg(test)]
mod tests {
    use super::{compare, normalize, normalize_list};
    use serde_json::json;

    #[test]
    fn normalized_objects_have_no_uids_times_or_random_names() {
        let object = json!({
            "metadata": {"name": "web-x7k2p", "generateName": "web-", "uid": "1", "generation": 3,
                "creationTimestamp": "2026-01-05T08:00:00Z", "ownerReferences": [{"name": "tick-29384756", "uid": "2"}]},
            "spec": {"nodeName": "a", "replicas": 2},
            "status": {"observedGeneration": 3, "conditions": [{"type": "B"}, {"type": "A"}]},
        });
        let wanted = json!({
            "metadata": {"name": "web-*", "generateName": "web-", "creationTimestamp": "<time>",
                "ownerReferences": [{"name": "tick-*"}]},
            "spec": {"nodeName": "<chosen>", "replicas": 2},
            "status": {"observedGeneration": "<current>", "conditions": [{"type": "A"}, {"type": "B"}]},
        });
        assert_eq!(normalize(&object), wanted);
    }

    #[test]
    fn normalized_object_shows_an_old_observed_generation() {
        let object = json!({"metadata": {"generation": 3}, "status": {"observedGeneration": 2}});
        assert_eq!(normalize(&object)["status"]["observedGeneration"], 2);
    }

    #[test]
    fn normalized_lists_do_not_depend_on_random_names() {
        let pod = |name: &str, image: &str| json!({"metadata": {"name": name, "generateName": "p-"}, "spec": image});
        let (one, two) = (
            json!({"items": [pod("p-1", "a"), pod("p-2", "b")]}),
            json!({"items": [pod("p-1", "b"), pod("p-2", "a")]}),
        );
        assert_eq!(normalize_list(&one), normalize_list(&two));
    }

    #[test]
    fn state_differences_are_found_in_both_directions() {
        let found = compare(&json!({"a": 1, "b": 2}), &json!({"a": 2, "c": 3}));
        assert_eq!(
            found,
            [".a is 2; wanted 1 (kube-apiserver)", ".b is gone; wanted 2 (kube-apiserver)", ".c is only here: 3"]
        );
    }
}
