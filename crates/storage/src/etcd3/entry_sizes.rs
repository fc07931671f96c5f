//! Remembers the average size of each resource's entries, which determines the first page of its next list:
//! [`EntrySizes`].
//!
//! The number of keys of a page is bounded, and its bytes are estimated. If a few objects of a resource are much larger than
//! the others, a page of them exceeds [`PAGE_BYTES`]: at most 1.5 MiB for each of its keys, which are 1.5 GiB for a first
//! page of 1,024 keys. A page above gRPC's limit of 2 GiB is halved.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The number of keys of the first page, before the size of the objects is known. 128 objects of the largest size have
/// 192 MiB.
pub(super) const FIRST_PAGE_KEYS: usize = 128;

/// The largest ratio of the keys of a page to those of the page before it. The objects of a resource may differ in size.
pub(super) const PAGE_GROWTH_MAX: usize = 8;

/// The largest number of resource prefixes whose object sizes are remembered. At the bound, all are forgotten.
const PREFIXES_MAX: usize = 1_024;

/// The maximum number of keys of a page (as in Kubernetes).
const PAGE_KEYS_MAX: usize = 10_000;

/// The target size of a page in bytes, for entries of the average size. It is no bound; see the [module](self).
pub(super) const PAGE_BYTES: usize = 16 << 20;

/// The average sizes of the entries of each resource in its last list, from which the next list begins.
#[derive(Debug, Default)]
pub(super) struct EntrySizes(Mutex<HashMap<String, usize>>);

impl EntrySizes {
    /// The number of keys of the first page of a list that begins at this key.
    pub(super) fn first_page_keys(&self, start: &str) -> usize {
        let known = self.0.lock().get(resource_of(start)).copied();
        known.map_or(FIRST_PAGE_KEYS, |bytes| page_keys(bytes).min(FIRST_PAGE_KEYS * PAGE_GROWTH_MAX))
    }

    /// Records the average bytes of an entry in a page of a list that begins at this key.
    pub(super) fn note(&self, start: &str, bytes: usize) {
        let mut sizes = self.0.lock();
        if sizes.len() >= PREFIXES_MAX {
            sizes.clear();
        }
        match sizes.get_mut(resource_of(start)) {
            Some(known) => *known = bytes,
            None => drop(sizes.insert(resource_of(start).to_owned(), bytes)),
        }
    }
}

/// The part of a key that names the resource: `/pods` of `/pods/ns/a`, and `/apps.example.com/widgets`.
fn resource_of(key: &str) -> &str {
    let part_end = |from: usize| key[from..].find('/').map_or(key.len(), |length| from + length);
    let first = part_end(1.min(key.len()));
    if key[..first].contains('.') && first < key.len() { &key[..part_end(first + 1)] } else { &key[..first] }
}

/// The number of keys of a page of entries of this size.
pub(super) fn page_keys(bytes: usize) -> usize {
    (PAGE_BYTES / bytes.max(1)).clamp(1, PAGE_KEYS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_of_entries_is_remembered_by_resource() {
        let sizes = EntrySizes::default();
        sizes.note("/secrets/a/", 1 << 20);
        sizes.note("/pods/", 100);
        sizes.note("/apps.example.com/large/ns/", 1 << 20);
        for (start, expected) in [
            ("/secrets/", 16),
            ("/secrets/b/c\0", 16),
            ("/pods/", 1_024),
            ("/nodes/", FIRST_PAGE_KEYS),
            ("/apps.example.com/large/", 16),
            ("/apps.example.com/small/", FIRST_PAGE_KEYS),
            ("/", FIRST_PAGE_KEYS),
            ("", FIRST_PAGE_KEYS),
        ] {
            assert_eq!(sizes.first_page_keys(start), expected, "{start:?}");
        }
        (0..PREFIXES_MAX).for_each(|n| sizes.note(&format!("/r{n}/"), 1));
        assert!(sizes.0.lock().len() <= PREFIXES_MAX, "bounded");
    }
}
