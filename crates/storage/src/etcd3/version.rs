//! The defects of etcd versions: [`Version`].

use std::fmt;

/// A server's version; the text after the patch number is ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Parses `3.5.16` or `3.6.0-rc.1`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(3, '.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Version { major: number()?, minor: number()?, patch: number()? })
    }

    /// Whether the answer to a progress request is reliable. Before 3.4.31 and 3.5.13 it can
    /// overtake events that it claims to follow (etcd #15220; `pkg/storage/feature` in Kubernetes).
    pub(super) fn has_reliable_progress(self) -> bool {
        match (self.major, self.minor) {
            (0..=2, _) | (3, 0..=3) => false,
            (3, 4) => self.patch >= 31,
            (3, 5) => self.patch >= 13,
            _ => true,
        }
    }

    /// Whether a compaction keeps a removal at exactly its revision. Before 3.4.36 and 3.5.18 (etcd
    /// #18089, and #19179 after a restart) it does not, and a watch that begins there misses the
    /// removal. Such a server is watched from one revision earlier, which is either complete or
    /// reported as compacted.
    pub(super) fn keeps_removal_at_compaction(self) -> bool {
        match (self.major, self.minor) {
            (0..=2, _) | (3, 0..=3) => false,
            (3, 4) => self.patch >= 36,
            (3, 5) => self.patch >= 18,
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
    fn removal_at_compacted_revision_is_lost_by_old_versions() {
        for (text, expected) in [
            ("3.4.35", false),
            ("3.4.36", true),
            ("3.5.17", false),
            ("3.5.18", true),
            ("3.6.0", true),
            ("3.3.27", false),
        ] {
            assert_eq!(Version::parse(text).map(Version::keeps_removal_at_compaction), Some(expected), "{text}");
        }
    }

    #[test]
    fn progress_is_reliable_from_etcd_3_4_31_and_3_5_13_on() {
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
            assert_eq!(Version::parse(text).map(Version::has_reliable_progress), Some(expected), "{text}");
        }
        for text in ["", "3", "3.5", "three.five.one", "3.x.1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
