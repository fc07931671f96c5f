//! The two forms of a version: [`Revision`] (a number of the store) and [`ResourceVersion`] (the
//! text a client holds), with the only conversions between them.
//!
//! For clients, `resourceVersion` is opaque; for the server, it is a revision of the store. With
//! two types the compiler rejects code that passes a client's text to the store unparsed, or shows
//! the store's number to a client unformatted.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A revision of the store: the number of the write that produced a state.
///
/// One sequence of revisions covers all resources, as etcd's `mod_revision` does. Revisions start
/// at 1. [`Revision::ZERO`] precedes every write and is never the revision of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(u64);

impl Revision {
    /// The revision before every write.
    pub const ZERO: Revision = Revision(0);

    /// Wraps this number.
    pub const fn new(revision: u64) -> Self {
        Revision(revision)
    }

    /// The number, for the store's requests and for metrics.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The revision right after this one.
    ///
    /// # Panics
    /// In debug builds on overflow, which takes 2^64 writes.
    pub const fn next(self) -> Self {
        Revision(self.0 + 1)
    }

    /// The revision right before this one; [`Revision::ZERO`] is returned unchanged.
    pub const fn previous(self) -> Self {
        Revision(self.0.saturating_sub(1))
    }

    /// True for [`Revision::ZERO`].
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The opaque text a client sends and receives as `resourceVersion`.
///
/// Clients may compare two of them for equality and send one back; only this module parses them.
/// The empty text means "not given".
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// Wraps a client's text without a check; [`ResourceVersion::revision`] checks it.
    pub fn new(text: impl Into<String>) -> Self {
        ResourceVersion(text.into())
    }

    /// The text as the client sent it or will see it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True when no version was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The revision of this version; `""` and `"0"` are both [`Revision::ZERO`].
    ///
    /// # Errors
    /// [`InvalidResourceVersion`] when the text is not an unsigned 64-bit decimal number. The
    /// error's message equals that of kube-apiserver.
    pub fn revision(&self) -> Result<Revision, InvalidResourceVersion> {
        if self.0.is_empty() {
            return Ok(Revision::ZERO);
        }
        // Go's ParseUint accepts digits only: no sign, no space, no underscore.
        let digits_only = self.0.bytes().all(|b| b.is_ascii_digit());
        match self.0.parse::<u64>() {
            Ok(number) if digits_only => Ok(Revision(number)),
            _ => Err(InvalidResourceVersion { text: self.0.clone(), out_of_range: digits_only }),
        }
    }
}

impl From<Revision> for ResourceVersion {
    fn from(revision: Revision) -> Self {
        ResourceVersion(revision.0.to_string())
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rv{:?}", self.0)
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error for a `resourceVersion` that is not an unsigned 64-bit number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {}",
    if *.out_of_range { "value out of range" } else { "invalid syntax" }
)]
pub struct InvalidResourceVersion {
    /// The client's text.
    pub text: String,
    /// True when the text is a number above 2^64-1.
    pub out_of_range: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_zero_versions_parse_as_revision_zero() {
        assert_eq!(ResourceVersion::new("").revision(), Ok(Revision::ZERO));
        assert_eq!(ResourceVersion::new("0").revision(), Ok(Revision::ZERO));
        assert_eq!(ResourceVersion::new("17").revision(), Ok(Revision::new(17)));
        assert_eq!(ResourceVersion::from(Revision::new(17)).as_str(), "17");
    }

    #[test]
    fn invalid_resource_version_fails_with_gos_error_text() {
        for (text, cause) in [
            ("abc", "invalid syntax"),
            ("-1", "invalid syntax"),
            ("+1", "invalid syntax"),
            (" 1", "invalid syntax"),
            ("18446744073709551616", "value out of range"),
        ] {
            let error = ResourceVersion::new(text).revision().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {cause}")
            );
        }
    }
}
