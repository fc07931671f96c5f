//! Validates definitions: [`validate`], [`validate_update`], [`validate_status`]. `listwatch_schema` validates schemas.
//!
//! kube-apiserver validates its internal type, in which fields that are equal in all versions are fields of the spec.
//! An error in the schema of a definition with one version therefore names `spec.validation.openAPIV3Schema`.
//!
//! An update does not apply the rules that became stricter since the stored definition was written, and that the stored
//! definition violates ([`Relaxations`]).
//!
//! Source: `apiextensions-apiserver/pkg/apis/apiextensions/validation/validation.go`.

use std::cell::OnceCell;
use std::collections::HashSet;

use listwatch_json::{Map, Value, json};
use listwatch_kinds::validate_webhook_client_config;
use listwatch_meta::FieldError;
use listwatch_meta::selector::dns_1035_label_problems;
use listwatch_schema::{CheckContext, Requirements, Schema, SchemaFeatures, check_printer_column, check_scale};
use listwatch_validation::Errors;
use listwatch_validation::names::dns_subdomain;

use crate::approval::{self, Approval};
use crate::ca_bundle::ca_bundle_error;
use crate::definition::APPROVAL_ANNOTATION;

/// Maximum size of a deprecation warning, in bytes.
const WARNING_BYTES_MAX: usize = 256;
/// The error for selectable fields of a version without a schema.
const NO_SCHEMA: &str = "may only be set when `version.schema.openAPIV3Schema` is not included";
/// The error for selectable fields that all versions share, if the versions do not share a schema.
const NO_SHARED_SCHEMA: &str = "may only be set when validations.schema is included";
/// The reason of the error for more selectable fields than the limit.
const TOO_MANY: &str = "FieldValueTooMany";
/// The versions of `ConversionReview` that upstream supports.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Validates a new definition (`ValidateCustomResourceDefinition`).
pub(crate) fn validate(definition: &Map) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = text(definition.get("metadata"), "name");
    let spec = definition.get("spec");
    let required = format!("{}.{}", text(at(spec, "names"), "plural"), text(spec, "group"));
    if !name.is_empty() && name != required {
        let detail = r#"must be spec.names.plural+"."+spec.group"#;
        errors.push(invalid("metadata.name", name, detail));
    }
    check_spec(spec, None, &mut errors);
    check_rest(definition, None, &mut errors);
    errors
}

/// Validates an update of a definition (`ValidateCustomResourceDefinitionUpdate`).
pub(crate) fn validate_update(definition: &Map, old: &Map) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (spec, old_spec) = (definition.get("spec"), old.get("spec"));
    check_spec(spec, old_spec, &mut errors);
    let immutable = |path: &str, of: &dyn Fn(Option<&Value>) -> String, errors: &mut Vec<FieldError>| {
        let (new, old) = (of(spec), of(old_spec));
        if new != old {
            errors.push(invalid(&format!("spec.{path}"), &new, "field is immutable"));
        }
    };
    if is_established(old) {
        immutable("scope", &|spec| text(spec, "scope").to_owned(), &mut errors);
        immutable("names.kind", &|spec| text(at(spec, "names"), "kind").to_owned(), &mut errors);
    }
    check_ca_bundle(definition, old, &mut errors);
    immutable("group", &|spec| text(spec, "group").to_owned(), &mut errors);
    immutable("names.plural", &|spec| text(at(spec, "names"), "plural").to_owned(), &mut errors);
    check_rest(definition, Some(old), &mut errors);
    errors
}

/// Validates a write of the status (`ValidateUpdateCustomResourceDefinitionStatus`).
pub(crate) fn validate_status(definition: &Map) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_names(at(definition.get("status"), "acceptedNames"), "status.acceptedNames", &mut errors);
    errors
}

fn is_established(definition: &Map) -> bool {
    let conditions = at(definition.get("status"), "conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| text(Some(condition), "type") == "Established" && text(Some(condition), "status") == "True")
}

fn check_rest(definition: &Map, old: Option<&Map>, errors: &mut Vec<FieldError>) {
    errors.extend(validate_status(definition));
    check_stored_versions(definition, errors);
    check_approval(definition, old, errors);
    let preserves = |definition: &Map| flag(definition.get("spec"), "preserveUnknownFields");
    if preserves(definition) && !old.is_some_and(preserves) {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, detail));
    }
}

