//! Checks that a schema is structural: the type of each value is specified once, and `allOf`,
//! `anyOf`, `oneOf` and `not` only add restrictions.

use std::collections::HashMap;

use listwatch_cel::pattern::Matcher;
use listwatch_json::Value;
use listwatch_meta::FieldError;

use crate::field_errors::{forbidden, invalid, invalid_str, required};
use crate::limits::PATTERNS_MAX;
use crate::path::Path;
use crate::props::{Additional, Items, Props};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// How regular expressions are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PatternCheck {
    /// They are compiled, which can take seconds for a large schema.
    Compile,
    /// Their syntax is checked.
    Syntax,
}

/// Returns the errors of the structural rules, sorted as in Kubernetes.
pub(super) fn check(props: &Props, at: &Path<'_>, pattern_check: PatternCheck) -> Vec<FieldError> {
    let mut checker = Checker { errors: Vec::new(), patterns: HashMap::new(), pattern_check };
    checker.invariants(props, Level::Root, at);
    checker.complete(props, props, at, at);
    let mut errors = checker.errors;
    errors.sort_by_cached_key(|error| format!("{}: {}", error.field, error.message));
    errors
}

struct Checker<'p> {
    errors: Vec<FieldError>,
    /// The result of checking each regular expression.
    patterns: HashMap<&'p str, Option<String>>,
    pattern_check: PatternCheck,
}

impl<'p> Checker<'p> {
    fn invariants(&mut self, props: &'p Props, level: Level, at: &Path<'_>) {
        if props.kind == "array" && props.items.is_none() {
            self.errors.push(required(at.child("items"), "must be specified"));
        }
        if let Some(Items::One(items)) = &props.items {
            self.invariants(items, Level::Item, &at.child("items"));
        }
        let properties = at.child("properties");
        for (name, property) in &props.properties {
            self.invariants(property, Level::Field, &properties.key(name));
        }
        if let Some(additional) = &props.additional {
            let at = at.child("additionalProperties");
            if level == Level::Root {
                self.errors.push(forbidden(at, "must not be used at the root"));
            }
            if let Additional::Schema(schema) = additional {
                self.invariants(schema, Level::Field, &at);
            }
        }
        self.extensions(props, at);
        self.value_validation(props, props.is_int_or_string_any_of(), props.is_int_or_string_all_of(), at);
        self.types(props, level, at);
    }

    fn extensions(&mut self, props: &Props, at: &Path<'_>) {
        if !props.int_or_string {
            return;
        }
        let detail = "must be false if x-kubernetes-int-or-string is true";
        if props.preserves() {
            let at = at.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(invalid(at, &Value::Bool(true), detail));
        }
        if props.embedded_resource {
            self.errors.push(invalid(at.child("x-kubernetes-embedded-resource"), &Value::Bool(true), detail));
        }
    }

    fn types(&mut self, props: &Props, level: Level, at: &Path<'_>) {
        let is_resource = level == Level::Root || props.embedded_resource;
        let kind = at.child("type");
        if props.embedded_resource && props.kind != "object" {
            let detail = "must be object if x-kubernetes-embedded-resource is true";
            if props.kind.is_empty() {
                self.errors.push(required(kind, detail));
            } else {
                self.errors.push(invalid_str(kind, &props.kind, detail));
            }
        } else if props.kind.is_empty() && !props.int_or_string && !props.preserves() {
            let detail = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            self.errors.push(required(kind, detail));
        }
        if props.embedded_resource && props.additional.is_some() {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            self.errors.push(forbidden(at.child("additionalProperties"), detail));
        }
        if level == Level::Root && !props.kind.is_empty() && props.kind != "object" {
            self.errors.push(invalid_str(kind, &props.kind, "must be object at the root"));
        }
        let properties = at.child("properties");
        for name in ["kind", "apiVersion"] {
            let Some(property) = props.properties.get(name).filter(|_| is_resource) else { continue };
            if property.kind != "string" {
                self.errors.push(invalid_str(properties.key(name).child("type"), &property.kind, "must be string"));
            }
        }
        if let Some(metadata) = props.properties.get("metadata") {
            let at = properties.key("metadata");
            if is_resource && metadata.kind != "object" {
                self.errors.push(invalid_str(at.child("type"), &metadata.kind, "must be object"));
            }
            if level == Level::Root && !restricts_names_only(metadata) {
                let detail = concat!(
                    "must not specify anything other than name and generateName, ",
                    "but metadata is implicitly specified"
                );
                self.errors.push(forbidden(at, detail));
            }
        }
        if props.embedded_resource && !props.preserves() && props.properties.is_empty() {
            let detail = concat!(
                "must not be empty if x-kubernetes-embedded-resource is true ",
                "without x-kubernetes-preserve-unknown-fields"
            );
            self.errors.push(required(at.child("properties"), detail));
        }
    }

