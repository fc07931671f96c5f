//! Random objects shaped like Pods, random strategic merge patches, and a slow reference model of the merge.
//!
//! The implementation merges in place, with hash maps and prefixes. The model uses its own table of fields (`POD`) and
//! computes the result of each field separately. The model sorts a list by pairwise comparison of the items.

use listwatch_json::{JsonString, Map, Value, json};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::super::merge_keys::of_kind;
use super::{DELETE_FROM, DIRECTIVE, RETAIN_KEYS, SET_ORDER};

/// The type of a field, which determines how a patch is merged into the field.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Text,
    Number,
    /// An object with members of any name, such as labels or limits.
    Texts,
    Object(&'static [(&'static str, Shape)]),
    /// A list that a patch replaces.
    Atomic(&'static Shape),
    /// A list of strings with set semantics.
    Set,
    /// A list of objects with this merge key and these fields.
    Keyed(&'static str, &'static [(&'static str, Shape)]),
}

use Shape::{Atomic, Keyed, Number, Object, Set, Text, Texts};

const REFERENCE: &[(&str, Shape)] = &[("name", Text)];
const ENV: &[(&str, Shape)] = &[
    ("name", Text),
    ("value", Text),
    ("valueFrom", Object(&[("fieldRef", Object(&[("fieldPath", Text)])), ("configMapKeyRef", Object(REFERENCE))])),
];
const PORT: &[(&str, Shape)] = &[("containerPort", Number), ("protocol", Text), ("hostPort", Number)];
const MOUNT: &[(&str, Shape)] = &[("mountPath", Text), ("name", Text)];
const CONTAINER: &[(&str, Shape)] = &[
    ("name", Text),
    ("image", Text),
    ("args", Atomic(&Text)),
    ("env", Keyed("name", ENV)),
    ("ports", Keyed("containerPort", PORT)),
    ("volumeMounts", Keyed("mountPath", MOUNT)),
    ("envFrom", Atomic(&Object(&[("prefix", Text), ("secretRef", Object(REFERENCE))]))),
];
const VOLUME: &[(&str, Shape)] = &[
    ("name", Text),
    ("emptyDir", Object(&[("medium", Text)])),
    ("configMap", Object(&[("name", Text), ("items", Atomic(&Object(&[("key", Text), ("path", Text)])))])),
];
const SPEC: &[(&str, Shape)] = &[
    ("hostname", Text),
    ("containers", Keyed("name", CONTAINER)),
    ("volumes", Keyed("name", VOLUME)),
    ("tolerations", Atomic(&Object(&[("key", Text), ("value", Text)]))),
    ("nodeSelector", Texts),
    ("imagePullSecrets", Keyed("name", REFERENCE)),
    ("hostAliases", Keyed("ip", &[("ip", Text), ("hostnames", Atomic(&Text))])),
    ("securityContext", Object(&[("runAsUser", Number), ("supplementalGroups", Atomic(&Number))])),
];
const METADATA: &[(&str, Shape)] =
    &[("labels", Texts), ("finalizers", Set), ("ownerReferences", Keyed("uid", &[("uid", Text), ("name", Text)]))];
const POD: &[(&str, Shape)] = &[("metadata", Object(METADATA)), ("spec", Object(SPEC))];

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn scalar(shape: Shape) -> BoxedStrategy<Value> {
    match shape {
        Number => (1..5).prop_map(Value::from).boxed(),
        _ => (0..NAMES.len()).prop_map(|at| json!(NAMES[at])).boxed(),
    }
}

/// Generates a list of scalars in random order, sometimes with a duplicate.
fn scalars(shape: Shape) -> BoxedStrategy<Vec<Value>> {
    let all: Vec<Value> =
        (0..NAMES.len()).map(|at| if matches!(shape, Number) { json!(at + 1) } else { json!(NAMES[at]) }).collect();
    let few = Just(all).prop_shuffle().prop_flat_map(|all| subsequence(all, 0..=3));
    (few, prop::bool::weighted(0.05))
        .prop_map(|(mut few, twice)| {
            few.extend(few.first().filter(|_| twice).cloned());
            few
        })
        .boxed()
}

fn key_shape(key: &str, fields: &[(&str, Shape)]) -> Shape {
    fields.iter().find(|(name, _)| *name == key).map_or(Text, |(_, shape)| *shape)
}

/// Generates a stored value of this shape.
fn stored(shape: Shape) -> BoxedStrategy<Value> {
    match shape {
        Text | Number => scalar(shape),
        Texts => vec((0..NAMES.len(), scalar(Text)), 1..4)
            .prop_map(|members| members.into_iter().map(|(at, value)| (NAMES[at].to_owned(), value)).collect())
            .boxed(),
        Object(fields) => members(fields, stored).prop_map(Value::Object).boxed(),
        Atomic(item) => vec(stored(*item), 1..3).prop_map(Value::from).boxed(),
        Set => scalars(Text).prop_map(Value::from).boxed(),
        Keyed(key, fields) => items(key, fields, stored).prop_map(Value::from).boxed(),
    }
}

/// Generates values for some of the fields.
fn members(fields: &'static [(&'static str, Shape)], value: fn(Shape) -> BoxedStrategy<Value>) -> BoxedStrategy<Map> {
    let each: Vec<_> =
        fields.iter().map(|(name, shape)| prop::option::of(value(*shape).prop_map(|value| (*name, value)))).collect();
    each.prop_map(|all| all.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()).boxed()
}

/// Generates items, usually with different keys.
fn items(
    key: &'static str,
    fields: &'static [(&'static str, Shape)],
    value: fn(Shape) -> BoxedStrategy<Value>,
) -> BoxedStrategy<Vec<Value>> {
    scalars(key_shape(key, fields))
        .prop_flat_map(move |keys| {
            let item = move |id: Value| {
                members(fields, value).prop_map(move |mut item| {
                    item.insert(key, id.clone());
                    Value::Object(item)
                })
            };
            keys.into_iter().map(item).collect::<Vec<_>>()
        })
        .boxed()
}

