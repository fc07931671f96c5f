//! Calls: one message for one ([`Channel::unary`]), and streams of both ([`Channel::streaming`]).

use std::marker::PhantomData;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode, Version, header};
use prost::Message;

use crate::channel::Channel;
use crate::connection::OpenCall;
use crate::frame::{self, Frames};
use crate::status::Status;

/// The maximum number of requests that wait on one stream since the server last had room for one. With more, the stream
/// counts as dead.
const WAITING_REQUESTS_MAX: usize = 100;

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("listwatch/", env!("CARGO_PKG_VERSION")));
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Headers of a call, in addition to those of the protocol.
pub type Metadata<'a> = &'a [(&'static str, HeaderValue)];

impl Channel {
    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// The server was not reached, or returns an error.
    pub async fn unary<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        metadata: Metadata<'_>,
    ) -> Result<A, Status> {
        let frame = frame::encode(message)?;
        let mut begun = self.begin(path, metadata).await?;
        begun.body.send_data(frame, true).map_err(|error| Status::of_stream(&error))?;
        let mut answers = Answers::<A>::receive(begun.response, begun.call).await?;
        let answer = answers.next().await?;
        let answer = answer.ok_or_else(|| Status::internal("the response has no message"))?;
        match answers.next().await? {
            None => Ok(answer),
            Some(_) => Err(Status::internal("the response has several messages")),
        }
    }

    /// Opens a stream with its first request, and waits until the server has accepted the stream.
    ///
    /// # Errors
    /// The server was not reached, or returns an error.
    pub async fn streaming<Q: Message, A: Message + Default>(
        &self,
        path: &'static str,
        first: &Q,
        metadata: Metadata<'_>,
    ) -> Result<(Requests<Q>, Answers<A>), Status> {
        let first = frame::encode(first)?;
        let mut begun = self.begin(path, metadata).await?;
        begun.body.send_data(first, false).map_err(|error| Status::of_stream(&error))?;
        let requests = Requests { body: begun.body, waiting: 0, message: PhantomData };
        let answers = Answers::receive(begun.response, begun.call).await?;
        Ok((requests, answers))
    }

    async fn begin(&self, path: &'static str, metadata: Metadata<'_>) -> Result<Begun, Status> {
        let mut connection = self.ready().await?;
        let request = self.head(path, metadata);
        let begun = connection.streams.send_request(request, false);
        // The stream was not opened, so that the server received nothing.
        let (response, body) = begun.map_err(|error| Status { unsent: true, ..Status::of_stream(&error) })?;
        Ok(Begun { response, body, call: connection.begin_call() })
    }

    fn head(&self, path: &'static str, metadata: Metadata<'_>) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.connector().url(PathAndQuery::from_static(path));
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.reserve(3 + metadata.len());
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
        headers.insert(header::USER_AGENT, USER_AGENT);
        for (name, value) in metadata {
            headers.insert(*name, value.clone());
        }
        request
    }
}

/// A call whose headers were sent.
struct Begun {
    response: ResponseFuture,
    body: SendStream<Bytes>,
    call: OpenCall,
}

/// The requests of a stream. Dropping them and the [`Answers`] ends the stream.
pub struct Requests<Q> {
    body: SendStream<Bytes>,
    /// The number of requests since the server last had room for one.
    waiting: usize,
    message: PhantomData<fn(Q)>,
}

impl<Q: Message> Requests<Q> {
    /// Sends a request. Returns false if the stream is closed, or if the server does not read it.
    pub fn send(&mut self, message: &Q) -> bool {
        let Ok(frame) = frame::encode(message) else { return false };
        self.body.reserve_capacity(frame.len());
        self.waiting = if self.body.capacity() < frame.len() { self.waiting + 1 } else { 0 };
        self.waiting <= WAITING_REQUESTS_MAX && self.body.send_data(frame, false).is_ok()
    }
}

/// The responses of a call.
pub struct Answers<A> {
    /// `None` after the end of the response.
    body: Option<RecvStream>,
    frames: Frames,
    call: OpenCall,
    message: PhantomData<fn() -> A>,
}

impl<A: Message + Default> Answers<A> {
    async fn receive(response: ResponseFuture, call: OpenCall) -> Result<Self, Status> {
        let (head, body) = response.await.map_err(|error| Status::before_response(&error))?.into_parts();
        let is_ended = match Status::of_headers(&head.headers) {
            Some(outcome) => outcome.map(|()| true)?,
            None => false,
        };
        if head.status != StatusCode::OK {
            return Err(Status::of_http(head.status));
        }
        Ok(Answers { body: (!is_ended).then_some(body), frames: Frames::default(), call, message: PhantomData })
    }

    /// The next message; `None` after the last one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The server or the connection ends the call with an error.
    pub async fn next(&mut self) -> Result<Option<A>, Status> {
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            if let Some(message) = self.frames.next()? {
                return Ok(Some(message));
            }
            let Some(chunk) = body.data().await else { break };
            let chunk = chunk.map_err(|error| Status::of_stream(&error))?;
            self.call.handle_heard();
            // Fails only for more bytes than were received.
            let _ = body.flow_control().release_capacity(chunk.len());
            self.frames.push(chunk);
        }
        let trailers = body.trailers().await.map_err(|error| Status::of_stream(&error))?;
        self.body = None;
        match trailers.as_ref().and_then(Status::of_headers) {
            Some(Err(status)) => Err(status),
            Some(Ok(())) if self.frames.is_empty() => Ok(None),
            Some(Ok(())) => Err(Status::internal("the response ends inside a message")),
            None => Err(Status::internal("the response ends without a status")),
        }
    }
}
