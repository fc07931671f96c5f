//! [`ApiService`]: the API server as a tower service, from requests to responses.
//!
//! ```text
//!  Request ─▶ ApiService ─▶ filters ─▶ handlers ─▶ Response
//!                 └ body that nobody read is drained, HEAD loses its body, HTTP/1.1 may close
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, Response, Version};
use tokio::time::Instant;

use crate::Shared;
use crate::body::Body;
use crate::body_budget::ConnectionBodies;
use crate::filters;
use crate::peer::AnsweredEarly;
use crate::upload::Upload;

/// The API server as a service from requests to responses: cheap to clone, needs no network.
///
/// Implements [`tower_service::Service`] for any request body, as `kube::Client::new` requires.
#[derive(Clone)]
pub struct ApiService {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ApiService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiService")
    }
}

impl<B> tower_service::Service<Request<B>> for ApiService
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

impl ApiService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        ApiService { shared }
    }

    /// Cuts the responses whose time is over.
    pub(crate) fn sweep(&self, now: Instant) {
        self.shared.flow_control.sweep(now);
    }

    /// Answers one request. Failures are responses.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let version = request.version();
        let is_head = request.method() == Method::HEAD;
        let (parts, body) = request.into_parts();
        let mut upload = Upload::new(body).of_connection(parts.extensions.get::<ConnectionBodies>().cloned());
        let mut response = filters::serve(&self.shared, &parts, &mut upload).await;
        // A client that is still sending may take a response in between for a broken connection.
        upload.drain(&parts.headers).await;
        if !upload.is_ended() {
            response.extensions_mut().insert(AnsweredEarly);
        }
        if version == Version::HTTP_2 {
            response.headers_mut().remove(CONNECTION);
        } else if !upload.is_ended() {
            // The rest of the body is not read: nothing can follow on this connection.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if is_head {
            // The length of the body is sent where it is known before the body is made.
            if let Some(length) = http_body::Body::size_hint(response.body()).exact() {
                response.headers_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
            }
            *response.body_mut() = Body::empty();
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use crate::Auth;

    #[tokio::test]
    async fn invalid_timeout_is_rejected_on_every_path_that_has_a_deadline() {
        use http_body_util::BodyExt as _;

        let auth = Auth::Token("t".to_owned());
        let server = crate::ApiServer::builder().auth(auth).build().await.unwrap();
        let send = async |method: &str, path: &str, timeout: &str, token: Option<&str>| {
            let sign = if path.contains('?') { '&' } else { '?' };
            let mut request = Request::builder().method(method).uri(format!("{path}{sign}timeout={timeout}"));
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let body = http_body_util::Full::new(Bytes::from_static(b"{}"));
            let response = server.service().handle(request.body(body).unwrap()).await;
            let code = response.status().as_u16();
            (
                code,
                response.into_body().frame().await.and_then(|frame| frame.ok()?.into_data().ok()).unwrap_or_default(),
            )
        };
        let invalid = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "invalid timeout specified in the request URL - time: invalid duration \"invalid\"",
            "reason": "BadRequest", "code": 400});
        for (method, path) in [
            ("GET", "/version"),
            ("GET", "/readyz"),
            ("GET", "/livez/ping"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("GET", "/api"),
            ("GET", "/apis"),
            ("GET", "/apis/apps/v1"),
            ("GET", "/openapi/v3"),
            ("GET", "/nonsense"),
            ("GET", "/nonsense?watch=true"),
            ("GET", "/api/v1/nonsense"),
            ("POST", "/version"),
            ("GET", "/api/v1/pods"),
            ("DELETE", "/api/v1/namespaces/a"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            ("GET", "/api/v1/componentstatuses"),
        ] {
            // The deadline is looked at before the credential.
            for token in [None, Some("t")] {
                let (code, body) = send(method, path, "invalid", token).await;
                assert_eq!(code, 400, "{method} {path} {token:?}");
                assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), invalid, "{method} {path}");
            }
            for valid in ["", "10s", "0", "-1s", "1000h"] {
                assert_ne!(send(method, path, valid, Some("t")).await.0, 400, "{method} {path} {valid}");
            }
        }
        for (path, code) in [
            ("/api/v1/namespaces?watch=true", 200),
            ("/api/v1/watch/namespaces", 200),
            ("/api/v1/nonsense?watch=true", 404),
            ("/api/v1/namespaces/a/pods/x/log", 404),
            ("/api/v1/watch", 500),
        ] {
            assert_eq!(send("GET", path, "invalid", Some("t")).await.0, code, "{path} has no deadline by its query");
        }
    }

    #[tokio::test]
    async fn impersonation_needs_authentication_on_open_paths() {
        let auth = Auth::Token("t".to_owned());
        let server = crate::ApiServer::builder().auth(auth).build().await.unwrap();
        let send = async |token: &str, header: Option<(&str, &str)>| {
            let mut request = Request::get("/version").header("authorization", format!("Bearer {token}"));
            if let Some((name, value)) = header {
                request = request.header(name, value);
            }
            server.service().handle(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await.status()
        };
        assert_eq!(send("wrong", None).await, StatusCode::OK);
        assert_eq!(send("t", Some(("impersonate-user", "bob"))).await, StatusCode::OK);
        for header in [("impersonate-user", "bob"), ("impersonate-group", "dev")] {
            assert_eq!(send("wrong", Some(header)).await, StatusCode::UNAUTHORIZED, "{header:?}");
        }
    }
}
