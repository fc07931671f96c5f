//! Checks the events of one watcher: [`Tally`].
//!
//! Only the type and the resource version of a frame are parsed. Lost, repeated and misordered
//! events are detected by the order of the revisions and by a digest of them. The digest is
//! compared with that of the writes that the watcher selects.

use memchr::{memchr, memmem};

/// The text before a resource version in JSON.
const VERSION: &[u8] = b"\"resourceVersion\":\"";
/// The annotation of the bookmark that ends the initial events.
const INITIAL_END: &[u8] = b"k8s.io/initial-events-end";

/// The counters of a watcher.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The beginning of an incomplete frame.
    partial: Vec<u8>,
    /// The initial state is being received, in key order: revisions may fall.
    initial: bool,
    last: u64,
    /// The number of objects in the initial state.
    pub(crate) initial_objects: u64,
    pub(crate) events: Digest,
    pub(crate) duplicates: u64,
    pub(crate) misordered: u64,
    pub(crate) bookmarks: u64,
    /// The text of the first `ERROR` event.
    pub(crate) error: Option<String>,
    /// The size of the events in bytes, without bookmarks.
    pub(crate) bytes: u64,
}

/// The number of revisions, and a sum over their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) count: u64,
    sum: u64,
}

impl Digest {
    pub(crate) fn add(&mut self, revision: u64) {
        self.count += 1;
        // SplitMix64's mixing step.
        let mut mixed = revision.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.sum = self.sum.wrapping_add(mixed ^ (mixed >> 31));
    }
}

impl Tally {
    /// The counters of a watch that begins after a list, or with the initial state.
    pub(crate) fn new(initial: bool) -> Self {
        Tally { initial, ..Tally::default() }
    }

    /// True if the initial state is complete.
    pub(crate) fn synced(&self) -> bool {
        !self.initial
    }

    /// Handles bytes of the stream; `seen` is called with the revision of each event after the
    /// initial state.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut seen: impl FnMut(u64)) {
        let mut rest = bytes;
        if !self.partial.is_empty() {
            let Some(end) = memchr(b'\n', rest) else {
                self.partial.extend_from_slice(rest);
                return;
            };
            let mut frame = std::mem::take(&mut self.partial);
            frame.extend_from_slice(&rest[..end]);
            self.frame(&frame, &mut seen);
            frame.clear();
            self.partial = frame;
            rest = &rest[end + 1..];
        }
        while let Some(end) = memchr(b'\n', rest) {
            self.frame(&rest[..end], &mut seen);
            rest = &rest[end + 1..];
        }
        self.partial.extend_from_slice(rest);
    }

    fn frame(&mut self, frame: &[u8], seen: &mut impl FnMut(u64)) {
        let kind = frame.strip_prefix(b"{\"type\":\"").and_then(|rest| rest.first());
        match kind {
            Some(b'A' | b'M' | b'D') => {}
            Some(b'B') => {
                self.bookmarks += 1;
                if self.initial && memmem::find(frame, INITIAL_END).is_some() {
                    self.initial = false;
                    self.last = revision(frame).unwrap_or(0);
                }
                return;
            }
            None if frame.is_empty() => return,
            _ => {
                let text = String::from_utf8_lossy(&frame[..frame.len().min(300)]).into_owned();
                self.error.get_or_insert(text);
                return;
            }
        }
        self.bytes += frame.len() as u64 + 1;
        let Some(revision) = revision(frame) else {
            self.error.get_or_insert_with(|| "an event without a resource version".to_owned());
            return;
        };
        if self.initial {
            self.initial_objects += 1;
            return;
        }
        match revision.cmp(&self.last) {
            std::cmp::Ordering::Greater => {
                self.last = revision;
                self.events.add(revision);
                seen(revision);
            }
            std::cmp::Ordering::Equal => self.duplicates += 1,
            std::cmp::Ordering::Less => self.misordered += 1,
        }
    }
}

/// The first resource version in a JSON text.
pub(crate) fn revision(json: &[u8]) -> Option<u64> {
    let digits = &json[memmem::find(json, VERSION)? + VERSION.len()..];
    let digits = &digits[..memchr(b'"', digits)?];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\
{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"}}}\n\
{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\",\"resourceVersion\":\"3\"}}}\n\
{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"8\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n\
{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\",\"name\":\"b\"}}}\n\
{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\",\"name\":\"b\"}}}\n\
{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"resourceVersion\":\"12\",\"name\":\"b\"}}}\n\
{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"11\",\"name\":\"b\"}}}\n";

    #[test]
    fn tally_is_independent_of_read_boundaries() {
        for step in [1, 3, 50, STREAM.len()] {
            let (mut tally, mut seen) = (Tally::new(true), Vec::new());
            for piece in STREAM.as_bytes().chunks(step) {
                tally.feed(piece, |revision| seen.push(revision));
            }
            assert_eq!(seen, [9, 12]);
            assert_eq!((tally.initial_objects, tally.bookmarks), (2, 1));
            assert_eq!((tally.duplicates, tally.misordered), (1, 1));
            assert!(tally.synced() && tally.error.is_none());
            let mut expected = Digest::default();
            expected.add(12);
            expected.add(9);
            assert_eq!(tally.events, expected, "the sum does not depend on the order");
            assert_ne!(tally.events, Digest { count: 2, sum: 21 });
        }
    }

    #[test]
    fn tally_keeps_the_first_error_event() {
        let mut tally = Tally::new(false);
        tally.feed(b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"reason\":\"Expired\"}}\n", |_| {});
        assert!(tally.error.unwrap().contains("Expired"));
    }
}
