//! [`ApiService`]: the API server as a tower service.
//!
//! ```text
//!  Request ─▶ ApiService ─▶ filters ─▶ handlers ─▶ Response
//!                 └ drains the rest of the request body, removes the body of a HEAD, may close HTTP/1.1
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, Response, Version};
#[cfg(feature = "serve")]
use tokio::time::Instant;

use listwatch_meta::UserInfo;

use crate::chain;
use crate::filters::authentication::Identity;
use crate::request::body_budget::ConnectionBodies;
use crate::request::upload::Upload;
use crate::response::body::Body;
use crate::response::extensions::RequestBodyUnread;
use crate::shared::Shared;

/// The API server as a service from requests to responses, without a network. Clones share one server.
///
/// Implements [`tower_service::Service`] for any request body, as `kube::Client::new` requires.
#[derive(Clone)]
pub struct ApiService {
    shared: Arc<Shared>,
    /// The user of all requests; `None`: the credentials of each request decide.
    identity: Option<Identity>,
}

impl std::fmt::Debug for ApiService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiService")
    }
}

impl<B> tower_service::Service<Request<B>> for ApiService
where
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
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
        ApiService { shared, identity: None }
    }

    /// Makes all requests run as this user.
    pub(crate) fn with_identity(self, user: UserInfo) -> Self {
        ApiService { identity: Some(Identity(Arc::new(user))), ..self }
    }

    /// Aborts the responses past their deadline.
    #[cfg(feature = "serve")]
    pub(crate) fn abort_expired(&self, now: Instant) {
        self.shared.flow_control.abort_expired(now);
    }

    /// Responds to one request. Failures are responses.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let version = request.version();
        let is_head = request.method() == Method::HEAD;
        let (mut parts, body) = request.into_parts();
        if let Some(identity) = &self.identity {
            parts.extensions.insert(identity.clone());
        }
        let mut upload = Upload::new(body).with_connection(parts.extensions.get::<ConnectionBodies>().cloned());
        let mut response = chain::serve(&self.shared, &parts, &mut upload).await;
        // A client that is still sending may treat an early response as a broken connection.
        upload.drain(&parts.headers).await;
        if !upload.is_ended() {
            response.extensions_mut().insert(RequestBodyUnread);
        }
        if version == Version::HTTP_2 {
            response.headers_mut().remove(CONNECTION);
        } else if !upload.is_ended() {
            // The rest of the body is not read: no request can follow on this connection.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if is_head {
            // The length is sent if it is known without producing the body.
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
        let invalid = listwatch_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
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
            // The deadline is checked before the credential.
            for token in [None, Some("t")] {
                let (code, body) = send(method, path, "invalid", token).await;
                assert_eq!(code, 400, "{method} {path} {token:?}");
                assert_eq!(serde_json::from_slice::<listwatch_json::Value>(&body).unwrap(), invalid, "{method} {path}");
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
    async fn version_path_rejects_wrong_tokens_and_unauthenticated_impersonation() {
        let auth = Auth::Token("t".to_owned());
        let server = crate::ApiServer::builder().auth(auth).build().await.unwrap();
        let send = async |token: &str, header: Option<(&str, &str)>| {
            let mut request = Request::get("/version");
            if !token.is_empty() {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some((name, value)) = header {
                request = request.header(name, value);
            }
            server.service().handle(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await.status()
        };
        assert_eq!(send("", None).await, StatusCode::OK);
        assert_eq!(send("wrong", None).await, StatusCode::UNAUTHORIZED, "a wrong token is never anonymous");
        assert_eq!(send("t", Some(("impersonate-user", "bob"))).await, StatusCode::OK);
        for header in [("impersonate-user", "bob"), ("impersonate-group", "dev")] {
            assert_eq!(send("", Some(header)).await, StatusCode::UNAUTHORIZED, "{header:?}");
            assert_eq!(send("wrong", Some(header)).await, StatusCode::UNAUTHORIZED, "{header:?}");
        }
    }
}
