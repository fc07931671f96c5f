//! The errors of reads and of starting a watch: [`ReadError`], and the [`Status`] that clients see.

use std::fmt::Write as _;
use std::sync::Arc;

use listwatch_meta::go::quote;
use listwatch_meta::{GroupResource, Key, Revision, Status};
use listwatch_storage::StoreFault;

/// The error of a get, a list or the start of a watch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Neither the cache nor the store holds the revision. Read the latest state.
    #[error("revision {requested} is no longer held")]
    Expired {
        /// The requested revision.
        requested: Revision,
    },
    /// The revision of a continue token is no longer held. List again, or continue at the latest
    /// state.
    #[error("the revision of the continue token is no longer held")]
    ExpiredPage {
        /// The token that continues from the same key at the latest state.
        token: Option<String>,
    },
    /// The revision was not reached within the wait. Retry later.
    #[error("revision {requested} is ahead of {current}")]
    TooLarge {
        /// The requested revision.
        requested: Revision,
        /// The current revision.
        current: Revision,
        /// Seconds until a retry; 0 for no advice.
        retry_after_seconds: u32,
    },
    /// The cache is not filled yet. Try again later.
    #[error("storage is (re)initializing")]
    NotReady {
        /// Seconds until a retry.
        retry_after_seconds: u32,
        /// The error that delays the initial list of the store, if known.
        cause: Option<String>,
    },
    /// The store failed; the request was valid.
    #[error(transparent)]
    Fault(#[from] StoreFault),
    /// The stored value of the requested object is not an object. An operator must repair or delete the value.
    #[error("the stored value of {} is not an object: {}", .0.key, .0.reason)]
    UndecodableObject(UndecodableValue),
    /// A list or an initial state lacks objects, because their stored values are not objects.
    #[error("{} stored values are not objects", .0.len())]
    Undecodable(Vec<UndecodableValue>),
}

/// A stored value that is not an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecodableValue {
    /// The key of the value.
    pub key: Key,
    /// Why the value is not an object, for example `cipher: message authentication failed`.
    pub reason: Arc<str>,
}

impl UndecodableValue {
    /// The status of a list that covers the value, as `GetList` of `apiserver/pkg/storage/etcd3/store.go` returns it.
    /// The key does not have the prefix of the store.
    pub fn list_status(&self) -> Status {
        Status::internal(format_args!("unable to transform key {}: {}", quote(self.key.as_str()), self.reason))
    }
}

impl ReadError {
    /// The status that kube-apiserver would return.
    pub fn status(&self, gr: GroupResource<'_>) -> Status {
        match self {
            ReadError::Expired { .. } => Status::expired_list(),
            ReadError::ExpiredPage { token } => Status::expired_page(token.clone()),
            ReadError::TooLarge { requested, current, retry_after_seconds } => {
                Status::too_large_resource_version(requested.get(), current.get(), *retry_after_seconds)
            }
            ReadError::NotReady { retry_after_seconds, cause } => {
                let mut message = "storage is (re)initializing".to_owned();
                if let Some(cause) = cause {
                    let _ = write!(message, ": {cause}");
                }
                Status::too_many_requests(message, *retry_after_seconds)
            }
            ReadError::Fault(StoreFault::Unavailable(_)) => Status::server_timeout("list", gr),
            ReadError::Fault(StoreFault::Unconvertible(text)) => Status::unknown(text.as_str()),
            ReadError::Fault(fault @ StoreFault::Closed) => Status::unavailable(fault.to_string()),
            ReadError::Fault(fault) => Status::internal(fault),
            ReadError::UndecodableObject(value) => Status::internal(&value.reason),
            ReadError::Undecodable(values) => {
                let mut message = format!("failed to read one or more {} from the storage", gr.resource);
                if let Some(UndecodableValue { key, reason }) = values.first() {
                    let _ = write!(message, ": {key}: {reason}");
                }
                if values.len() > 1 {
                    let _ = write!(message, " (and {} more)", values.len() - 1);
                }
                Status::failure(500, "StorageReadError", message)
            }
        }
    }

    pub(crate) fn from_store(error: listwatch_storage::ReadError) -> Self {
        use listwatch_storage::ReadError as Store;
        match error {
            Store::Compacted { requested, .. } => ReadError::Expired { requested },
            Store::Future { requested, current } => ReadError::TooLarge { requested, current, retry_after_seconds: 0 },
            Store::Fault(fault) => ReadError::Fault(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_errors_have_the_statuses_of_kube_apiserver() {
        let gr = GroupResource { group: "", resource: "pods" };
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let value = UndecodableValue { key, reason: "cipher: message authentication failed".into() };
        for (error, code, message) in [
            (
                ReadError::Expired { requested: Revision::new(3) },
                410,
                "The resourceVersion for the provided list is too old.",
            ),
            (
                ReadError::TooLarge { requested: Revision::new(9), current: Revision::new(4), retry_after_seconds: 1 },
                504,
                "Timeout: Too large resource version: 9, current: 4",
            ),
            (
                ReadError::NotReady { retry_after_seconds: 2, cause: Some("no".to_owned()) },
                429,
                "storage is (re)initializing: no",
            ),
            (
                ReadError::Fault(StoreFault::Unavailable(String::new())),
                500,
                "The list operation against pods could not be completed at this time, please try again.",
            ),
            (ReadError::Fault(StoreFault::Unconvertible("no converter".to_owned())), 500, "no converter"),
            (ReadError::Fault(StoreFault::Closed), 503, "the store is closed"),
            (
                ReadError::UndecodableObject(value.clone()),
                500,
                "Internal error occurred: cipher: message authentication failed",
            ),
            (
                ReadError::Undecodable(vec![value.clone(), value.clone()]),
                500,
                "failed to read one or more pods from the storage: /pods/a/x: cipher: message authentication failed (and 1 more)",
            ),
        ] {
            let status = error.status(gr);
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
        let status = value.list_status();
        let message =
            "Internal error occurred: unable to transform key \"/pods/a/x\": cipher: message authentication failed";
        assert_eq!((&*status.reason, &*status.message), ("InternalError", message));
    }
}