fn at<'a>(value: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    value?.get(name).filter(|value| !value.is_null())
}

fn text<'a>(value: Option<&'a Value>, name: &str) -> &'a str {
    at(value, name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(value: Option<&Value>, name: &str) -> bool {
    at(value, name) == Some(&Value::Bool(true))
}

fn list<'a>(value: Option<&'a Value>, name: &str) -> &'a [Value] {
    at(value, name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn invalid(path: &str, value: &str, detail: impl std::fmt::Display) -> FieldError {
    FieldError::invalid(path, format_args!("{value:?}"), detail)
}

/// Validates a DNS-1035 label. `prefix` is prepended to the error message.
fn check_label(path: &str, value: &str, prefix: &str, errors: &mut Vec<FieldError>) {
    let problems = dns_1035_label_problems(value);
    if !problems.is_empty() {
        errors.push(invalid(path, value, format_args!("{prefix}{}", problems.join(","))));
    }
}

/// Returns the `openAPIV3Schema` of a version.
fn schema_of(version: &Value) -> Option<&Value> {
    at(at(Some(version), "schema"), "openAPIV3Schema")
}

/// The rules that an update of a definition skips, because the stored definition violates them
/// (`ValidateCustomResourceDefinitionUpdate`: "don't tighten validation on existing persisted data").
struct Relaxations<'a> {
    old: Option<&'a Value>,
    /// Whether the new definition preserves unknown fields.
    preserves: bool,
    /// The features of the new schemas, if the new definition preserves unknown fields.
    features: SchemaFeatures,
    /// The rules for schemas. They are determined when the first new schema has an error, because the check of all
    /// stored schemas costs as much as that of the new ones.
    requirements: OnceCell<Requirements>,
}

impl<'a> Relaxations<'a> {
    fn new(spec: Option<&Value>, old: Option<&'a Value>) -> Self {
        let preserves = flag(spec, "preserveUnknownFields");
        let mut features = SchemaFeatures::default();
        for schema in list(spec, "versions").iter().filter_map(schema_of).filter(|_| preserves) {
            let SchemaFeatures { defaults, extensions } = SchemaFeatures::of(schema);
            features.defaults |= defaults;
            features.extensions |= extensions;
        }
        Relaxations { old, preserves, features, requirements: OnceCell::new() }
    }

    /// Returns the rules for schemas.
    fn requirements(&self) -> Requirements {
        *self.requirements.get_or_init(|| {
            let mut requirements = Requirements::ALL;
            // Many versions have equal schemas, and the check of a schema costs more than its hash.
            let schemas: HashSet<&Value> = list(self.old, "versions").iter().filter_map(schema_of).collect();
            schemas.into_iter().for_each(|schema| requirements.relax_for(schema));
            let SchemaFeatures { defaults, extensions } = self.features;
            requirements.structural |= !self.preserves || defaults || extensions;
            requirements
        })
    }

    /// Whether the stored definition has a version without a schema (`requireOpenAPISchema`).
    fn may_lack_schemas(&self) -> bool {
        list(self.old, "versions").iter().any(|version| schema_of(version).is_none())
    }

    /// Whether no review version needs to be one that the server supports (`requireRecognizedConversionReviewVersion`).
    fn may_have_unknown_review_versions(&self) -> bool {
        let reviews = list(at(at(self.old, "conversion"), "webhook"), "conversionReviewVersions");
        !reviews.is_empty() && !reviews.iter().any(is_known_review_version)
    }

    /// Whether the selectable fields of a version exceed the limit, but are those of the stored definition
    /// (`findTooManySelectableFieldsAllowed`). Without a name, these are the fields that all versions share.
    fn may_have_too_many_selectable_fields(&self, name: Option<&str>, fields: &[Value]) -> bool {
        let versions = list(self.old, "versions");
        let shares = SharedFields::of(versions).selectable;
        let stored = match name {
            None => versions.first().filter(|_| shares),
            Some(name) => versions.iter().find(|version| text(Some(version), "name") == name).filter(|_| !shares),
        };
        stored.is_some_and(|stored| list(Some(stored), "selectableFields") == fields)
    }
}

