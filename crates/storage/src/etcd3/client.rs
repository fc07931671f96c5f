//! The client of etcd's gRPC API over one channel, with the calls that the store needs:
//! [`Client`].
//!
//! Every call requires a leader. So a member that is cut off from the others returns an error
//! instead of keeping a silent watch. If a user is configured, calls carry the user's token. A call
//! rejected because of an expired or outdated token is repeated once with a new token; concurrent
//! calls authenticate once. etcd checks the token before it executes a call, so this is also safe
//! for writes (`retry_interceptor.go` of etcd's client).

use std::sync::Arc;

use listwatch_grpc::{Answers, Channel, HeaderValue, Requests, Status};
use parking_lot::RwLock;
use prost::Message;

use super::fault::needs_new_token;
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, RequestUnion,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchCancelRequest, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse, path,
};

type Token = HeaderValue;

/// The responses of a watch stream.
pub(super) type WatchAnswers = Answers<WatchResponse>;

/// The calls on one channel. Clones share the channel and the token.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
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
        let client = Client { channel, auth };
        client.renew_token().await?;
        Ok(client)
    }

    /// Fetches a new token; has no effect without a user.
    pub(super) async fn renew_token(&self) -> Result<(), Status> {
        let Some(auth) = &self.auth else { return Ok(()) };
        let request = AuthenticateRequest { name: auth.user.clone(), password: auth.password.clone() };
        let answer: AuthenticateResponse = self.send(path::AUTHENTICATE, &request, None).await?;
        let mut token: Token = answer.token.parse().map_err(|_| Status::internal("etcd's token is no header value"))?;
        token.set_sensitive(true);
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
    pub(super) async fn watch(&self, create: WatchCreateRequest) -> Result<(WatchRequests, WatchAnswers), Status> {
        let Some(auth) = &self.auth else { return self.open(create, None).await };
        let token = auth.token();
        match self.open(create.clone(), token.as_ref()).await {
            Err(status) if needs_new_token(status.code, &status.message) => {
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
    ) -> Result<(WatchRequests, WatchAnswers), Status> {
        let create = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
        let (requests, answers) = self.channel.streaming(path::WATCH, &create, &metadata(token)).await?;
        Ok((WatchRequests(requests), answers))
    }

    async fn unary<A: Message + Default>(&self, path: &'static str, message: impl Message) -> Result<A, Status> {
        let Some(auth) = &self.auth else { return self.send(path, &message, None).await };
        let token = auth.token();
        match self.send(path, &message, token.as_ref()).await {
            Err(status) if needs_new_token(status.code, &status.message) => {
                let token = self.replace_token(auth, token).await?;
                self.send(path, &message, token.as_ref()).await
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

    async fn send<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        token: Option<&Token>,
    ) -> Result<A, Status> {
        self.channel.unary(path, message, &metadata(token)).await
    }
}

fn metadata(token: Option<&Token>) -> Vec<(&'static str, HeaderValue)> {
    let leader = ("hasleader", HeaderValue::from_static("true"));
    std::iter::once(leader).chain(token.map(|token| ("token", token.clone()))).collect()
}

/// The outgoing half of a watch stream. Dropping both halves ends the stream.
pub(super) struct WatchRequests(Requests<WatchRequest>);

impl WatchRequests {
    /// Opens another watch. Returns false if the stream is closed or etcd does not read it.
    pub(super) fn create(&mut self, create: WatchCreateRequest) -> bool {
        self.send(RequestUnion::Create(create))
    }

    /// Ends a watch. Returns false as [`WatchRequests::create`] does.
    pub(super) fn cancel(&mut self, watch_id: i64) -> bool {
        self.send(RequestUnion::Cancel(WatchCancelRequest { watch_id }))
    }

    /// Requests the progress of the stream. Returns false as [`WatchRequests::create`] does.
    pub(super) fn request_progress(&mut self) -> bool {
        self.send(RequestUnion::Progress(WatchProgressRequest {}))
    }

    fn send(&mut self, request: RequestUnion) -> bool {
        self.0.send(&WatchRequest { request_union: Some(request) })
    }
}
