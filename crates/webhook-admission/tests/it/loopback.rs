//! Tests calls of webhooks that the server itself serves, and that no other webhook receives their credential.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_aggregator::{EndpointSlice, Service, ServiceObjects, ServiceResolver};
use listwatch_json::json;
use listwatch_webhook_admission::{HttpsCaller, LoopbackClient};

use crate::https::{Server, TIMEOUT, call, ok};

const SERVER_NAME: &str = "apiserver-loopback-client";
const TOKEN: &str = "s3cret";

/// Services with every name, `default/kubernetes` included. Users have set the endpoint of all: `127.0.0.1` at this
/// port.
struct UserServices(u16);

#[async_trait]
impl ServiceObjects for UserServices {
    async fn service(&self, _: &str, _: &str) -> Result<Option<Service>, String> {
        Ok(Some(Service {
            service_type: "ClusterIP".to_owned(),
            cluster_ip: "127.0.0.1".to_owned(),
            ip_family: "IPv4".to_owned(),
            ports: [443, 8443].map(|port| ("https".to_owned(), port)).to_vec(),
            ..Service::default()
        }))
    }

    async fn endpoint_slices(&self, _: &str, _: &str) -> Result<Vec<EndpointSlice>, String> {
        Ok(vec![EndpointSlice {
            address_type: "IPv4".to_owned(),
            ports: vec![("https".to_owned(), self.0)],
            ready_addresses: vec!["127.0.0.1".to_owned()],
        }])
    }
}

/// Creates a caller whose services have the endpoint `users`, and whose own listener is at `own`. The caller calls this
/// listener also after the end of the registration, because there is no other one.
fn loopback_caller(users: &Server, own: SocketAddr, certificate_pem: &str) -> HttpsCaller {
    let services = ServiceResolver::new(Arc::new(UserServices(users.port))).with_endpoint_routing(true);
    let caller = HttpsCaller::new(services);
    let registration = caller.add_loopback(LoopbackClient {
        address: own,
        server_name: SERVER_NAME.to_owned(),
        certificate_pem: certificate_pem.to_owned(),
        token: TOKEN.to_owned(),
    });
    drop(registration);
    caller
}

/// Returns whether the last request of a server has the credential.
fn has_credential(server: &Server) -> bool {
    let head = server.head.lock().unwrap().to_lowercase();
    assert!(!head.is_empty(), "no request has arrived");
    assert_eq!(head.contains(TOKEN), head.contains("authorization"), "{head}");
    head.lines().any(|line| line == format!("authorization: bearer {TOKEN}"))
}

#[tokio::test]
async fn own_webhook_is_called_with_the_credential_at_the_own_listener_whatever_users_set() {
    let own = Server::start_with_names(&[SERVER_NAME], ok("{}"), true).await;
    let users = Server::start_with_names(&["kubernetes.default.svc", SERVER_NAME], ok("{}"), true).await;
    let service = json!({"namespace": "default", "name": "kubernetes", "path": "/v"});
    for address in [SocketAddr::from(([127, 0, 0, 1], own.port)), SocketAddr::from(([0, 0, 0, 0], own.port))] {
        for config in [
            json!({"service": service}),
            json!({"service": service, "caBundle": STANDARD.encode(&users.ca)}),
            json!({"url": "https://kubernetes.default.svc/v"}),
            json!({"url": "https://kubernetes.default.svc:443/v", "caBundle": STANDARD.encode(&users.ca)}),
        ] {
            let caller = loopback_caller(&users, address, &own.ca);
            assert_eq!(call(&caller, config.clone(), TIMEOUT).await.map(|answer| answer.code), Ok(200), "{config}");
            assert!(has_credential(&own), "{config}");
            let head = std::mem::take(&mut *own.head.lock().unwrap());
            assert!(head.starts_with("POST /v?timeout=20s HTTP/1.1\r\n"), "{head}");
            assert!(head.to_lowercase().contains("host: kubernetes.default.svc:443"), "{head}");
            assert!(head.contains("user-agent: kube-apiserver/"), "a server that shuts down rejects the call: {head}");
        }
    }
    assert_eq!(users.connections.load(Ordering::Relaxed), 0, "an endpoint of users was dialed");
}

#[tokio::test]
async fn other_webhooks_never_receive_the_credential_of_the_server() {
    let own = Server::start_with_names(&[SERVER_NAME], ok("{}"), true).await;
    let names = ["kubernetes.default.svc", "kubernetes.other.svc", "hook.default.svc", "localhost"];
    let users = Server::start_with_names(&names, ok("{}"), true).await;
    let caller = loopback_caller(&users, SocketAddr::from(([127, 0, 0, 1], own.port)), &own.ca);
    // A connection of the server to itself is open, which no other webhook may use.
    let own_webhook = json!({"service": {"namespace": "default", "name": "kubernetes"}});
    assert_eq!(call(&caller, own_webhook, TIMEOUT).await.map(|answer| answer.code), Ok(200));
    let service = |namespace: &str, name: &str, port: u16| json!({"namespace": namespace, "name": name, "port": port});
    for mut config in [
        json!({"service": service("default", "kubernetes", 8443)}),
        json!({"service": service("other", "kubernetes", 443)}),
        json!({"service": service("default", "hook", 443)}),
        json!({"url": format!("https://localhost:{}/", users.port)}),
    ] {
        config["caBundle"] = json!(STANDARD.encode(&users.ca));
        assert_eq!(call(&caller, config.clone(), TIMEOUT).await.map(|answer| answer.code), Ok(200), "{config}");
        assert!(!has_credential(&users), "{config}");
        assert!(users.head.lock().unwrap().contains("user-agent: kube-apiserver-admission"), "{config}");
        users.head.lock().unwrap().clear();
    }
    assert_eq!(own.requests.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn credential_is_not_sent_to_a_process_with_another_certificate() {
    let own = Server::start_with_names(&[SERVER_NAME], ok("{}"), true).await;
    // Another process listens at the address, for example after a crash of this one.
    let impostor = Server::start_with_names(&[SERVER_NAME, "kubernetes.default.svc"], ok("{}"), true).await;
    let plain = Server::start_with_names(&[SERVER_NAME], Vec::new(), false).await;
    for (server, expected) in [
        (&impostor, "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        (&plain, "http: server gave HTTP response to HTTPS client"),
    ] {
        let caller = loopback_caller(&impostor, SocketAddr::from(([127, 0, 0, 1], server.port)), &own.ca);
        for mut config in [
            json!({"service": {"namespace": "default", "name": "kubernetes"}}),
            json!({"url": "https://kubernetes.default.svc"}),
        ] {
            config["caBundle"] = json!(STANDARD.encode(&impostor.ca));
            let error = call(&caller, config.clone(), TIMEOUT).await.unwrap_err();
            assert!(error.contains(expected), "{config}: {error}");
        }
        assert_eq!(server.requests.load(Ordering::Relaxed), 0, "{expected}");
        assert_eq!(*server.head.lock().unwrap(), "", "{expected}");
    }
}
