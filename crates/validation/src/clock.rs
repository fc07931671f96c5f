//! [`Clock`]: the time that writes carry, and timestamps as objects hold them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The source of the time; a test fixes it.
#[derive(Debug, Default)]
pub struct Clock {
    fixed: Option<OffsetDateTime>,
}

impl Clock {
    /// A clock that always shows this time.
    pub fn fixed(time: OffsetDateTime) -> Self {
        Clock { fixed: Some(time) }
    }

    /// Whether the clock always shows the same time.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// The time.
    pub fn time(&self) -> OffsetDateTime {
        self.fixed.unwrap_or_else(OffsetDateTime::now_utc)
    }

    /// The time as objects hold it ([`timestamp`]).
    pub fn now(&self) -> String {
        timestamp(self.time())
    }
}

/// A time as objects hold it: RFC 3339, whole seconds, UTC. Empty for years beyond 9999.
pub fn timestamp(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC).truncate_to_second();
    time.format(&Rfc3339).unwrap_or_default()
}

/// The time in a timestamp; `None` where the text is none.
pub fn parse_timestamp(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}
