//! Checks the consistency of the table. Each test prints all violations.

use std::collections::HashSet;

use super::*;

/// Fails if `check` returns a line for any message.
fn each_message(promise: &str, check: impl Fn(&'static Message, &mut Vec<String>)) {
    let mut disagreements = Vec::new();
    for message in &MESSAGES {
        check(message, &mut disagreements);
    }
    assert!(disagreements.is_empty(), "{promise}:\n  {}", disagreements.join("\n  "));
}

/// The message type of a field, its items or its map values, if it has one.
fn message_in(of: Type) -> Option<&'static Message> {
    match of {
        Type::Message(id) | Type::PropsOrBool(id) | Type::PropsOrArray(id) | Type::PropsOrStrings(id) => {
            Some(id.message())
        }
        _ => None,
    }
}

fn is_scalar(of: Type) -> bool {
    matches!(of, Type::String | Type::Bool | Type::Int32 | Type::Int64 | Type::Double)
}

#[test]
fn member_is_found_in_order_from_each_field() {
    each_message("field_in_order finds the member that field finds", |message, disagreements| {
        let names: Vec<&str> = message.members().iter().map(|member| member.name()).chain(["", "unknown"]).collect();
        for name in names {
            for from in 0..=message.fields().len() {
                let (mut next, expected) = (from, message.field(name));
                let found = message.field_in_order(name, &mut next);
                if found.map(std::ptr::from_ref) != expected.map(std::ptr::from_ref) || next > message.fields().len() {
                    disagreements.push(format!("{} {name} from {from}", message.name()));
                }
            }
        }
    });
}

#[test]
fn kinds_are_sorted_and_reach_each_message() {
    let names: Vec<_> = kinds().map(|(api_version, kind, _)| (api_version, kind)).collect();
    assert!(names.is_sorted(), "kinds are found by bisection");
    let mut open: Vec<&Message> = kinds().map(|(.., id)| id.message()).collect();
    let mut seen = HashSet::new();
    while let Some(message) = open.pop() {
        if seen.insert(message.model()) {
            open.extend(message.fields().iter().filter_map(|field| message_in(field.of())));
        }
    }
    each_message("a kind leads to each message", |message, disagreements| {
        if !seen.contains(&message.model()) {
            disagreements.push(format!("{} is part of no kind", message.model()));
        }
    });
}

#[test]
fn message_of_finds_kinds_by_api_version_and_kind() {
    for (api_version, kind, found) in [
        ("v1", "Pod", Some("Pod")),
        ("v1", "PodList", Some("PodList")),
        ("apps/v1", "Pod", None),
        ("apps/v1", "DeleteOptions", Some("DeleteOptions")),
        ("v1", "Status", Some("Status")),
        ("autoscaling/v1", "Scale", Some("Scale")),
        ("policy/v1", "Eviction", Some("Eviction")),
        ("policy/v1beta1", "Eviction", Some("Eviction")),
        ("policy/v1beta1", "PodDisruptionBudget", None),
        ("meta.k8s.io/v1beta1", "PartialObjectMetadata", Some("PartialObjectMetadata")),
        ("example.com/v1", "Widget", None),
        ("v1", "", None),
    ] {
        assert_eq!(message_of(api_version, kind).map(|id| id.message().name()), found, "{api_version} {kind}");
    }
}

#[test]
fn field_lookup_requires_the_complete_name() {
    let container = Id::CoreContainer.message();
    let field = |name: &str| container.field(name).unwrap_or_else(|| panic!("a container has {name}"));
    assert_eq!((container.model().as_str(), container.is_object()), ("io.k8s.api.core.v1.Container", false));
    assert!(field("name").is_required() && !field("image").is_required() && container.field("nam").is_none());
    assert_eq!(field("env").map_keys().collect::<Vec<_>>(), ["name"]);
    assert_eq!(field("envFrom").list_type(), Some(ListType::Atomic));
    assert_eq!(field("ports").map_keys().collect::<Vec<_>>(), ["containerPort", "protocol"]);
    assert_eq!((field("ports").list_type(), field("ports").merge_key()), (Some(ListType::Map), Some("containerPort")));
    assert_eq!(field("imagePullPolicy").values().collect::<Vec<_>>(), ["Always", "IfNotPresent", "Never"]);
    let volumes = Id::CorePodSpec.message().field("volumes").map(|field| field.patch_strategy());
    assert_eq!(volumes.and_then(PatchStrategy::text).as_deref(), Some("merge,retainKeys"));
    assert_eq!(Id::MetaLabelSelector.message().map_type(), Some(MapType::Atomic));
    assert_eq!(Id::CoreEphemeralContainer.message().field("tty").map(Field::number), Some(18), "an inline member");
}

#[test]
fn each_protobuf_field_is_one_json_member() {
    each_message("protobuf fields and JSON members correspond", |message, disagreements| {
        let mut told = |what: String| disagreements.push(format!("{}: {what}", message.model()));
        let numbers: Vec<u8> =
            message.by_number().iter().map(|&at| message.fields()[usize::from(at)].number()).collect();
        if !numbers.is_sorted_by(|a, b| a < b) || numbers.len() != message.fields().len() {
            told(format!("the field numbers are {numbers:?}"));
        }
        let mut names = HashSet::new();
        for field in message.members() {
            let name = field.name();
            // Encoders write names without escapes.
            let is_plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"$-_".contains(&b));
            if !is_plain || !names.insert(name) {
                told(format!("{name:?} is not the name of one member"));
            }
        }
        for field in message.fields() {
            let is_inline = field.shape() == Shape::Inline;
            if is_inline && !(field.name().is_empty() && matches!(field.of(), Type::Message(_))) {
                told(format!("{:?} cannot be inline", field.of()));
            }
            if field.omit() == Omit::Zero && field.of() != Type::Time {
                told(format!("{} has omitzero, which is known for times only", field.name()));
            }
        }
        if inline_depth(message) > INLINE_DEPTH_MAX {
            told("its inline messages nest too deeply".to_owned());
        }
    });
}

