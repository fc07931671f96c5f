//! [`Clock`]: the time of writes, and timestamps in the form of API objects.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The source of the time. Tests use a fixed time.
#[derive(Debug, Default)]
pub struct Clock {
    fixed: Option<OffsetDateTime>,
}

impl Clock {
    /// A clock that always returns this time.
    pub fn fixed(time: OffsetDateTime) -> Self {
        Clock { fixed: Some(time) }
    }

    /// True if the clock always returns the same time.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// The current time.
    pub fn time(&self) -> OffsetDateTime {
        self.fixed.unwrap_or_else(OffsetDateTime::now_utc)
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
