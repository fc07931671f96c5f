//! Checks the rules of `JSONSchemaProps` that do not concern the structure.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_meta::FieldError;

use super::{CheckContext, Requirements};
use crate::columns::field_path;
use crate::field_errors::{forbidden, invalid, invalid_str, not_supported, required};
use crate::path::Path;
use crate::props::{Items, Props, RuleProps};
use crate::rules::{RuleChecker, RuleScope};
use crate::schema::{Node, Schema};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Checks a schema. Rules are checked only if the schema is structural, and their costs only if the
/// schema is new.
pub(super) fn check(
    props: &Props,
    schema: &Schema,
    at: &Path<'_>,
    structural: bool,
    check: CheckContext<'_>,
) -> Vec<FieldError> {
    let rules = structural.then(|| RuleChecker::new(check.unchanged));
    let mut checker = Checker { rules, requirements: check.requirements };
    let context = Context { defaults: Ok(()), in_metadata: false, uncorrelated: None };
    let scope = structural.then(RuleScope::root);
    let mut report = checker.node(props, Some(&schema.root), at, &context, true, scope.as_ref());
    report.schema.append(&mut report.rules);
    if let Some(rules) = checker.rules {
        report.schema.extend(rules.finish(at));
    }
    report.schema
}

/// The rules for a part of a schema that depend on its position.
#[derive(Clone)]
struct Context {
    /// Whether defaults are allowed, or the reason why not.
    defaults: Result<(), String>,
    in_metadata: bool,
    /// The first enclosing list or map without correlatable items, for rules with `oldSelf`.
    uncorrelated: Option<String>,
}

#[derive(Default)]
struct Report {
    schema: Vec<FieldError>,
    rules: Vec<FieldError>,
}

impl Report {
    fn add(&mut self, other: Report) {
        self.schema.extend(other.schema);
        self.rules.extend(other.rules);
    }
}

struct Checker {
    rules: Option<RuleChecker>,
    requirements: Requirements,
}

impl Checker {
    fn node(
        &mut self,
        props: &Props,
        node: Option<&Node>,
        at: &Path<'_>,
        context: &Context,
        is_root: bool,
        scope: Option<&RuleScope>,
    ) -> Report {
        let mut report = Report::default();
        standard(props, at, context, self.requirements, &mut report.schema);
        if props.unique_items {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            report.schema.push(forbidden(at.child("uniqueItems"), detail));
        }
        self.fields(props, node, at, context, is_root, scope, &mut report);
        self.junctors(props, at, context, &mut report);
        self.items(props, node, at, context, scope, &mut report);
        extensions(props, at, self.requirements, &mut report.schema);
        for (index, rule) in props.rules.iter().enumerate() {
            check_rule(rule, node, &at.child("x-kubernetes-validations").index(index), &mut report.schema);
        }
        let rules = self.rules.as_mut().filter(|_| report.schema.is_empty() && !props.rules.is_empty());
        if let (Some(rules), Some(scope), Some(node)) = (rules, scope, node) {
            report.rules.extend(rules.check(props, node, scope, at, context.uncorrelated.as_deref()));
        }
        report
    }

    #[allow(clippy::too_many_arguments)] // one call, and a struct for it would have no other use
    fn fields(
        &mut self,
        props: &Props,
        node: Option<&Node>,
        at: &Path<'_>,
        context: &Context,
        is_root: bool,
        scope: Option<&RuleScope>,
        report: &mut Report,
    ) {
        if let Some(additional) = &props.additional {
            let at = at.child("additionalProperties");
            if !props.properties.is_empty() && *additional != crate::props::Additional::Allowed(true) {
                report.schema.push(forbidden(at, "additionalProperties and properties are mutual exclusive"));
            }
            if let Some(schema) = props.additional_schema() {
                let mut below = context.clone();
                if context.in_metadata {
                    below.defaults = Err("inside additionalProperties applying to object metadata".to_owned());
                }
                let node = node.and_then(Node::additional_schema).map(|node| &**node);
                let scope = scope.map(|scope| scope.map_of(props));
                report.add(self.node(schema, node, &at, &below, false, scope.as_ref()));
            }
        }
        let properties = at.child("properties");
        for (name, property) in &props.properties {
            let mut below = context.clone();
            if (is_root || props.embedded_resource) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
                below.in_metadata = true;
                if is_root {
                    below.defaults = Err(format!("in top-level {name}"));
                }
            }
            let node = node.and_then(|node| node.property(name)).map(|node| &**node);
            let scope = scope.map(|scope| scope.property(property));
            report.add(self.node(property, node, &properties.key(name), &below, false, scope.as_ref()));
        }
    }

    fn junctors(&mut self, props: &Props, at: &Path<'_>, context: &Context, report: &mut Report) {
        if let Some(not) = &props.not {
            report.add(self.node(not, None, &at.child("not"), context, false, None));
        }
        for (name, branches) in [("allOf", &props.all_of), ("oneOf", &props.one_of), ("anyOf", &props.any_of)] {
            let at = at.child(name);
            for (index, branch) in branches.iter().enumerate() {
                report.add(self.node(branch, None, &at.index(index), context, false, None));
            }
        }
    }

    fn items(
        &mut self,
        props: &Props,
        node: Option<&Node>,
        at: &Path<'_>,
        context: &Context,
        scope: Option<&RuleScope>,
        report: &mut Report,
    ) {
        let Some(Items::One(items)) = &props.items else { return };
        let mut below = context.clone();
        if props.list_type.as_deref() != Some("map") && below.uncorrelated.is_none() {
            below.uncorrelated = Some(at.to_string());
        }
        let node = node.and_then(|node| node.items.as_deref());
        let scope = scope.map(|scope| scope.list_of(items, props));
        report.add(self.node(items, node, &at.child("items"), &below, false, scope.as_ref()));
    }
}

