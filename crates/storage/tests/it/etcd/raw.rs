//! A client of etcd's gRPC API for tests, independent of the store under test: [`Raw`].

use bytes::Bytes;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

#[allow(dead_code, reason = "the store's messages, of which the tests need a part")]
#[path = "../../../src/etcd3/proto.rs"]
pub(super) mod proto;

use proto::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, KeyValue, LeaseGrantRequest,
    LeaseGrantResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, RequestUnion, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse, path,
};

/// Messages that the store does not use.
mod messages {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Empty {}

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Number {
        /// `ID` of LeaseRevokeRequest and of LeaseStatus, `targetID` of MoveLeaderRequest.
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Numbers {
        /// `leases` of LeaseLeasesResponse.
        #[prost(message, repeated, tag = "2")]
        pub(super) items: Vec<Number>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Names {
        /// The name of a user or a role.
        #[prost(string, tag = "1")]
        pub(super) name: String,
        /// A user's password, or the role that a user gets.
        #[prost(string, tag = "2")]
        pub(super) other: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RoleGrantPermission {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(message, optional, tag = "2")]
        pub(super) permission: Option<Permission>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Permission {
        /// 2: read and write.
        #[prost(int32, tag = "1")]
        pub(super) kind: i32,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) key: Vec<u8>,
        #[prost(bytes = "vec", tag = "3")]
        pub(super) range_end: Vec<u8>,
    }
}

use messages::{Empty, Names, Number, Numbers, Permission, RoleGrantPermission};

/// A connection to one member. Every call panics if etcd refuses it.
#[derive(Clone)]
pub(crate) struct Raw {
    grpc: Grpc<Channel>,
}

impl Raw {
    pub(crate) fn connect(url: &str) -> Self {
        let channel = Endpoint::from_shared(url.to_owned()).expect("a URL").connect_lazy();
        Raw { grpc: Grpc::new(channel).max_decoding_message_size(i32::MAX as usize) }
    }

    async fn try_call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(Request::new(message), path, ProstCodec::default()).await?.into_inner())
    }

    async fn call<Q: Message + 'static, A: Message + Default + 'static>(&self, path: &'static str, message: Q) -> A {
        self.try_call(path, message).await.expect("etcd agrees")
    }

    /// Returns the revision of the write.
    pub(crate) async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> i64 {
        self.put_leased(key, value, 0).await
    }

    pub(crate) async fn put_leased(&self, key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> i64 {
        let put = PutRequest { key: key.into().to_vec(), value: value.into(), lease };
        let answer: PutResponse = self.call("/etcdserverpb.KV/Put", put).await;
        answer.header.expect("a header").revision
    }

    /// Puts all entries in one transaction.
    pub(crate) async fn put_all(&self, entries: impl IntoIterator<Item = (String, Vec<u8>)>, lease: i64) {
        let puts =
            entries.into_iter().map(|(key, value)| PutRequest { key: key.into_bytes(), value: value.into(), lease });
        let txn = TxnRequest { success: puts.map(RequestOp::put).collect(), ..TxnRequest::default() };
        let _: TxnResponse = self.call(path::TXN, txn).await;
    }

    pub(crate) async fn get(&self, key: &str) -> Option<KeyValue> {
        let answer: RangeResponse =
            self.call(path::RANGE, RangeRequest { key: key.into(), ..RangeRequest::default() }).await;
        answer.kvs.into_iter().next()
    }

    pub(crate) async fn delete(&self, key: &str) {
        let delete = DeleteRangeRequest { key: key.into(), range_end: Vec::new() };
        let _: DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", delete).await;
    }

    pub(crate) async fn compact(&self, revision: i64) {
        let _: CompactionResponse = self.call(path::COMPACT, CompactionRequest { revision, physical: false }).await;
    }

    pub(crate) async fn lease_grant(&self, seconds: i64) -> i64 {
        let answer: LeaseGrantResponse = self.call(path::LEASE_GRANT, LeaseGrantRequest { ttl: seconds, id: 0 }).await;
        answer.id
    }

    pub(crate) async fn lease_revoke(&self, id: i64) {
        let _: Empty = self.call("/etcdserverpb.Lease/LeaseRevoke", Number { id: id.cast_unsigned() }).await;
    }

    pub(crate) async fn leases(&self) -> Vec<i64> {
        let answer: Numbers = self.call("/etcdserverpb.Lease/LeaseLeases", Empty {}).await;
        answer.items.iter().map(|lease| lease.id.cast_signed()).collect()
    }

    pub(crate) async fn status(&self) -> StatusResponse {
        self.call(path::STATUS, StatusRequest {}).await
    }

    /// The status of a member that may be unreachable.
    pub(crate) async fn try_status(&self) -> Result<StatusResponse, Status> {
        self.try_call(path::STATUS, StatusRequest {}).await
    }

    /// Makes this member, which must be the leader, give its role to another member.
    pub(crate) async fn try_move_leader(&self, id: u64) -> Result<(), Status> {
        self.try_call("/etcdserverpb.Maintenance/MoveLeader", Number { id }).await.map(|Empty {}| ())
    }

    /// The responses to a watch of `key..end`. Dropping the stream ends the watch.
    pub(crate) async fn watch(&self, key: &str, end: &str, start_revision: i64) -> Streaming<WatchResponse> {
        let create = WatchCreateRequest {
            key: key.into(),
            range_end: end.into(),
            start_revision,
            prev_kv: true,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
        // The request stream stays open, because etcd ends a watch with it.
        let requests =
            futures_util::StreamExt::chain(futures_util::stream::iter([request]), futures_util::stream::pending());
        let mut grpc = self.grpc.clone();
        grpc.ready().await.expect("a connection");
        let path = PathAndQuery::from_static(path::WATCH);
        grpc.streaming(Request::new(requests), path, ProstCodec::default()).await.expect("etcd agrees").into_inner()
    }

    /// Adds a user with a role of the same name.
    pub(crate) async fn add_user(&self, name: &str, password: &str) {
        let names = |other: &str| Names { name: name.to_owned(), other: other.to_owned() };
        let _: Empty = self.call("/etcdserverpb.Auth/UserAdd", names(password)).await;
        let _: Empty = self.call("/etcdserverpb.Auth/RoleAdd", names("")).await;
        let _: Empty = self.call("/etcdserverpb.Auth/UserGrantRole", names(name)).await;
    }

    /// Grants the role read and write access to `key`, or to `key..end`.
    pub(crate) async fn allow(&self, role: &str, key: &str, end: &str) {
        let permission = Permission { kind: 2, key: key.into(), range_end: end.into() };
        let grant = RoleGrantPermission { name: role.to_owned(), permission: Some(permission) };
        let _: Empty = self.call("/etcdserverpb.Auth/RoleGrantPermission", grant).await;
    }

    pub(crate) async fn enable_auth(&self) {
        let _: Empty = self.call("/etcdserverpb.Auth/AuthEnable", Empty {}).await;
    }
}
