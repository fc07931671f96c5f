//! Compares discovery with the documents of kube-apiserver v1.36.

use listwatch_json::{Value, json};

use super::*;

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("discovery is JSON")
}

/// A registry with the built-in kinds, followed by custom resources at these paths.
fn with_custom(paths: &[&str]) -> Registry {
    let mut resources = Registry::builtin().resources().to_vec();
    let pods = Resource::clone(Registry::builtin().find("", "v1", "pods").unwrap());
    for path in paths {
        let [group, version, plural] = path.split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
        resources.push(Arc::new(Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: "Thing".to_owned(),
            custom: true,
            subresources: Vec::new(),
            ..pods.clone()
        }));
    }
    Registry::new(resources)
}

#[test]
fn storage_version_hashes_equal_those_of_kube_apiserver() {
    for (group, version, kind, hash) in [
        ("", "v1", "Pod", "xPOwRZ+Yhw8="),
        ("", "v1", "ConfigMap", "qFsyl6wFWjQ="),
        ("apps", "v1", "Deployment", "8aSe+NMegvE="),
        ("autoscaling", "v2", "HorizontalPodAutoscaler", "qwQve8ut294="),
        ("coordination.k8s.io", "v1", "Lease", "gqkMMb/YqFM="),
    ] {
        assert_eq!(storage_version_hash(group, version, kind), hash, "{kind}");
    }
}

#[test]
fn storage_versions_of_built_in_resources_are_those_of_kubernetes_1_36() {
    // The overrides of `default_storage_factory_builder.go` and `pkg/controlplane/apiserver/apiextensions.go`, and the
    // resources whose objects another version shares.
    const OTHERS: [(&str, &str, &str); 5] = [
        ("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", "admissionregistration.k8s.io/v1beta1"),
        ("admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings", "admissionregistration.k8s.io/v1beta1"),
        ("apiextensions.k8s.io/v1", "customresourcedefinitions", "apiextensions.k8s.io/v1beta1"),
        ("autoscaling/v1", "horizontalpodautoscalers", "autoscaling/v2"),
        ("events.k8s.io/v1", "events", "/v1"),
    ];
    let registry = Registry::builtin();
    let mut others = 0;
    for resource in registry.resources().iter().filter(|resource| resource.is_stored()) {
        let served = resource.api_version();
        let other = OTHERS.iter().find(|(version, plural, _)| *version == served && *plural == resource.plural);
        others += usize::from(other.is_some());
        let stored = other.map_or(format!("{}/{}", resource.group, resource.version), |other| other.2.to_owned());
        let (group, version) = stored.rsplit_once('/').unwrap();
        let expected = storage_version_hash(group, version, &resource.kind);
        assert_eq!(stored_hash(resource), expected, "{served} {}", resource.plural);
    }
    assert_eq!(others, OTHERS.len());
    let definitions = registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").unwrap();
    assert_eq!(stored_hash(definitions), "jfWCUB31mvA=", "the hash of a kube-apiserver");
}

#[test]
fn root_documents_have_the_fields_of_kube_apiserver() {
    assert_eq!(
        Discovery::api("10.0.0.1:6443"),
        concat!(
            r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":"#,
            r#"[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]}"#,
            "\n"
        )
    );
    let registry = Registry::builtin();
    let discovery = Discovery::new(&registry);
    assert_eq!(
        discovery.group("apps").unwrap(),
        concat!(
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","versions":[{"groupVersion":"apps/v1","#,
            r#""version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
            "\n"
        )
    );
    assert!(discovery.group("").is_none(), "the core group has no /apis document");
    assert!(discovery.group("nope").is_none() && discovery.resources("apps", "v2").is_none());
    let names: Vec<String> = parse(&discovery.apis())["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        names[..5],
        ["apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"]
    );
    let access = String::from_utf8(discovery.resources("authorization.k8s.io", "v1").unwrap().to_vec()).unwrap();
    let expected = r#"{"name":"selfsubjectaccessreviews","singularName":"selfsubjectaccessreview","namespaced":false,"kind":"SelfSubjectAccessReview","verbs":["create"]}"#;
    assert!(access.contains(expected), "{access}");
    assert!(!names.contains(&String::new()), "the core group is not in /apis");
}

