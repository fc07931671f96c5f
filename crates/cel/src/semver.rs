//! Semantic versions 2.0.0 for Kubernetes' `semver` functions.
//!
//! Source: apiserver `pkg/cel/library/semverlib.go` and `blang/semver` v4. This module handles the
//! differences between the `semver` crate and blang's: numbers of pre-releases have 64 bits, and
//! comparisons ignore build metadata.

use std::cmp::Ordering;

/// A semantic version, as in `semver()` of the Kubernetes library.
#[derive(Clone, Debug)]
pub(crate) struct Version(semver::Version);

impl Version {
    /// Parses a version. `normalize` also accepts a leading `v`, missing numbers and leading zeros.
    pub(crate) fn parse(text: &str, normalize: bool) -> Option<Version> {
        let version = if normalize { semver::Version::parse(&normalized(text)?) } else { semver::Version::parse(text) };
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let version = version.ok()?;
        let fits =
            version.pre.split('.').all(|part| part.is_empty() || !is_number(part) || part.parse::<u64>().is_ok());
        fits.then_some(Version(version))
    }

    pub(crate) fn major(&self) -> i64 {
        self.0.major as i64
    }

    pub(crate) fn minor(&self) -> i64 {
        self.0.minor as i64
    }

    pub(crate) fn patch(&self) -> i64 {
        self.0.patch as i64
    }

    /// The order of versions; build metadata is ignored.
    pub(crate) fn compare(&self, other: &Version) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.compare(other).is_eq()
    }
}

/// Removes a leading `v` and leading zeros, and adds missing numbers. A version with missing
/// numbers has no pre-release and no build metadata.
fn normalized(text: &str) -> Option<String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return None;
    }
    parts.resize(3, "0".to_owned());
    Some(parts.join("."))
}

fn without_leading_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    match rest.starts_with(|c: char| c.is_ascii_digit()) {
        true => rest.to_owned(),
        // Only zeros: one stays.
        false if rest.len() < part.len() => format!("0{rest}"),
        false => part.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semantic_versions_are_parsed_and_compared() {
        let order =
            ["0.9.0", "1.0.0-1", "1.0.0-2", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0", "1.0.1", "1.10.0"];
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                let (Some(a), Some(b)) = (Version::parse(a, false), Version::parse(b, false)) else {
                    panic!("{a} and {b} are versions")
                };
                assert_eq!(a.compare(&b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
        for bad in ["", "1", "1.0", "v1.0.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "a.b.c"] {
            assert!(Version::parse(bad, false).is_none(), "{bad:?} is no version");
        }
        for good in ["1", "v1.2", "01.0.0", "1.0.0+b.1", "1.2.03-a", "00.0.1"] {
            assert!(Version::parse(good, true).is_some(), "{good:?} is one when it is normalized");
        }
        for bad in ["1-a", "1.2+b", "vv1", "1.2.3.4", "v", "1..2", "1.0.0-01"] {
            assert!(Version::parse(bad, true).is_none(), "{bad:?} is none when it is normalized");
        }
        assert!(Version::parse("1.0.0-18446744073709551616", false).is_none(), "numbers fit 64 bits");
    }

    #[test]
    fn build_metadata_does_not_distinguish_versions() {
        let [a, b] = ["1.0.0+a", "1.0.0+b"].map(|text| Version::parse(text, false));
        assert_eq!(a, b);
    }
}
