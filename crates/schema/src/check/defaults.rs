//! Checks that the defaults of a definition are valid and contain no unknown fields.

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;

use crate::field_errors::{invalid, invalid_str};
use crate::path::Path;
use crate::props::Props;
use crate::schema::{Node, Schema};
use crate::{embedded, validate};

/// Checks the defaults of a schema. If `pruned`, defaults must not contain unknown fields.
pub(super) fn check(props: &Props, schema: &Schema, at: &Path<'_>, pruned: bool) -> Vec<FieldError> {
    let mut checker = Checker { errors: Vec::new(), pruned };
    let enclosing = EnclosingResource { root: &schema.root, steps: Vec::new(), metadata: false };
    checker.node(props, &schema.root, true, at, &enclosing);
    checker.errors
}

/// The position of a schema within the enclosing resource.
struct EnclosingResource<'a> {
    root: &'a Node,
    steps: Vec<Step<'a>>,
    /// Whether the schema is part of `apiVersion`, `kind` or `metadata` of that resource.
    metadata: bool,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Child(&'a str),
    Index,
}

impl<'a> EnclosingResource<'a> {
    fn descend(&self, step: Step<'a>, metadata: bool) -> EnclosingResource<'a> {
        let steps = self.steps.iter().copied().chain([step]).collect();
        EnclosingResource { root: self.root, steps, metadata }
    }

    /// Returns a resource that contains only this value, at this position.
    fn enclose(&self, value: &Value) -> Value {
        let mut value = value.clone();
        for step in self.steps.iter().rev() {
            value = match step {
                Step::Child(name) => Value::Object(Map::from_iter([((*name).to_owned(), value)])),
                Step::Index => Value::Array(vec![value]),
            };
        }
        if let Value::Object(members) = &mut value {
            members.entry("kind").or_insert_with(|| "Validation".into());
            members.entry("apiVersion").or_insert_with(|| "validation/v1".into());
        }
        value
    }
}

struct Checker {
    errors: Vec<FieldError>,
    pruned: bool,
}

impl Checker {
    fn node(&mut self, props: &Props, node: &Node, is_root: bool, at: &Path<'_>, enclosing: &EnclosingResource<'_>) {
        let is_resource = is_root || props.embedded_resource;
        let own = EnclosingResource { root: node, steps: Vec::new(), metadata: false };
        let enclosing = if is_resource { &own } else { enclosing };
        if let Some(default) = &props.default {
            let at = at.child("default");
            let found = if enclosing.metadata {
                in_metadata(default, node, &at, enclosing)
            } else {
                outside_metadata(default, node, is_resource, self.pruned, &at)
            };
            self.errors.extend(found);
        }
        if let (Some(items), Some(node)) = (props.items(), node.items.as_deref()) {
            self.node(items, node, false, &at.child("items"), &enclosing.descend(Step::Index, enclosing.metadata));
        }
        let properties = at.child("properties");
        for (name, property) in &props.properties {
            let Some(node) = node.property(name) else { continue };
            let metadata =
                enclosing.metadata || (is_resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind"));
            let enclosing = enclosing.descend(Step::Child(name), metadata);
            self.node(property, node, false, &properties.key(name), &enclosing);
        }
    }
}

/// Checks a default within the metadata of a resource: the metadata must be valid with the default.
fn in_metadata(default: &Value, node: &Node, at: &Path<'_>, enclosing: &EnclosingResource<'_>) -> Vec<FieldError> {
    let mut resource = enclosing.enclose(default);
    if let Err(error) = embedded::coerce(&mut resource, enclosing.root, true, false) {
        let detail = format!("must result in valid metadata: {}: {}", error.field, error.message);
        return vec![invalid(at, default, detail)];
    }
    let errors = embedded::validate(&resource, enclosing.root, true, &Path::NIL);
    if !errors.is_empty() {
        let mut texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        let text = if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) };
        return vec![invalid(at, default, format!("must result in valid metadata: {text}"))];
    }
    validate::validate(default, node, None, at)
}

/// Whether a default of a structural schema changes when it is pruned (`schemaHasUnprunedDefaults`). Defaults within
/// metadata are not examined.
pub(super) fn has_unpruned(props: &Props, node: &Node, is_root: bool) -> bool {
    let is_resource = is_root || props.embedded_resource;
    let is_unpruned = |default: &Value| {
        let mut pruned = default.clone();
        // With `true`, invalid metadata is dropped, so this call cannot fail.
        let _ = embedded::coerce(&mut pruned, node, is_resource, true);
        crate::prune::prune(&mut pruned, node, is_resource);
        pruned != *default
    };
    if props.default.as_ref().is_some_and(is_unpruned) {
        return true;
    }
    let items = props.items().zip(node.items.as_deref());
    let additional = props.additional_schema().zip(node.additional_schema().map(|node| &**node));
    let properties = props.properties.iter().filter_map(|(name, property)| {
        let is_metadata = is_resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        Some((property, &**node.property(name).filter(|_| !is_metadata)?))
    });
    let mut below = items.into_iter().chain(additional).chain(properties);
    below.any(|(props, node)| has_unpruned(props, node, false))
}

fn outside_metadata(
    default: &Value,
    node: &Node,
    is_resource: bool,
    requires_pruned: bool,
    at: &Path<'_>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if requires_pruned {
        let mut pruned = default.clone();
        crate::prune::prune(&mut pruned, node, is_resource);
        if pruned != *default {
            errors.push(invalid(at, default, "must not have unknown fields"));
        }
    }
    let mut coerced = default.clone();
    if let Err(error) = embedded::coerce(&mut coerced, node, is_resource, false) {
        errors.push(invalid_str(at, "", format!("{}: {}", error.field, error.message)));
        return errors;
    }
    let found = embedded::validate(default, node, is_resource, at);
    let found = if found.is_empty() { validate::validate(default, node, None, at) } else { found };
    let found = if found.is_empty() { crate::rules::check_default(default, node, at) } else { found };
    errors.extend(found);
    errors
}
