//! The client of etcd's gRPC API over one tonic channel, with the calls that the store needs:
//! [`Client`].
//!
//! Every call requires a leader. So a member that is cut off from the others returns an error
//! instead of keeping a silent watch. If a user is configured, calls carry the user's token. A call
//! rejected because of an expired token is repeated once with a new token; concurrent calls
//! authenticate once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use parking_lot::RwLock;
use prost::Message;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::proto::{
    AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, RequestUnion,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchCancelRequest, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse, path,
};

/// Maximum size of a gRPC message in bytes: the response to a range is as large as the range.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The maximum number of unsent requests that a watch stream holds; above this the stream is closed
/// as dead.
const WATCH_REQUESTS_MAX: usize = 100;

type Token = MetadataValue<Ascii>;

/// The calls on one channel. Clones share the channel and the token.
#[derive(Clone)]
pub(super) struct Client {
    grpc: Grpc<Channel>,
    auth: Option<Arc<Auth>>,
}

/// A user and the token that etcd issued for the password.
struct Auth {
    user: String,
    password: String,
    token: RwLock<Option<Token>>,
    /// Held while a token is fetched.
    renewing: tokio::sync::Mutex<()>,
}

impl Auth {
    fn token(&self) -> Option<Token> {
        self.token.read().clone()
    }
}

impl Client {
    /// Creates a client of this channel. With a user, the first token is fetched. Without a user,
    /// no request is sent.
    pub(super) async fn new(channel: Channel, user: Option<&(String, String)>) -> Result<Self, Status> {
        let auth = user.map(|(user, password)| {
            Arc::new(Auth {
                user: user.clone(),
                password: password.clone(),
                token: RwLock::new(None),
                renewing: tokio::sync::Mutex::new(()),
            })
        });
        let grpc = Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let client = Client { grpc, auth };
        client.renew_token().await?;
        Ok(client)
    }

    /// Fetches a new token; has no effect without a user.
    pub(super) async fn renew_token(&self) -> Result<(), Status> {
        let Some(auth) = &self.auth else { return Ok(()) };
        let request = AuthenticateRequest { name: auth.user.clone(), password: auth.password.clone() };
        let answer: AuthenticateResponse = self.send(path::AUTHENTICATE, request, None).await?;
        let token = answer.token.parse().map_err(|_| Status::internal("etcd's token is no header value"))?;
        *auth.token.write() = Some(token);
        Ok(())
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.unary(path::RANGE, request).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.unary(path::TXN, request).await
    }

    pub(super) async fn compact(&self, revision: i64) -> Result<CompactionResponse, Status> {
        self.unary(path::COMPACT, CompactionRequest { revision, physical: false }).await
    }

    pub(super) async fn lease_grant(&self, seconds: i64) -> Result<LeaseGrantResponse, Status> {
        self.unary(path::LEASE_GRANT, LeaseGrantRequest { ttl: seconds, id: 0 }).await
    }

    pub(super) async fn lease_time_to_live(&self, id: i64) -> Result<LeaseTimeToLiveResponse, Status> {
        self.unary(path::LEASE_TIME_TO_LIVE, LeaseTimeToLiveRequest { id }).await
    }

    pub(super) async fn status(&self) -> Result<StatusResponse, Status> {
        self.unary(path::STATUS, StatusRequest {}).await
    }

    /// Opens a watch stream with its first watch.
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<(WatchRequests, Streaming<WatchResponse>), Status> {
        let Some(auth) = &self.auth else { return self.open(create, None).await };
        let token = auth.token();
        match self.open(create.clone(), token.as_ref()).await {
            Err(status) if status.code() == Code::Unauthenticated => {
                let token = self.replace_token(auth, token).await?;
                self.open(create, token.as_ref()).await
            }
            result => result,
        }
    }

    async fn open(
        &self,
        create: WatchCreateRequest,
        token: Option<&Token>,
    ) -> Result<(WatchRequests, Streaming<WatchResponse>), Status> {
        let (sender, receiver) = mpsc::channel(WATCH_REQUESTS_MAX);
        let requests = WatchRequests(sender);
        requests.create(create);
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(path::WATCH);
        let request = with_metadata(Outgoing(receiver), token);
        let answers = grpc.streaming(request, path, ProstCodec::default()).await?.into_inner();
        Ok((requests, answers))
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let Some(auth) = &self.auth else { return self.send(path, message, None).await };
        let token = auth.token();
        match self.send(path, message.clone(), token.as_ref()).await {
            Err(status) if status.code() == Code::Unauthenticated => {
                let token = self.replace_token(auth, token).await?;
                self.send(path, message, token.as_ref()).await
            }
            result => result,
        }
    }

    /// Replaces a rejected token and returns the current one. Fetches a new token only if no other
    /// call has done so already.
    async fn replace_token(&self, auth: &Auth, refused: Option<Token>) -> Result<Option<Token>, Status> {
        let _renewing = auth.renewing.lock().await;
        if auth.token() == refused {
            self.renew_token().await?;
        }
        Ok(auth.token())
    }

    async fn send<Q, A>(&self, path: &'static str, message: Q, token: Option<&Token>) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let request = with_metadata(message, token);
        let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Status::unknown(format!("the connection is not ready: {error}")))?;
        Ok(grpc)
    }
}

fn with_metadata<Q>(message: Q, token: Option<&Token>) -> Request<Q> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token.clone());
    }
    request
}

/// The outgoing half of a watch stream. Dropping both halves ends the stream.
#[derive(Debug)]
pub(super) struct WatchRequests(mpsc::Sender<WatchRequest>);

impl WatchRequests {
    /// Opens another watch. Returns false if the stream is closed or its queue is full.
    pub(super) fn create(&self, create: WatchCreateRequest) -> bool {
        self.send(RequestUnion::Create(create))
    }

    /// Ends a watch. Returns false as [`WatchRequests::create`] does.
    pub(super) fn cancel(&self, watch_id: i64) -> bool {
        self.send(RequestUnion::Cancel(WatchCancelRequest { watch_id }))
    }

    /// Requests the progress of the stream. Returns false as [`WatchRequests::create`] does.
    pub(super) fn request_progress(&self) -> bool {
        self.send(RequestUnion::Progress(WatchProgressRequest {}))
    }

    fn send(&self, request: RequestUnion) -> bool {
        self.0.try_send(WatchRequest { request_union: Some(request) }).is_ok()
    }
}

/// The requests of a watch stream, for tonic.
struct Outgoing(mpsc::Receiver<WatchRequest>);

impl Stream for Outgoing {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.poll_recv(context)
    }
}
