//! One error enum per verb: each names only what can happen there and says what the caller can do.

use listwatch_meta::{Key, Revision};

use crate::types::KeyValue;

/// The store itself failed; nothing is known about the caller's request being at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// The store cannot be reached or did not answer in time. A read may be tried again. A write
    /// may or may not have happened: read before trying again.
    #[error("the store is not reachable: {0}")]
    Unavailable(String),
    /// The store has no room (disk full, quota). Reads and watches go on; try the write again
    /// after room was made.
    #[error("the store has no room left: {0}")]
    NoSpace(String),
    /// The value or request is larger than the store takes, in bytes where known. Do not retry.
    #[error("the store refuses a request of this size: {0}")]
    TooLarge(String),
    /// The store refuses this server's credential. An operator must act.
    #[error("the store refuses this server's credential: {0}")]
    Denied(String),
    /// The store holds something that cannot be: an operator must look.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
    /// The store is shutting down or was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why a get or a list failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The revision asked for is no longer held; the oldest held one is `oldest` where known.
    /// Read at the latest state instead.
    #[error("revision {requested} is compacted")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read, where the store tells.
        oldest: Option<Revision>,
    },
    /// The revision asked for has not happened yet. Wait, or read at the latest state.
    #[error("revision {requested} is ahead of the store, which is at {current}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// The store's revision.
        current: Revision,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// Why a create failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The key is taken; `current` is what is there.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The key.
        key: Key,
        /// What is there.
        current: KeyValue,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// Why an update failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The key is not at the expected revision; `current` is what is there now (`None`: nothing).
    /// Apply the change to that and try again.
    #[error("the object was changed or removed")]
    Conflict {
        /// What is there now.
        current: Option<KeyValue>,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// Why a delete failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The key is not at the expected revision; `current` is what is there now (`None`: nothing).
    #[error("the object was changed or removed")]
    Conflict {
        /// What is there now.
        current: Option<KeyValue>,
    },
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}

/// Why a watch could not begin. What ends a running watch is a
/// [`WatchItem`](crate::WatchItem), not an error of this type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The store failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}
