//! Which etcd can be asked for its progress: [`Version`] and the rule that Kubernetes goes by.

use std::fmt;

/// A server's version; what follows the patch number is ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Reads `3.5.16` or `3.6.0-rc.1`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(3, '.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Version { major: number()?, minor: number()?, patch: number()? })
    }

    /// May an answer to a progress request be believed? Before 3.4.31 and 3.5.13 it can overtake
    /// events that it claims to come after (etcd #15220; `pkg/storage/feature` in Kubernetes).
    pub(super) fn answers_progress_truly(self) -> bool {
        match (self.major, self.minor) {
            (0..=2, _) | (3, 0..=3) => false,
            (3, 4) => self.patch >= 31,
            (3, 5) => self.patch >= 13,
            _ => true,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_believed_from_the_fixed_versions_on() {
        for (text, expected) in [
            ("3.3.27", false),
            ("3.4.23", false),
            ("3.4.30", false),
            ("3.4.31", true),
            ("3.5.1", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.5.16+git", true),
            ("3.6.0-rc.1", true),
            ("3.7.2", true),
            ("4.0.0", true),
            ("2.3.8", false),
        ] {
            assert_eq!(Version::parse(text).map(Version::answers_progress_truly), Some(expected), "{text}");
        }
        for text in ["", "3", "3.5", "three.five.one", "3.x.1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
