//! Conversion of a CustomResourceDefinition into one [`Resource`] per served version.

use std::collections::BTreeSet;
use std::sync::Arc;

use listwatch_meta::{ObjectShape, SelectableField, compare_versions};

use super::kind::{CustomKind, Form};
use super::objects::CustomResourceStrategy;
use crate::resource::{EncodingSerial, Resource};
use listwatch_apiextensions::{Definition, Names, Version};
use listwatch_kinds::{Subresource, WriteRules};
use listwatch_validation::names::NameRule;

/// Creates the resources of a definition's served versions under the definition's accepted names.
pub fn of(definition: &Definition, accepted: &Names, kind: &Arc<CustomKind>) -> Vec<Arc<Resource>> {
    let spec = &definition.spec;
    let labels: BTreeSet<&str> = spec.versions.iter().flat_map(labels).collect();
    let fields: Vec<SelectableField> = labels.iter().map(|label| SelectableField::string(label)).collect();
    let indexed_fields: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    let shape = ObjectShape::new(definition.is_namespaced(), fields);
    // The caches of a kind with a webhook hold each version in its own form.
    let shape = if kind.has_converter() { shape } else { shape.normalized_by(Arc::clone(kind) as _) };
    spec.versions
        .iter()
        .filter(|version| version.served)
        .map(|version| {
            let own: BTreeSet<&str> = labels_of(version);
            let subresources = subresources(version);
            let has_status = subresources.contains(&Subresource::Status);
            let rules = WriteRules {
                namespaced: definition.is_namespaced(),
                unconditional_update: false,
                create_on_update: false,
                uuid_names: false,
                names: NameRule::Subdomain,
                qualified_finalizers: true,
                free_form: true,
                generation: true,
                generation_counts_annotations: false,
                generation_counts_labels: false,
                generation_counts_status: !has_status,
                graceful_delete: false,
                ttl_seconds: None,
            };
            let strategy = CustomResourceStrategy {
                rules,
                form: Form::new(kind, &version.name),
                has_status,
                scale: subresources.iter().find(|subresource| subresource.name() == "scale").cloned(),
            };
            Arc::new(Resource {
                group: spec.group.clone(),
                version: version.name.clone(),
                kind: accepted.kind.clone(),
                list_kind: accepted.list_kind.clone(),
                plural: accepted.plural.clone(),
                singular: accepted.singular.clone(),
                short_names: accepted.short_names.clone(),
                categories: accepted.categories.clone(),
                namespaced: definition.is_namespaced(),
                storage_prefix: definition.storage_prefix(),
                shape: Arc::new(shape.showing(|field| own.contains(field.label.as_str()))),
                indexed_fields: indexed_fields.clone(),
                subresources,
                rules,
                strategy: Arc::new(strategy),
                custom: true,
                builtin: None,
                printer_columns: version.additional_printer_columns.clone(),
                schema: None,
                merging: std::sync::OnceLock::new(),
                encodings: EncodingSerial::default(),
                form: Some(Form::new(kind, &version.name)),
                conversion: None,
                stored_as: None,
                terminating: definition.is("Terminating"),
                deprecation: version.deprecated.then(|| deprecation(definition, version, accepted)),
                storage_version: definition.storage_version().filter(|version| version.served).map(|v| v.name.clone()),
            })
        })
        .collect()
}

fn labels(version: &Version) -> impl Iterator<Item = &str> {
    version.selectable_fields.iter().map(|field| field.json_path.trim_start_matches('.'))
}

fn labels_of(version: &Version) -> BTreeSet<&str> {
    labels(version).collect()
}

fn subresources(version: &Version) -> Vec<Subresource> {
    let path = |path: &str| path.trim_start_matches('.').to_owned();
    let scale = version.subresources.scale.as_ref().map(|scale| Subresource::Scale {
        spec_replicas: path(&scale.spec_replicas_path).into(),
        status_replicas: path(&scale.status_replicas_path).into(),
        selector: scale.label_selector_path.as_deref().filter(|text| !text.is_empty()).map(|text| path(text).into()),
    });
    // In the order in which kube-apiserver's handler of custom resources lists them.
    version.subresources.status.map(|_| Subresource::Status).into_iter().chain(scale).collect()
}

