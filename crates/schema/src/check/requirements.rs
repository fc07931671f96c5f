//! The rules that an update of a definition may skip, because the stored definition violates them already.
//!
//! Source: `validationOptions` and the functions `require…` of apiextensions-apiserver
//! `pkg/apis/apiextensions/validation/validation.go`, Kubernetes 1.36.

use listwatch_json::Value;
use listwatch_meta::FieldError;

use super::structural::PatternCheck;
use super::{defaults, openapi, structural, unsupported};
use crate::path::Path;
use crate::props::Props;
use crate::schema::{Interner, Schema};

/// The rules of [`check`](super::check()) that became stricter between releases of Kubernetes. An update does not apply
/// a rule that the stored definition violates (`validationOptions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// The schema must be structural. Without this rule, defaults and `x-kubernetes-validations` are not checked.
    pub structural: bool,
    /// Defaults must not contain unknown fields.
    pub pruned_defaults: bool,
    /// The items of a list of type set must be atomic.
    pub atomic_set_items: bool,
    /// Items of a list of type set or map must not be nullable. Keys of a list of type map must not be nullable either,
    /// and must be required or have a default.
    pub list_map_keys: bool,
    /// Types must be those of OpenAPI v3.
    pub valid_types: bool,
}

impl Requirements {
    /// All rules, as for a new definition.
    pub const ALL: Requirements = Requirements {
        structural: true,
        pruned_defaults: true,
        atomic_set_items: true,
        list_map_keys: true,
        valid_types: true,
    };

    /// Removes the rules that a schema of the stored definition violates. A schema that cannot be parsed removes none.
    pub fn relax_for(&mut self, stored: &Value) {
        let Ok(props) = Props::parse(stored, &mut Vec::new()) else { return };
        if !is_structural(&props, PatternCheck::Compile) {
            self.structural = false;
        } else if props.any(&|props: &Props| props.default.is_some()) {
            let compiled = Schema::compile(&props, &mut Interner::default());
            self.pruned_defaults &= !defaults::has_unpruned(&props, &compiled.root, true);
        }
        self.atomic_set_items &= !props.any(&openapi::has_non_atomic_set_items);
        self.list_map_keys &= !props.any(&openapi::has_invalid_list_map_keys);
        self.valid_types &= !props.any(&openapi::has_invalid_type);
    }
}

/// The features of a schema that only a structural schema can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaFeatures {
    /// The schema or one below has a default (`specHasDefaults`).
    pub defaults: bool,
    /// The schema or one below has an extension `x-kubernetes-…`, other than `x-kubernetes-map-type`
    /// (`specHasKubernetesExtensions`).
    pub extensions: bool,
}

impl SchemaFeatures {
    /// Returns the features of an `openAPIV3Schema`. A schema that cannot be parsed has none.
    pub fn of(schema: &Value) -> Self {
        let Ok(props) = Props::parse(schema, &mut Vec::new()) else { return SchemaFeatures::default() };
        let has_extension = |props: &Props| {
            props.embedded_resource
                || props.preserve_unknown_fields.is_some()
                || props.int_or_string
                || !props.list_map_keys.is_empty()
                || props.list_type.is_some()
                || !props.rules.is_empty()
        };
        SchemaFeatures {
            defaults: props.any(&|props: &Props| props.default.is_some()),
            extensions: props.any(&has_extension),
        }
    }
}

/// Returns the violations of the structural rules in the schema at `at.openAPIV3Schema`, sorted
/// (`ValidateStructural` of `pkg/apiserver/schema/validation.go`).
///
/// # Errors
/// The reason why the schema cannot be converted to a structural schema (`NewStructural`).
pub fn structural_violations(schema: &Value, at: &str) -> Result<Vec<FieldError>, String> {
    let props = Props::parse(schema, &mut Vec::new()).map_err(|error| error.to_string())?;
    match unsupported(&props) {
        Some(why) => Err(why),
        None => Ok(structural::check(&props, &Path::root(at).child("openAPIV3Schema"), PatternCheck::Compile)),
    }
}

