//! Tests cluster addresses from ServiceCIDRs, and claims of addresses, on a whole server
//! (`test/integration/servicecidr`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, ServiceRanges};
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

async fn server(storage: &Arc<MemoryStorage>) -> ApiServer {
    let ranges = ServiceRanges::default().with_cluster_addresses("192.168.0.0/29").expect("a range");
    ApiServer::builder().storage(storage.clone()).service_ranges(ranges).build().await.expect("a server")
}

async fn send(server: &ApiServer, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let response = server.service().handle(request.body(Full::new(body)).expect("a request")).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})
}

/// Creates a service, and returns its address.
async fn create_service(server: &ApiServer, name: &str) -> Result<String, String> {
    match send(server, "POST", SERVICES, service(name)).await {
        (201, created) => Ok(created["spec"]["clusterIP"].as_str().expect("an address").to_owned()),
        (_, status) => Err(status["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Reads an object until it satisfies a condition.
async fn wait_for(server: &ApiServer, path: &str, is: impl Fn(u16, &Value) -> bool) {
    let wait = async {
        loop {
            let (code, object) = send(server, "GET", path, Value::Null).await;
            if is(code, &object) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the controllers do their work");
}

fn has_ready(cidr: &Value, status: &str) -> bool {
    let conditions = cidr["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == status)
}

#[tokio::test]
async fn services_get_addresses_of_a_new_service_cidr_until_it_is_deleted() {
    let server = server(&MemoryStorage::new()).await;
    wait_for(&server, &format!("{CIDRS}/kubernetes"), |_, cidr| has_ready(cidr, "True")).await;
    // The Service `kubernetes` has the first of six addresses.
    for number in 0..5 {
        let address = create_service(&server, &format!("s{number}")).await.expect("a free address");
        assert!(address.starts_with("192.168.0."), "{address}");
    }
    let full = create_service(&server, "full").await.expect_err("all addresses are taken");
    assert!(full.ends_with("range is full"), "{full}");

    let extra = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["10.168.0.0/24"]}});
    let (code, created) = send(&server, "POST", CIDRS, extra).await;
    assert_eq!(code, 201, "{created}");
    let path = format!("{CIDRS}/extra");
    wait_for(&server, &path, |_, cidr| {
        has_ready(cidr, "True") && cidr["metadata"]["finalizers"] == json!(["networking.k8s.io/service-cidr-finalizer"])
    })
    .await;
    let mut address = Err(String::new());
    for _ in 0..1_000 {
        // The ranges of the allocator follow the watch of ServiceCIDRs.
        address = create_service(&server, "extra").await;
        if address.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let address = address.expect("an address of the new range");
    assert!(address.starts_with("10.168.0."), "{address}");
    let mut chosen = service("chosen");
    // In the static band, from which no address is drawn while the dynamic band has room.
    chosen["spec"]["clusterIP"] = json!("10.168.0.2");
    let (code, created) = send(&server, "POST", SERVICES, chosen).await;
    assert_eq!(code, 201, "{created}");

    assert_eq!(send(&server, "DELETE", &path, Value::Null).await.0, 200);
    wait_for(&server, &path, |_, cidr| has_ready(cidr, "False")).await;
    let (_, cidr) = send(&server, "GET", &path, Value::Null).await;
    assert_eq!(cidr["status"]["conditions"][0]["reason"], "Terminating", "{cidr}");
    let mut refused = String::new();
    for number in 0..1_000 {
        match create_service(&server, &format!("late{number}")).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(message) => {
                refused = message;
                break;
            }
        }
    }
    assert!(refused.ends_with("range is full"), "{refused}");
}

#[tokio::test]
async fn service_that_another_program_has_stored_gets_an_ip_address() {
    let storage = MemoryStorage::new();
    let put = async |name: &str, address: &str| {
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"clusterIP": address, "ports": [{"name": "test-port", "port": 81}]}});
        let key = Key::from_path(&format!("/services/specs/default/{name}")).expect("a key");
        storage.create(&key, service.to_string().into(), None).await.expect("stored");
    };
    put("before", "192.168.0.3").await;
    let server = server(&storage).await;
    let (code, claim) = send(&server, "GET", &format!("{ADDRESSES}/192.168.0.3"), Value::Null).await;
    assert_eq!((code, &claim["spec"]["parentRef"]["name"]), (200, &json!("before")), "the start repairs");
    put("after", "192.168.0.4").await;
    wait_for(&server, &format!("{ADDRESSES}/192.168.0.4"), |code, claim| {
        code == 200 && claim["spec"]["parentRef"]["name"] == "after"
    })
    .await;
}
