//! The kind `CustomResourceDefinition (apiextensions.k8s.io/v1)`.

use listwatch_kinds::{Kind, Subresource};
use listwatch_validation::Errors;

use crate::{format_warnings, strategy, validation};

/// The kind `CustomResourceDefinition (apiextensions.k8s.io/v1)`.
///
/// Source: `apiextensions-apiserver/pkg/registry/customresourcedefinition/strategy.go`.
pub static CUSTOM_RESOURCE_DEFINITION: Kind = Kind {
    short_names: &["crd", "crds"],
    storage_prefix: "apiextensions.k8s.io/customresourcedefinitions",
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    keeps_nulls: true,
    normalize: |definition| {
        strategy::check_types(definition)?;
        strategy::apply_defaults(definition);
        Ok(())
    },
    prepare_for_create: |definition, _| strategy::prepare_for_create(definition),
    prepare_for_update: |definition, _, context| {
        if context.subresource.is_none() {
            strategy::prepare_for_update(definition);
        }
    },
    validate: |definition, old, errors: &mut Errors| {
        if old.is_none() {
            errors.extend(validation::validate(definition));
        }
    },
    validate_update: |new, old, errors| errors.extend(validation::validate_update(new, old)),
    validate_status: |definition, _, errors| errors.extend(validation::validate_status(definition)),
    warnings: format_warnings::add,
    begin_deletion: strategy::begin_deletion,
    ..Kind::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
};

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};
    use listwatch_kinds::{Strategy, Subresource};

    use super::CUSTOM_RESOURCE_DEFINITION;

    #[test]
    fn unknown_format_of_a_schema_is_warned_of_when_it_is_new() {
        let definition = |formats: [&str; 2]| {
            let [own, of_items] = formats;
            let schema = json!({"type": "object", "properties": {
                "known": {"type": "string", "format": "date-time"},
                "own": {"type": "string", "format": own},
                "list": {"type": "array", "items": {"type": "integer", "format": of_items}}}});
            let version = |name: &str| json!({"name": name, "schema": {"openAPIV3Schema": schema}});
            match json!({"spec": {"versions": [version("v1"), version("v2")]}}) {
                Value::Object(definition) => definition,
                _ => unreachable!(),
            }
        };
        let check = |new: [&str; 2], old: Option<[&str; 2]>, expected: &[&str]| {
            let (new, old) = (definition(new), old.map(definition));
            assert_eq!(CUSTOM_RESOURCE_DEFINITION.warnings(&new, old.as_ref(), None), expected);
        };
        check(["uuid", "int32"], None, &[]);
        check(["jwt", "uuid"], None, &["unrecognized format \"jwt\"", "unrecognized format \"uuid\""]);
        check(["jwt", "uuid"], Some(["jwt", "int32"]), &["unrecognized format \"uuid\""]);
        check(["jwt", "int32"], Some(["jwt", "uuid"]), &[]);
    }

    #[test]
    fn status_write_changes_only_metadata_and_status() {
        let object = |text: &str| json!({"metadata": {"name": "x", "labels": {"l": text}}, "spec": {"f": text}, "status": {"f": text}});
        let (Value::Object(mut new), Value::Object(old)) = (object("new"), object("old")) else { unreachable!() };
        let writes = CUSTOM_RESOURCE_DEFINITION.writes();
        let status = Some(&Subresource::Status);
        let reset: Vec<String> =
            writes.reset_fields(status, &object("new")).paths().iter().map(ToString::to_string).collect();
        assert_eq!(reset, [".spec"]);
        writes.reset_unwritable_fields(status, &mut new, &old);
        assert_eq!([&new["metadata"]["labels"]["l"], &new["spec"]["f"], &new["status"]["f"]], ["new", "old", "new"]);
    }
}