/// Whether a schema has a type that OpenAPI v3 does not have.
pub(super) fn has_invalid_type(props: &Props) -> bool {
    !props.kind.is_empty() && !TYPES.contains(&props.kind.as_str())
}

fn standard(props: &Props, at: &Path<'_>, context: &Context, requirements: Requirements, errors: &mut Vec<FieldError>) {
    if requirements.valid_types && has_invalid_type(props) {
        errors.push(not_supported(at.child("type"), &Value::from(props.kind.as_str()), &TYPES));
    }
    if let (Some(_), Err(why)) = (&props.default, &context.defaults) {
        errors.push(forbidden(at.child("default"), format_args!("must not be set {why}")));
    }
    let refused = [
        ("id", !props.id.is_empty(), "id is not supported"),
        ("additionalItems", props.additional_items, "additionalItems is not supported"),
        ("patternProperties", props.pattern_properties, "patternProperties is not supported"),
        ("definitions", props.definitions, "definitions is not supported"),
        ("dependencies", props.dependencies, "dependencies is not supported"),
        ("$ref", props.reference.is_some(), "$ref is not supported"),
        ("type", props.kind == "null", "type cannot be set to null, use nullable as an alternative"),
        ("items", matches!(props.items, Some(Items::Many(1..))), "items must be a schema object and not an array"),
        (
            "x-kubernetes-embedded-resource",
            context.in_metadata && props.embedded_resource,
            "must not be used inside of resource meta",
        ),
    ];
    for (name, is_set, detail) in refused {
        if is_set {
            errors.push(forbidden(at.child(name), detail));
        }
    }
}

fn extensions(props: &Props, at: &Path<'_>, requirements: Requirements, errors: &mut Vec<FieldError>) {
    if props.preserve_unknown_fields == Some(false) {
        let at = at.child("x-kubernetes-preserve-unknown-fields");
        errors.push(invalid(at, &Value::Bool(false), "must be true or undefined"));
    }
    if let Some(map_type) = &props.map_type {
        type_of(props, "object", "x-kubernetes-map-type", at, errors);
        if !matches!(map_type.as_str(), "atomic" | "granular") {
            let value = Value::from(map_type.as_str());
            errors.push(not_supported(at.child("x-kubernetes-map-type"), &value, &["atomic", "granular"]));
        }
    }
    let keys = &props.list_map_keys;
    let Some(list_type) = &props.list_type else {
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.push(required(at.child("x-kubernetes-list-type"), detail));
        }
        return;
    };
    if props.kind != "array" {
        type_of(props, "array", "x-kubernetes-list-type", at, errors);
    } else if let Some(items) = props.items().filter(|_| requirements.atomic_set_items && list_type == "set") {
        set_items(items, &at.child("items"), errors);
    }
    if !matches!(list_type.as_str(), "atomic" | "set" | "map") {
        let value = Value::from(list_type.as_str());
        errors.push(not_supported(at.child("x-kubernetes-list-type"), &value, &["atomic", "set", "map"]));
    }
    if !keys.is_empty() && list_type != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(invalid_str(at.child("x-kubernetes-list-type"), list_type, detail));
    }
    if list_type == "map" {
        list_map(props, at, errors);
    }
    if requirements.list_map_keys {
        list_keys(props, list_type, at, errors);
    }
}

/// Whether a schema is a set whose items are not atomic (`hasNonAtomicSetType`).
pub(super) fn has_non_atomic_set_items(props: &Props) -> bool {
    let mut errors = Vec::new();
    if let Some(items) = props.items().filter(|_| props.list_type.as_deref() == Some("set")) {
        set_items(items, &Path::NIL, &mut errors);
    }
    !errors.is_empty()
}

/// Whether a schema is a list whose items or keys may be null or absent (`hasInvalidMapListKeysMapSet`).
pub(super) fn has_invalid_list_map_keys(props: &Props) -> bool {
    let mut errors = Vec::new();
    if let Some(list_type) = &props.list_type {
        list_keys(props, list_type, &Path::NIL, &mut errors);
    }
    !errors.is_empty()
}

