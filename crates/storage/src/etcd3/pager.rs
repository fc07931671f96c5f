//! Reads a range in pages of one revision: chooses the next page and detects the end.
//!
//! One range of 150,000 objects in one gRPC message would be in memory three times: as HTTP/2
//! frames, as a message and as objects. The message would also delay all other calls on the
//! connection. So a list is read in pages, which are pinned to the revision of the first page. The
//! number of their keys follows from the average size of the entries before ([`super::entry_sizes`]). Compaction can overtake the pages, so that a list slower than compaction would
//! never complete (kubernetes #136950). The rest is then read as one range, which etcd answers from
//! one snapshot.

use listwatch_meta::Revision;

use super::entry_sizes::{PAGE_BYTES, PAGE_GROWTH_MAX, page_keys};
use crate::types::{KeyValue, ListPage};

/// The number of keys of the first page of a list without values.
pub(super) const KEYS_ONLY_FIRST_PAGE: usize = 1_000;

/// The number of timeouts of one list after each of which it is repeated with smaller pages. etcd may also be slow for
/// another reason. The list then fails after the time of three requests.
const TIMEOUTS_MAX: u32 = 2;

/// A request for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRequest {
    /// The first key.
    pub(super) key: Vec<u8>,
    /// The first key after the range.
    pub(super) end: Vec<u8>,
    /// The pinned revision; zero for the latest.
    pub(super) at: Revision,
    /// The maximum number of keys; 0 for no limit.
    pub(super) limit: usize,
}

/// A response with a page.
#[derive(Debug)]
pub(super) struct Page {
    /// The entries of this store.
    pub(super) items: Vec<KeyValue>,
    /// The number of received keys, including foreign ones.
    pub(super) received: usize,
    /// The size of the entries in bytes.
    pub(super) bytes: usize,
    /// The last received key.
    pub(super) last_key: Option<Vec<u8>>,
    /// More keys of the range follow.
    pub(super) more: bool,
    /// The number of keys in the range, from the first requested key on.
    pub(super) count: usize,
    /// The store's revision at the response.
    pub(super) revision: Revision,
}

/// The state of one list. Until the list is complete, the caller sends [`Pager::request`] and passes
/// each response to [`Pager::handle_page`].
#[derive(Debug)]
pub(super) struct Pager {
    start: Vec<u8>,
    next: Vec<u8>,
    end: Vec<u8>,
    /// The requested revision; zero for the latest.
    asked_at: Revision,
    /// The revision of the first page.
    pinned: Option<Revision>,
    /// The requested limit; 0 for everything.
    limit: usize,
    page_keys: usize,
    /// The number of timeouts so far.
    timeouts: u32,
    /// The average bytes of an entry in the last page.
    entry_bytes: Option<usize>,
    /// Compaction overtook the pages: the rest is read as one range.
    single: bool,
    items: Vec<KeyValue>,
}

impl Pager {
    /// Creates a list of `start..end` (keys in etcd) at a revision (zero for the latest), whose first page has at most
    /// `page_keys` keys.
    pub(super) fn new(start: Vec<u8>, end: Vec<u8>, at: Revision, limit: usize, page_keys: usize) -> Self {
        Pager {
            next: start.clone(),
            start,
            end,
            asked_at: at,
            pinned: None,
            limit,
            page_keys,
            timeouts: 0,
            entry_bytes: None,
            single: false,
            items: Vec::new(),
        }
    }

    /// The next page to request.
    pub(super) fn request(&self) -> PageRequest {
        let wanted = if self.limit == 0 { usize::MAX } else { self.limit - self.items.len() };
        let limit = match (self.single, wanted) {
            (true, usize::MAX) => 0,
            (true, wanted) => wanted,
            (false, wanted) => wanted.min(self.page_keys),
        };
        PageRequest { key: self.next.clone(), end: self.end.clone(), at: self.pinned.unwrap_or(self.asked_at), limit }
    }

