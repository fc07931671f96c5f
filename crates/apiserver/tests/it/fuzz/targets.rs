//! The fuzz targets for bodies of writes: one function per target, which panics if an invariant is broken. The fuzzer
//! (`fuzz/`) and the proptest (`crates/apiserver/tests/it/fuzz.rs`) call the same functions. They send requests to a
//! whole server, without a network; only the initial objects are stored.

use std::cell::OnceCell;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use tokio::runtime::{Builder, Runtime};

/// A target with its name.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. The fuzzer has a file for each target.
#[allow(dead_code, reason = "a file of the fuzzer runs one target")]
pub(crate) const ALL: [Target; 2] = [("documents", documents), ("patches", patches)];

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"a":"b"}},"spec":{"replicas":1,
    "selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[
    {"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"x","value":"1"}]},{"name":"d","image":"i"}]}}}}"#;

/// A server with a Deployment `d`.
struct World {
    runtime: Runtime,
    server: ApiServer,
}

impl World {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = runtime.block_on(ApiServer::builder().build()).expect("a server");
        let world = World { runtime, server };
        assert_eq!(world.send("POST", DEPLOYMENTS, "application/json", DEPLOYMENT.as_bytes()).0, 201);
        world
    }

    /// Sends a body, and returns the code and the text of the response, which must not report a panic.
    fn send(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).header("content-type", media_type);
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).expect("a request");
        self.runtime.block_on(async {
            let response = self.server.service().handle(request).await;
            let code = response.status().as_u16();
            let text = response.into_body().collect().await.expect("a body").to_bytes();
            let text = String::from_utf8(text.to_vec()).expect("the answer is JSON");
            assert!(!text.contains("caused apiserver to panic"), "{method} {path} {media_type} {body:?}");
            assert!(serde_json::from_str::<listwatch_json::Value>(&text).is_ok(), "{text}");
            (code, text)
        })
    }
}

fn with_world<T>(run: impl FnOnce(&World) -> T) -> T {
    thread_local!(static WORLD: OnceCell<World> = const { OnceCell::new() });
    WORLD.with(|world| run(world.get_or_init(World::new)))
}

/// Decodes a new object as JSON and as YAML. JSON is valid YAML, so a valid JSON object must give the same YAML object.
pub(crate) fn documents(data: &[u8]) {
    with_world(|world| {
        for collection in [MAPS, DEPLOYMENTS] {
            let path = format!("{collection}?dryRun=All");
            let json = world.send("POST", &path, "application/json", data);
            let yaml = world.send("POST", &path, "application/yaml", data);
            assert!(json.0 != 201 || yaml.0 == 201, "taken as JSON, as YAML: {}", yaml.1);
        }
    });
}

/// Applies each type of patch to a Deployment. Two dry runs must have the same response.
pub(crate) fn patches(data: &[u8]) {
    let path = format!("{DEPLOYMENTS}/d?dryRun=All&fieldManager=f");
    with_world(|world| {
        for media_type in [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ] {
            let (code, answer) = world.send("PATCH", &path, media_type, data);
            if code == 200 {
                let object: listwatch_json::Value = serde_json::from_str(&answer).expect("an object");
                assert_eq!(object["metadata"]["name"], "d", "a patch renamed the object");
                assert_eq!(world.send("PATCH", &path, media_type, data).0, 200);
            }
        }
    });
}