fn inline_depth(message: &Message) -> usize {
    let inline = message.fields().iter().filter(|field| field.shape() == Shape::Inline);
    inline.filter_map(|field| message_in(field.of())).map(|of| 1 + inline_depth(of)).max().unwrap_or(0)
}

#[test]
fn list_and_map_types_match_their_field_shapes() {
    each_message("list and map types fit", |message, disagreements| {
        for field in message.members() {
            let name = format!("{}.{}", message.model(), field.name());
            let mut told = |what: String| disagreements.push(format!("{name}: {what}"));
            let is_list = field.shape() == Shape::Repeated;
            let keys: Vec<&str> = field.map_keys().collect();
            match field.list_type() {
                Some(of) if !is_list && name != BYTES_WITH_LIST_TYPE => told(format!("{of:?}, but it is no list")),
                Some(ListType::Set) if !is_scalar(field.of()) => {
                    told("a set of something else than scalars".to_owned())
                }
                Some(ListType::Map) if keys.is_empty() => told("a list map without keys".to_owned()),
                _ => {}
            }
            for key in keys {
                match message_in(field.of()).and_then(|item| item.field(key)) {
                    None => told(format!("its items have no field {key}")),
                    Some(member) if member.shape() == Shape::Repeated || !is_scalar(member.of()) => {
                        told(format!("its map key {key} is no scalar"));
                    }
                    Some(_) => {}
                }
            }
            let is_map = field.shape() == Shape::Map || message_in(field.of()).is_some() && !is_list;
            if field.map_type().is_some() && !is_map {
                told("a map type, but it is no map".to_owned());
            }
        }
    });
}

/// Lists that Kubernetes v1.36 declares atomic although a strategic merge patch merges them by a key.
const ATOMIC_WITH_MERGE_KEY: &[&str] =
    &["io.k8s.api.batch.v1.JobStatus.conditions", "io.k8s.api.core.v1.PodStatus.hostIPs"];

/// A bytes field with a list type in Kubernetes v1.36, because bytes are a slice in Go.
const BYTES_WITH_LIST_TYPE: &str = "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec.caBundle";

#[test]
fn merge_keys_name_fields_and_match_map_keys() {
    each_message("merge keys are fields of the items and map keys of the list", |message, disagreements| {
        for field in message.members() {
            let name = format!("{}.{}", message.model(), field.name());
            let mut told = |what: String| disagreements.push(format!("{name}: {what}"));
            let strategy = field.patch_strategy();
            if strategy.merge && field.shape() != Shape::Repeated {
                told("merges, but it is no list".to_owned());
            }
            let Some(key) = field.merge_key() else {
                if strategy.merge && !is_scalar(field.of()) {
                    told("merges without a key, but its items are no scalars".to_owned());
                }
                continue;
            };
            if message_in(field.of()).and_then(|item| item.field(key)).is_none() {
                told(format!("its items have no field {key}"));
            }
            if ATOMIC_WITH_MERGE_KEY.contains(&name.as_str()) == field.map_keys().any(|other| other == key) {
                told(format!("merges by {key}, its map keys are {:?}", field.map_keys().collect::<Vec<_>>()));
            }
        }
    });
}

#[test]
fn values_and_defaults_match_their_field_types() {
    each_message("values and defaults fit", |message, disagreements| {
        for field in message.members() {
            let mut told = |what: String| disagreements.push(format!("{}.{}: {what}", message.model(), field.name()));
            if field.values().chain(field.item_values()).next().is_some() && field.of() != Type::String {
                told("an enumeration of something else than strings".to_owned());
            }
            let Some(default) = field.default_json() else { continue };
            let value: listwatch_json::Value = match serde_json::from_str(default) {
                Ok(value) => value,
                Err(error) => {
                    told(format!("the default {default} is no JSON: {error}"));
                    continue;
                }
            };
            let fits = match field.of() {
                Type::String => value.is_string(),
                Type::Bool => value.is_boolean(),
                Type::Int32 | Type::Int64 => value.is_i64(),
                Type::Double => value.is_number(),
                Type::Message(_) => value.is_object(),
                _ => false,
            };
            if !fits {
                told(format!("the default {default} is of another type"));
            }
            let mut values = field.values().peekable();
            let text = value.as_str().unwrap_or_default();
            if values.peek().is_some() && !text.is_empty() && !values.any(|value| value == text) {
                told(format!("the default {default} is not permitted"));
            }
        }
    });
}

#[test]
fn messages_with_type_meta_are_exactly_the_kinds() {
    let of_kinds: HashSet<String> = kinds().map(|(.., id)| id.message().model()).collect();
    each_message("what has apiVersion and kind is a kind or embedded as one", |message, disagreements| {
        let has_metadata = message.field("metadata").is_some();
        if !message.is_object() && of_kinds.contains(&message.model()) {
            disagreements.push(format!("{} is a kind without apiVersion and kind", message.model()));
        }
        if message.is_object() && !of_kinds.contains(&message.model()) && has_metadata {
            disagreements.push(format!("{} has apiVersion, kind and metadata, but is no kind", message.model()));
        }
    });
}
