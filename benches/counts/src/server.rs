//! Hot paths through the whole server, from a request to the bytes of the response body: routing,
//! checks, writes, cache, frames. No sockets and no TLS; the store is in memory.

use std::hint::black_box;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, ApiService, Body};
use listwatch_benches::runtime;

const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// The body that writes object `n`. With its metadata it is about 1 KiB.
fn body_of(n: u64, turn: u64) -> Bytes {
    let payload = "0123456789abcdef".repeat(40);
    format!(
        "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"map-{n:06}\",\
         \"labels\":{{\"app\":\"shop\",\"tier\":\"front\"}},\"annotations\":{{\"example.com/owner\":\"team-1\"}}}},\
         \"data\":{{\"turn\":\"{turn}\",\"payload\":\"{payload}\"}}}}"
    )
    .into()
}

async fn send(service: &ApiService, request: http::request::Builder, body: Bytes) -> Response<Body> {
    service.handle(request.body(Full::new(body)).expect("a request")).await
}

/// Sends a request and reads the whole response.
async fn send_and_read(
    service: &ApiService,
    request: http::request::Builder,
    body: Bytes,
    status: StatusCode,
) -> Bytes {
    let response = send(service, request, body).await;
    assert_eq!(response.status(), status);
    response.into_body().collect().await.expect("a whole body").to_bytes()
}

fn post() -> http::request::Builder {
    Request::post(PATH).header("content-type", "application/json").header("user-agent", "counts/1")
}

fn put(n: u64) -> http::request::Builder {
    let path = format!("{PATH}/map-{n:06}");
    Request::put(path).header("content-type", "application/json").header("user-agent", "counts/1")
}

/// A server with this number of objects.
async fn server(objects: u64) -> ApiService {
    let service = ApiServer::builder().build().await.expect("a server").service();
    for n in 0..objects {
        send_and_read(&service, post(), body_of(n, 0), StatusCode::CREATED).await;
    }
    service
}

pub(crate) fn get(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            let request = Request::get(format!("{PATH}/map-{:06}", turn % 10));
            black_box(send_and_read(&service, request, Bytes::new(), StatusCode::OK).await);
        }
    });
}

pub(crate) fn create(turns: u64) {
    runtime().block_on(async {
        let service = server(1).await;
        for turn in 0..turns {
            black_box(send_and_read(&service, post(), body_of(turn + 1, 0), StatusCode::CREATED).await);
        }
    });
}

pub(crate) fn update(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            black_box(send_and_read(&service, put(turn % 10), body_of(turn % 10, turn + 1), StatusCode::OK).await);
        }
    });
}

pub(crate) fn patch(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            let request = Request::patch(format!("{PATH}/map-{:06}", turn % 10))
                .header("content-type", "application/merge-patch+json")
                .header("user-agent", "counts/1");
            let body = format!("{{\"data\":{{\"turn\":\"{}\"}}}}", turn + 1);
            black_box(send_and_read(&service, request, body.into(), StatusCode::OK).await);
        }
    });
}

pub(crate) fn watch(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        let mut watches = Vec::new();
        for _ in 0..10 {
            let request = Request::get(format!("{PATH}?watch=true&timeoutSeconds=36000"));
            let response = send(&service, request, Bytes::new()).await;
            assert_eq!(response.status(), StatusCode::OK);
            let mut body = response.into_body();
            // The existing objects arrive first.
            let mut seen = 0;
            while seen < 10 {
                let frame = body.frame().await.expect("an event").expect("a frame").into_data().expect("data");
                seen += frame.iter().filter(|byte| **byte == b'\n').count();
            }
            watches.push(body);
        }
        for turn in 0..turns {
            black_box(send_and_read(&service, put(turn % 10), body_of(turn % 10, turn + 1), StatusCode::OK).await);
            for body in &mut watches {
                black_box(body.frame().await.expect("an event").expect("a frame"));
            }
        }
    });
}

pub(crate) fn list(turns: u64) {
    lists(turns, "application/json");
}

pub(crate) fn table(turns: u64) {
    lists(turns, "application/json;as=Table;v=v1;g=meta.k8s.io");
}

fn lists(turns: u64, accept: &str) {
    runtime().block_on(async {
        let service = server(500).await;
        for _ in 0..turns {
            let request = Request::get(PATH).header("accept", accept);
            black_box(send_and_read(&service, request, Bytes::new(), StatusCode::OK).await);
        }
    });
}
