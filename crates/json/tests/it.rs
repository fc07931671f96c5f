//! Values behave as those of `serde_json`, which has other data structures.

use std::collections::HashMap;

use listwatch_json::map::Entry;
use listwatch_json::{JsonString, Map, Value, from_value, is_plain, json, plain_len, to_value};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The same document for `serde_json`.
fn upstream(value: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("JSON")
}

/// A step of a history of an object.
#[derive(Clone, Debug)]
enum Step {
    Insert(String, i32),
    ShiftInsert(usize, String, i32),
    SwapRemove(String),
    ShiftRemove(String),
    OrInsert(String, i32),
    Replace(String, i32),
    RemoveEntry(String),
    Retain(i32),
    Sort,
    Append(Vec<(String, i32)>),
    Clone,
}

/// Few enough names that steps meet, and enough that objects pass from a comparison of all names to an index. Some names
/// are too long to be stored in place.
fn name() -> impl Strategy<Value = String> {
    (0..60_u32)
        .prop_map(|n| if n % 4 == 0 { format!("a-name-that-is-longer-than-23-bytes-{n}") } else { format!("n{n}") })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (name(), any::<i32>()).prop_map(|(name, value)| Step::Insert(name, value)),
        2 => (any::<usize>(), name(), any::<i32>()).prop_map(|(at, name, value)| Step::ShiftInsert(at, name, value)),
        4 => name().prop_map(Step::SwapRemove),
        2 => name().prop_map(Step::ShiftRemove),
        4 => (name(), any::<i32>()).prop_map(|(name, value)| Step::OrInsert(name, value)),
        2 => (name(), any::<i32>()).prop_map(|(name, value)| Step::Replace(name, value)),
        2 => name().prop_map(Step::RemoveEntry),
        1 => any::<i32>().prop_map(Step::Retain),
        1 => Just(Step::Sort),
        1 => prop::collection::vec((name(), any::<i32>()), 0..30).prop_map(Step::Append),
        1 => Just(Step::Clone),
    ]
}

/// Takes one step with both objects; both must return the same.
fn take(step: Step, map: &mut Map, model: &mut serde_json::Map<String, serde_json::Value>) {
    let same =
        |found: Option<Value>, expected: Option<serde_json::Value>| assert_eq!(upstream(&found), upstream(&expected));
    match step {
        Step::Insert(name, value) => same(map.insert(name.as_str(), value.into()), model.insert(name, value.into())),
        Step::ShiftInsert(at, name, value) => {
            let at = at % (model.len() + usize::from(!model.contains_key(&name)));
            same(map.shift_insert(at, name.as_str(), value.into()), model.shift_insert(at, name, value.into()));
        }
        Step::SwapRemove(name) => same(map.remove(&name), model.remove(&name)),
        Step::ShiftRemove(name) => same(map.shift_remove(&name), model.shift_remove(&name)),
        Step::OrInsert(name, value) => {
            let found =
                map.entry(name.as_str()).and_modify(|value| *value = json!([value.take()])).or_insert(value.into());
            let found = found.clone();
            let expected = model.entry(name).and_modify(|value| *value = serde_json::json!([value.take()]));
            same(Some(found), Some(expected.or_insert(value.into()).clone()));
        }
        Step::Replace(name, value) => {
            let found = match map.entry(name.as_str()) {
                Entry::Occupied(mut found) if value % 2 == 0 => Some(found.insert(value.into())),
                Entry::Occupied(found) => Some(found.remove()),
                Entry::Vacant(_) => None,
            };
            let expected = match model.entry(name) {
                serde_json::map::Entry::Occupied(mut found) if value % 2 == 0 => Some(found.insert(value.into())),
                serde_json::map::Entry::Occupied(found) => Some(found.remove()),
                serde_json::map::Entry::Vacant(_) => None,
            };
            same(found, expected);
        }
        Step::RemoveEntry(name) => {
            let found = map.remove_entry(&name);
            let expected = model.remove_entry(&name);
            assert_eq!(upstream(&found), upstream(&expected));
        }
        Step::Retain(least) => {
            map.retain(|name, value| name.len() < 5 || value.as_i64() >= Some(least.into()));
            model.retain(|name, value| name.len() < 5 || value.as_i64() >= Some(least.into()));
        }
        Step::Sort => {
            map.sort_keys();
            model.sort_keys();
        }
        Step::Append(members) => {
            let mut added: Map = members.iter().map(|(name, value)| (name.as_str(), json!(value))).collect();
            let mut expected = members.into_iter().map(|(name, value)| (name, value.into())).collect();
            map.append(&mut added);
            model.append(&mut expected);
            assert!(added.is_empty());
        }
        Step::Clone => *map = map.clone(),
    }
}

