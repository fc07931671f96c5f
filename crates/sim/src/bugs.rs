//! The planted bugs: each is a plausible mistake, behind `listwatch_meta::canary!` in the crate that it breaks.

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// The name in `listwatch_meta::canary!`.
    pub name: &'static str,
    /// The guarantees that it may break first.
    pub breaks: &'static [&'static str],
    /// What is wrong.
    pub what: &'static str,
}

/// All planted bugs.
pub const BUGS: &[Bug] = &[];
