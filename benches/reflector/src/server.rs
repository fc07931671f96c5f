//! A server with prepared responses, whose cost is therefore not part of the measurement.
//!
//! The scenario is the same for both contenders: a paged list, a watch that fails with 410, the
//! same list again, and a watch that sends the events and stays open.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use listwatch_meta::Status;

/// The number of objects per page, kube-rs' and listwatch's default.
const PAGE: usize = 500;

/// The number of bytes per network read.
const CHUNK: usize = 64 * 1024;

/// The kind of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Config maps of about 1 KiB.
    Full,
    /// `PartialObjectMetadata` of about 350 bytes.
    Metadata,
}

#[derive(Clone)]
pub(crate) struct Server(Arc<Rendered>);

struct Rendered {
    pages: Vec<Bytes>,
    events: Vec<Bytes>,
    watches: AtomicUsize,
}

pub(crate) type Body = StreamBody<Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

/// The JSON of one object. List items have no type, as in a kube-apiserver.
pub(crate) fn object(number: usize, version: usize, shape: Shape, typed: bool) -> String {
    let mut text = String::with_capacity(1_200);
    text.push('{');
    if typed {
        let (kind, api_version) = match shape {
            Shape::Full => ("ConfigMap", "v1"),
            Shape::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
        };
        write!(text, r#""kind":"{kind}","apiVersion":"{api_version}","#).expect("text");
    }
    write!(
        text,
        r#""metadata":{{"name":"object-{number:07}","namespace":"team-{}","uid":"7b6d5e5e-0000-4000-8000-{number:012}","resourceVersion":"{version}","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"app":"app-{}","tier":"{}"}},"annotations":{{"example.com/owner":"team-{}"}}}}"#,
        number % 10,
        number % 1_000,
        ["web", "db", "cache"][number % 3],
        number % 10,
    )
    .expect("text");
    if shape == Shape::Full {
        text.push_str(r#","data":{"#);
        for field in 0..12 {
            let comma = if field == 0 { "" } else { "," };
            write!(text, r#"{comma}"setting-{field:02}":"a value of {number} that is some words long""#).expect("text");
        }
        text.push('}');
    }
    text.push('}');
    text
}

impl Server {
    /// A server with this number of objects and events.
    pub(crate) fn new(objects: usize, events: usize, shape: Shape) -> Self {
        let list = match shape {
            Shape::Full => (r#""kind":"ConfigMapList","apiVersion":"v1""#, false),
            Shape::Metadata => (r#""kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1""#, true),
        };
        let pages = (0..objects.div_ceil(PAGE).max(1))
            .map(|page| {
                let range = page * PAGE..objects.min((page + 1) * PAGE);
                let token = if range.end < objects { (page + 1).to_string() } else { String::new() };
                let mut text = format!(
                    r#"{{{},"metadata":{{"resourceVersion":"{}","continue":"{token}"}},"items":["#,
                    list.0,
                    objects + 1
                );
                for number in range {
                    if !text.ends_with('[') {
                        text.push(',');
                    }
                    text.push_str(&object(number, number + 1, shape, list.1));
                }
                text.push_str("]}");
                Bytes::from(text)
            })
            .collect();
        // Each object in turn, with a stride that differs from their order.
        let mut lines = BytesMut::new();
        for event in 0..events {
            let number = event.wrapping_mul(7_919) % objects;
            let object = object(number, objects + 2 + event, shape, true);
            lines.extend_from_slice(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").as_bytes());
        }
        let mut lines = lines.freeze();
        let mut events = Vec::new();
        while !lines.is_empty() {
            events.push(lines.split_to(CHUNK.min(lines.len())));
        }
        Server(Arc::new(Rendered { pages, events, watches: AtomicUsize::new(0) }))
    }

    fn answer(&self, query: &str) -> Body {
        let pair = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let frames = |chunks: Vec<Bytes>| futures_util::stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk)));
        if pair("watch").is_none() {
            let page: usize = pair("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
            return StreamBody::new(frames(vec![self.0.pages[page].clone()]).boxed());
        }
        if self.0.watches.fetch_add(1, Ordering::Relaxed) == 0 {
            let status = String::from_utf8(Status::expired_watch(1, 2).to_json()).expect("JSON is text");
            let line = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status.trim_end());
            return StreamBody::new(frames(vec![Bytes::from(line)]).boxed());
        }
        let events = frames(self.0.events.clone());
        StreamBody::new(events.chain(futures_util::stream::pending()).boxed())
    }
}

impl<B> tower_service::Service<Request<B>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let body = self.answer(request.uri().query().unwrap_or_default());
        let mut response = Response::new(body);
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, json);
        std::future::ready(Ok(response))
    }
}
