//! Checks the schema of a definition. The messages are those of kube-apiserver's 422 response.
//! Rules: apiextensions-apiserver `pkg/apis/apiextensions/validation/validation.go`,
//! `pkg/apiserver/schema/validation.go`, `complete.go`, `has_defaults/validation.go`, Kubernetes
//! 1.36.

mod defaults;
mod openapi;
mod requirements;
mod structural;

use listwatch_json::Value;
use listwatch_meta::FieldError;

pub use self::requirements::{Requirements, SchemaFeatures, is_published, structural_violations};
use self::structural::PatternCheck;
use crate::field_errors;
use crate::path::Path;
use crate::props::{ParseError, Props};
use crate::schema::{Interner, Schema};

/// The facts about a definition that the checks of its schema require.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext<'a> {
    /// The path of the schema: `spec.validation` if all versions have the same schema, else
    /// `spec.versions[0].schema`, as in Kubernetes.
    pub at: &'a str,
    /// Whether the version has the status subresource, which restricts the root of the schema.
    pub status_subresource: bool,
    /// Whether the stored definition has the same schema for this version. Rules whose estimated
    /// cost has increased since then stay valid.
    pub unchanged: bool,
    /// The rules that apply: [`Requirements::ALL`] for a new definition.
    pub requirements: Requirements,
}

/// The result of [`check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The errors; empty for a valid schema.
    pub errors: Vec<FieldError>,
    /// The dotted paths of members that `JSONSchemaProps` does not have. Such members cause a warning or an
    /// error, depending on the request's `fieldValidation`.
    pub unknown_fields: Vec<String>,
}

/// Checks an `openAPIV3Schema`.
///
/// # Errors
/// [`ParseError`] if the JSON is not a schema or exceeds a limit.
pub fn check(schema: &Value, context: CheckContext<'_>) -> Result<CheckReport, ParseError> {
    let mut unknown_fields = Vec::new();
    let props = Props::parse(schema, &mut unknown_fields)?;
    let compiled = Schema::compile(&props, &mut Interner::default());
    let parent = Path::root(context.at);
    let at = parent.child("openAPIV3Schema");
    let mut errors = Vec::new();
    if context.status_subresource {
        check_root_for_status(&props, schema, &parent, &mut errors);
    }
    if props.nullable {
        errors.push(field_errors::forbidden(
            parent.child("openAPIV3Schema.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let mut later = Vec::new();
    let mut structural = false;
    if context.requirements.structural {
        if let Some(why) = unsupported(&props) {
            // The checks below report most of these; this covers the rest.
            later.push(field_errors::invalid_str(at, "", why));
        } else {
            let found = structural::check(&props, &at, PatternCheck::Compile);
            let pruned = context.requirements.pruned_defaults;
            let found = if found.is_empty() { defaults::check(&props, &compiled, &at, pruned) } else { found };
            structural = found.is_empty();
            errors.extend(found);
        }
    }
    errors.extend(openapi::check(&props, &compiled, &at, structural, context));
    if errors.is_empty() {
        errors.append(&mut later);
    }
    Ok(CheckReport { errors, unknown_fields })
}

/// Rejects root keywords that the status subresource does not allow. Without them, the schema of `status` is
/// independent of the root.
fn check_root_for_status(props: &Props, schema: &Value, parent: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !props.kind.is_empty() && props.kind != "object" {
        let detail =
            r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        errors.push(field_errors::invalid_str(parent.child("openAPIV3Schema.type"), &props.kind, detail));
        return;
    }
    let refused = [
        !props.id.is_empty(),
        !props.schema.is_empty(),
        props.reference.is_some(),
        props.nullable,
        props.default.is_some(),
        !props.enumeration.is_empty(),
        props.max_properties.is_some(),
        props.min_properties.is_some(),
        !props.all_of.is_empty(),
        !props.one_of.is_empty(),
        !props.any_of.is_empty(),
        props.not.is_some(),
        props.additional.is_some(),
        props.pattern_properties,
        props.dependencies,
        props.additional_items,
        props.definitions,
        props.embedded_resource,
        props.int_or_string,
        !props.list_map_keys.is_empty(),
        props.list_type.is_some(),
        props.map_type.is_some(),
    ];
    if refused.contains(&true) {
        let detail = concat!(
            "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength ",
            "Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example ",
            "XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource ",
            "is enabled"
        );
        errors.push(field_errors::invalid(parent.child("openAPIV3Schema"), schema, detail));
    }
}

/// The first keyword in the schema that no structural schema may contain.
fn unsupported(props: &Props) -> Option<String> {
    let not_supported = [
        ("id", !props.id.is_empty()),
        ("schema", !props.schema.is_empty()),
        ("$ref", props.reference.as_ref().is_some_and(|reference| !reference.is_empty())),
        ("patternProperties", props.pattern_properties),
        ("dependencies", props.dependencies),
        ("additionalItems", props.additional_items),
        ("definitions", props.definitions),
    ];
    if let Some((name, _)) = not_supported.iter().find(|(_, is_set)| *is_set) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if props.preserve_unknown_fields == Some(false) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    if matches!(props.items, Some(crate::props::Items::Many(1..))) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let junctors = props.not.as_deref().into_iter().chain(&props.all_of).chain(&props.any_of).chain(&props.one_of);
    let below = props.items().into_iter().chain(props.properties.values()).chain(props.additional_schema());
    junctors.chain(below).find_map(unsupported)
}