fn tree() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "\\PC{0,30}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 100, 40, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::vec((name(), inner), 0..40).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn object_has_the_same_members_in_the_same_order_as_in_serde_json(steps in prop::collection::vec(step(), 0..150)) {
        let (mut map, mut model) = (Map::new(), serde_json::Map::new());
        for step in steps {
            // Equality and hash do not depend on whether the object has an index.
            let copy: Map = map.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            prop_assert_eq!(&copy, &map);
            let shown = format!("{step:?}");
            take(step, &mut map, &mut model);
            let found: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), upstream(value))).collect();
            let expected: Vec<_> = model.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            prop_assert_eq!(found, expected, "after {}", shown);
            for number in 0..60 {
                for name in [format!("n{number}"), format!("a-name-that-is-longer-than-23-bytes-{number}")] {
                    prop_assert_eq!(upstream(&map.get(&name)), upstream(&model.get(&name)), "{} after {}", name, shown);
                }
            }
        }
    }

    #[test]
    fn text_becomes_the_same_value_as_in_serde_json(tree in tree()) {
        let text = tree.to_string();
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(value.to_string(), text);
        prop_assert_eq!(format!("{value:#}"), format!("{tree:#}"));
        prop_assert_eq!(format!("{value:?}"), format!("{tree:?}"));
        prop_assert_eq!(to_value(&tree).unwrap(), value.clone());
        prop_assert_eq!(upstream(&from_value::<serde_json::Value>(value.clone()).unwrap()), upstream(&value));
        prop_assert_eq!(&serde_json::Value::deserialize(&value).unwrap(), &tree);
        prop_assert_eq!(&Value::from(tree.clone()), &value);
        prop_assert_eq!(serde_json::Value::from(value), tree);
    }

    #[test]
    fn equality_ignores_the_order_of_members(tree in tree()) {
        let value = to_value(&tree).unwrap();
        let mut turned = value.clone();
        reverse(&mut turned);
        prop_assert_eq!(&turned, &value);
        prop_assert_eq!(hash(&turned), hash(&value));
    }

    #[test]
    fn equality_notices_one_change(tree in tree(), place in any::<prop::sample::Index>(), change in 0..4) {
        let value = to_value(&tree).unwrap();
        let mut other = value.clone();
        let changed = change_one(&mut other, &mut place.index(count(&value)), change);
        let expected = serde_json::Value::from(other.clone()) == tree;
        prop_assert_eq!(other == value, expected, "{} and {}", other, value);
        prop_assert!(!changed || !expected);
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Object(map) => map.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value after `left` others. Returns false if the change is not possible there.
fn change_one(value: &mut Value, left: &mut usize, change: i32) -> bool {
    if *left == 0 {
        *left = usize::MAX;
        match (value, change) {
            (Value::Object(map), 0) => return map.shift_insert(0, "another name", Value::Null).is_none(),
            (Value::Object(map), 1) => {
                let Some(name) = map.keys().next().cloned() else { return false };
                return map.remove(&name).is_some();
            }
            (Value::Object(map), 2) => {
                let Some((name, value)) = map.keys().next().cloned().and_then(|name| map.remove_entry(&name)) else {
                    return false;
                };
                map.insert(format!("{name} too"), value);
            }
            (value, _) => *value = json!([value.take(), "changed"]),
        }
        return true;
    }
    *left -= 1;
    match value {
        Value::Object(map) => map.values_mut().any(|value| *left != usize::MAX && change_one(value, left, change)),
        Value::Array(items) => items.iter_mut().any(|value| *left != usize::MAX && change_one(value, left, change)),
        _ => false,
    }
}

/// Reverses the order of the members of all objects.
fn reverse(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<(JsonString, Value)> = std::mem::take(map).into_iter().collect();
            members.iter_mut().for_each(|(_, value)| reverse(value));
            map.extend(members.into_iter().rev());
        }
        Value::Array(items) => items.iter_mut().for_each(reverse),
        _ => {}
    }
}

