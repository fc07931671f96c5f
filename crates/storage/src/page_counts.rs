//! Counts the entries after each page of a list once per list, not once per page: [`PageCounts`].
//!
//! A page reports the number of entries that follow it. Counting them takes time in proportion to their number, while
//! writers wait. A list of N entries in pages of 1,000 would count N²/2,000 entries. The state at a revision never
//! changes, so the number after the next page follows from the number after this one.

use std::collections::VecDeque;

use listwatch_meta::{Key, KeyRange, Revision};
use parking_lot::Mutex;

use crate::error::ReadError;
use crate::mvcc::{Mvcc, Page};

/// The largest number of pages that are remembered. A list whose last page was forgotten counts again.
const PAGES_MAX: usize = 64;

/// The numbers of entries after the latest pages.
#[derive(Debug, Default)]
pub(crate) struct PageCounts {
    pages: Mutex<VecDeque<CountedPage>>,
    #[cfg(test)]
    counted: std::sync::atomic::AtomicU64,
}

/// The entries of a range at a revision after the key `last`.
#[derive(Debug)]
struct CountedPage {
    at: Revision,
    end: String,
    last: Key,
    remaining: u64,
}

impl PageCounts {
    /// Lists like [`Mvcc::list`]. The caller holds the lock of the state.
    ///
    /// # Errors
    /// As [`Mvcc::check_readable`].
    pub(crate) fn list<'a, V>(
        &self,
        mvcc: &'a Mvcc<V>,
        range: &KeyRange,
        at: Revision,
        limit: usize,
    ) -> Result<Page<'a, V>, ReadError> {
        let known = if limit == 0 { None } else { self.remaining_from(range, at) };
        let page = match known {
            Some(from_here) => {
                let items = mvcc.first(range, at, limit)?;
                let remaining = from_here.saturating_sub(items.len() as u64);
                Page { items, remaining }
            }
            None => {
                #[cfg(test)]
                self.counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                mvcc.list(range, at, limit)?
            }
        };
        if let Some((last, _)) = page.items.last()
            && page.remaining > 0
        {
            let end = range.end().to_owned();
            self.note(CountedPage { at, end, last: (*last).clone(), remaining: page.remaining });
        }
        Ok(page)
    }

    /// The number of entries of a range that begins after a remembered page.
    fn remaining_from(&self, range: &KeyRange, at: Revision) -> Option<u64> {
        let last = range.start().strip_suffix('\0')?;
        let pages = self.pages.lock();
        let is_before = |page: &&CountedPage| page.at == at && page.last.as_str() == last && page.end == range.end();
        pages.iter().rev().find(is_before).map(|page| page.remaining)
    }

    fn note(&self, page: CountedPage) {
        let mut pages = self.pages.lock();
        if pages.len() >= PAGES_MAX {
            pages.pop_front();
        }
        pages.push_back(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new("pods", Some("ns"), &format!("p{n:03}")).unwrap()
    }

    /// Lists all pages at a revision. Returns the numbers of remaining entries, and how often they were counted.
    fn pages(counts: &PageCounts, mvcc: &Mvcc<usize>, at: Revision, limit: usize) -> (Vec<u64>, u64) {
        let counted = || counts.counted.load(std::sync::atomic::Ordering::Relaxed);
        let (before, mut range, mut remaining) = (counted(), KeyRange::resource("pods"), Vec::new());
        loop {
            let page = counts.list(mvcc, &range, at, limit).unwrap();
            assert_eq!(page.remaining, mvcc.list(&range, at, limit).unwrap().remaining, "promise: the exact number");
            remaining.push(page.remaining);
            match page.items.last() {
                Some((last, _)) if page.remaining > 0 => range = range.starting_at(&format!("{last}\0")),
                _ => return (remaining, counted() - before),
            }
        }
    }

    #[test]
    fn entries_after_the_pages_of_a_list_are_counted_once() {
        let mut mvcc = Mvcc::new(Revision::ZERO, crate::mvcc::FIRST_REVISION);
        for n in 0..10 {
            mvcc.put(&key(n), n);
        }
        mvcc.put(&Key::new("services", Some("ns"), "s").unwrap(), 0);
        let (counts, at) = (PageCounts::default(), mvcc.current());
        assert_eq!(pages(&counts, &mvcc, at, 3), (vec![7, 4, 1, 0], 1));
        // Later changes do not count at this revision, and another revision is counted again.
        for n in [0, 5, 9] {
            mvcc.delete(key(n).as_str());
        }
        mvcc.put(&key(20), 20);
        assert_eq!(pages(&counts, &mvcc, at, 4), (vec![6, 2, 0], 1));
        assert_eq!(pages(&counts, &mvcc, mvcc.current(), 3), (vec![5, 2, 0], 1));
        // Another range that begins after the same key has another number.
        let after = |end: &str| KeyRange::below(end).starting_at(&format!("{}\0", key(2)));
        for range in [after("/pods/ns/"), after("/")] {
            assert_eq!(
                counts.list(&mvcc, &range, at, 2).unwrap().remaining,
                mvcc.list(&range, at, 2).unwrap().remaining,
                "{range:?}"
            );
        }
    }

    #[test]
    fn forgotten_page_is_counted_again() {
        let mut mvcc = Mvcc::new(Revision::ZERO, crate::mvcc::FIRST_REVISION);
        for n in 0..4 {
            mvcc.put(&key(n), n);
        }
        let (counts, at) = (PageCounts::default(), mvcc.current());
        let next = KeyRange::resource("pods").starting_at(&format!("{}\0", key(0)));
        assert_eq!(counts.list(&mvcc, &KeyRange::resource("pods"), at, 1).unwrap().remaining, 3);
        for _ in 0..PAGES_MAX {
            let other = KeyRange::resource("pods").starting_at(&format!("{}\0", key(1)));
            counts.list(&mvcc, &other, at, 1).unwrap();
        }
        assert_eq!(counts.pages.lock().len(), PAGES_MAX, "bounded");
        assert_eq!(counts.list(&mvcc, &next, at, 1).unwrap().remaining, 2);
    }
}
