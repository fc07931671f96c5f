//! Paths of fields: [`PathElement`], one step, and [`Path`], all steps from the root; with their
//! order, and their text forms in managedFields (`f:name`) and in messages (`.name`).

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use listwatch_json::{JsonString, Value};
use listwatch_meta::go::quote;
use smol_str::SmolStr;

use crate::value;

/// The name of a field. Short names are stored inline, and clones of longer ones share the text,
/// because field sets are cloned and merged often.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(SmolStr);

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Name(name.into())
    }
}

impl From<JsonString> for Name {
    fn from(name: JsonString) -> Self {
        Name(name.into())
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Name(name.into())
    }
}

impl Name {
    /// The bytes that the name has allocated.
    fn heap_bytes(&self) -> usize {
        const COUNTERS: usize = 2 * size_of::<usize>();
        if self.0.is_heap_allocated() { self.0.len() + COUNTERS } else { 0 }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The bytes of memory that the keys and values of list items in the managed fields of one object may take
/// ([`Room::take`]). Managed fields that need more count as invalid, as if they had a wrong form.
const ELEMENT_BYTES_MAX: usize = 32 << 20;

/// What is left of [`ELEMENT_BYTES_MAX`].
pub(crate) struct Room(Cell<usize>);

impl Room {
    pub(crate) fn new() -> Self {
        Room(Cell::new(ELEMENT_BYTES_MAX))
    }

    /// Takes the memory of an element with this JSON text. The estimate is not below [`PathElement::heap_bytes`]: a list or
    /// an object has room for four items at first, and later for up to twice as many as it has.
    ///
    /// # Errors
    /// There is not enough left.
    fn take(&self, json: &str) -> Result<(), String> {
        const MEMBER_BYTES: usize = size_of::<(JsonString, Value)>();
        const ELEMENT_BYTES: usize = 2 * size_of::<usize>() + size_of::<Value>();
        let bytes = json.bytes().fold(ELEMENT_BYTES + json.len(), |bytes, byte| match byte {
            b'[' | b'{' => bytes + 4 * MEMBER_BYTES,
            b',' => bytes + 2 * MEMBER_BYTES,
            // A long string has two counters.
            b'"' => bytes + size_of::<usize>(),
            _ => bytes,
        });
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.ok_or("the keys and values of list items take too much memory")?);
        Ok(())
    }
}

/// One step of a path. Cloning copies no text.
///
/// The order equals Go's output: fields by name, then keys, values, indexes.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A member of a map: `f:replicas`.
    Field(Name),
    /// The item of a list identified by these key fields, sorted by name: `k:{"port":80}`.
    Key(Arc<[(Name, Value)]>),
    /// The item of a set: `v:"a"`.
    Value(Arc<Value>),
    /// The item at an index: `i:0`. This crate only decodes such elements and never creates them.
    Index(i64),
}

impl PathElement {
    /// The member of this name.
    pub fn field(name: &str) -> Self {
        PathElement::Field(name.into())
    }

    /// The item with these key fields, in any order.
    pub fn key(mut fields: Vec<(Name, Value)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        PathElement::Key(fields.into())
    }

    /// Estimates the bytes that the element has allocated. Elements of one key share them.
    pub(crate) fn heap_bytes(&self) -> usize {
        const COUNTERS: usize = 2 * size_of::<usize>();
        match self {
            PathElement::Field(name) => name.heap_bytes(),
            PathElement::Key(fields) => {
                let field = |(name, value): &(Name, Value)| name.heap_bytes() + value.heap_bytes();
                COUNTERS + fields.len() * size_of::<(Name, Value)>() + fields.iter().map(field).sum::<usize>()
            }
            PathElement::Value(value) => COUNTERS + size_of::<Value>() + value.heap_bytes(),
            PathElement::Index(_) => 0,
        }
    }

