//! Compares two stores or exports key by key and value by value, in one pass.

use std::collections::VecDeque;
use std::io;

use listwatch_meta::Key;

use super::inspect::FINDINGS_MAX;
use super::sort::Sorter;
use super::{FileError, Phase, Progress, ProgressFn, Record, Records, RecordsError, is_scratch};

/// A difference between two stores or exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Only the first store or export has this key.
    OnlyFirst(Key),
    /// Only the second store or export has this key.
    OnlySecond(Key),
    /// The values of this key differ.
    Value(Key),
    /// Only one of the two has a TTL for this key.
    Ttl(Key),
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The number of keys with equal values in both stores or exports.
    pub same: u64,
    /// The number of differences.
    pub differences: u64,
    /// The first [`FINDINGS_MAX`] differences.
    pub examples: Vec<Difference>,
    /// The number of objects whose order of change differs: changed after another object in the
    /// first store or export, but not in the second.
    pub out_of_order: u64,
    /// The number of keys with equal revisions in both stores or exports.
    pub same_revision: u64,
}

impl Comparison {
    /// Whether both have the same objects, changed in the same order.
    pub fn is_equal(&self) -> bool {
        self.differences == 0 && self.out_of_order == 0
    }

    fn differs(&mut self, difference: Difference) {
        self.differences += 1;
        if self.examples.len() < FINDINGS_MAX {
            self.examples.push(difference);
        }
    }
}

/// A store or export being read, with its current page.
struct Side<'a> {
    records: &'a mut dyn Records,
    page: VecDeque<Record>,
}

impl Side<'_> {
    /// The next record, which is not removed.
    async fn peek(&mut self) -> Result<Option<&Record>, RecordsError> {
        while self.page.is_empty() {
            let page = self.records.next_page().await?;
            if page.is_empty() {
                return Ok(None);
            }
            self.page = page.into();
            self.page.retain(|record| !is_scratch(&record.entry.key));
        }
        Ok(self.page.front())
    }

    fn take(&mut self) -> Option<Record> {
        self.page.pop_front()
    }
}

/// Compares two stores or exports: keys, values, the presence of TTLs (not the remaining time), and
/// whether objects changed in the same order.
///
/// # Errors
/// The [`RecordsError`] of the unreadable store or export.
pub async fn compare(
    first: &mut dyn Records,
    second: &mut dyn Records,
    progress: &mut ProgressFn<'_>,
) -> Result<Comparison, RecordsError> {
    let io = |error: io::Error| RecordsError::File(FileError::Io(error));
    let total = first.count().max(second.count());
    let mut result = Comparison::default();
    let mut order = Sorter::new();
    let mut first = Side { records: first, page: VecDeque::new() };
    let mut second = Side { records: second, page: VecDeque::new() };
    let mut done = 0;
    loop {
        let which = match (first.peek().await?, second.peek().await?) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.entry.key.cmp(&b.entry.key),
        };
        let a = if which.is_le() { first.take() } else { None };
        let b = if which.is_ge() { second.take() } else { None };
        match (a, b) {
            (Some(a), Some(b)) => {
                if a.entry.value != b.entry.value {
                    result.differs(Difference::Value(a.entry.key));
                } else if a.ttl.is_some() != b.ttl.is_some() {
                    result.differs(Difference::Ttl(a.entry.key));
                } else {
                    result.same += 1;
                }
                result.same_revision += u64::from(a.entry.modified == b.entry.modified);
                order.push((a.entry.modified.get(), b.entry.modified.get())).map_err(io)?;
            }
            (Some(a), None) => result.differs(Difference::OnlyFirst(a.entry.key)),
            (None, Some(b)) => result.differs(Difference::OnlySecond(b.entry.key)),
            (None, None) => {}
        }
        done += 1;
        progress(Progress { phase: Phase::Compare, done, total });
    }
    // Objects that share a revision in the first place may have any order in the second.
    let (mut group, mut before, mut newest) = (0, 0, 0);
    for pair in order.finish().map_err(io)? {
        let (a, b) = pair.map_err(io)?;
        if a != group {
            (group, before) = (a, newest);
        }
        result.out_of_order += u64::from(b <= before);
        newest = newest.max(b);
    }
    Ok(result)
}