    /// Adds a page; `Some` when the list is complete.
    pub(super) fn handle_page(&mut self, mut page: Page) -> Option<ListPage> {
        // The header of a read at a revision has the store's current revision, not the read's.
        let revision = *self.pinned.get_or_insert(if self.asked_at.is_zero() { page.revision } else { self.asked_at });
        if self.items.is_empty() {
            self.items = page.items;
            if self.limit == 0 && page.more {
                self.items.reserve_exact(page.count.saturating_sub(page.received));
            }
        } else {
            self.items.append(&mut page.items);
        }
        let average = (page.bytes / page.received.max(1)).max(1);
        self.entry_bytes = Some(average).filter(|_| page.received > 0);
        let full = self.limit != 0 && self.items.len() >= self.limit;
        if full || !page.more {
            let remaining = page.count.saturating_sub(page.received) as u64;
            let items = std::mem::take(&mut self.items);
            return Some(ListPage { items, revision, more: page.more, remaining: Some(remaining) });
        }
        self.page_keys = page_keys(average).min(self.page_keys.saturating_mul(PAGE_GROWTH_MAX));
        if let Some(mut last) = page.last_key {
            last.push(0);
            self.next = last;
        }
        None
    }

    /// Handles a page that was too large for one message. True when the list continues with smaller pages.
    pub(super) fn handle_too_large(&mut self) -> bool {
        let sent = self.request().limit;
        if self.single || sent <= 1 {
            return false;
        }
        self.page_keys = sent / 2;
        self.entry_bytes = Some(PAGE_BYTES / self.page_keys);
        true
    }

    /// Handles a page that did not arrive in time. True when the list continues with smaller pages.
    pub(super) fn handle_timeout(&mut self) -> bool {
        self.timeouts += 1;
        self.timeouts <= TIMEOUTS_MAX && self.handle_too_large()
    }

    /// Whether a page of this list has arrived.
    pub(super) fn has_page(&self) -> bool {
        self.pinned.is_some()
    }

    /// The average bytes of an entry in the last page, if known.
    pub(super) fn entry_bytes(&self) -> Option<usize> {
        self.entry_bytes
    }

