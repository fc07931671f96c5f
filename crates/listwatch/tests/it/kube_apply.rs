//! Server-side apply by kube-rs against a server in this process: conflicts, force, ownership
//! transfer, and a custom resource with its schema.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use listwatch::apiserver::ApiServer;
use serde_json::{Value, json};

async fn client() -> (ApiServer, Client) {
    let server = ApiServer::builder().build().await.expect("a server in memory");
    let client = Client::new(server.service(), "default");
    (server, client)
}

/// The field managers of an object.
fn managers(object: &impl kube::Resource) -> Vec<&str> {
    object.meta().managed_fields.iter().flatten().filter_map(|entry| entry.manager.as_deref()).collect()
}

fn deployment(spec: Value) -> Patch<Value> {
    Patch::Apply(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}))
}

#[tokio::test]
async fn appliers_share_an_object_and_conflict_on_common_fields() {
    let (_server, client) = client().await;
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let owner = PatchParams::apply("owner");
    let whole = deployment(json!({
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}},
    }));
    let created = deployments.patch("web", &owner, &whole).await.unwrap();
    assert_eq!(managers(&created), ["owner"]);
    let again = deployments.patch("web", &owner, &whole).await.unwrap();
    assert_eq!(again.resource_version(), created.resource_version(), "applying again is no write");

    let scaler = PatchParams::apply("scaler");
    let three = deployment(json!({"replicas": 3}));
    let refused = deployments.patch("web", &scaler, &three).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"owner\": .spec.replicas");
    assert_eq!(status.details.unwrap().causes[0].field, ".spec.replicas");

    let forced = deployments.patch("web", &scaler.clone().force(), &three).await.unwrap();
    assert_eq!(forced.spec.as_ref().unwrap().replicas, Some(3));
    assert_eq!(managers(&forced), ["owner", "scaler"]);
    let sidecar = json!({"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}});
    let both = deployments.patch("web", &PatchParams::apply("mesh"), &deployment(sidecar)).await.unwrap();
    let names = |deployment: &Deployment| {
        let pod = deployment.spec.as_ref().unwrap().template.spec.clone().unwrap();
        pod.containers.into_iter().map(|container| container.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&both), ["web", "side"]);
    let less = deployments.patch("web", &PatchParams::apply("mesh"), &deployment(json!({}))).await.unwrap();
    assert_eq!(names(&less), ["web"], "what its only applier leaves out goes");
}

#[tokio::test]
async fn create_records_its_field_manager() {
    let (_server, client) = client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"x": "1"}})).unwrap();
    let params = PostParams { field_manager: Some("maker".to_owned()), ..PostParams::default() };
    let created = maps.create(&params, &map).await.unwrap();
    assert_eq!(managers(&created), ["maker"]);
    let config = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "2"}}));
    let refused = maps.patch("a", &PatchParams::apply("other"), &config).await.unwrap_err();
    assert!(refused.to_string().contains("conflict with \"maker\" using v1: .data.x"), "{refused}");
}

#[tokio::test]
async fn custom_resource_lists_merge_by_their_schema() {
    let (_server, client) = client().await;
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "gates.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Gate", "plural": "gates"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": {"ports": {
                        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                        "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}},
                    }}},
                    "status": {"type": "object", "properties": {"open": {"type": "boolean"}}},
                },
            }}}],
        },
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Gate"), "gates");
    let gates: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    let gate = |spec: Value| {
        Patch::Apply(json!({"apiVersion": "example.com/v1", "kind": "Gate", "metadata": {"name": "g"}, "spec": spec}))
    };
    let port = |port: u32, name: &str| json!({"ports": [{"port": port, "name": name}]});
    gates.patch("g", &PatchParams::apply("a"), &gate(port(80, "http"))).await.unwrap();
    let both = gates.patch("g", &PatchParams::apply("b"), &gate(port(443, "https"))).await.unwrap();
    assert_eq!(both.data["spec"], json!({"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}]}));
    let refused = gates.patch("g", &PatchParams::apply("b"), &gate(port(80, "web"))).await.unwrap_err();
    assert!(refused.to_string().contains("conflict with \"a\": .spec.ports[port=80].name"), "{refused}");
    let status = Patch::Apply(
        json!({"apiVersion": "example.com/v1", "kind": "Gate", "metadata": {"name": "g"}, "status": {"open": true}}),
    );
    let open = gates.patch_status("g", &PatchParams::apply("controller"), &status).await.unwrap();
    assert_eq!(open.data["status"], json!({"open": true}));
    assert_eq!(managers(&open), ["a", "b", "controller"]);
    let unknown = gates.patch("g", &PatchParams::apply("a"), &gate(json!({"size": 1}))).await.unwrap_err();
    assert!(unknown.to_string().contains(".spec.size: field not declared in schema"), "{unknown}");
}
