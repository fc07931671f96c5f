//! The built-in resources ([`KINDS`] and [`CUSTOM_RESOURCE_DEFINITION`]) that kube-apiserver v1.36 serves by
//! default.

use std::sync::{Arc, LazyLock, OnceLock};

use crate::stored_form::storage_version;
use listwatch_apiextensions::CUSTOM_RESOURCE_DEFINITION;
use listwatch_kinds::versions::{SECOND_VERSIONS, SecondVersion};
use listwatch_kinds::{KINDS, Kind, SecondVersionStrategy, Strategy as _, Subresource};
use listwatch_meta::{ObjectShape, SelectableField};

use crate::conversion::Conversion;
use crate::resource::{EncodingSerial, Resource};

/// Returns all built-in resources, in the order in which discovery lists their groups.
pub(crate) fn resources() -> Vec<Arc<Resource>> {
    let stored = kinds().filter(|kind| kind.stored);
    let mut all: Vec<Arc<Resource>> = stored.map(|kind| Arc::new(resource(kind))).collect();
    for version in SECOND_VERSIONS {
        let stored = all.iter().find(|resource| resource.path() == version.stored);
        if let Some(second) = stored.map(|stored| Arc::new(second_version(version, stored))) {
            let last = all.iter().rposition(|resource| resource.group == version.after_group);
            all.insert(last.map_or(all.len(), |at| at + 1), second);
        }
    }
    all
}

/// Returns the kinds of [`KINDS`], with CustomResourceDefinition after the kinds of the admission group.
fn kinds() -> impl Iterator<Item = &'static Kind> {
    let before = |kind: &&Kind| kind.group == "admissionregistration.k8s.io";
    let at = KINDS.iter().rposition(before).map_or(KINDS.len(), |last| last + 1);
    let (before, after) = KINDS.split_at(at);
    before.iter().copied().chain([&CUSTOM_RESOURCE_DEFINITION]).chain(after.iter().copied())
}

/// Returns the resources whose objects are not stored: bindings, component statuses and reviews.
pub(crate) fn unstored() -> &'static Arc<[Arc<Resource>]> {
    static UNSTORED: LazyLock<Arc<[Arc<Resource>]>> =
        LazyLock::new(|| kinds().filter(|kind| !kind.stored).map(|kind| Arc::new(resource(kind))).collect());
    &UNSTORED
}

/// Returns the group and version of each built-in resource. The result contains duplicates.
pub(crate) fn group_versions() -> impl Iterator<Item = (&'static str, &'static str)> {
    let second = SECOND_VERSIONS.iter().map(|version| (version.group, version.version));
    kinds().map(|kind| (kind.group, kind.version)).chain(second)
}

/// Creates the resource for a second served version of a kind from the resource of the stored version.
fn second_version(version: &'static SecondVersion, stored: &Arc<Resource>) -> Resource {
    let mut resource = Resource::clone(stored);
    version.group.clone_into(&mut resource.group);
    version.version.clone_into(&mut resource.version);
    if let Some(kind) = stored.builtin {
        let strategy = SecondVersionStrategy { version, stored: kind };
        resource.rules = strategy.rules();
        resource.strategy = Arc::new(strategy);
    }
    if let Some(label) = version.label {
        resource.shape = Arc::new(stored.shape.with_selector_labels(label));
    }
    resource.conversion = Some(Conversion { stored_shape: Arc::clone(&stored.shape), version });
    resource.stored_as = Some(Arc::clone(stored));
    resource
}

