//! A component of the cluster and its HTTP/2 connection ([`Component`]), and the times of the requests ([`Recorder`]).

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use listwatch_benches::cluster::{ACCEPT, PROTOBUF, STRATEGIC_MERGE_PATCH};
use listwatch_wire::protobuf;
use parking_lot::Mutex;
use serde_json::Value;

use super::mix::{MIX, RequestType};
use crate::Outcome;
use crate::http::connect_h2;
use crate::target::Target;

/// The length of a response body in an error message, in bytes.
const MESSAGE_BYTES_MAX: usize = 400;

/// A component of the cluster. As in client-go, one HTTP/2 connection carries all its requests and watches.
pub(super) struct Component {
    target: Arc<Target>,
    sender: http2::SendRequest<Full<Bytes>>,
    user_agent: &'static str,
}

impl Component {
    pub(super) async fn connect(target: &Arc<Target>, user_agent: &'static str) -> Outcome<Arc<Self>> {
        let sender = connect_h2(target).await?;
        Ok(Arc::new(Component { target: target.clone(), sender, user_agent }))
    }

    pub(super) async fn get(&self, path: &str) -> Outcome<Bytes> {
        self.expect(Method::GET, path, PROTOBUF, Bytes::new()).await
    }

    /// Creates an object. The body is protobuf.
    pub(super) async fn post(&self, path: &str, body: Bytes) -> Outcome<Bytes> {
        self.expect(Method::POST, path, PROTOBUF, body).await
    }

    /// Replaces an object. The body is protobuf.
    pub(super) async fn put(&self, path: &str, body: Bytes) -> Outcome<Bytes> {
        self.expect(Method::PUT, path, PROTOBUF, body).await
    }

    /// Sends a strategic merge patch.
    pub(super) async fn patch(&self, path: &str, body: Bytes) -> Outcome<Bytes> {
        self.expect(Method::PATCH, path, STRATEGIC_MERGE_PATCH, body).await
    }

    /// Deletes an object. The body is a `DeleteOptions` in protobuf.
    pub(super) async fn delete(&self, path: &str, body: Bytes) -> Outcome<Bytes> {
        self.expect(Method::DELETE, path, PROTOBUF, body).await
    }

    /// Opens a watch. Its events are protobuf.
    pub(super) async fn watch(&self, path: &str, accept: &str) -> Outcome<Response<Incoming>> {
        let response = self.send(Method::GET, path, accept, PROTOBUF, Bytes::new()).await?;
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let is_protobuf = content_type.is_some_and(|value| value.starts_with(PROTOBUF));
        match response.status() {
            StatusCode::OK if is_protobuf => Ok(response),
            StatusCode::OK => Err(format!("the watch of {path} is {}", content_type.unwrap_or_default()).into()),
            status => {
                let body = response.into_body().collect().await?.to_bytes();
                Err(self.error(&format!("watch of {path}"), status, &body).into())
            }
        }
    }

    /// Sends a request and reads the response. The status must be 201 for a POST, and 200 for other methods.
    async fn expect(&self, method: Method, path: &str, content_type: &str, body: Bytes) -> Outcome<Bytes> {
        let expected = if method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
        let mut response = self.send(method.clone(), path, ACCEPT, content_type, body).await?;
        let mut body = BytesMut::new();
        while let Some(frame) = response.frame().await {
            if let Some(data) = frame?.data_ref() {
                body.extend_from_slice(data);
            }
        }
        if response.status() != expected {
            return Err(self.error(&format!("{method} {path}"), response.status(), &body).into());
        }
        Ok(body.freeze())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        content_type: &str,
        body: Bytes,
    ) -> Outcome<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.target.authority))
            .header("accept", accept)
            .header("user-agent", self.user_agent);
        if let Some(authorization) = &self.target.authorization {
            request = request.header("authorization", authorization);
        }
        if !body.is_empty() {
            request = request.header("content-type", content_type);
        }
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// The text of an error, with the message of the `Status` in the response.
    fn error(&self, what: &str, status: StatusCode, body: &[u8]) -> String {
        let text = message_of(body)
            .unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]).into_owned());
        format!("{what} by {} on {}: {status}: {text}", self.user_agent, self.target.name)
    }
}

/// The message of a `Status` in protobuf.
pub(super) fn message_of(body: &[u8]) -> Option<String> {
    let status: Value = serde_json::from_slice(&protobuf::decode(body).ok()?.json).ok()?;
    Some(status["message"].as_str()?.to_owned())
}

/// The uid and the resource version of an object in protobuf.
pub(super) fn identity_of(body: &[u8]) -> Outcome<(String, String)> {
    let object: Value = serde_json::from_slice(&protobuf::decode(body)?.json)?;
    let member = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    member("uid").zip(member("resourceVersion")).ok_or_else(|| "an object without uid or resource version".into())
}

/// The times of the requests by type, in ms.
#[derive(Default)]
pub(super) struct Recorder {
    times: [Mutex<Vec<f64>>; MIX.len()],
}

impl Recorder {
    /// Awaits a request and adds its time.
    pub(super) async fn timed<T>(&self, kind: RequestType, request: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let begun = Instant::now();
        let answer = request.await?;
        self.times[kind as usize].lock().push(begun.elapsed().as_secs_f64() * 1e3);
        Ok(answer)
    }

    /// Returns the times by type, in the order of [`MIX`].
    pub(super) fn take(&self) -> [Vec<f64>; MIX.len()] {
        std::array::from_fn(|kind| std::mem::take(&mut *self.times[kind].lock()))
    }
}