    /// Checks the keywords that restrict values. The two flags skip the generated `anyOf: [integer,
    /// string]`.
    fn value_validation(&mut self, props: &'p Props, skip_any_of: bool, skip_first_all_of: bool, at: &Path<'_>) {
        if !skip_any_of {
            let at = at.child("anyOf");
            for (index, branch) in props.any_of.iter().enumerate() {
                self.nested(branch, false, &at.index(index));
            }
        }
        let all_of = at.child("allOf");
        for (index, branch) in props.all_of.iter().enumerate() {
            self.nested(branch, skip_first_all_of && index == 0, &all_of.index(index));
        }
        let one_of = at.child("oneOf");
        for (index, branch) in props.one_of.iter().enumerate() {
            self.nested(branch, false, &one_of.index(index));
        }
        if let Some(not) = &props.not {
            self.nested(not, false, &at.child("not"));
        }
        self.pattern(&props.pattern, at);
    }

    fn pattern(&mut self, pattern: &'p str, at: &Path<'_>) {
        if pattern.is_empty() {
            return;
        }
        let known = self.patterns.len();
        let problem = self.patterns.entry(pattern).or_insert_with(|| {
            if known >= PATTERNS_MAX {
                return Some(format!("the schema has more than {PATTERNS_MAX} different patterns"));
            }
            match self.pattern_check {
                PatternCheck::Compile => Matcher::compile(pattern).err(),
                PatternCheck::Syntax => Matcher::check_syntax(pattern).err(),
            }
        });
        if let Some(why) = problem {
            let detail = format!("must be a valid regular expression, but isn't: {why}");
            self.errors.push(invalid_str(at.child("pattern"), pattern, detail));
        }
    }

    fn nested(&mut self, props: &'p Props, skip_any_of: bool, at: &Path<'_>) {
        self.value_validation(props, skip_any_of, false, at);
        if let Some(items) = props.items() {
            self.nested(items, false, &at.child("items"));
        }
        let properties = at.child("properties");
        for (name, property) in &props.properties {
            self.nested(property, false, &properties.key(name));
        }
        let allowed = matches!(props.additional, Some(Additional::Schema(_) | Additional::Allowed(true)));
        let must_be = [
            ("type", !props.kind.is_empty(), "empty"),
            ("additionalProperties", allowed, "undefined"),
            ("default", props.default.is_some(), "undefined"),
            ("title", props.title, "empty"),
            ("description", props.description, "empty"),
            ("nullable", props.nullable, "false"),
            ("x-kubernetes-preserve-unknown-fields", props.preserves(), "false"),
            ("x-kubernetes-embedded-resource", props.embedded_resource, "false"),
            ("x-kubernetes-int-or-string", props.int_or_string, "false"),
            ("x-kubernetes-list-map-keys", !props.list_map_keys.is_empty(), "empty"),
            ("x-kubernetes-list-type", props.list_type.is_some(), "undefined"),
            ("x-kubernetes-map-type", props.map_type.is_some(), "undefined"),
            ("x-kubernetes-validations", !props.rules.is_empty(), "empty"),
        ];
        for (name, is_set, expected) in must_be {
            if is_set {
                self.errors.push(forbidden(at.child(name), format_args!("must be {expected} to be structural")));
            }
        }
        if props.properties.contains_key("metadata") {
            self.errors.push(forbidden(properties.key("metadata"), "must not be specified in a nested context"));
        }
    }

    /// Checks that fields within `allOf` and similar keywords are also specified outside of them.
    fn complete(&mut self, validation: &Props, structure: &Props, s_at: &Path<'_>, v_at: &Path<'_>) {
        if let Some(not) = &validation.not {
            self.complete_nested(not, Some(structure), s_at, &v_at.child("not"));
        }
        for (name, branches) in
            [("allOf", &validation.all_of), ("anyOf", &validation.any_of), ("oneOf", &validation.one_of)]
        {
            let v_at = v_at.child(name);
            for (index, branch) in branches.iter().enumerate() {
                self.complete_nested(branch, Some(structure), s_at, &v_at.index(index));
            }
        }
    }

    fn complete_nested(&mut self, validation: &Props, structure: Option<&Props>, s_at: &Path<'_>, v_at: &Path<'_>) {
        let Some(structure) = structure else {
            self.errors.push(required(s_at, format_args!("because it is defined in {v_at}")));
            return;
        };
        self.complete(validation, structure, s_at, v_at);
        if let Some(items) = validation.items() {
            self.complete_nested(items, structure.items(), &s_at.child("items"), &v_at.child("items"));
        }
        let (s_properties, v_properties) = (s_at.child("properties"), v_at.child("properties"));
        for (name, property) in &validation.properties {
            let known = structure.properties.get(name);
            self.complete_nested(property, known, &s_properties.key(name), &v_properties.key(name));
        }
    }
}

/// True if the schema of an object's own metadata restricts only the name.
fn restricts_names_only(metadata: &Props) -> bool {
    let mut rest = metadata.clone();
    if rest.properties.keys().all(|name| name == "name" || name == "generateName") {
        rest.properties.clear();
    }
    rest.kind.clear();
    rest.default = None;
    rest == Props::default()
}