fn resource(kind: &'static Kind) -> Resource {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let fields = kind.fields.iter().map(|field| SelectableField {
        label: field.label.to_owned(),
        path: field.path.split('.').map(str::to_owned).collect(),
        default: field.default.to_owned(),
    });
    let shape = ObjectShape::new(kind.namespaced, fields.collect());
    let shape = kind.fields.iter().fold(shape, |shape, field| match field.or_field {
        Some(other) => shape.with_fallback(field.label, other),
        None => shape,
    });
    let shape = kind.fields.iter().fold(shape, |shape, field| match field.alias {
        Some(alias) => shape.with_alias(alias, field.label),
        None => shape,
    });
    let mut subresources = kind.subresources.to_vec();
    // Discovery lists subresources by name.
    subresources.sort_by_key(Subresource::name);
    Resource {
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        kind: kind.kind.to_owned(),
        list_kind: format!("{}List", kind.kind),
        plural: kind.plural.to_owned(),
        singular: kind.kind.to_lowercase(),
        short_names: owned(kind.short_names),
        categories: owned(kind.categories),
        namespaced: kind.namespaced,
        storage_prefix: kind.storage_prefix.to_owned(),
        shape: Arc::new(shape),
        indexed_fields: kind.fields.iter().filter(|field| field.indexed).map(|field| field.label.to_owned()).collect(),
        subresources,
        rules: kind.rules(),
        strategy: Arc::new(*kind),
        custom: false,
        builtin: Some(kind),
        printer_columns: Vec::new(),
        schema: None,
        form: None,
        conversion: None,
        stored_as: None,
        terminating: false,
        deprecation: kind.deprecation.map(str::to_owned),
        storage_version: storage_version(kind.group, kind.plural).map(str::to_owned),
        merging: OnceLock::new(),
        encodings: EncodingSerial::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use listwatch_validation::names::NameRule;

    use crate::registry::Registry;
    use crate::resource::Resource;

    fn find<'a>(registry: &'a Registry, path: &str) -> &'a Resource {
        let parts: Vec<&str> = path.split('/').collect();
        let (group, version, plural) = match parts[..] {
            [version, plural] => ("", version, plural),
            [group, version, plural] => (group, version, plural),
            _ => panic!("{path}"),
        };
        registry.find(group, version, plural).unwrap_or_else(|| panic!("{path} is served"))
    }

    #[test]
    fn built_in_paths_and_storage_prefixes_are_unique() {
        let registry = Registry::builtin();
        let (mut paths, mut prefixes, mut kinds) = (HashSet::new(), HashSet::new(), HashSet::new());
        for resource in registry.resources() {
            assert!(paths.insert((&resource.group, &resource.version, &resource.plural)), "{}", resource.plural);
            assert!(kinds.insert((&resource.group, &resource.version, &resource.kind)), "{}", resource.kind);
            if let Some(stored) = &resource.stored_as {
                assert_eq!(stored.storage_prefix, resource.storage_prefix, "{}", resource.plural);
                assert!(prefixes.contains(&resource.storage_prefix), "the stored version stands before the second");
                continue;
            }
            assert!(prefixes.insert(&resource.storage_prefix), "{} shares its storage", resource.plural);
            for indexed in &resource.indexed_fields {
                assert!(resource.shape.is_selectable(indexed), "{indexed} is indexed but not selectable");
            }
        }
        // A range over an upper prefix would include the objects of a prefix below it.
        for upper in &prefixes {
            let upper = format!("{upper}/");
            assert!(!prefixes.iter().any(|lower| lower.starts_with(&upper)), "something is stored below {upper}");
        }
    }

    #[test]
    fn storage_prefixes_equal_those_of_kube_apiserver() {
        let registry = Registry::builtin();
        for (path, prefix) in [
            ("v1/pods", "pods"),
            ("v1/services", "services/specs"),
            ("v1/endpoints", "services/endpoints"),
            ("v1/nodes", "minions"),
            ("v1/replicationcontrollers", "controllers"),
            ("networking.k8s.io/v1/ingresses", "ingress"),
            ("rbac.authorization.k8s.io/v1/roles", "roles"),
            ("apiextensions.k8s.io/v1/customresourcedefinitions", "apiextensions.k8s.io/customresourcedefinitions"),
        ] {
            assert_eq!(find(&registry, path).storage_prefix, prefix, "{path}");
        }
    }

    #[test]
    fn write_rules_equal_those_of_upstream_strategies() {
        let registry = Registry::builtin();
        // path, unconditional update, create on update, generation
        for (path, unconditional, create, generation) in [
            ("v1/pods", true, false, true),
            ("v1/configmaps", true, false, false),
            ("v1/services", true, true, false),
            ("v1/endpoints", true, true, false),
            ("coordination.k8s.io/v1/leases", false, true, false),
            ("node.k8s.io/v1/runtimeclasses", false, true, false),
            ("apps/v1/deployments", true, false, true),
            ("policy/v1/poddisruptionbudgets", false, false, true),
            ("flowcontrol.apiserver.k8s.io/v1/flowschemas", true, false, true),
            ("flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", true, false, true),
            ("apiextensions.k8s.io/v1/customresourcedefinitions", false, false, true),
            ("rbac.authorization.k8s.io/v1/clusterroles", true, true, false),
        ] {
            let strategy = find(&registry, path).rules;
            let seen = (strategy.unconditional_update, strategy.create_on_update, strategy.generation);
            assert_eq!(seen, (unconditional, create, generation), "{path}");
        }
        assert_eq!(find(&registry, "v1/events").rules.ttl_seconds, Some(3600));
        assert_eq!(find(&registry, "v1/services").rules.names, NameRule::Label);
        assert!(find(&registry, "v1/pods").rules.graceful_delete);
        assert!(!find(&registry, "v1/namespaces").serves_delete_collection());
    }

    #[test]
    fn field_labels_equal_those_of_upstream_conversions() {
        let registry = Registry::builtin();
        for (path, label, selectable) in [
            ("v1/pods", "spec.nodeName", true),
            ("v1/pods", "spec.host", true),
            ("v1/pods", "status.podIPs", true),
            ("v1/pods", "spec.priority", false),
            ("v1/pods", "metadata.namespace", true),
            ("v1/nodes", "metadata.namespace", false),
            ("v1/namespaces", "metadata.namespace", false),
            ("certificates.k8s.io/v1/certificatesigningrequests", "metadata.namespace", false),
            ("resource.k8s.io/v1/resourceslices", "metadata.namespace", false),
            ("v1/persistentvolumes", "metadata.namespace", true),
            ("rbac.authorization.k8s.io/v1/clusterroles", "metadata.namespace", true),
            ("apiextensions.k8s.io/v1/customresourcedefinitions", "metadata.namespace", true),
            ("batch/v1/jobs", "metadata.namespace", true),
            ("v1/secrets", "type", true),
            ("batch/v1/jobs", "status.successful", true),
            ("apps/v1/replicasets", "status.replicas", false),
            ("v1/events", "source", true),
        ] {
            assert_eq!(find(&registry, path).shape.is_selectable(label), selectable, "{path} by {label}");
        }
    }

    #[test]
    fn event_source_label_falls_back_to_reporting_component() {
        use listwatch_meta::{Change, Object, Revision};
        let registry = Registry::builtin();
        let events = find(&registry, "v1/events");
        for (event, source) in [
            (r#"{"metadata":{},"source":{"component":"kubelet"},"reportingComponent":"x"}"#, "kubelet"),
            (r#"{"metadata":{},"source":{},"reportingComponent":"scheduler"}"#, "scheduler"),
            (r#"{"metadata":{},"reportingComponent":""}"#, ""),
        ] {
            let key = events.key(Some("n"), "e").unwrap();
            let object = Object::from_stored(key, Revision::new(1), Change::Added, event.as_bytes(), &events.shape);
            assert_eq!(object.unwrap().field("source", &events.shape).as_deref(), Some(source), "{event}");
        }
    }

    #[test]
    fn subresources_equal_those_of_kube_apiserver() {
        let registry = Registry::builtin();
        let mut unusual = Vec::new();
        let mut scales = Vec::new();
        for resource in registry.resources() {
            for subresource in &resource.subresources {
                let line = format!("{}/{}", resource.plural, subresource.name());
                match subresource.name() {
                    "status" => assert_eq!(subresource.verbs(), ["get", "patch", "update"], "{line}"),
                    "scale" => scales.push(line),
                    _ => unusual.push(format!("{line}: {}", subresource.verbs().join(" "))),
                }
            }
        }
        unusual.sort();
        assert_eq!(
            unusual,
            [
                "certificatesigningrequests/approval: get patch update",
                "namespaces/finalize: update",
                "nodes/proxy: create delete get patch update",
                "pods/attach: create get",
                "pods/binding: create",
                "pods/ephemeralcontainers: get patch update",
                "pods/eviction: create",
                "pods/exec: create get",
                "pods/log: get",
                "pods/portforward: create get",
                "pods/proxy: create delete get patch update",
                "pods/resize: get patch update",
                "serviceaccounts/token: create",
                "services/proxy: create delete get patch update",
            ]
        );
        assert_eq!(
            scales,
            ["replicationcontrollers/scale", "deployments/scale", "replicasets/scale", "statefulsets/scale"]
        );
        let without_status: Vec<&str> = registry
            .resources()
            .iter()
            .filter(|resource| resource.conversion.is_none() && resource.subresource("status").is_none())
            .map(|resource| resource.plural.as_str())
            .collect();
        assert_eq!(
            without_status.join(" "),
            "configmaps endpoints events limitranges podtemplates secrets serviceaccounts controllerrevisions \
             ingressclasses ipaddresses networkpolicies clusterrolebindings clusterroles rolebindings roles \
             csidrivers csinodes csistoragecapacities storageclasses volumeattributesclasses \
             mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations \
             validatingadmissionpolicybindings validatingwebhookconfigurations priorityclasses leases \
             runtimeclasses endpointslices deviceclasses resourceclaimtemplates resourceslices",
            "all others have a status of their own"
        );
    }
}
