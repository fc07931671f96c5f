//! Checks that defaults are pruned and valid values.

use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use crate::findings::{invalid, invalid_str};
use crate::path::Path;
use crate::props::Props;
use crate::schema::{Node, Schema};
use crate::{embedded, validate};

/// Checks the defaults of a schema.
pub(super) fn check(props: &Props, schema: &Schema, at: &Path<'_>) -> Vec<FieldError> {
    let mut checker = Checker { errors: Vec::new() };
    let inside = Inside { root: &schema.root, steps: Vec::new(), metadata: false };
    checker.node(props, &schema.root, true, at, &inside);
    checker.errors
}

/// Where a schema is within the resource around it.
struct Inside<'a> {
    root: &'a Node,
    steps: Vec<Step<'a>>,
    /// Whether the schema describes `apiVersion`, `kind` or `metadata` of that resource.
    metadata: bool,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Child(&'a str),
    Index,
}

impl<'a> Inside<'a> {
    fn below(&self, step: Step<'a>, metadata: bool) -> Inside<'a> {
        let steps = self.steps.iter().copied().chain([step]).collect();
        Inside { root: self.root, steps, metadata }
    }

    /// A resource that has this value here and nothing else.
    fn surround(&self, value: &Value) -> Value {
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
}

impl Checker {
    fn node(&mut self, props: &Props, node: &Node, is_root: bool, at: &Path<'_>, inside: &Inside<'_>) {
        let is_resource = is_root || props.embedded_resource;
        let own = Inside { root: node, steps: Vec::new(), metadata: false };
        let inside = if is_resource { &own } else { inside };
        if let Some(default) = &props.default {
            let at = at.child("default");
            let found = if inside.metadata {
                in_metadata(default, node, &at, inside)
            } else {
                elsewhere(default, node, is_resource, &at)
            };
            self.errors.extend(found);
        }
        if let (Some(items), Some(node)) = (props.items(), node.items.as_deref()) {
            self.node(items, node, false, &at.child("items"), &inside.below(Step::Index, inside.metadata));
        }
        let properties = at.child("properties");
        for (name, property) in &props.properties {
            let Some(node) = node.property(name) else { continue };
            let metadata =
                inside.metadata || (is_resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind"));
            let inside = inside.below(Step::Child(name), metadata);
            self.node(property, node, false, &properties.key(name), &inside);
        }
    }
}

/// A default within the metadata of a resource: the whole metadata has to be good with it.
fn in_metadata(default: &Value, node: &Node, at: &Path<'_>, inside: &Inside<'_>) -> Vec<FieldError> {
    let mut resource = inside.surround(default);
    if let Err(error) = embedded::coerce(&mut resource, inside.root, true, false) {
        let detail = format!("must result in valid metadata: {}: {}", error.field, error.message);
        return vec![invalid(at, default, detail)];
    }
    let errors = embedded::validate(&resource, inside.root, true, &Path::NIL);
    if !errors.is_empty() {
        let mut texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        let text = if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) };
        return vec![invalid(at, default, format!("must result in valid metadata: {text}"))];
    }
    validate::validate(default, node, None, at)
}

fn elsewhere(default: &Value, node: &Node, is_resource: bool, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut pruned = default.clone();
    crate::prune::prune(&mut pruned, node, is_resource);
    if pruned != *default {
        errors.push(invalid(at, default, "must not have unknown fields"));
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
