//! Tests of builder settings that change the responses of all resources.

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{Request, Response};
use http_body_util::Empty;

use crate::response::body::Body;
use crate::response::extensions::GoAway;
use crate::{ApiServer, Auth, BuildError};

async fn get(server: &ApiServer, path: &str) -> Response<Body> {
    let request = Request::get(path).body(Empty::<bytes::Bytes>::new()).expect("a request");
    server.service().handle(request).await
}

#[tokio::test]
async fn strict_transport_security_header_is_on_all_responses() {
    let builder = ApiServer::builder().auth(Auth::Token("secret".to_owned()));
    let server = builder.strict_transport_security("max-age=31536000; preload").build().await.expect("a server");
    for (path, code) in [("/readyz", 200), ("/api/v1/pods", 401)] {
        let response = get(&server, path).await;
        let header = response.headers().get(STRICT_TRANSPORT_SECURITY).and_then(|value| value.to_str().ok());
        assert_eq!((response.status().as_u16(), header), (code, Some("max-age=31536000; preload")), "{path}");
    }
    let server = ApiServer::builder().build().await.expect("a server");
    assert!(!get(&server, "/readyz").await.headers().contains_key(STRICT_TRANSPORT_SECURITY));
    let refused = ApiServer::builder().strict_transport_security("a\nb").build().await;
    assert!(matches!(refused, Err(BuildError::Header(_))));
}

#[tokio::test]
async fn failed_readiness_does_not_stop_the_server() {
    let server = ApiServer::builder().build().await.expect("a server");
    assert_eq!(get(&server, "/readyz").await.status(), 200);
    server.fail_readiness();
    for (path, code) in [("/readyz", 500), ("/livez", 200), ("/api/v1/pods", 200)] {
        assert_eq!(get(&server, path).await.status(), code, "{path}");
    }
}

#[tokio::test]
async fn goaway_chance_marks_that_fraction_of_responses() {
    for (chance, expected) in [(0.0, false), (1.0, true)] {
        let server = ApiServer::builder().goaway_chance(chance).build().await.expect("a server");
        let response = get(&server, "/version").await;
        assert_eq!(response.extensions().get::<GoAway>().is_some(), expected, "{chance}");
    }
}
