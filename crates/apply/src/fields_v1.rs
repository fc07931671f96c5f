//! Encodes and decodes [`Set`] as `fieldsV1` of managedFields.
//!
//! ```json
//! {"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}
//! ```
//!
//! An element without contents is a member; `.` makes its parent a member.
//!
//! Source: `structured-merge-diff/v6/fieldpath/serialize.go`; the output is byte-equal.

use std::cmp::Ordering;
use std::fmt;

use listwatch_json::{Map, Value, is_plain};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::path::{PathElement, Room};
use crate::set::Set;
use crate::value::write_text;

/// The maximum nesting of a field set. A deeper set is rejected.
const DEPTH_MAX: usize = 200;

impl Set {
    /// Decodes `fieldsV1`. Elements of an unknown kind are skipped with their subtree.
    ///
    /// # Errors
    /// A message that describes the invalid part.
    pub(crate) fn from_fields(fields: &Value, room: &Room) -> Result<Set, String> {
        match read(fields, DEPTH_MAX, room)? {
            (Some(set), _) => Ok(set),
            (None, _) => Ok(Set::new()),
        }
    }

    /// The set as `fieldsV1`, with members in Go's order.
    pub(crate) fn to_fields(&self) -> Value {
        Value::Object(self.tree(false))
    }

    /// The bytes of `fieldsV1` as Go writes them.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, |key, out| write_text(key, false, out));
        out
    }

    /// Writes the encoding of [`Set::to_fields`].
    pub(crate) fn write_fields(&self, out: &mut String) {
        self.write(out, write_plain);
    }

    fn write(&self, out: &mut String, text: fn(&str, &mut String)) {
        self.write_below(false, out, &mut String::new(), text);
    }

    fn write_below(&self, with_self: bool, out: &mut String, key: &mut String, text: fn(&str, &mut String)) {
        let mut comma = false;
        out.push('{');
        if with_self && !self.has_no_elements() {
            out.push_str("\".\":{}");
            comma = true;
        }
        for (element, set, is_member) in self.elements() {
            if std::mem::replace(&mut comma, true) {
                out.push(',');
            }
            key.clear();
            element.write(key);
            text(key, out);
            out.push(':');
            match set {
                Some(set) => set.write_below(is_member, out, key, text),
                None => out.push_str("{}"),
            }
        }
        out.push('}');
    }

    fn tree(&self, with_self: bool) -> Map {
        let mut tree = Map::with_capacity(self.members().len() + self.children().len());
        if with_self && !self.has_no_elements() {
            tree.insert(".", Value::Object(Map::new()));
        }
        for (element, set, is_member) in self.elements() {
            let below = set.map(|set| set.tree(is_member)).unwrap_or_default();
            tree.insert(element.to_key(), Value::Object(below));
        }
        tree
    }

    fn has_no_elements(&self) -> bool {
        self.members().is_empty() && self.children().is_empty()
    }

    /// All elements in order: each element's children, and whether it is a member.
    fn elements(&self) -> impl Iterator<Item = (&PathElement, Option<&Set>, bool)> {
        let (mut members, mut children) = (self.members().iter().peekable(), self.children().iter().peekable());
        std::iter::from_fn(move || {
            let (element, set, is_member) = match (members.peek().copied(), children.peek().copied()) {
                (None, None) => return None,
                (Some(member), None) => (member, None, true),
                (None, Some((child, set))) => (child, Some(set), false),
                (Some(member), Some((child, set))) => match member.cmp(child) {
                    Ordering::Less => (member, None, true),
                    Ordering::Equal => (member, Some(set), true),
                    Ordering::Greater => (child, Some(set), false),
                },
            };
            if is_member {
                members.next();
            }
            if set.is_some() {
                children.next();
            }
            Some((element, set, is_member))
        })
    }
}

/// Writes a JSON string without HTML escapes. Most strings need no escapes; the keys of list items have quotes.
pub(crate) fn write_plain(text: &str, out: &mut String) {
    let is_plain = is_plain(text.as_bytes());
    if !is_plain && text.bytes().any(|byte| byte < 0x20) {
        out.push_str(&Value::from(text).to_string());
        return;
    }
    out.push('"');
    let mut rest = text;
    while !is_plain && let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\')) {
        out.push_str(&rest[..at]);
        out.push('\\');
        out.push_str(&rest[at..=at]);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Decodes the text of `fieldsV1`: the children of an element (`None` for none), and whether the
/// element itself is a member. Fails if [`Set::from_fields`] fails, and for duplicate names; the
/// caller then decodes the JSON tree.
pub(crate) struct FieldsSeed<'a> {
    depth: usize,
    room: &'a Room,
}