fn type_of(props: &Props, kind: &str, extension: &str, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if props.kind == kind {
        return;
    }
    let detail = format!("must be {kind} if {extension} is specified");
    if props.kind.is_empty() {
        errors.push(required(at.child("type"), detail));
    } else {
        errors.push(invalid_str(at.child("type"), &props.kind, detail));
    }
}

/// Checks the items of a set, which must be atomic because they are compared as a whole.
fn set_items(items: &Props, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let shown = items.list_type.clone().map_or(Value::Null, Value::from);
    match items.kind.as_str() {
        "array" if items.list_type.as_deref().is_some_and(|list_type| list_type != "atomic") => {
            errors.push(invalid(at.child("x-kubernetes-list-type"), &shown, detail));
        }
        "object" if items.map_type.as_deref() != Some("atomic") => {
            errors.push(invalid(at.child("x-kubernetes-map-type"), &shown, detail));
        }
        _ => {}
    }
}

fn list_map(props: &Props, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let keys = &props.list_map_keys;
    let keys_at = at.child("x-kubernetes-list-map-keys");
    let items_at = at.child("items");
    if keys.is_empty() {
        errors.push(required(keys_at, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = match &props.items {
        None => {
            errors.push(required(items_at, "must have a schema if x-kubernetes-list-type is map"));
            return;
        }
        Some(Items::Many(_)) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            errors.push(invalid(items_at, &Value::Array(Vec::new()), detail));
            return;
        }
        Some(Items::One(items)) => items,
    };
    if items.kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(invalid_str(items_at.child("type"), &items.kind, detail));
        return;
    }
    let shown = Value::from(keys.clone());
    let mut seen = HashSet::new();
    let properties = items_at.child("properties");
    for key in keys {
        match items.properties.get(key) {
            Some(property) if matches!(property.kind.as_str(), "array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(invalid_str(properties.key(key).child("type"), &items.kind, detail));
            }
            Some(_) => {}
            None => errors.push(invalid(keys_at, &shown, "entries must all be names of item properties")),
        }
        if !seen.insert(key) {
            errors.push(invalid(keys_at, &shown, "must not contain duplicate entries"));
        }
    }
}

/// Checks that list map keys are required or have a default, so that items are distinguishable.
fn list_keys(props: &Props, list_type: &str, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(items) = props.items().filter(|_| matches!(list_type, "set" | "map")) else { return };
    let items_at = at.child("items");
    if items.nullable {
        let detail = format_args!("cannot be nullable when x-kubernetes-list-type is {list_type}").to_string();
        errors.push(forbidden(items_at.child("nullable"), detail));
    }
    if list_type != "map" {
        return;
    }
    let properties = items_at.child("properties");
    for key in &props.list_map_keys {
        let Some(property) = items.properties.get(key) else { continue };
        let at = properties.key(key);
        if !items.required.contains(key) && property.default.is_none() {
            let detail = concat!(
                "this property is in x-kubernetes-list-map-keys, so it must have a default ",
                "or be a required property"
            );
            errors.push(required(at.child("default"), detail));
        }
        if property.nullable {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(forbidden(at.child("nullable"), detail));
        }
    }
}

/// Checks the parts of a rule that need no compilation.
fn check_rule(rule: &RuleProps, node: Option<&Node>, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let has_newline = |text: &str| text.contains(['\n', '\r']);
    let (trimmed, message) = (rule.rule.trim(), rule.message.trim());
    if trimmed.is_empty() {
        errors.push(required(at.child("rule"), "rule is not specified"));
    } else if !rule.message.is_empty() && message.is_empty() {
        errors.push(invalid_str(at.child("message"), &rule.message, "must be non-empty if specified"));
    } else if has_newline(message) {
        errors.push(invalid_str(at.child("message"), &rule.message, "must not contain line breaks"));
    } else if has_newline(trimmed) && message.is_empty() {
        errors.push(required(at.child("message"), "message must be specified if rule contains line breaks"));
    }
    if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
        errors.push(required(at.child("messageExpression"), "messageExpression must be non-empty if specified"));
    }
    if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
        errors.push(not_supported(at.child("reason"), &Value::from(reason), &REASONS));
    }
    if rule.field_path.is_empty() {
        return;
    }
    let field = at.child("fieldPath");
    if rule.field_path.trim().is_empty() {
        errors.push(invalid_str(field, &rule.field_path, "must be non-empty if specified"));
    }
    if has_newline(&rule.field_path) {
        errors.push(invalid_str(field, &rule.field_path, "must not contain line breaks"));
    }
    if node.is_none_or(|node| field_path(&rule.field_path, node, true).is_err()) {
        errors.push(invalid_str(field, &rule.field_path, "must be a valid path"));
    }
}