/// Generates a patch for a value of this shape: some fields, nulls and directives.
fn patch(shape: Shape) -> BoxedStrategy<Value> {
    let some = match shape {
        Object(fields) => {
            let directive = prop_oneof![
                20 => Just(None),
                1 => Just(Some("replace")),
                1 => Just(Some("delete")),
                1 => prop_oneof![Just(Some("merge")), Just(Some("odd"))],
            ];
            let retained = prop::option::weighted(0.1, subsequence(fields.to_vec(), 0..=fields.len()));
            (fields_of_patch(fields), directive, retained, prop::bool::weighted(0.9))
                .prop_map(|(mut members, directive, retained, fits)| {
                    if let Some(directive) = directive {
                        members.insert(DIRECTIVE, json!(directive));
                    }
                    if let Some(retained) = retained {
                        let mut names: Vec<&str> = retained.iter().map(|(name, _)| *name).collect();
                        if fits {
                            names.extend(members.keys().map(JsonString::as_str).filter(|name| !name.starts_with('$')));
                        }
                        let names = json!(names);
                        members.insert(RETAIN_KEYS, names);
                    }
                    Value::Object(members)
                })
                .boxed()
        }
        Texts => vec((0..NAMES.len(), prop::option::of(scalar(Text))), 0..4)
            .prop_map(|members| {
                members.into_iter().map(|(at, value)| (NAMES[at].to_owned(), value.unwrap_or_default())).collect()
            })
            .boxed(),
        Keyed(key, fields) => {
            let directive = prop_oneof![
                20 => Just(None),
                1 => Just(Some(json!({"$patch": "replace"}))),
                4 => scalar(key_shape(key, fields)).prop_map(move |id| Some(json!({"$patch": "delete", key: id}))),
            ];
            (items(key, fields, patch), vec(directive, 0..3))
                .prop_map(|(items, directives)| {
                    Value::from([items, directives.into_iter().flatten().collect()].concat())
                })
                .boxed()
        }
        _ => stored(shape),
    };
    prop_oneof![1 => Just(Value::Null), 12 => some].boxed()
}

/// Generates patches of some fields, with `$setElementOrder` and `$deleteFromPrimitiveList` directives for lists.
fn fields_of_patch(fields: &'static [(&'static str, Shape)]) -> BoxedStrategy<Map> {
    let each: Vec<_> = fields
        .iter()
        .map(|(name, shape)| {
            let beside = match *shape {
                Keyed(key, fields) => {
                    let order = scalars(key_shape(key, fields));
                    let order = order.prop_map(move |ids| ids.into_iter().map(|id| json!({key: id})).collect());
                    prop::option::weighted(0.3, order.prop_map(|order: Value| (SET_ORDER, order))).boxed()
                }
                Set => prop::option::of((
                    prop_oneof![Just(SET_ORDER), Just(DELETE_FROM)],
                    scalars(Text).prop_map(Value::from),
                ))
                .boxed(),
                _ => Just(None).boxed(),
            };
            prop::option::of((patch(*shape), beside, prop::bool::weighted(0.8), prop::bool::weighted(0.8))).prop_map(
                move |drawn| {
                    let mut members = Vec::new();
                    if let Some((mut value, beside, with_value, fits)) = drawn {
                        if let Some((directive, mut list)) = beside {
                            if fits && directive == SET_ORDER {
                                follow(&mut list, &value, *shape);
                            }
                            members.push((format!("{directive}/{name}"), list));
                        }
                        if with_value || members.is_empty() {
                            members.push(((*name).to_owned(), value.take()));
                        }
                    }
                    members
                },
            )
        })
        .collect();
    each.prop_map(|all| all.into_iter().flatten().collect()).boxed()
}