fn hash(value: &Value) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
enum Shape {
    Unit,
    New(u8),
    Pair(u8, u8),
    Named { a: u8 },
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Everything {
    text: String,
    letter: char,
    small: i8,
    large: u64,
    float: f64,
    none: Option<u8>,
    some: Option<Option<u8>>,
    unit: (),
    pair: (u8, String),
    shapes: Vec<Shape>,
    by_name: HashMap<String, i32>,
}

fn everything() -> Everything {
    Everything {
        text: "text".into(),
        letter: 'x',
        small: -1,
        large: u64::MAX,
        float: 1.5,
        none: None,
        some: Some(Some(1)),
        unit: (),
        pair: (1, "two".into()),
        shapes: vec![Shape::Unit, Shape::New(1), Shape::Pair(1, 2), Shape::Named { a: 1 }],
        by_name: [("a".to_owned(), 1)].into(),
    }
}

#[test]
fn types_become_the_same_values_as_in_serde_json_and_are_read_back() {
    let value = to_value(everything()).unwrap();
    assert_eq!(value.to_string(), upstream(&everything()).to_string());
    assert_eq!(Everything::deserialize(&value).unwrap(), everything());
    assert_eq!(from_value::<Everything>(value).unwrap(), everything());
}

#[test]
fn names_that_are_not_strings_are_written_as_in_serde_json() {
    let numbers: HashMap<i32, bool> = [(-1, true)].into();
    assert_eq!(to_value(&numbers).unwrap(), json!({"-1": true}));
    let flags: HashMap<bool, u8> = [(true, 1)].into();
    assert_eq!(to_value(&flags).unwrap(), json!({"true": 1}));
    let floats = [(Name(0.1_f32), 1)];
    let by_float =
        || serde_json::Map::from_iter(floats.iter().map(|(name, value)| (name.0.to_string(), (*value).into())));
    assert_eq!(to_value(Pairs(&floats)).unwrap().to_string(), serde_json::Value::from(by_float()).to_string());
    for name in [f32::NAN, f32::INFINITY] {
        let refused = [(Name(name), 1)];
        let expected = serde_json::to_value(Pairs(&refused)).unwrap_err().to_string();
        assert_eq!(to_value(Pairs(&refused)).unwrap_err().to_string(), expected);
    }
    let options: HashMap<Option<&str>, u8> = [(Some("a"), 1)].into();
    assert_eq!(to_value(&options).unwrap_err().to_string(), serde_json::to_value(&options).unwrap_err().to_string());
    let lists: HashMap<Vec<u8>, u8> = [(vec![1], 1)].into();
    assert_eq!(to_value(&lists).unwrap_err().to_string(), serde_json::to_value(&lists).unwrap_err().to_string());
}

/// A name that is a float.
struct Name(f32);

/// An object with names of any type.
struct Pairs<'a>(&'a [(Name, u8)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name.0, value)))
    }
}

#[test]
fn names_that_are_not_strings_are_read_back() {
    #[derive(Debug, Deserialize, Eq, Hash, PartialEq)]
    struct Text(String);
    #[derive(Debug, Deserialize, Eq, Hash, PartialEq)]
    #[serde(rename_all = "camelCase")]
    enum Letter {
        A,
    }
    fn check<K: serde::de::DeserializeOwned + Eq + std::hash::Hash + std::fmt::Debug>(json: &Value, name: K) {
        let expected = HashMap::from([(name, 1)]);
        assert_eq!(HashMap::<K, u8>::deserialize(json).unwrap(), expected);
        assert_eq!(from_value::<HashMap<K, u8>>(json.clone()).unwrap(), expected);
    }
    check(&json!({"-1": 1}), -1_i32);
    check(&json!({"200": 1}), 200_u8);
    check(&json!({"true": 1}), true);
    check(&json!({"a": 1}), Text("a".to_owned()));
    check(&json!({"a": 1}), Letter::A);
    check(&json!({"a": 1}), Some('a'));
    let refused = |error: serde_json::Error| error.to_string();
    assert_eq!(
        refused(HashMap::<u8, u8>::deserialize(&json!({"x": 1})).unwrap_err()),
        "invalid type: string \"x\", expected u8"
    );
}