fn is_known_review_version(version: &Value) -> bool {
    REVIEW_VERSIONS.iter().any(|known| version == known)
}

/// Checks that versions have schemas, and that a definition which preserves unknown fields has no defaults.
fn check_presence(versions: &[Value], relaxations: &Relaxations<'_>, errors: &mut Vec<FieldError>) {
    let may_lack = relaxations.may_lack_schemas();
    for (position, version) in versions.iter().enumerate().filter(|(_, version)| schema_of(version).is_none()) {
        let path = format!("spec.versions[{position}].schema.openAPIV3Schema");
        if !may_lack {
            errors.push(FieldError::required(path, ""));
        } else if !relaxations.preserves && flag(Some(version), "served") {
            errors.push(FieldError::required(path, "because otherwise all fields are pruned"));
        }
    }
    if relaxations.features.defaults {
        let detail = "must be false in order to use defaults in the schema";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, detail));
    }
}

fn check_spec(spec: Option<&Value>, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_group(text(spec, "group"), errors);
    match text(spec, "scope") {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    let versions = list(spec, "versions");
    let shared = SharedFields::of(versions);
    let old_versions = list(old, "versions");
    let relaxations = Relaxations::new(spec, old);
    check_presence(versions, &relaxations, errors);
    let mut known: Vec<&str> = Vec::new();
    let mut unique = true;
    for (position, version) in versions.iter().enumerate() {
        let name = text(Some(version), "name");
        unique &= !known.contains(&name);
        known.push(name);
        let path = format!("spec.versions[{position}]");
        check_label(&format!("{path}.name"), name, "", errors);
        let unchanged = old_versions
            .iter()
            .any(|old| text(Some(old), "name") == name && old.get("schema") == version.get("schema"));
        check_version(version, &path, &shared, unchanged, &relaxations, errors);
    }
    let shown = || go_list(versions, &shared);
    if !unique {
        errors.push(FieldError::invalid("spec.versions", shown(), "must contain unique version names"));
    }
    if versions.iter().filter(|version| flag(Some(version), "storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", shown(), detail));
    }
    let names = at(spec, "names");
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(names, name).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{name}"), ""));
        }
    }
    check_names(names, "spec.names", errors);
    if let Some(first) = versions.first() {
        check_shared(first, versions, &shared, &relaxations, errors);
    }
    check_conversion(at(spec, "conversion"), &relaxations, errors);
}

/// Validates the CA bundle of the conversion webhook in an update. An invalid one is allowed before the definition is
/// established, and stays allowed (`allowInvalidCABundle`).
fn check_ca_bundle(definition: &Map, old: &Map, errors: &mut Vec<FieldError>) {
    let conversion = |definition: &Map| at(definition.get("spec"), "conversion").cloned();
    let bundle = |conversion: &Option<Value>| {
        let client = at(at(conversion.as_ref(), "webhook"), "clientConfig");
        text(client, "caBundle").to_owned()
    };
    let new = conversion(definition);
    if text(new.as_ref(), "strategy") != "Webhook" || !is_established(old) {
        return;
    }
    let encoded = bundle(&new);
    let Some(why) = ca_bundle_error(&encoded) else { return };
    if ca_bundle_error(&bundle(&conversion(old))).is_none() {
        errors.push(invalid("spec.conversion.webhookClientConfig.caBundle", &encoded, why));
    }
}

fn check_group(group: &str, errors: &mut Vec<FieldError>) {
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
        return;
    }
    let problems = dns_subdomain(group);
    if !problems.is_empty() {
        errors.push(invalid("spec.group", group, problems.join(",")));
    } else if !group.contains('.') {
        errors.push(invalid("spec.group", group, "should be a domain with at least one dot"));
    }
}