impl<'a> FieldsSeed<'a> {
    /// Decodes a whole `fieldsV1`.
    pub(crate) fn whole(room: &'a Room) -> Self {
        FieldsSeed { depth: DEPTH_MAX, room }
    }
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_> {
    type Value = (Option<Set>, bool);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_> {
    type Value = (Option<Set>, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok((None, true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let Some(depth) = self.depth.checked_sub(1) else { return Err(A::Error::custom("too deep")) };
        let (mut set, mut is_member): (Option<Set>, bool) = (None, false);
        let mut late: Vec<(PathElement, Option<Set>, bool)> = Vec::new();
        while let Some(key) = fields.next_key_seed(Key(self.room))? {
            let element = match key {
                Named::Itself => {
                    is_member = true;
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                Named::Unknown => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                Named::Element(element) => element,
            };
            let (below, below_is_member) = fields.next_value_seed(FieldsSeed { depth, room: self.room })?;
            let set = set.get_or_insert_default();
            if set.is_before(&element) {
                put(set, element, below, below_is_member);
            } else {
                late.push((element, below, below_is_member));
            }
        }
        if let Some(set) = set.as_mut().filter(|_| !late.is_empty()) {
            late.sort_by(|(a, ..), (b, ..)| a.cmp(b));
            let twice = |element| set.has_member(element) || set.child(element).is_some();
            if late.windows(2).any(|pair| pair[0].0 == pair[1].0) || late.iter().any(|(element, ..)| twice(element)) {
                return Err(A::Error::custom("twice"));
            }
            let mut rest = Set::new();
            late.into_iter().for_each(|(element, below, member)| put(&mut rest, element, below, member));
            set.absorb(rest);
        }
        let alone = set.is_none();
        Ok((set, is_member || alone))
    }
}

/// Adds an element to a set: itself, its children, or both.
fn put(set: &mut Set, element: PathElement, below: Option<Set>, is_member: bool) {
    match below {
        Some(below) => {
            if is_member {
                set.insert_member(element.clone());
            }
            set.put_child(element, below);
        }
        None if is_member => set.insert_member(element),
        None => {}
    }
}

/// A name in `fieldsV1`.
enum Named {
    /// `.`
    Itself,
    /// An element of an unknown kind.
    Unknown,
    Element(PathElement),
}

struct Key<'a>(&'a Room);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Named, E> {
        if key == "." {
            return Ok(Named::Itself);
        }
        Ok(PathElement::parse_within(key, self.0).map_err(E::custom)?.map_or(Named::Unknown, Named::Element))
    }
}

/// The children of an element (`None` for none), and whether the element itself is a member.
fn read(fields: &Value, depth: usize, room: &Room) -> Result<(Option<Set>, bool), String> {
    if depth == 0 {
        return Err(format!("more than {DEPTH_MAX} levels deep"));
    }
    let fields = match fields {
        Value::Object(fields) => fields,
        Value::Null => return Ok((None, true)),
        _ => return Err("expect { or n".to_owned()),
    };
    let (mut set, mut is_member): (Option<Set>, bool) = (None, false);
    let mut elements: Vec<(PathElement, Option<Set>, bool)> = Vec::new();
    for (key, value) in fields {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(element) =
            PathElement::parse_within(key, room).map_err(|why| format!("parsing key as path element: {why}"))?
        else {
            continue;
        };
        let (below, below_is_member) = read(value, depth - 1, room)?;
        elements.push((element, below, below_is_member));
    }
    // A set is built in order. The last of several names of one element counts.
    elements.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    for (element, below, below_is_member) in elements {
        put(set.get_or_insert_default(), element, below, below_is_member);
    }
    // An element without children is itself a member.
    Ok((set.take(), is_member)).map(|(set, is_member)| {
        let alone = set.is_none();
        (set, is_member || alone)
    })
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use proptest::prelude::*;

    use super::*;

    fn check(json: &str) {
        let set = Set::from_fields(&serde_json::from_str(json).unwrap(), &Room::new()).unwrap();
        assert_eq!(set.to_json(), json);
        assert_eq!(set.to_fields().to_string(), json);
    }

    #[test]
    fn field_sets_round_trip_byte_for_byte() {
        check("{}");
        check(r#"{"f:data":{".":{},"f:a":{}}}"#);
        check(r#"{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}"#);
        check(r#"{"f:metadata":{"f:finalizers":{".":{},"v:\"a/b\"":{}}}}"#);
        check(r#"{"f:a":{},"f:b":{},"i:3":{}}"#);
        check(r#"{"f:a\"\n<":{}}"#);
    }

    #[test]
    fn from_fields_accepts_unsorted_and_unknown_elements() {
        let read = |value: Value| Set::from_fields(&value, &Room::new()).map(|set| set.to_json());
        assert_eq!(read(json!({"f:b": {}, "f:a": {}})), Ok(r#"{"f:a":{},"f:b":{}}"#.to_owned()), "in any order");
        assert_eq!(read(json!({"f:a": {".": {}}})), Ok(r#"{"f:a":{}}"#.to_owned()));
        assert_eq!(read(json!({"f:a": {"x:b": {}}})), Ok(r#"{"f:a":{}}"#.to_owned()), "unknown kinds are skipped");
        assert_eq!(read(json!(null)), Ok("{}".to_owned()));
        assert!(read(json!({"f:a": 1})).is_err());
        assert!(read(json!([])).is_err());
        assert!(read(json!({"fa": {}})).unwrap_err().contains("missing colon: fa"));
        let mut deep = json!({});
        for _ in 0..DEPTH_MAX {
            deep = json!({"f:a": deep});
        }
        assert!(read(deep).unwrap_err().contains("levels deep"));
    }

    #[test]
    fn decoding_cost_does_not_depend_on_field_order() {
        let text = |numbers: &mut dyn Iterator<Item = usize>| {
            let fields: Vec<String> = numbers.map(|n| format!(r#""f:{n:06}":{{"f:x":{{}}}},"v:{n}":{{}}"#)).collect();
            format!("{{{}}}", fields.join(","))
        };
        let (up, down) = (text(&mut (0..150_000)), text(&mut (0..150_000).rev()));
        let streamed = |text: &str| {
            let read = FieldsSeed::whole(&Room::new()).deserialize(&mut serde_json::Deserializer::from_str(text));
            read.map(|(set, _)| set.unwrap_or_default())
        };
        let timed = |decode: &dyn Fn() -> Set| {
            let start = std::time::Instant::now();
            let set = decode();
            (set, start.elapsed())
        };
        let (sorted, short) = timed(&|| streamed(&up).unwrap());
        assert_eq!(sorted.len(), 300_000);
        let check = |decode: &dyn Fn() -> Set| {
            // A stall of the machine can spoil one measurement, but hardly three.
            let is_fast = (0..3).any(|_| {
                let (set, took) = timed(decode);
                assert!(set == sorted, "the order of the fields changes the set");
                took < 10 * short
            });
            assert!(is_fast, "the order of the fields changes the cost; in order, {short:?} are needed");
        };
        check(&|| streamed(&down).unwrap());
        check(&|| Set::from_fields(&serde_json::from_str(&down).unwrap(), &Room::new()).unwrap());
        for twice in [r#"{"f:b":{},"f:a":{},"f:a":{}}"#, r#"{"f:b":{},"f:a":{},"f:b":{}}"#] {
            assert!(streamed(twice).is_err(), "{twice}");
        }
    }

    fn any_element() -> impl Strategy<Value = PathElement> {
        let scalar = || {
            prop_oneof![
                (-3_i64..3).prop_map(Value::from),
                "[a-c<\"é]{0,3}".prop_map(Value::from),
                any::<bool>().prop_map(Value::from)
            ]
        };
        prop_oneof![
            "[a-c.\"\\\\\n]{0,3}".prop_map(|name| PathElement::field(&name)),
            prop::collection::btree_map("[a-c]", scalar(), 1..3)
                .prop_map(|key| PathElement::key(key.into_iter().map(|(name, value)| (name.into(), value)).collect())),
            scalar().prop_map(|value| PathElement::Value(std::sync::Arc::new(value))),
            any::<i64>().prop_map(PathElement::Index),
        ]
    }

    proptest! {
        #[test]
        fn random_field_sets_round_trip_through_fields_v1(
            paths in prop::collection::vec(prop::collection::vec(any_element(), 1..4), 0..10),
        ) {
            let mut set = Set::new();
            paths.iter().for_each(|path| set.insert(path));
            let json = set.to_json();
            let back = Set::from_fields(&serde_json::from_str(&json).unwrap(), &Room::new()).unwrap();
            prop_assert_eq!(&back, &set, "managedFields say who owns what, no more and no less");
            prop_assert_eq!(back.to_json(), json);
            let mut text = String::new();
            set.write_fields(&mut text);
            prop_assert_eq!(&text, &set.to_fields().to_string());
            let (read, _) = FieldsSeed::whole(&Room::new()).deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
            prop_assert_eq!(read.unwrap_or_default(), set);
        }
    }
}