    /// Parses the form in managedFields. Returns `Ok(None)` for an unknown kind of element, which
    /// callers skip.
    ///
    /// # Errors
    /// The reason, with the text of the Go code.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        Self::parse_within(text, &Room::new())
    }

    /// [`PathElement::parse`] that takes the memory of a key or a value from `room`.
    pub(crate) fn parse_within(text: &str, room: &Room) -> Result<Option<Self>, String> {
        let (Some(kind), Some(b':')) = (text.as_bytes().first(), text.as_bytes().get(1)) else {
            return Err(match text.len() {
                0 | 1 => "key must be 2 characters long:".to_owned(),
                _ => format!("missing colon: {text}"),
            });
        };
        let rest = &text[2..];
        if matches!(kind, b'k' | b'v') {
            room.take(rest)?;
        }
        Ok(Some(match kind {
            b'f' => PathElement::field(rest),
            b'v' => PathElement::Value(Arc::new(serde_json::from_str(rest).map_err(|error| error.to_string())?)),
            b'k' => match serde_json::from_str(rest).map_err(|error| error.to_string())? {
                Value::Object(fields) => {
                    PathElement::key(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
                }
                Value::Null => PathElement::key(Vec::new()),
                _ => return Err(format!("expect {{ or n in {rest}")),
            },
            b'i' => PathElement::Index(
                rest.parse().map_err(|_| format!("strconv.Atoi: parsing {}: invalid syntax", quote(rest)))?,
            ),
            _ => return Ok(None),
        }))
    }

    /// Writes the form in managedFields, without quoting it as a JSON string.
    pub(crate) fn write(&self, out: &mut String) {
        match self {
            PathElement::Field(name) => {
                out.push_str("f:");
                out.push_str(name);
            }
            PathElement::Key(fields) => {
                out.push_str("k:{");
                for (at, (name, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    value::write_text(name, false, out);
                    out.push(':');
                    value::write_json(value, out);
                }
                out.push('}');
            }
            PathElement::Value(value) => {
                out.push_str("v:");
                value::write_json(value, out);
            }
            PathElement::Index(at) => {
                out.push_str("i:");
                out.push_str(&at.to_string());
            }
        }
    }

    /// The form in managedFields, e.g. `f:spec`, `k:{"name":"a"}`.
    pub(crate) fn to_key(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        use PathElement::{Field, Index, Key, Value};
        let rank = |element: &PathElement| match element {
            Field(_) => 0,
            Key(_) => 1,
            Value(_) => 2,
            Index(_) => 3,
        };
        match (self, other) {
            (Field(a), Field(b)) => a.cmp(b),
            (Key(a), Key(b)) => {
                let parts = a.iter().zip(&**b).map(|(a, b)| a.0.cmp(&b.0).then_with(|| value::compare(&a.1, &b.1)));
                parts.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (Value(a), Value(b)) => value::compare(a, b),
            (Index(a), Index(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// Formats the element as in messages: `.spec`, `[name="a"]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(fields) => {
                f.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", value::format_path_value(value))?;
                }
                f.write_str("]")
            }
            PathElement::Value(value) => write!(f, "[={}]", value::format_path_value(value)),
            PathElement::Index(at) => write!(f, "[{at}]"),
        }
    }
}

/// All steps from the root of an object. `Display` uses the form of messages:
/// `.spec.containers[name="a"].image`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

impl Path {
    /// Creates a path of fields.
    pub fn of_fields(names: &[&str]) -> Self {
        Path(names.iter().map(|name| PathElement::field(name)).collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(key: &str, shown: &str) {
        let element = PathElement::parse(key).unwrap().unwrap();
        assert_eq!((element.to_key().as_str(), element.to_string().as_str()), (key, shown));
    }

    proptest! {
        #[test]
        fn room_for_an_element_is_at_least_its_memory(value in any_json()) {
            for kind in ['k', 'v'] {
                let text = format!("{kind}:{value}");
                let room = Room::new();
                if let Ok(Some(element)) = PathElement::parse_within(&text, &room) {
                    let taken = ELEMENT_BYTES_MAX - room.0.get();
                    prop_assert!(taken >= element.heap_bytes(), "{taken} bytes for {} of {text}", element.heap_bytes());
                }
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), "[a-c]{0,60}".prop_map(Value::from),];
        leaf.prop_recursive(6, 200, 30, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..30).prop_map(Value::Array),
                prop::collection::btree_map("[a-z]{1,40}", inner, 0..30)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn path_elements_round_trip_through_text() {
        check("f:replicas", ".replicas");
        check("f:", ".");
        check("f:a:b", ".a:b");
        check(r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#);
        check(r#"k:{"name":"a\u003cb"}"#, r#"[name="a<b"]"#);
        check(r#"v:"a""#, r#"[="a"]"#);
        check("v:1.5", "[=1.5]");
        check("v:true", "[=true]");
        check("i:-1", "[-1]");
        let unsorted = PathElement::parse(r#"k:{"b":1,"a":2}"#).unwrap().unwrap();
        assert_eq!(unsorted.to_key(), r#"k:{"a":2,"b":1}"#);
        assert_eq!(PathElement::parse("x:a"), Ok(None));
        for (broken, why) in [
            ("", "key must be 2 characters long:"),
            ("f", "key must be 2 characters long:"),
            ("fa", "missing colon: fa"),
            ("i:x", "strconv.Atoi: parsing \"x\": invalid syntax"),
            ("é:", "missing colon: é:"),
        ] {
            assert_eq!(PathElement::parse(broken), Err(why.to_owned()));
        }
        assert!(PathElement::parse("v:{").is_err() && PathElement::parse("k:[]").is_err());
    }

    #[test]
    fn path_elements_sort_as_in_go() {
        let sorted = [
            "f:",
            "f:B",
            "f:a",
            "f:ab",
            r#"k:{"a":1}"#,
            r#"k:{"a":1,"b":1}"#,
            r#"k:{"a":"1"}"#,
            r#"k:{"b":0}"#,
            "v:1",
            r#"v:"1""#,
            "v:false",
            "i:0",
            "i:10",
        ];
        let elements: Vec<PathElement> = sorted.iter().map(|key| PathElement::parse(key).unwrap().unwrap()).collect();
        assert!(elements.is_sorted(), "{elements:?}");
        assert!(elements.windows(2).all(|two| two[0] != two[1]));
    }
}
