//! Discovery against the documents that kube-apiserver v1.36 publishes.

use serde_json::{Value, json};

use super::*;

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("discovery is JSON")
}

/// A registry of custom resources at these paths, behind the built-in kinds.
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
fn versions_are_ordered_as_kubernetes_orders_them() {
    let mut versions =
        ["foo1", "v1alpha2", "v11alpha2", "v12alpha1", "v3beta1", "v10", "foo10", "v1", "v2", "v10beta3"];
    versions.sort_by(|a, b| compare_versions(a, b));
    assert_eq!(
        versions,
        ["v10", "v2", "v1", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha2", "foo1", "foo10"]
    );
    for odd in ["v0", "v01", "v1beta", "v1gamma1", "1", "v", "v1beta0", "v1beta1x"] {
        assert_eq!(compare_versions("v1alpha1", odd), Ordering::Less, "{odd} is no Kubernetes version");
    }
}

#[test]
fn storage_version_hashes_are_those_of_a_real_cluster() {
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
fn the_root_documents_have_the_known_shape() {
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
fn resources_are_listed_with_their_subresources_by_name() {
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
    // The kind is of the document's own group and version, so neither is repeated.
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
fn aggregated_documents_carry_everything() {
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
fn custom_groups_come_last_by_name_and_their_best_version_first() {
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
fn an_etag_names_the_state_of_what_is_served() {
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

#[test]
fn reported_release_is_that_of_the_types() {
    let release = listwatch_k8s_types::RELEASE;
    assert!(KUBERNETES_VERSION.starts_with(&format!("{release}.")), "{KUBERNETES_VERSION} serves types of {release}");
}

#[test]
fn version_is_indented_and_parses_as_semver() {
    let body = VersionInfo::current().body();
    let text = std::str::from_utf8(&body).unwrap();
    assert!(text.starts_with("{\n  \"major\": \"1\",\n  \"minor\": \"36\",\n  \"gitVersion\": \"v1.36."), "{text}");
    let version = parse(&body);
    let plain = version["gitVersion"].as_str().unwrap().split('+').next().unwrap().to_owned();
    assert_eq!(plain.trim_start_matches('v').split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3);
}