/// Whether OpenAPI documents and the types of server-side apply contain a schema: it is structural, and has only types
/// of OpenAPI v3 (`generateBuilder` of `pkg/controller/openapi/builder/builder.go`). For other schemas, kube-apiserver
/// publishes an object with any fields.
///
/// Of regular expressions, this function checks only the syntax, because it runs during writes. A schema is therefore
/// published even if an expression is too large to be compiled.
pub fn is_published(schema: &Value) -> bool {
    let props = Props::parse(schema, &mut Vec::new());
    props.is_ok_and(|props| !props.any(&openapi::has_invalid_type) && is_structural(&props, PatternCheck::Syntax))
}

fn is_structural(props: &Props, pattern_check: PatternCheck) -> bool {
    unsupported(props).is_none() && structural::check(props, &Path::NIL, pattern_check).is_empty()
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn stored_schema_removes_only_the_rules_that_it_violates() {
        let check = |property: Value, expected: Requirements| {
            let mut found = Requirements::ALL;
            found.relax_for(&json!({"type": "object", "properties": {"a": property}}));
            assert_eq!(found, expected, "{property}");
        };
        const ALL: Requirements = Requirements::ALL;
        check(json!({"type": "string"}), ALL);
        check(json!({}), Requirements { structural: false, ..ALL });
        check(json!({"type": "string", "pattern": "+"}), Requirements { structural: false, ..ALL });
        check(json!({"type": "string", "$ref": "#/a"}), Requirements { structural: false, ..ALL });
        check(json!({"type": "file"}), Requirements { valid_types: false, ..ALL });
        check(
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"c": 1}}),
            Requirements { pruned_defaults: false, ..ALL },
        );
        check(json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"b": "x"}}), ALL);
        check(
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
            Requirements { atomic_set_items: false, ..ALL },
        );
        check(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            Requirements { list_map_keys: false, ..ALL },
        );
        let mut found = ALL;
        found.relax_for(&json!({"type": 3}));
        assert_eq!(found, ALL, "a schema that cannot be parsed");
    }

    #[test]
    fn schema_features_include_those_of_nested_schemas() {
        let features = |schema: Value| {
            let SchemaFeatures { defaults, extensions } = SchemaFeatures::of(&schema);
            (defaults, extensions)
        };
        assert_eq!(features(json!({"properties": {"a": {"x-kubernetes-map-type": "atomic"}}})), (false, false));
        assert_eq!(features(json!({"properties": {"a": {"items": {"default": 1}}}})), (true, false));
        assert_eq!(features(json!({"allOf": [{"x-kubernetes-int-or-string": true}]})), (false, true));
        assert_eq!(features(json!({"x-kubernetes-preserve-unknown-fields": true})), (false, true));
    }

    #[test]
    fn structural_violations_have_the_path_of_the_schema() {
        let texts = |schema: Value| {
            let found = structural_violations(&schema, "spec.versions[1].schema");
            found.map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(texts(json!({"type": "object"})), Ok(Vec::new()));
        let required = "spec.versions[1].schema.openAPIV3Schema";
        assert_eq!(
            texts(json!({"properties": {"a": {"type": "array"}}})),
            Ok(vec![
                format!("{required}.properties[a].items: Required value: must be specified"),
                format!("{required}.type: Required value: must not be empty at the root"),
            ])
        );
        let unsupported = texts(json!({"type": "object", "patternProperties": {"a": {}}}));
        assert_eq!(unsupported, Err("OpenAPIV3Schema 'patternProperties' is not supported".to_owned()));
    }

    #[test]
    fn only_a_structural_schema_with_known_types_is_published() {
        assert!(is_published(&json!({"type": "object", "properties": {"a": {"type": "string"}}})));
        assert!(!is_published(&json!({"properties": {"a": {"type": "string"}}})), "the root has no type");
        assert!(!is_published(&json!({"type": "object", "properties": {"a": {"type": "file"}}})));
        assert!(!is_published(&json!({"type": 3})));
        let with_pattern =
            |pattern: &str| json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}});
        assert!(is_published(&with_pattern("^a+$")));
        assert!(!is_published(&with_pattern("+")));
        // The compiled expression would be too large, so this schema shows that nothing is compiled.
        assert!(is_published(&with_pattern(r"\pL{1000}")));
    }
}