#[test]
fn numbers_that_json_cannot_write_become_null() {
    assert_eq!(to_value([f64::NAN, f64::INFINITY]).unwrap(), json!([null, null]));
    assert_eq!(to_value(u128::MAX).unwrap_err().to_string(), serde_json::to_value(u128::MAX).unwrap_err().to_string());
    assert_eq!(to_value(u128::from(u64::MAX)).unwrap(), json!(u64::MAX));
}

#[test]
fn raw_text_becomes_its_value() {
    #[derive(Serialize)]
    struct Holder {
        raw: Box<RawValue>,
    }
    let raw = RawValue::from_string(r#"{"a":[1]}"#.to_owned()).unwrap();
    let value = to_value(Holder { raw }).unwrap();
    assert_eq!(value, json!({"raw": {"a": [1]}}));
    assert_eq!(from_value::<Box<RawValue>>(value).unwrap().get(), r#"{"raw":{"a":[1]}}"#);
}

#[test]
fn member_with_the_name_of_raw_text_is_an_ordinary_member() {
    let text = r#"{"$serde_json::private::RawValue":"{\"a\":1}"}"#;
    assert_eq!(serde_json::from_str::<Value>(text).unwrap().to_string(), text);
    let value = serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(to_value(&value).unwrap(), value);
}

#[test]
fn errors_are_those_of_serde_json() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Named {
        count: u32,
        #[serde(default)]
        shape: Option<Shape>,
    }
    for text in [
        r#"{}"#,
        r#"{"count":"x"}"#,
        r#"{"count":-1}"#,
        r#"{"count":1.5}"#,
        r#"{"count":null}"#,
        r#"{"count":[]}"#,
        r#"{"count":1,"shape":7}"#,
        r#"{"count":1,"shape":{}}"#,
        r#"{"count":1,"shape":"Other"}"#,
        r#"{"count":1,"shape":{"New":"x"}}"#,
        r#"{"count":1,"shape":{"Named":{}}}"#,
        r#"{"count":1,"shape":{"Unit":null,"New":1}}"#,
        r#"{"count":1,"shape":{"Unit":1}}"#,
        r#"{"count":1,"shape":"New"}"#,
        r#"{"count":1,"shape":"Pair"}"#,
        r#"{"count":1,"shape":"Named"}"#,
        r#"{"count":1,"shape":{"Pair":1}}"#,
        r#"{"count":1,"shape":{"Pair":[1]}}"#,
        r#"{"count":1,"shape":{"Pair":[1,2,3]}}"#,
        r#"{"count":1,"shape":{"Named":[1]}}"#,
        r#"{"count":1,"shape":{"Named":null}}"#,
        r#"{"count":1,"shape":[]}"#,
        "[]",
        "null",
    ] {
        let value: Value = serde_json::from_str(text).unwrap();
        let model: serde_json::Value = serde_json::from_str(text).unwrap();
        let expected = serde_json::from_value::<Named>(model).unwrap_err().to_string();
        assert_eq!(Named::deserialize(&value).unwrap_err().to_string(), expected, "{text}");
        assert_eq!(from_value::<Named>(value).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn duplicate_name_keeps_its_place_and_its_last_value() {
    assert_eq!(serde_json::from_str::<Value>(r#"{"a":1,"b":2,"a":3}"#).unwrap().to_string(), r#"{"a":3,"b":2}"#);
}

#[test]
fn nesting_is_bounded_as_in_serde_json() {
    for (levels, is_read) in [(127, true), (128, false)] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let text = open.repeat(levels) + "1" + &close.repeat(levels);
            assert_eq!(serde_json::from_str::<Value>(&text).is_ok(), is_read, "{levels}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), is_read, "{levels}");
        }
    }
}

#[test]
fn object_is_read_from_null_and_not_from_a_list() {
    for text in ["null", "[]", r#"{"a":1}"#, "1"] {
        let found = serde_json::from_str::<Map>(text).map(Value::from).map_err(|error| error.to_string());
        let expected = serde_json::from_str::<serde_json::Map<_, _>>(text).map(serde_json::Value::from);
        assert_eq!(found.map(serde_json::Value::from), expected.map_err(|error| error.to_string()), "{text}");
    }
}

#[test]
fn iterators_go_both_ways_and_change_values() {
    for members in [3, 40] {
        let mut map: Map = (0..members).map(|at| (format!("n{at}"), json!(at))).collect();
        assert_eq!(map.keys().next_back().map(JsonString::as_str), Some(format!("n{}", members - 1).as_str()));
        assert_eq!((map.iter().len(), map.values().len()), (members, members));
        map.iter_mut().for_each(|(_, value)| *value = json!([value.take()]));
        map.values_mut().take(1).for_each(|value| *value = json!("first"));
        *map.get_mut("n1").unwrap() = json!("second");
        map["n2"] = json!("third");
        assert_eq!(map.get_key_value("n1").map(|(name, value)| (name.as_str(), value)), Some(("n1", &json!("second"))));
        assert_eq!((&map["n0"], &map["n2"]), (&json!("first"), &json!("third")));
        assert_eq!(map.clone().into_values().next_back(), map.values().next_back().cloned());
        map.clear();
        assert!(map.is_empty() && map.get("n1").is_none());
    }
}

#[test]
#[should_panic(expected = "no member \"b\"")]
fn index_of_an_absent_member_panics() {
    let map: Map = [("a", json!(1))].into_iter().collect();
    let _ = &map["b"];
}

#[test]
fn pointer_finds_the_same_value_as_in_serde_json() {
    let text = r#"{"a":{"b/c":[10,{"~":1}],"":2},"":3,"0":4}"#;
    let mut value: Value = serde_json::from_str(text).unwrap();
    let mut model: serde_json::Value = serde_json::from_str(text).unwrap();
    for pointer in [
        "",
        "/",
        "/a",
        "a",
        "/a/",
        "/a/b~1c",
        "/a/b~1c/0",
        "/a/b~1c/00",
        "/a/b~1c/+0",
        "/a/b~1c/-",
        "/a/b~1c/1/~0",
        "/0",
        "/a/b~1c/2",
        "/a/b~1c/0/x",
        "/x",
        "//",
    ] {
        assert_eq!(upstream(&value.pointer(pointer)), upstream(&model.pointer(pointer)), "{pointer}");
        assert_eq!(upstream(&value.pointer_mut(pointer)), upstream(&model.pointer_mut(pointer)), "{pointer}");
    }
}

#[test]
fn index_reads_null_where_nothing_is_and_adds_names() {
    let mut value = json!({"list": [1]});
    assert_eq!((&value["list"][0], &value["list"][1], &value["no"]["thing"]), (&json!(1), &json!(null), &json!(null)));
    value["new"]["below"] = json!(true);
    value["list"][0] = json!("changed");
    assert_eq!(value, json!({"list": ["changed"], "new": {"below": true}}));
}

#[test]
#[should_panic(expected = "no index 1 in a list of 1 items")]
fn index_beyond_the_end_of_a_list_panics_when_written() {
    json!([1])[1] = json!(2);
}

#[test]
fn value_equals_the_rust_value_with_the_same_content() {
    assert!(json!("a") == "a" && json!("a") == *"a" && "a" == json!("a") && json!("a") == "a");
    assert!(json!(1) == 1 && json!(1) == 1_u64 && json!(1.5) == 1.5 && json!(true) == true);
    assert!(json!(1) != 2 && json!("1") != 1 && json!(-1) != u64::MAX && json!(null) != false);
}

#[test]
fn value_takes_32_bytes_and_map_and_string_24() {
    assert_eq!((size_of::<Value>(), size_of::<Map>(), size_of::<JsonString>()), (32, 24, 24));
}

#[test]
fn strings_of_up_to_23_bytes_are_in_place_and_copies_of_longer_ones_share_their_text() {
    for len in [0, 1, 22, 23, 24, 1_000] {
        let string = JsonString::from("x".repeat(len));
        let copy = string.clone();
        assert_eq!((&string, string.len()), (&copy, len));
        let place = std::ptr::from_ref(&string).addr();
        let is_in_place = (place..place + size_of::<JsonString>()).contains(&string.as_ptr().addr());
        assert_eq!(is_in_place, len <= 23, "{len} bytes");
        assert_eq!(copy.as_ptr() == string.as_ptr(), len > 23, "{len} bytes");
    }
    let constant = "the text of a constant, whatever its length";
    assert_eq!(JsonString::from_static(constant).as_ptr(), constant.as_ptr());
}

proptest! {
    #[test]
    fn plain_text_is_one_that_serde_json_writes_unchanged(
        text in prop::collection::vec(prop_oneof![8 => 0x20_u8..0x7f, 1 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\'), 1 => 0_u8..0x21], 0..40),
        plain_from in 0..40_usize,
    ) {
        let mut text = text;
        text.iter_mut().skip(plain_from).for_each(|byte| *byte = b'a' + *byte % 16);
        for text in [&text[..], &text[text.len() / 2..]] {
            let expected = !text.iter().any(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'));
            prop_assert_eq!(is_plain(text), expected, "{:?}", text);
            let first = text.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'));
            prop_assert_eq!(plain_len(text), first.unwrap_or(text.len()), "{:?}", text);
            if let Ok(text) = str::from_utf8(text) {
                prop_assert_eq!(serde_json::to_string(text).unwrap() == format!("\"{text}\""), expected, "{}", text);
            }
        }
    }
}

#[test]
fn is_plain_finds_each_escaped_byte_at_each_position() {
    for len in 0..=33 {
        for at in 0..len {
            for byte in 0..=255 {
                let mut text = vec![b'a'; len];
                text[at] = byte;
                let expected = byte >= 0x20 && !matches!(byte, b'"' | b'\\');
                assert_eq!(is_plain(&text), expected, "{byte} at {at} of {len}");
                assert_eq!(plain_len(&text), if expected { len } else { at }, "{byte} at {at} of {len}");
            }
        }
    }
}

#[test]
fn json_macro_makes_the_same_values_as_that_of_serde_json() {
    let (list, key, none) = (vec![1, 2], "key", None::<u8>);
    macro_rules! document {
        ($json:path) => {{
            use $json as json;
            json!({
                "null": null, "true": true, "list": [1, [], {}, [null, "x",],], "object": {"a": {"b": {}}},
                "expression": list.len() + 1, "call": [list.iter().sum::<i32>(), list[0]], (key): key, "none": none,
                "negative": -1, "conditional": if list.is_empty() { "empty" } else { "full" },
                "list variable": list,
            }).to_string()
        }};
    }
    assert_eq!(document!(listwatch_json::json), document!(serde_json::json));
    assert_eq!(json!([]).to_string(), "[]");
    assert_eq!(json!({}).to_string(), "{}");
    assert_eq!(json!(null), Value::Null);
}

#[test]
fn heap_bytes_count_long_strings_lists_and_indexes() {
    let bytes = |text: &str| serde_json::from_str::<Value>(text).unwrap().heap_bytes();
    let member = size_of::<(JsonString, Value)>();
    assert_eq!(bytes(r#"{"a":"in place","b":7,"c":[],"d":{}}"#), 4 * member);
    assert_eq!(bytes(&format!(r#"{{"{0}":"{0}"}}"#, "x".repeat(24))), 4 * member + 2 * (24 + 16));
    assert_eq!(bytes(r#"{"a":[1,2,3,4,5]}"#), 4 * member + 8 * size_of::<Value>());
    let members: Vec<String> = (0..25).map(|at| format!("\"{at}\":null")).collect();
    assert!(bytes(&format!("{{{}}}", members.join(","))) > 32 * member);
}