/// Appends all items of a list to a `$setElementOrder` list.
fn follow(order: &mut Value, list: &Value, shape: Shape) {
    let Some(order) = order.as_array_mut() else { return };
    let named: Vec<Value> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter(|item| item.get(DIRECTIVE).is_none())
        .map(|item| match shape {
            Keyed(key, _) => json!({key: item[key]}),
            _ => item.clone(),
        })
        .collect();
    order.retain(|item| !named.contains(item));
    order.extend(named);
}

/// The value of a field after a patch; `Err` if the patch is rejected.
type After = Result<Option<Value>, ()>;

fn object_after(shape: Shape, present: &Map, patch: &Map) -> Result<Map, ()> {
    let mut patch = patch.clone();
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(directive) if directive == "delete" => return Ok(Map::new()),
        Some(directive) if directive == "replace" => return Ok(patch),
        Some(_) => return Err(()),
    }
    let mut present = present.clone();
    if let Some(retained) = patch.remove(RETAIN_KEYS) {
        let is_retained = |name: &str| retained.as_array().is_some_and(|all| all.contains(&json!(name)));
        if patch.iter().any(|(name, value)| !name.starts_with('$') && !value.is_null() && !is_retained(name)) {
            return Err(());
        }
        present.retain(|name, _| is_retained(name));
    }
    let mut names: Vec<&str> =
        present.keys().chain(patch.keys()).map(|name| name.rsplit('/').next().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    let mut after = Map::new();
    for name in names {
        let shape = match shape {
            Object(fields) => fields.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape),
            _ => None,
        };
        let beside = |directive: &str| patch.get(&format!("{directive}/{name}"));
        let value = field_after(shape, present.get(name), patch.get(name), beside(SET_ORDER), beside(DELETE_FROM))?;
        after.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(after)
}

fn field_after(
    shape: Option<Shape>,
    present: Option<&Value>,
    patch: Option<&Value>,
    order: Option<&Value>,
    gone: Option<&Value>,
) -> After {
    if let Some(order) = order {
        let (shape, order) = (shape.ok_or(())?, order.as_array().ok_or(())?);
        let list = |value: Option<&Value>| value.map(|value| value.as_array().cloned().ok_or(())).transpose();
        let (present, patch) = (list(present)?, list(patch)?);
        // The patch must list its items in the requested order. A directive may stand anywhere before the last item of
        // the order.
        let mut asked = order.iter().map(|item| id(shape, item));
        let follows = |item: &Value| match item.get(DIRECTIVE) {
            Some(directive) => directive == "delete" || asked.len() > 0,
            None => asked.any(|other| other == id(shape, item)),
        };
        if !order.is_empty() && !patch.iter().flatten().all(follows) {
            return Err(());
        }
        if present.is_none() && patch.is_none() {
            return Ok(None);
        }
        if present.iter().chain(&patch).all(Vec::is_empty) {
            return Err(());
        }
        let server = counted_as_servers(shape, present.as_deref(), patch.as_deref());
        let merged = match (present, patch) {
            (None, patch) => patch.iter().flatten().filter_map(|item| bare(item, true)).collect(),
            (Some(present), None) => present,
            (Some(present), Some(patch)) => list_after(shape, &present, &patch)?,
        };
        return Ok(Some(Value::Array(arranged(shape, merged, order, &server))));
    }
    let present = match (present, gone) {
        (Some(Value::Array(items)), Some(Value::Array(gone))) => {
            Some(Value::Array(items.iter().filter(|item| !gone.contains(item)).cloned().collect()))
        }
        (present, _) => present.cloned(),
    };
    Ok(match (present, patch) {
        (present, None) => present,
        (_, Some(Value::Null)) => None,
        (Some(Value::Object(present)), Some(Value::Object(patch))) => {
            Some(Value::Object(object_after(shape.unwrap_or(Texts), &present, patch)?))
        }
        (Some(Value::Array(present)), Some(Value::Array(patch))) => {
            Some(Value::Array(list_after(shape.unwrap_or(Atomic(&Text)), &present, patch)?))
        }
        (_, Some(value)) => bare(value, false),
    })
}

