//! Tests of requests that are forwarded, and of requests that are local.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_aggregator::{Aggregator, ApiService, RequestFacts};
use listwatch_json::json;
use listwatch_meta::UserInfo;

use crate::extension::{Objects, aggregator, json_response, start};

fn user() -> UserInfo {
    UserInfo { username: "bob".to_owned(), groups: vec!["dev".to_owned()], ..UserInfo::default() }
}

fn api_service(ca_bundle: &str, is_available: bool) -> ApiService {
    let object = json!({"metadata": {"name": "v1.g"}, "spec": {"group": "g", "version": "v1",
        "service": {"namespace": "ns", "name": "api"}}});
    let ca_bundle = ca_bundle.as_bytes().to_vec();
    ApiService { ca_bundle, is_available, ..ApiService::from_object(&object).unwrap() }
}

/// Sends a request to `/apis/g/v1/…`, which must have a remote route.
async fn send(aggregator: &Aggregator, request: Request<Full<Bytes>>) -> (u16, String) {
    let route = aggregator.route(request.uri().path()).expect("the path is local");
    let response = aggregator.handle(&route, request, &user(), RequestFacts::default()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).body(Full::default()).unwrap()
}

#[tokio::test]
async fn request_is_forwarded_with_only_the_users_identity() {
    let answer = |request: &Request<hyper::body::Incoming>| {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let seen = json!({"uri": request.uri().to_string(), "user": header("x-remote-user"),
            "group": header("x-remote-group"), "extra": header("x-remote-extra-role"),
            "token": header("authorization"), "audit": header("audit-id"), "from": header("x-forwarded-uri"),
            "for": header("x-forwarded-for")});
        json_response(200, "application/json", &seen)
    };
    let (port, certificate) = start(Arc::new(answer)).await;
    let objects = Arc::new(Objects::default());
    objects.put_service(port);
    let aggregator = aggregator(&objects);
    aggregator.update(vec![api_service(&certificate, true)]);
    let mut request = get("/apis/g/v1/things?watch=0&b=2&a=x%20y");
    for (name, value) in [
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-role", "root"),
        ("authorization", "Bearer secret"),
        ("audit-id", "forged"),
        ("x-forwarded-for", "10.9.9.9"),
        ("connection", "keep-alive, x-remote-user, x-remote-group, x-remote-extra-role, audit-id"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let facts = RequestFacts {
        timeout: Some(std::time::Duration::from_secs(20)),
        client_address: Some(std::net::IpAddr::from([10, 0, 0, 1])),
        audit_id: Some(http::HeaderValue::from_static("1-2-3")),
    };
    let route = aggregator.route(request.uri().path()).unwrap();
    let response = aggregator.handle(&route, request, &user(), facts).await;
    let code = response.status().as_u16();
    let body = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let expected = json!({"uri": "/apis/g/v1/things?a=x+y&b=2&watch=0", "user": "bob", "group": "dev", "extra": null,
        "token": null, "audit": "1-2-3", "from": "/apis/g/v1/things", "for": "10.9.9.9, 10.0.0.1"});
    assert_eq!((code, serde_json::from_str::<listwatch_json::Value>(&body).unwrap()), (200, expected));
}

#[tokio::test]
async fn request_that_cannot_be_forwarded_gets_upstreams_error_text() {
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    let check = async |service: ApiService, expected: (u16, &str)| {
        aggregator.update(vec![service]);
        let (code, text) = send(&aggregator, get("/apis/g/v1/things")).await;
        assert_eq!((code, text.as_str()), expected);
    };
    check(api_service("", false), (503, "service unavailable\n")).await;
    let broken = "unable to load root certificates: unable to parse bytes as PEM block\n";
    check(api_service("nonsense", true), (500, broken)).await;
    let insecure = ApiService { insecure_skip_tls_verify: true, ..api_service("", true) };
    check(insecure.clone(), (503, "service unavailable\n")).await;
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    objects.put_service(port);
    let refused = format!("error trying to reach service: dial tcp 127.0.0.1:{port}: connect: connection refused\n");
    check(insecure, (503, &refused)).await;
}

#[tokio::test]
async fn path_without_a_remote_api_service_is_local() {
    let aggregator = aggregator(&Arc::new(Objects::default()));
    let local = ApiService { service: None, ..api_service("", true) };
    let remote =
        |group: &str| ApiService { name: format!("v1.{group}"), group: group.to_owned(), ..api_service("", true) };
    aggregator.update(vec![local, remote("h"), remote("apiregistration.k8s.io"), remote("")]);
    for (path, is_remote) in [
        ("/apis/g/v1/things", false),
        ("/apis/h/v1/things", true),
        ("/apis/h/v2/things", false),
        ("/apis/h", false),
        ("/api/v1/pods", false),
        ("/openapi/v2", false),
        ("/apis/apiregistration.k8s.io/v1/apiservices", false),
        ("/apis/h/v1/namespaces%2Fa/things", false),
        ("/apis/h/v1/../../apps/v1/deployments", false),
        ("/apis/h/v1/%2e%2e/things", false),
        ("/apis/h/v1//things", false),
        ("/apis/h/v1/things%00", false),
        ("/apis/h/v1/%74hings/a%252Fb", true),
    ] {
        assert_eq!(aggregator.route(path).is_some(), is_remote, "{path}");
    }
}
