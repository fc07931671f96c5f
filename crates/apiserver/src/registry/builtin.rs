//! The resources of Kubernetes' built-in kinds ([`listwatch_kinds::KINDS`]): what kube-apiserver v1.36 serves by
//! default.

use std::sync::{Arc, LazyLock, OnceLock};

use listwatch_kinds::{KINDS, Kind, Strategy as _, Subresource};
use listwatch_meta::{ObjectShape, SelectableField};

use super::Resource;
use crate::versions::{self, SECOND_VERSIONS};

/// All built-in resources, in the order in which discovery shows their groups.
pub(super) fn resources() -> Vec<Arc<Resource>> {
    let stored = KINDS.iter().filter(|kind| kind.stored);
    let mut all: Vec<Arc<Resource>> = stored.map(|kind| Arc::new(resource(kind))).collect();
    for version in SECOND_VERSIONS {
        let stored = all.iter().find(|resource| resource.path() == version.of);
        if let Some(second) = stored.map(|stored| Arc::new(versions::resource(version, stored))) {
            let behind = all.iter().rposition(|resource| resource.group == version.behind);
            all.insert(behind.map_or(all.len(), |at| at + 1), second);
        }
    }
    all
}

/// The resources whose objects are not stored: bindings, component statuses, reviews.
pub(super) fn unstored() -> &'static [Arc<Resource>] {
    static UNSTORED: LazyLock<Vec<Arc<Resource>>> =
        LazyLock::new(|| KINDS.iter().filter(|kind| !kind.stored).map(|kind| Arc::new(resource(kind))).collect());
    &UNSTORED
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
        terminating: false,
        deprecation: kind.deprecation.map(str::to_owned),
        storage_version: None,
        merging: OnceLock::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::registry::{NameRule, Registry, Resource};

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
    fn nothing_is_served_or_stored_twice() {
        let registry = Registry::builtin();
        let (mut paths, mut prefixes, mut kinds) = (HashSet::new(), HashSet::new(), HashSet::new());
        for resource in registry.resources() {
            assert!(paths.insert((&resource.group, &resource.version, &resource.plural)), "{}", resource.plural);
            assert!(kinds.insert((&resource.group, &resource.version, &resource.kind)), "{}", resource.kind);
            if let Some(conversion) = &resource.conversion {
                assert_eq!(conversion.stored().storage_prefix, resource.storage_prefix, "{}", resource.plural);
                assert!(prefixes.contains(&resource.storage_prefix), "the stored version stands before the second");
                continue;
            }
            assert!(prefixes.insert(&resource.storage_prefix), "{} shares its storage", resource.plural);
            for indexed in &resource.indexed_fields {
                assert!(resource.shape.is_selectable(indexed), "{indexed} is indexed but not selectable");
            }
        }
        // No prefix is below another: a range over the upper one would hold the lower one's objects.
        for upper in &prefixes {
            let upper = format!("{upper}/");
            assert!(!prefixes.iter().any(|lower| lower.starts_with(&upper)), "something is stored below {upper}");
        }
    }

    #[test]
    fn objects_live_where_kubernetes_keeps_them() {
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
    fn write_rules_are_those_of_the_strategies() {
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
    fn field_labels_are_those_of_the_conversions() {
        let registry = Registry::builtin();
        for (path, label, selectable) in [
            ("v1/pods", "spec.nodeName", true),
            ("v1/pods", "status.podIPs", true),
            ("v1/pods", "spec.priority", false),
            ("v1/pods", "metadata.namespace", true),
            ("v1/nodes", "metadata.namespace", false),
            ("v1/secrets", "type", true),
            ("batch/v1/jobs", "status.successful", true),
            ("apps/v1/replicasets", "status.replicas", false),
            ("v1/events", "source", true),
        ] {
            assert_eq!(find(&registry, path).shape.is_selectable(label), selectable, "{path} by {label}");
        }
    }

    #[test]
    fn an_event_is_from_its_source_or_else_its_reporter() {
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
    fn subresources_are_those_of_kube_apiserver() {
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