/// The fields that are equal in all versions, which are validated once.
struct SharedFields {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl SharedFields {
    fn of(versions: &[Value]) -> Self {
        let alike = |name: &str| versions.windows(2).all(|pair| at(Some(&pair[0]), name) == at(Some(&pair[1]), name));
        SharedFields {
            schema: alike("schema"),
            subresources: alike("subresources"),
            columns: alike("additionalPrinterColumns"),
            selectable: alike("selectableFields"),
        }
    }
}

fn check_version(
    version: &Value,
    path: &str,
    shared: &SharedFields,
    unchanged: bool,
    relaxations: &Relaxations<'_>,
    errors: &mut Vec<FieldError>,
) {
    check_warning(version, &format!("{path}.deprecationWarning"), errors);
    if !shared.schema {
        let path = format!("{path}.schema");
        check_schema(version, &path, has_status(version), unchanged, relaxations, errors);
    }
    if !shared.subresources {
        check_subresources(at(Some(version), "subresources"), &format!("{path}.subresources"), errors);
    }
    if !shared.columns {
        check_columns(version, &format!("{path}.additionalPrinterColumns"), errors);
    }
    if !shared.selectable {
        let path = format!("{path}.selectableFields");
        // Upstream's internal type has a schema that all versions share above the versions, and this rule does not
        // look there.
        if shared.schema && !list(Some(version), "selectableFields").is_empty() {
            errors.push(invalid(&path, "", NO_SCHEMA));
        } else {
            check_selectable(version, &path, Some(text(Some(version), "name")), relaxations, errors);
        }
    }
}

/// Validates the fields that are equal in all versions. Error paths are those of upstream's internal type.
fn check_shared(
    first: &Value,
    versions: &[Value],
    shared: &SharedFields,
    relaxations: &Relaxations<'_>,
    errors: &mut Vec<FieldError>,
) {
    if shared.schema {
        let old = list(relaxations.old, "versions").first();
        let unchanged = old.is_some_and(|old| old.get("schema") == first.get("schema"));
        let status = versions.iter().any(has_status);
        check_schema(first, "spec.validation", status, unchanged, relaxations, errors);
    }
    if shared.subresources {
        check_subresources(at(Some(first), "subresources"), "spec.subresources", errors);
    }
    if shared.columns {
        check_columns(first, "spec.additionalPrinterColumns", errors);
    }
    if shared.selectable {
        let path = "spec.selectableFields";
        let has_schema = shared.schema && at(Some(first), "schema").is_some();
        if !has_schema && !list(Some(first), "selectableFields").is_empty() {
            errors.push(invalid(path, "", NO_SHARED_SCHEMA));
        } else {
            check_selectable(first, path, None, relaxations, errors);
        }
    }
}

fn has_status(version: &Value) -> bool {
    at(at(Some(version), "subresources"), "status").is_some()
}

fn check_schema(
    version: &Value,
    path: &str,
    status: bool,
    unchanged: bool,
    relaxations: &Relaxations<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(schema) = schema_of(version) else { return };
    let all = CheckContext { at: path, status_subresource: status, unchanged, requirements: Requirements::ALL };
    let mut checked = listwatch_schema::check(schema, all);
    if checked.as_ref().is_ok_and(|report| !report.errors.is_empty()) {
        let requirements = relaxations.requirements();
        if requirements != Requirements::ALL {
            checked = listwatch_schema::check(schema, CheckContext { requirements, ..all });
        }
    }
    match checked {
        Ok(checked) => errors.extend(checked.errors),
        Err(error) => errors.push(FieldError::invalid(format!("{path}.openAPIV3Schema"), "\"\"", error)),
    }
}

fn check_warning(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(Value::String(warning)) = at(Some(version), "deprecationWarning") else { return };
    let mut problems = Vec::new();
    if !flag(Some(version), "deprecated") {
        problems.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > WARNING_BYTES_MAX {
            problems.push(format!("must be <= {WARNING_BYTES_MAX} characters long"));
        }
        if warning.is_empty() {
            problems.push("must not be an empty string".to_owned());
        }
        if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            problems.push(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            ));
        }
    }
    errors.extend(problems.iter().map(|problem| invalid(path, warning, problem)));
}

