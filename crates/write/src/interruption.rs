//! [`Interruption`]: the reason why a pass through the write pipeline ended without a decision.

use listwatch_meta::{Status, fuel};

use super::store::StoreError;

/// The reason why a pass through the pipeline ended without a decision.
pub(super) enum Interruption {
    /// An error that ends the write, with the Status for the client.
    Status(Box<Status>),
    /// The object exceeds the size limit of the store.
    TooLarge(Box<Status>),
    /// The store failed, and it is unknown whether the object was written.
    Unknown(Box<Status>),
    /// The fuel was used up before any write to the store.
    Abandoned(Box<Status>),
}

impl Interruption {
    /// Returns the Status for the client.
    pub(super) fn into_status(self) -> Status {
        match self {
            Interruption::Status(status)
            | Interruption::TooLarge(status)
            | Interruption::Unknown(status)
            | Interruption::Abandoned(status) => *status,
        }
    }
}

impl From<Status> for Interruption {
    fn from(status: Status) -> Self {
        Interruption::Status(Box::new(status))
    }
}

impl From<StoreError> for Interruption {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::TooLarge(status) => Interruption::TooLarge(Box::new(status)),
            StoreError::Abandoned(status) => Interruption::Abandoned(Box::new(status)),
            StoreError::Unknown(status) => Interruption::Unknown(Box::new(status)),
            StoreError::Other(status) => Interruption::Status(Box::new(status)),
        }
    }
}

/// Fails if the fuel is used up. Plugins must not receive an object that may be incomplete.
pub(super) fn check_fuel() -> Result<(), Interruption> {
    if fuel::is_exhausted() { Err(Interruption::Abandoned(Box::new(Status::request_timed_out()))) } else { Ok(()) }
}