/// Returns the items that `$setElementOrder` treats as live: the remaining items, then as many new items as were
/// deleted.
fn counted_as_servers(shape: Shape, present: Option<&[Value]>, patch: Option<&[Value]>) -> Vec<Value> {
    let (present, patch) = (present.unwrap_or_default(), patch.unwrap_or_default());
    let Keyed(..) = shape else { return present.to_vec() };
    let is = |item: &Value, directive: &str| item.get(DIRECTIVE).is_some_and(|found| found == directive);
    let same = |one: &Value, other: &Value| id(shape, one) == id(shape, other);
    let deleted = |item: &Value| patch.iter().any(|gone| is(gone, "delete") && same(gone, item));
    let mut counted: Vec<Value> = present.iter().filter(|item| !deleted(item)).cloned().collect();
    if patch.iter().any(|item| is(item, "replace")) {
        return counted;
    }
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        if counted.len() < present.len() && !counted.iter().any(|known| same(known, item)) {
            counted.push(item.clone());
        }
    }
    counted
}

fn list_after(shape: Shape, present: &[Value], patch: &[Value]) -> Result<Vec<Value>, ()> {
    let mut after: Vec<Value> = Vec::new();
    match shape {
        Set => {
            for item in present.iter().chain(patch) {
                if !after.contains(item) {
                    after.push(item.clone());
                }
            }
            Ok(arranged(shape, after, patch, present))
        }
        Keyed(_, fields) => {
            let (directives, items): (Vec<_>, Vec<_>) =
                patch.iter().cloned().partition(|item| item.get(DIRECTIVE).is_some());
            if directives.iter().any(|item| item[DIRECTIVE] == "replace") {
                return Ok(items);
            }
            let deleted = |item: &Value| directives.iter().any(|gone| id(shape, gone) == id(shape, item));
            let left: Vec<Value> = present.iter().filter(|item| !deleted(item)).cloned().collect();
            after.clone_from(&left);
            for item in &items {
                let same = after.iter_mut().find(|known| id(shape, known) == id(shape, item));
                match (same, item) {
                    (Some(Value::Object(known)), Value::Object(item)) => {
                        *known = object_after(Object(fields), known, item)?;
                    }
                    _ => after.push(item.clone()),
                }
            }
            Ok(arranged(shape, after, &items, &left))
        }
        _ => Ok(patch.to_vec()),
    }
}

fn id(shape: Shape, item: &Value) -> Value {
    match shape {
        Keyed(key, _) => item[key].clone(),
        _ => item.clone(),
    }
}

/// Sorts items by `wanted`. Each other item is placed before the first wanted item that follows in the list `server`.
fn arranged(shape: Shape, items: Vec<Value>, wanted: &[Value], server: &[Value]) -> Vec<Value> {
    let place = |list: &[Value], item: &Value| list.iter().position(|known| id(shape, known) == id(shape, item));
    let (mut known, mut others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(wanted, item).is_some());
    known.sort_by_key(|item| place(wanted, item));
    others.sort_by_key(|item| place(server, item).unwrap_or(usize::MAX));
    let anchor = |other: &Value| {
        let behind = |item: &Value| place(server, item) > place(server, other);
        place(server, other).and_then(|_| known.iter().position(behind))
    };
    let mut arranged = Vec::new();
    for (at, item) in known.iter().enumerate() {
        arranged.extend(others.iter().filter(|other| anchor(other) == Some(at)).cloned());
        arranged.push(item.clone());
    }
    arranged.extend(others.iter().filter(|other| anchor(other).is_none()).cloned());
    arranged
}

/// Returns the value of a field that was absent. Removes values with a `$patch` directive. Removes null members unless
/// `nulls` is set.
fn bare(value: &Value, nulls: bool) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, value)| nulls || !value.is_null());
            Some(kept.filter_map(|(name, value)| Some((name.clone(), bare(value, nulls)?))).collect())
        }
        Value::Array(items) => Some(items.iter().filter_map(|item| bare(item, nulls)).collect()),
        scalar => Some(scalar.clone()),
    }
}

fn any_pod() -> impl Strategy<Value = Value> {
    stored(Object(POD))
}

fn any_patch() -> impl Strategy<Value = Value> {
    fields_of_patch(POD).prop_map(Value::Object)
}

proptest! {
    #[test]
    fn strategic_merge_of_random_patches_matches_the_model(pod in any_pod(), patch in any_patch()) {
        let members = |value: &Value| value.as_object().unwrap().clone();
        let mut merged = members(&pod);
        let verdict = super::merge(&mut merged, members(&patch), of_kind("", "v1", "Pod"));
        let expected = object_after(Object(POD), &members(&pod), &members(&patch));
        prop_assert_eq!(verdict.map(|()| merged).map_err(drop), expected, "{} patched with {}", pod, patch);
    }
}
