//! Reading a range in pages of one revision: which page comes next, and when it is enough.
//!
//! One range of 150,000 objects in one gRPC message would be held three times (HTTP/2 frames,
//! message, objects) and would stand in front of everything else on the connection. So a list is
//! read in pages that are pinned to the revision of the first one and sized by bytes. Pages can be
//! overtaken by compaction, and a list that is slower than compaction would never end (kubernetes
//! #136950); then the rest of the story is one single range, which etcd answers from one snapshot.

use listwatch_meta::Revision;

use crate::types::{KeyValue, ListPage};

/// The first page of a list asks for this many keys: what their objects weigh is not known yet.
const FIRST_PAGE_KEYS: usize = 1_000;

/// No page asks for more keys than this (as in Kubernetes).
const PAGE_KEYS_MAX: usize = 10_000;

/// Pages are sized to weigh about this much. Objects are at most 1.5 MiB, so that a page of
/// unlucky size stays far below what gRPC takes.
const PAGE_BYTES: usize = 16 << 20;

/// What to ask etcd for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRequest {
    /// The first key.
    pub(super) key: Vec<u8>,
    /// The first key past the range.
    pub(super) end: Vec<u8>,
    /// Pinned to this revision; zero for the latest.
    pub(super) at: Revision,
    /// At most so many keys; 0 is no limit.
    pub(super) limit: usize,
}

/// What etcd answered.
#[derive(Debug)]
pub(super) struct Page {
    /// The entries that are ours.
    pub(super) items: Vec<KeyValue>,
    /// How many keys came, with those that are not ours.
    pub(super) received: usize,
    /// What they weigh.
    pub(super) bytes: usize,
    /// The last key that came.
    pub(super) last_key: Option<Vec<u8>>,
    /// More keys of the range follow.
    pub(super) more: bool,
    /// How many keys the range holds, from the first key asked for.
    pub(super) count: usize,
    /// The store's revision when it answered.
    pub(super) revision: Revision,
}

/// One list under way. Ask [`Pager::request`], answer [`Pager::handle_page`], until it is done.
#[derive(Debug)]
pub(super) struct Pager {
    start: Vec<u8>,
    next: Vec<u8>,
    end: Vec<u8>,
    /// What the caller asked for; zero for the latest.
    asked_at: Revision,
    /// The revision of the first page.
    pinned: Option<Revision>,
    /// What the caller wants; 0 for everything.
    limit: usize,
    page_keys: usize,
    /// The pages were overtaken by compaction: everything in one range.
    single: bool,
    items: Vec<KeyValue>,
}

impl Pager {
    /// A list of `start..end` (keys in etcd) at a revision (zero for the latest).
    pub(super) fn new(start: Vec<u8>, end: Vec<u8>, at: Revision, limit: usize) -> Self {
        Pager {
            next: start.clone(),
            start,
            end,
            asked_at: at,
            pinned: None,
            limit,
            page_keys: FIRST_PAGE_KEYS,
            single: false,
            items: Vec::new(),
        }
    }

    /// The page to ask for now.
    pub(super) fn request(&self) -> PageRequest {
        let wanted = if self.limit == 0 { usize::MAX } else { self.limit - self.items.len() };
        let limit = match (self.single, wanted) {
            (true, usize::MAX) => 0,
            (true, wanted) => wanted,
            (false, wanted) => wanted.min(self.page_keys),
        };
        PageRequest { key: self.next.clone(), end: self.end.clone(), at: self.pinned.unwrap_or(self.asked_at), limit }
    }

    /// Takes a page; `Some` when the list is complete.
    pub(super) fn handle_page(&mut self, mut page: Page) -> Option<ListPage> {
        // A read at a revision answers with the store's revision in its header, not with its own.
        let revision = *self.pinned.get_or_insert(if self.asked_at.is_zero() { page.revision } else { self.asked_at });
        if self.items.is_empty() {
            self.items = page.items;
            if self.limit == 0 && page.more {
                self.items.reserve_exact(page.count.saturating_sub(page.received));
            }
        } else {
            self.items.append(&mut page.items);
        }
        let full = self.limit != 0 && self.items.len() >= self.limit;
        if full || !page.more {
            let remaining = page.count.saturating_sub(page.received) as u64;
            let items = std::mem::take(&mut self.items);
            return Some(ListPage { items, revision, more: page.more, remaining: Some(remaining) });
        }
        let average = (page.bytes / page.received.max(1)).max(1);
        self.page_keys = (PAGE_BYTES / average).clamp(1, PAGE_KEYS_MAX);
        if let Some(mut last) = page.last_key {
            last.push(0);
            self.next = last;
        }
        None
    }

    /// The revision of the pages was compacted. True when the list begins anew as one single
    /// range; false when nothing helps: the caller asked for exactly that revision.
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

    use super::*;

    /// A range of keys, some of which are not ours, answered as etcd would.
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
        Pager::new(b"/p/".to_vec(), b"/p0".to_vec(), Revision::new(at), limit)
    }

    #[test]
    fn pages_grow_by_weight() {
        for (value_bytes, expected) in [
            (100, vec![1_000, 10_000, 10_000, 10_000]),
            (1 << 10, vec![1_000, 10_000, 10_000, 10_000]),
            (4 << 10, vec![1_000, 4_096, 4_096, 4_096, 4_096, 4_096, 4_096, 4_096]),
        ] {
            let (page, sizes) = etcd(25_000, value_bytes, usize::MAX).list(pager(0, 0));
            assert_eq!((page.items.len(), page.more, page.remaining), (25_000, false, Some(0)));
            assert_eq!(sizes[..expected.len().min(sizes.len())], expected[..expected.len().min(sizes.len())]);
            assert_eq!(page.revision, Revision::new(100), "all pages are of the first one's revision");
        }
    }

    #[test]
    fn a_list_at_a_revision_shows_that_revision() {
        let (page, _) = etcd(10, 1, usize::MAX).list(pager(7, 3));
        assert_eq!((page.revision, page.items.len(), page.more, page.remaining), (Revision::new(7), 3, true, Some(7)));
    }

    #[test]
    fn a_list_that_compaction_overtakes_ends_all_the_same() {
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

        let mut exact = self::pager(7, 0);
        assert!(exact.handle_page(etcd.answer(&exact.request())).is_none());
        assert!(!exact.handle_compacted(), "an exact revision is not replaced by another");
    }

    proptest! {
        #[test]
        fn every_key_of_ours_comes_once(keys in 0usize..4_000, limit in 0usize..2_500, foreign_every in 1usize..6) {
            let mut etcd = etcd(keys, 1, foreign_every);
            let ours: Vec<_> = etcd.keys.iter().filter(|(_, ours)| *ours).map(|(key, _)| key.clone()).collect();
            let mut told = Vec::new();
            let mut start = b"/p/".to_vec();
            loop {
                let (page, _) = etcd.list(Pager::new(start, b"/p0".to_vec(), Revision::ZERO, limit));
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