fn check_names(names: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    for name in ["plural", "singular"] {
        let value = text(names, name);
        if !value.is_empty() {
            check_label(&format!("{path}.{name}"), value, "", errors);
        }
    }
    for name in ["kind", "listKind"] {
        let value = text(names, name);
        let problems = dns_1035_label_problems(&value.to_lowercase());
        if !value.is_empty() && !problems.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
            errors.push(invalid(&format!("{path}.{name}"), value, detail));
        }
    }
    let each = |name: &str, errors: &mut Vec<FieldError>| {
        for (position, value) in list(names, name).iter().enumerate() {
            check_label(&format!("{path}.{name}[{position}]"), value.as_str().unwrap_or_default(), "", errors);
        }
    };
    each("shortNames", errors);
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        errors.push(invalid(&format!("{path}.listKind"), list_kind, "kind and listKind may not be the same"));
    }
    each("categories", errors);
}

fn check_subresources(subresources: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(scale) = at(subresources, "scale") {
        errors.extend(check_scale(scale, path));
    }
}

fn check_columns(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (position, column) in list(Some(version), "additionalPrinterColumns").iter().enumerate() {
        errors.extend(check_printer_column(column, &format!("{path}[{position}]")));
    }
}

/// Validates selectable fields. `name` is the version whose fields they are, or `None` if all versions share them.
fn check_selectable(
    version: &Value,
    path: &str,
    name: Option<&str>,
    relaxations: &Relaxations<'_>,
    errors: &mut Vec<FieldError>,
) {
    let fields = list(Some(version), "selectableFields");
    if fields.is_empty() {
        return;
    }
    let Some(schema) = schema_of(version) else {
        errors.push(invalid(path, "", NO_SCHEMA));
        return;
    };
    // The validation of the schema reports a schema that cannot be parsed.
    let Ok(schema) = Schema::parse(schema) else { return };
    let json_paths: Vec<&str> = fields.iter().map(|field| text(Some(field), "jsonPath")).collect();
    let mut found = schema.check_selectable_fields(&json_paths, path);
    if found.iter().any(|error| error.reason == TOO_MANY)
        && relaxations.may_have_too_many_selectable_fields(name, fields)
    {
        found.retain(|error| error.reason != TOO_MANY);
    }
    errors.extend(found);
}

fn check_conversion(conversion: Option<&Value>, relaxations: &Relaxations<'_>, errors: &mut Vec<FieldError>) {
    let strategy = text(conversion, "strategy");
    if conversion.is_none() {
        return;
    }
    let path = "spec.conversion";
    if strategy != "None" && relaxations.preserves {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(invalid("spec.conversion.strategy", strategy, detail));
    }
    match strategy {
        "None" | "Webhook" => {}
        "" => errors.push(FieldError::required(format!("{path}.strategy"), "")),
        other => errors.push(FieldError::not_supported(format!("{path}.strategy"), other, &["None", "Webhook"])),
    }
    let webhook = at(conversion, "webhook");
    let client = at(webhook, "clientConfig");
    let reviews = list(webhook, "conversionReviewVersions");
    if strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.push(FieldError::forbidden(format!("{path}.webhookClientConfig"), detail));
        }
        if !reviews.is_empty() {
            errors.push(FieldError::forbidden(format!("{path}.conversionReviewVersions"), detail));
        }
        return;
    }
    let path_of_client = format!("{path}.webhookClientConfig");
    match client.and_then(Value::as_object) {
        None => errors.push(FieldError::required(path_of_client, "required when strategy is set to Webhook")),
        Some(client) => {
            let mut found = Errors::default();
            validate_webhook_client_config(client, &path_of_client, &mut found);
            errors.extend(found.drain(..));
        }
    }
    let may_be_unknown = relaxations.may_have_unknown_review_versions();
    check_review_versions(reviews, &format!("{path}.conversionReviewVersions"), may_be_unknown, errors);
}

fn check_review_versions(reviews: &[Value], path: &str, may_be_unknown: bool, errors: &mut Vec<FieldError>) {
    if reviews.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut known = may_be_unknown;
    let mut seen = HashSet::new();
    for (position, version) in reviews.iter().enumerate() {
        known |= is_known_review_version(version);
        let version = version.as_str().unwrap_or_default();
        let path = format!("{path}[{position}]");
        if !seen.insert(version) {
            errors.push(invalid(&path, version, "duplicate version"));
            continue;
        }
        let problems = dns_1035_label_problems(version);
        errors.extend(problems.into_iter().map(|problem| invalid(&path, version, problem)));
    }
    if !known {
        let shown = serde_json::to_string(reviews).unwrap_or_default();
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, shown, detail));
    }
}

