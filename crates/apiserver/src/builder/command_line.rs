//! The settings of `/flagz`, which shows the flags of the process, and of `/statusz`.

use super::Builder;

impl Builder {
    /// The flags with which the process was started, by name without dashes. `/flagz` shows them to users with the
    /// permission, so the values must contain no secrets. Default: none.
    #[must_use]
    pub fn command_line_flags(mut self, flags: impl IntoIterator<Item = (String, String)>) -> Self {
        self.flags = flags.into_iter().collect();
        self
    }

    /// Whether the server serves `/flagz` (`ComponentFlagz`). Default: yes.
    #[must_use]
    pub fn flagz(mut self, on: bool) -> Self {
        self.zpages.flagz = on;
        self
    }

    /// Whether the server serves `/statusz` (`ComponentStatusz`). Default: yes.
    #[must_use]
    pub fn statusz(mut self, on: bool) -> Self {
        self.zpages.statusz = on;
        self
    }
}