#[test]
fn resources_and_subresources_are_listed_by_name() {
    let registry = Registry::builtin();
    let discovery = Discovery::new(&registry);
    let core = parse(&discovery.resources("", "v1").unwrap());
    assert_eq!(core.get("apiVersion"), None, "the core document goes without an apiVersion");
    assert_eq!(core["groupVersion"], "v1");
    let resources = core["resources"].as_array().unwrap();
    let names: Vec<&str> = resources.iter().map(|resource| resource["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted(), "{names:?}");
    let find =
        |name: &str| resources.iter().find(|resource| resource["name"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(
        *find("pods"),
        json!({"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["po"], "categories": ["all"], "storageVersionHash": "xPOwRZ+Yhw8="})
    );
    assert_eq!(
        *find("pods/eviction"),
        json!({"name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy", "version": "v1",
            "kind": "Eviction", "verbs": ["create"]})
    );
    // The kind has the group and version of the document, so both are omitted.
    assert_eq!(
        *find("pods/binding"),
        json!({"name": "pods/binding", "singularName": "", "namespaced": true, "kind": "Binding", "verbs": ["create"]})
    );
    assert_eq!(find("namespaces")["verbs"], json!(["create", "delete", "get", "list", "patch", "update", "watch"]));
    assert_eq!(find("namespaces/finalize")["verbs"], json!(["update"]));
    let apps = parse(&discovery.resources("apps", "v1").unwrap());
    assert_eq!(apps["apiVersion"], "v1");
    let scale = apps["resources"].as_array().unwrap().iter().find(|r| r["name"] == "deployments/scale").unwrap();
    assert_eq!((&scale["group"], &scale["kind"]), (&json!("autoscaling"), &json!("Scale")));
}

#[test]
fn aggregated_documents_list_every_group_version_and_resource() {
    let registry = Registry::builtin();
    let discovery = Discovery::new(&registry);
    let core = parse(&discovery.aggregated_api().body);
    assert_eq!(
        (&core["kind"], &core["apiVersion"]),
        (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
    );
    assert_eq!(core["items"].as_array().unwrap().len(), 1, "/api is the core group alone");
    assert_eq!(core["items"][0]["metadata"], json!({}));
    let others = parse(&discovery.aggregated_apis().body);
    let apps = others["items"].as_array().unwrap().iter().find(|group| group["metadata"]["name"] == "apps").unwrap();
    assert_eq!(apps["versions"][0]["freshness"], "Current");
    let deployment =
        apps["versions"][0]["resources"].as_array().unwrap().iter().find(|r| r["resource"] == "deployments").unwrap();
    assert_eq!(
        *deployment,
        json!({"resource": "deployments",
            "responseKind": {"group": "", "version": "", "kind": "Deployment"},
            "scope": "Namespaced", "singularResource": "deployment",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["deploy"], "categories": ["all"],
            "subresources": [
                {"subresource": "scale",
                 "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                 "verbs": ["get", "patch", "update"]},
                {"subresource": "status",
                 "responseKind": {"group": "", "version": "", "kind": "Deployment"},
                 "verbs": ["get", "patch", "update"]}]})
    );
}

#[test]
fn discovery_lists_custom_groups_last_by_name_with_their_best_version_first() {
    let registry =
        with_custom(&["z.io/v1/things", "a.io/v1alpha1/things", "a.io/v2/things", "a.io/v1/things", "apps/v1/things"]);
    let discovery = Discovery::new(&registry);
    let groups = parse(&discovery.apis());
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names[names.len() - 2..], ["a.io", "z.io"]);
    assert_eq!(names.iter().filter(|name| **name == "apps").count(), 1);
    let group = parse(&discovery.group("a.io").unwrap());
    let versions: Vec<&str> =
        group["versions"].as_array().unwrap().iter().map(|version| version["version"].as_str().unwrap()).collect();
    assert_eq!(versions, ["v2", "v1", "v1alpha1"]);
    assert_eq!(group["preferredVersion"]["groupVersion"], "a.io/v2");
    let aggregated = parse(&discovery.aggregated_apis().body);
    let z = aggregated["items"].as_array().unwrap().last().unwrap();
    let thing = &z["versions"][0]["resources"][0];
    assert_eq!(thing["responseKind"], json!({"group": "z.io", "version": "v1", "kind": "Thing"}));
    assert_eq!(thing["verbs"][5], "create", "custom resources list their verbs in their handler's order");
}

#[test]
fn discovery_etag_changes_with_the_served_resources() {
    let (one, two) = (Discovery::new(&Registry::builtin()), Discovery::new(&Registry::builtin()));
    assert_eq!(one.aggregated_apis(), two.aggregated_apis(), "the same registry gives the same bytes");
    let other = Discovery::new(&with_custom(&["z.io/v1/things"]));
    let (etag, changed) = (&one.aggregated_apis().etag, &other.aggregated_apis().etag);
    assert_ne!(etag, changed, "a new resource is a new state");
    assert_eq!(etag.len(), 130, "{etag}: 128 hex digits in quotes");
    assert!(etag.chars().all(|c| c == '"' || c.is_ascii_digit() || c.is_ascii_uppercase()), "{etag}");
    let document = one.aggregated_apis();
    for (header, known) in
        [(etag.as_str(), true), (&format!("\"x\", W/{etag}"), true), ("*", true), (changed, false), ("", false)]
    {
        assert_eq!(document.is_known(header), known, "If-None-Match: {header}");
    }
}