    /// Handles compaction of the pages' revision. True when the list restarts as one range; false
    /// when the caller requested exactly that revision, so that it fails.
    pub(super) fn handle_compacted(&mut self) -> bool {
        if !self.asked_at.is_zero() || self.pinned.is_none() || self.single {
            return false;
        }
        self.items.clear();
        self.next.clone_from(&self.start);
        self.pinned = None;
        self.single = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use listwatch_meta::Key;
    use proptest::prelude::*;

    use super::super::entry_sizes::FIRST_PAGE_KEYS;
    use super::*;

    /// A range of keys with foreign ones among them, answered as by etcd.
    struct Etcd {
        keys: Vec<(Vec<u8>, bool)>,
        value_bytes: usize,
        now: Revision,
    }

    impl Etcd {
        fn answer(&self, request: &PageRequest) -> Page {
            let inside: Vec<_> =
                self.keys.iter().filter(|(key, _)| *key >= request.key && *key < request.end).collect();
            let limit = if request.limit == 0 { inside.len() } else { request.limit.min(inside.len()) };
            let items = inside[..limit]
                .iter()
                .filter(|(_, ours)| *ours)
                .map(|(key, _)| KeyValue {
                    key: Key::from_path(std::str::from_utf8(key).unwrap()).unwrap(),
                    value: Bytes::new(),
                    created: Revision::new(1),
                    modified: Revision::new(1),
                    stale: false,
                })
                .collect();
            Page {
                items,
                received: limit,
                bytes: limit * self.value_bytes,
                last_key: inside[..limit].last().map(|(key, _)| key.clone()),
                more: limit < inside.len(),
                count: inside.len(),
                revision: self.now,
            }
        }

        fn list(&mut self, mut pager: Pager) -> (ListPage, Vec<usize>) {
            let mut sizes = Vec::new();
            loop {
                let request = pager.request();
                sizes.push(request.limit);
                let page = self.answer(&request);
                self.now = self.now.next();
                if let Some(done) = pager.handle_page(page) {
                    return (done, sizes);
                }
            }
        }
    }

    fn etcd(keys: usize, value_bytes: usize, foreign_every: usize) -> Etcd {
        let keys =
            (0..keys).map(|n| (format!("/p/{n:06}").into_bytes(), n % foreign_every.max(1) != foreign_every - 1));
        Etcd { keys: keys.collect(), value_bytes, now: Revision::new(100) }
    }

    fn pager(at: u64, limit: usize) -> Pager {
        Pager::new(b"/p/".to_vec(), b"/p0".to_vec(), Revision::new(at), limit, FIRST_PAGE_KEYS)
    }

    #[test]
    fn pages_grow_with_the_measured_object_size() {
        for (value_bytes, expected) in [
            (100, vec![128, 1_024, 8_192, 10_000, 10_000]),
            (1 << 10, vec![128, 1_024, 8_192, 10_000, 10_000]),
            (4 << 10, vec![128, 1_024, 4_096, 4_096, 4_096, 4_096, 4_096, 4_096]),
            (1 << 20, vec![128, 16, 16]),
        ] {
            let (page, sizes) = etcd(25_000, value_bytes, usize::MAX).list(pager(0, 0));
            assert_eq!((page.items.len(), page.more, page.remaining), (25_000, false, Some(0)));
            assert_eq!(sizes[..expected.len().min(sizes.len())], expected[..expected.len().min(sizes.len())]);
            assert_eq!(page.revision, Revision::new(100), "all pages are of the first one's revision");
        }
    }

    #[test]
    fn page_that_is_too_large_or_late_is_halved() {
        let mut large = pager(0, 0);
        let mut limits = vec![large.request().limit];
        while large.handle_too_large() {
            limits.push(large.request().limit);
        }
        assert_eq!(limits, [128, 64, 32, 16, 8, 4, 2, 1]);
        assert_eq!(large.entry_bytes(), Some(PAGE_BYTES));

        let mut late = pager(0, 100);
        assert!(late.handle_timeout() && late.handle_timeout());
        assert_eq!(late.request().limit, 25, "the caller's limit is smaller than a page");
        assert!(!late.handle_timeout(), "etcd is slow for another reason");
    }

    #[test]
    fn list_at_a_revision_shows_that_revision() {
        let (page, _) = etcd(10, 1, usize::MAX).list(pager(7, 3));
        assert_eq!((page.revision, page.items.len(), page.more, page.remaining), (Revision::new(7), 3, true, Some(7)));
    }

    #[test]
    fn list_overtaken_by_compaction_restarts_as_one_range() {
        let mut etcd = etcd(5_000, 1, usize::MAX);
        let mut pager = pager(0, 0);
        assert!(pager.handle_page(etcd.answer(&pager.request())).is_none());
        assert!(pager.handle_compacted());
        assert_eq!(
            pager.request(),
            PageRequest { key: b"/p/".to_vec(), end: b"/p0".to_vec(), at: Revision::ZERO, limit: 0 }
        );
        etcd.now = Revision::new(500);
        let page = pager.handle_page(etcd.answer(&pager.request())).expect("one range is all");
        assert_eq!((page.items.len(), page.revision), (5_000, Revision::new(500)));

        assert!(!self::pager(0, 0).handle_compacted(), "the latest revision is never compacted");
        let mut limited = self::pager(0, 10);
        let foreign = || Page {
            items: Vec::new(),
            received: 10,
            bytes: 10,
            last_key: Some(b"/p/a".to_vec()),
            more: true,
            count: 20,
            revision: Revision::new(500),
        };
        assert!(limited.handle_page(foreign()).is_none());
        assert!(limited.handle_compacted());
        assert!(limited.handle_page(foreign()).is_none());
        assert!(!limited.handle_compacted(), "a list restarts once");

        let mut exact = self::pager(7, 0);
        assert!(exact.handle_page(etcd.answer(&exact.request())).is_none());
        assert!(!exact.handle_compacted(), "an exact revision is not replaced by another");
    }

    proptest! {
        #[test]
        fn each_own_key_is_listed_once(keys in 0usize..4_000, limit in 0usize..2_500, foreign_every in 1usize..6) {
            let mut etcd = etcd(keys, 1, foreign_every);
            let ours: Vec<_> = etcd.keys.iter().filter(|(_, ours)| *ours).map(|(key, _)| key.clone()).collect();
            let mut told = Vec::new();
            let mut start = b"/p/".to_vec();
            loop {
                let (page, _) = etcd.list(Pager::new(start, b"/p0".to_vec(), Revision::ZERO, limit, FIRST_PAGE_KEYS));
                prop_assert!(limit == 0 || page.items.len() <= limit);
                told.extend(page.items.iter().map(|item| item.key.as_str().as_bytes().to_vec()));
                prop_assert_eq!(page.more, page.remaining != Some(0));
                if !page.more {
                    break;
                }
                prop_assert_eq!(page.items.len(), limit, "a page with more behind it is full");
                start = told.last().unwrap().clone();
                start.push(0);
            }
            prop_assert_eq!(told, ours);
        }
    }
}