fn check_stored_versions(definition: &Map, errors: &mut Vec<FieldError>) {
    let path = "status.storedVersions";
    let stored = list(definition.get("status"), "storedVersions");
    let shown = serde_json::to_string(stored).unwrap_or_default();
    if stored.is_empty() {
        errors.push(FieldError::invalid(path, "null", "must have at least one stored version"));
        return;
    }
    let versions = list(definition.get("spec"), "versions");
    let names: Vec<&str> = versions.iter().map(|version| text(Some(version), "name")).collect();
    for version in versions.iter().filter(|version| flag(Some(version), "storage")) {
        let name = text(Some(version), "name");
        if !stored.iter().any(|stored| stored == name) {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(path, &shown, detail));
        }
    }
    for (position, version) in stored.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !names.contains(&name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(invalid(&format!("{path}[{position}]"), name, detail));
        }
    }
}

fn check_approval(definition: &Map, old: Option<&Map>, errors: &mut Vec<FieldError>) {
    if !approval::is_protected(text(definition.get("spec"), "group")) {
        return;
    }
    let annotation =
        |definition: &Map| text(at(definition.get("metadata"), "annotations"), APPROVAL_ANNOTATION).to_owned();
    let present = annotation(definition);
    let (state, reason) = approval::approval(&present);
    if old.is_some_and(|old| approval::approval(&annotation(old)).0 == state) {
        return;
    }
    let path = format!("metadata.annotations[{APPROVAL_ANNOTATION}]");
    match state {
        Approval::Approved | Approval::Bypassed => {}
        Approval::Missing => errors.push(FieldError::required(path, reason)),
        Approval::Invalid => errors.push(invalid(&path, &present, reason)),
    }
}

/// Formats the versions for an error, as Go prints the internal type.
fn go_list(versions: &[Value], shared: &SharedFields) -> String {
    if versions.is_empty() {
        return "null".to_owned();
    }
    let own = |version: &Value, name: &str, shared: bool| match at(Some(version), name) {
        Some(value) if !shared && value.as_array().is_none_or(|list| !list.is_empty()) => value.clone(),
        _ => Value::Null,
    };
    let shown: Vec<Value> = versions
        .iter()
        .map(|version| {
            let columns = own(version, "additionalPrinterColumns", shared.columns);
            let fields = own(version, "selectableFields", shared.selectable);
            json!({
                "Name": text(Some(version), "name"),
                "Served": flag(Some(version), "served"),
                "Storage": flag(Some(version), "storage"),
                "Deprecated": flag(Some(version), "deprecated"),
                "DeprecationWarning": at(Some(version), "deprecationWarning"),
                "Schema": own(version, "schema", shared.schema),
                "Subresources": go_subresources(&own(version, "subresources", shared.subresources)),
                "AdditionalPrinterColumns": go_items(&columns, |column| json!({
                    "Name": text(Some(column), "name"),
                    "Type": text(Some(column), "type"),
                    "Format": text(Some(column), "format"),
                    "Description": text(Some(column), "description"),
                    "Priority": at(Some(column), "priority").cloned().unwrap_or(json!(0)),
                    "JSONPath": text(Some(column), "jsonPath"),
                })),
                "SelectableFields": go_items(&fields, |field| json!({"JSONPath": text(Some(field), "jsonPath")})),
            })
        })
        .collect();
    Value::Array(shown).to_string()
}

fn go_items(list: &Value, show: impl Fn(&Value) -> Value) -> Value {
    list.as_array().map_or(Value::Null, |items| items.iter().map(show).collect())
}

fn go_subresources(subresources: &Value) -> Value {
    if subresources.is_null() {
        return Value::Null;
    }
    let scale = at(Some(subresources), "scale").map(|scale| {
        json!({
            "SpecReplicasPath": text(Some(scale), "specReplicasPath"),
            "StatusReplicasPath": text(Some(scale), "statusReplicasPath"),
            "LabelSelectorPath": at(Some(scale), "labelSelectorPath"),
        })
    });
    json!({"Status": at(Some(subresources), "status").map(|_| json!({})), "Scale": scale})
}

#[cfg(test)]
mod tests;
