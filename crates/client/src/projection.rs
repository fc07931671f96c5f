//! Keeps selected fields of an object: [`Projection`], applied to the bytes.
//!
//! Paths are dotted member names. Arrays are passed through: `spec.containers.image` is the image of each container. A
//! member without its own path follows the rule of the longest path above it. The projection builds no tree, but writes
//! one output buffer with the kept ranges of the input.
//!
//! Identity is always kept: `apiVersion`, `kind`, and `namespace`, `name`, `uid` and
//! `resourceVersion` of the metadata. Member names are compared as they are written in the
//! document. A name with escapes (no Kubernetes server writes one) matches no path.

use listwatch_meta::scan::{self, Malformed};

/// The fields that are always kept.
const IDENTITY: [&[&str]; 6] = [
    &["apiVersion"],
    &["kind"],
    &["metadata", "namespace"],
    &["metadata", "name"],
    &["metadata", "uid"],
    &["metadata", "resourceVersion"],
];

/// Selects the fields of objects to keep; see the [module](self).
///
/// # Example
/// ```
/// use listwatch_client::Projection;
///
/// let pod = br#"{"metadata":{"name":"web","managedFields":[{"manager":"kubectl"}]},"spec":{"nodeName":"n1","containers":[{"name":"a","image":"x"}]}}"#;
/// let nodes = Projection::keep(["spec.nodeName"]);
/// assert_eq!(nodes.apply(pod).unwrap(), br#"{"metadata":{"name":"web"},"spec":{"nodeName":"n1"}}"#);
/// let lean = Projection::everything().without(["metadata.managedFields", "spec.containers.image"]);
/// let expected = br#"{"metadata":{"name":"web"},"spec":{"nodeName":"n1","containers":[{"name":"a"}]}}"#;
/// assert_eq!(lean.apply(pod).unwrap(), expected);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// Whether members without a path are kept.
    keep: bool,
    root: Node,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    name: Box<str>,
    /// The rule for this path itself.
    keep: Option<bool>,
    children: Vec<Node>,
}

impl Projection {
    /// Keeps every field.
    pub fn everything() -> Self {
        let mut projection = Projection { keep: true, root: Node::default() };
        projection.keep_identity();
        projection
    }

    /// Keeps only these fields and the identity.
    pub fn keep<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Self {
        let mut projection = Projection { keep: false, root: Node::default() };
        for path in paths {
            projection.set(&path.as_ref().split('.').collect::<Vec<_>>(), true);
        }
        projection.keep_identity();
        projection
    }

    /// Keeps the metadata without `managedFields`, for example for a garbage collector or an index
    /// by label. A server returns only metadata for requests of `PartialObjectMetadata`.
    pub fn metadata() -> Self {
        Projection::keep(["metadata"]).without(["metadata.managedFields"])
    }

    /// Drops these fields. Identity cannot be dropped.
    #[must_use]
    pub fn without<P: AsRef<str>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        for path in paths {
            self.set(&path.as_ref().split('.').collect::<Vec<_>>(), false);
        }
        self.keep_identity();
        self
    }

    /// Returns the selected fields of an object's JSON, as JSON.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not a JSON object.
    pub fn apply(&self, json: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::with_capacity(if self.keep { json.len() } else { json.len().min(1_024) });
        object(json, &self.root, self.keep, &mut out)?;
        Ok(out)
    }

    fn keep_identity(&mut self) {
        for path in IDENTITY {
            self.set(path, true);
        }
    }

    fn set(&mut self, path: &[&str], keep: bool) {
        let mut node = &mut self.root;
        for name in path {
            let child = node.children.iter().position(|child| *child.name == **name).unwrap_or_else(|| {
                node.children.push(Node { name: (*name).into(), ..Node::default() });
                node.children.len() - 1
            });
            node = &mut node.children[child];
        }
        node.keep = Some(keep);
    }
}