/// Returns the `Warning` header text for requests to a deprecated version.
fn deprecation(definition: &Definition, version: &Version, accepted: &Names) -> String {
    if let Some(text) = &version.deprecation_warning {
        return text.clone();
    }
    let (group, kind) = (&definition.spec.group, &accepted.kind);
    let newer =
        |other: &&Version| other.served && !other.deprecated && compare_versions(&other.name, &version.name).is_lt();
    let best = definition.spec.versions.iter().filter(newer).min_by(|a, b| compare_versions(&a.name, &b.name));
    let own = format!("{group}/{} {kind} is deprecated", version.name);
    match best {
        Some(best) => format!("{own}; use {group}/{} {kind}", best.name),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(versions: &str) -> Vec<Arc<Resource>> {
        let json = format!(
            r#"{{"metadata":{{"name":"widgets.example.com"}},"spec":{{"group":"example.com","scope":"Namespaced","names":{{"plural":"widgets","kind":"Widget"}},"versions":[{versions}]}}}}"#
        );
        let definition = Definition::parse(json.as_bytes()).unwrap();
        let kind = Arc::new(CustomKind::new(&definition, &definition.spec.names, json.into()));
        of(&definition, &definition.spec.names, &kind)
    }

    #[test]
    fn version_with_served_false_gets_no_resource() {
        let resources = resources(r#"{"name":"v1","served":true,"storage":true},{"name":"v2","served":false}"#);
        let versions: Vec<&str> = resources.iter().map(|resource| resource.version.as_str()).collect();
        assert_eq!(versions, ["v1"]);
    }

    #[test]
    fn webhook_conversion_gives_each_version_its_own_cache() {
        let json = r#"{"metadata":{},"spec":{"group":"example.com","names":{"plural":"widgets"},"conversion":{"strategy":"Webhook"},
            "versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true}]}}"#;
        let definition = Definition::parse(json.as_bytes()).unwrap();
        let kind = CustomKind::new(&definition, &definition.spec.names, json.into());
        let kind = Arc::new(kind.with_conversion(&definition, &Arc::default()));
        let served = of(&definition, &definition.spec.names, &kind);
        let caches: Vec<String> = served.iter().map(|resource| resource.cache_name()).collect();
        assert_eq!(caches, ["example.com/widgets", "example.com/widgets@v2"]);
        assert!(served.iter().all(|resource| resource.is_as_cached()));
    }

    #[test]
    fn each_version_selects_only_by_its_own_selectable_fields() {
        let resources = resources(
            r#"{"name":"v1","served":true,"storage":true,"selectableFields":[{"jsonPath":".spec.size"}]},
               {"name":"v2","served":true,"selectableFields":[{"jsonPath":".spec.color"}]}"#,
        );
        let [v1, v2] = &resources[..] else { panic!("two versions") };
        assert!(v1.shape.is_selectable("spec.size") && !v1.shape.is_selectable("spec.color"));
        assert!(v2.shape.is_selectable("spec.color") && !v2.shape.is_selectable("spec.size"));
        assert_eq!(v1.shape.field_position("spec.color"), v2.shape.field_position("spec.color"));
        assert_eq!(v1.indexed_fields, v2.indexed_fields);
    }

    #[test]
    fn deprecated_version_warns_with_the_replacement_version() {
        let check = |versions: &str, expected: &[Option<&str>]| {
            let found = resources(versions);
            let found: Vec<Option<&str>> = found.iter().map(|resource| resource.deprecation.as_deref()).collect();
            assert_eq!(found, expected);
        };
        check(
            r#"{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1beta2","served":true},{"name":"v1","served":true,"storage":true}"#,
            &[Some("example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget"), None, None],
        );
        check(
            r#"{"name":"v2","served":true,"deprecated":true},{"name":"v1","served":true,"storage":true}"#,
            &[Some("example.com/v2 Widget is deprecated"), None],
        );
        check(
            r#"{"name":"v1","served":true,"storage":true,"deprecated":true,"deprecationWarning":"do not"}"#,
            &[Some("do not")],
        );
    }
}
