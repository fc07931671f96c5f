//! Semantic versions 2.0.0, as Kubernetes' `semver` functions read them.

use std::cmp::Ordering;

/// A version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) numbers: [u64; 3],
    pre: Vec<String>,
    build: String,
}

impl Version {
    /// Reads a version; `normalize` takes a leading `v`, missing numbers and leading zeros too.
    pub(super) fn parse(text: &str, normalize: bool) -> Option<Version> {
        let text = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (rest, build) = text.split_once('+').unwrap_or((text, ""));
        let (core, pre) = match rest.split_once('-') {
            Some((core, pre)) => (core, pre.split('.').map(str::to_owned).collect()),
            None => (rest, Vec::new()),
        };
        let parts: Vec<&str> = core.split('.').collect();
        if parts.len() > 3 || (parts.len() < 3 && !normalize) || (text.contains('+') && build.is_empty()) {
            return None;
        }
        let mut numbers = [0; 3];
        for (index, part) in parts.iter().enumerate() {
            let digits = !part.is_empty() && part.len() < 20 && part.bytes().all(|b| b.is_ascii_digit());
            if !digits || (!normalize && part.len() > 1 && part.starts_with('0')) {
                return None;
            }
            numbers[index] = part.parse().ok()?;
        }
        let is_identifier =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let pre_is_good = pre
            .iter()
            .all(|part: &String| is_identifier(part) && !(is_number(part) && part.len() > 1 && part.starts_with('0')));
        let build_is_good = build.is_empty() || build.split('.').all(is_identifier);
        (pre_is_good && build_is_good).then(|| Version { numbers, pre, build: build.to_owned() })
    }

    /// The order of versions; builds do not count.
    pub(super) fn compare(&self, other: &Version) -> Ordering {
        let numbers = self.numbers.cmp(&other.numbers);
        numbers.then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let parts = self.pre.iter().zip(&other.pre).map(|(a, b)| match (a.parse::<u64>(), b.parse::<u64>()) {
                    (Ok(a), Ok(b)) => a.cmp(&b),
                    (Ok(_), Err(_)) => Ordering::Less,
                    (Err(_), Ok(_)) => Ordering::Greater,
                    (Err(_), Err(_)) => a.cmp(b),
                });
                let differing = parts.into_iter().find(|order| order.is_ne());
                differing.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
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
        for good in ["1", "v1.2", "01.0.0", "1.0.0+b.1"] {
            assert!(Version::parse(good, true).is_some(), "{good:?} is one when it is normalized");
        }
    }
}