fn object(json: &[u8], node: &Node, keep: bool, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut result = Ok(());
    out.push(b'{');
    let mut first = true;
    scan::entries(json, |name, value| {
        let child = node.children.iter().find(|child| child.name.as_bytes() == name);
        let before = out.len();
        if !first {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(name);
        out.extend_from_slice(b"\":");
        let written = match child {
            None if keep => {
                out.extend_from_slice(value);
                Ok(true)
            }
            None => Ok(false),
            Some(child) => member(value, child, keep, out),
        };
        match written {
            Ok(true) => first = false,
            Ok(false) => out.truncate(before),
            Err(malformed) => result = Err(malformed),
        }
    })?;
    out.push(b'}');
    result
}

/// Writes the kept part of a value. Returns false if nothing is kept.
fn member(value: &[u8], node: &Node, inherited: bool, out: &mut Vec<u8>) -> Result<bool, Malformed> {
    let keep = node.keep.unwrap_or(inherited);
    match value.first() {
        Some(b'{') if !node.children.is_empty() => {
            let before = out.len();
            object(value, node, keep, out)?;
            // An empty object is kept if the whole object is selected, not if only parts of it are.
            Ok(keep || out.len() > before + 2)
        }
        Some(b'[') if !node.children.is_empty() => array(value, node, keep, out),
        _ if keep => {
            out.extend_from_slice(value);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Array elements keep their positions. An element without kept parts becomes `{}` or `null`.
fn array(value: &[u8], node: &Node, keep: bool, out: &mut Vec<u8>) -> Result<bool, Malformed> {
    let mut result = Ok(());
    let mut any = keep;
    out.push(b'[');
    let mut first = true;
    scan::elements(value, |element| {
        if !std::mem::replace(&mut first, false) {
            out.push(b',');
        }
        if element.first() == Some(&b'{') {
            let before = out.len();
            match object(element, node, keep, out) {
                Ok(()) => any |= out.len() > before + 2,
                Err(malformed) => result = Err(malformed),
            }
        } else {
            out.extend_from_slice(if keep { element } else { b"null" });
        }
    })?;
    out.push(b']');
    result.map(|()| any)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"1"},"managedFields":[{"f":{}}]},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"},{"name":"d"}],"tolerations":["t"]},"status":{"phase":"Running"}}"#;
    const IDENTITY_TEXT: &str =
        r#""kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7""#;

    fn check(projection: &Projection, rest: &str) {
        let expected = format!("{{{IDENTITY_TEXT}{rest}}}");
        let found = projection.apply(POD.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), expected, "{projection:?}");
    }

    #[test]
    fn projection_keeps_only_the_given_paths() {
        let none: [&str; 0] = [];
        check(&Projection::keep(none), "}");
        check(&Projection::keep(["metadata.labels"]), r#","labels":{"x":"1"}}"#);
        check(&Projection::metadata(), r#","labels":{"x":"1"}}"#);
        check(&Projection::keep(["status"]), r#"},"status":{"phase":"Running"}"#);
        check(&Projection::keep(["status.phase", "status.podIP"]), r#"},"status":{"phase":"Running"}"#);
        check(&Projection::keep(["status.podIP"]), "}");
        check(&Projection::keep(["spec.containers.image"]), r#"},"spec":{"containers":[{"image":"i"},{}]}"#);
        check(&Projection::keep(["spec.containers.ports"]), "}");
        check(
            &Projection::keep(["spec"]).without(["spec.containers", "spec.tolerations"]),
            r#"},"spec":{"nodeName":"n1"}"#,
        );
        // Identity cannot be dropped, and the longest path decides.
        check(&Projection::keep(["spec"]).without(["metadata", "kind", "spec"]), "}");
        let everything = Projection::everything();
        assert_eq!(everything.apply(POD.as_bytes()).unwrap(), POD.as_bytes());
        assert!(everything.apply(b"[]").is_err());
        assert!(Projection::keep(["a.b"]).apply(br#"{"a":{"b" 1}}"#).is_err());
    }

    #[test]
    fn selected_value_is_copied_byte_by_byte() {
        fn check(projection: &Projection, json: &str, expected: &str) {
            let found = projection.apply(json.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), expected, "{projection:?}");
        }
        let json = r#"{ "a" : {"x" : 1 , "y": 2}, "b" : [{"x" : 1} , 2] }"#;
        check(&Projection::keep(["a", "b"]), json, r#"{"a":{"x" : 1 , "y": 2},"b":[{"x" : 1} , 2]}"#);
        check(&Projection::keep(["a.x", "b.x"]), json, r#"{"a":{"x":1},"b":[{"x":1},null]}"#);
    }

    /// A slow reference implementation on a parsed tree.
    fn slow(value: &serde_json::Value, node: &Node, inherited: bool) -> Option<serde_json::Value> {
        use serde_json::Value;
        let keep = node.keep.unwrap_or(inherited);
        let fields = |object: &serde_json::Map<String, Value>| {
            let mut kept = serde_json::Map::new();
            for (name, value) in object {
                let value = match node.children.iter().find(|child| *child.name == **name) {
                    None => keep.then(|| value.clone()),
                    Some(child) => slow(value, child, keep),
                };
                kept.extend(value.map(|value| (name.clone(), value)));
            }
            kept
        };
        match value {
            Value::Object(object) if !node.children.is_empty() => {
                let kept = fields(object);
                (keep || !kept.is_empty()).then_some(Value::Object(kept))
            }
            Value::Array(elements) if !node.children.is_empty() => {
                let mut any = keep;
                let elements = elements
                    .iter()
                    .map(|element| match element {
                        Value::Object(object) => {
                            let kept = fields(object);
                            any |= !kept.is_empty();
                            Value::Object(kept)
                        }
                        other if keep => other.clone(),
                        _ => Value::Null,
                    })
                    .collect();
                any.then_some(Value::Array(elements))
            }
            other => keep.then(|| other.clone()),
        }
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf =
            prop_oneof![Just(serde_json::json!(1)), Just(serde_json::json!("x,}\"")), Just(serde_json::json!(null))];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn projected_bytes_equal_the_projected_tree(
            fields in prop::collection::btree_map("[abc]", any_value(), 0..4),
            kept in prop::collection::vec("[abc](\\.[abc]){0,3}", 0..4),
            dropped in prop::collection::vec("[abc](\\.[abc]){0,3}", 0..3),
            everything in any::<bool>(),
        ) {
            let projection = if everything { Projection::everything() } else { Projection::keep(&kept) }.without(&dropped);
            let document = serde_json::Value::Object(fields.into_iter().collect());
            let found = projection.apply(document.to_string().as_bytes()).unwrap();
            let expected = slow(&document, &projection.root, projection.keep).unwrap_or(serde_json::json!({}));
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&found).unwrap(), expected);
        }
    }
}
