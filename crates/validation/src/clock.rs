//! [`Clock`]: the time of writes, and timestamps in the form of API objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The source of the time. Tests use a fixed time, or a time that they change.
#[derive(Debug, Default)]
pub struct Clock {
    source: Source,
}

#[derive(Debug, Default)]
enum Source {
    #[default]
    System,
    Fixed(OffsetDateTime),
    /// The seconds since the Unix epoch.
    Shared(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that always returns this time.
    pub fn fixed(time: OffsetDateTime) -> Self {
        Clock { source: Source::Fixed(time) }
    }

    /// A clock that returns the time that a counter holds, in seconds since the Unix epoch. Tests change the counter.
    pub fn shared(seconds: Arc<AtomicI64>) -> Self {
        Clock { source: Source::Shared(seconds) }
    }

    /// True if the clock does not follow the time of the system.
    pub fn is_fixed(&self) -> bool {
        !matches!(self.source, Source::System)
    }

    /// The current time.
    pub fn time(&self) -> OffsetDateTime {
        match &self.source {
            Source::System => OffsetDateTime::now_utc(),
            Source::Fixed(time) => *time,
            // A counter outside the years of `OffsetDateTime` counts as the epoch.
            Source::Shared(seconds) => OffsetDateTime::from_unix_timestamp(seconds.load(Ordering::Relaxed))
                .unwrap_or(OffsetDateTime::UNIX_EPOCH),
        }
    }

    /// The current time as a timestamp of an object ([`timestamp`]).
    pub fn now(&self) -> String {
        timestamp(self.time())
    }
}

/// Formats a time for an object: RFC 3339, whole seconds, UTC. Empty for years after 9999.
pub fn timestamp(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC).truncate_to_second();
    time.format(&Rfc3339).unwrap_or_default()
}

/// Parses a timestamp; `None` if the text is not valid.
pub fn parse_timestamp(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}
