//! The errors of the store, one enum per verb: each lists only the errors that can occur and the
//! caller's next step.

use listwatch_meta::{Key, Revision};

use crate::types::KeyValue;

/// The store itself failed; the request may be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// The store is unreachable or did not answer in time. A read may be retried. A write may or
    /// may not have happened: read before retrying.
    #[error("the store is not reachable: {0}")]
    Unavailable(String),
    /// The store is full (disk or quota). Reads and watches continue; retry the write when space is
    /// free. The write may have taken effect: etcd stores the write that exceeds its quota and
    /// returns this error (`quotaApplierV3.Put` in `server/etcdserver/apply`).
    #[error("the store has no room left: {0}")]
    NoSpace(String),
    /// The value or request exceeds the store's limit. The text contains the size, if known. Do not
    /// retry.
    #[error("the store refuses a request of this size: {0}")]
    TooLarge(String),
    /// The store rejects this server's credential. An operator must act.
    #[error("the store refuses this server's credential: {0}")]
    Denied(String),
    /// The stored data is invalid. An operator must act.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
    /// A value cannot be converted to the form of the reader, because a converter outside of the store fails. The text is
    /// complete. Only wrappers of stores report this. Retry later.
    #[error("{0}")]
    Unconvertible(String),
    /// The store is shutting down or was closed.
    #[error("the store is closed")]
    Closed,
}

/// The error of a get or a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The requested revision is compacted; the oldest available one is `oldest`, if known. Read at
    /// the latest state instead.
    #[error("revision {requested} is compacted")]
    Compacted {
        /// The requested revision.
        requested: Revision,
        /// The oldest readable revision, if known.
        oldest: Option<Revision>,
    },
    /// The requested revision does not exist yet. Wait, or read at the latest state.
    #[error("revision {requested} is ahead of the store, which is at {current}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The store's revision.
        current: Revision,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// The error of a create.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The key exists, with the state `current`.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The key.
        key: Key,
        /// The existing state.
        current: KeyValue,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// The error of an update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The key is not at the expected revision; `current` is its current state (`None` if absent).
    /// Apply the change to that state and retry.
    #[error("the object was changed or removed")]
    Conflict {
        /// The current state.
        current: Option<KeyValue>,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// The error of a delete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The key is not at the expected revision; `current` is its current state (`None` if absent).
    #[error("the object was changed or removed")]
    Conflict {
        /// The current state.
        current: Option<KeyValue>,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// The error of starting a watch. The end of a running watch is a [`WatchItem`](crate::WatchItem)
/// instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}
