//! [`HistoryBudget`]: what the history windows of many caches may take together.
//!
//! [`Limits::history_bytes_max`](crate::Limits::history_bytes_max) bounds one window. A server has a
//! window for each resource, and as many resources as its users define; what its operator knows is how
//! much memory the machine has.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A bound in bytes that any number of caches share; clones are the same budget.
///
/// Each window has a share: the budget divided by the number of windows. While all together are
/// above the budget, a window above its share lets its oldest events go, each time it takes an event
/// in or time passes for it. So who writes much pays, and a quiet resource keeps what it has. A
/// watcher whose place leaves a window that way is told `410 Expired`, as always when a window ends.
#[derive(Clone)]
pub struct HistoryBudget(Arc<Account>);

struct Account {
    bytes_max: usize,
    bytes: AtomicUsize,
    windows: AtomicUsize,
}

impl HistoryBudget {
    /// So many bytes for all who are given a clone.
    pub fn new(bytes_max: usize) -> Self {
        let account = Account { bytes_max, bytes: AtomicUsize::new(0), windows: AtomicUsize::new(0) };
        HistoryBudget(Arc::new(account))
    }

    /// What the windows take now. Right after a burst it may be above the budget, by what the windows
    /// took in since each of them last looked.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// The bound.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Opens the account of a window.
    pub(crate) fn open(&self) -> WindowAccount {
        self.0.windows.fetch_add(1, Relaxed);
        WindowAccount { budget: Some(self.clone()), bytes: 0 }
    }
}

impl fmt::Debug for HistoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistoryBudget({} of {} bytes)", self.bytes(), self.bytes_max())
    }
}

impl PartialEq for HistoryBudget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HistoryBudget {}

/// What one window takes, and whether that is too much for the budget it may be under. What it took
/// is given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct WindowAccount {
    budget: Option<HistoryBudget>,
    bytes: usize,
}

impl WindowAccount {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(budget) = &self.budget {
            budget.0.bytes.fetch_add(bytes, Relaxed);
        }
    }

    pub(crate) fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(budget) = &self.budget {
            budget.0.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// All windows together take too much, and this one more than its share.
    pub(crate) fn has_to_give(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| {
            let share = budget.0.bytes_max / budget.0.windows.load(Relaxed).max(1);
            budget.bytes() > budget.0.bytes_max && self.bytes > share
        })
    }
}

impl Drop for WindowAccount {
    fn drop(&mut self) {
        self.subtract(self.bytes);
        if let Some(budget) = &self.budget {
            budget.0.windows.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_a_budget_nobody_has_to_give() {
        let mut account = WindowAccount::default();
        account.add(usize::MAX / 2);
        assert!(!account.has_to_give());
    }

    #[test]
    fn a_window_that_is_gone_takes_nothing_and_has_no_share() {
        let budget = HistoryBudget::new(100);
        let (mut small, mut large) = (budget.open(), budget.open());
        small.add(40);
        large.add(70);
        assert!(large.has_to_give() && !small.has_to_give(), "who is above its share of 50 pays");
        drop(small);
        assert_eq!(budget.bytes(), 70);
        assert!(!large.has_to_give());
    }

    proptest! {
        /// Whoever grows: once each window has looked, all of them are within the budget, and none
        /// below its share gave anything.
        #[test]
        fn the_windows_end_within_the_budget(grown in proptest::collection::vec((0usize..6, 1usize..50), 1..200)) {
            let budget = HistoryBudget::new(300);
            let mut windows: Vec<WindowAccount> = (0..6).map(|_| budget.open()).collect();
            for (at, bytes) in grown {
                windows[at].add(bytes);
            }
            for window in &mut windows {
                while window.has_to_give() {
                    prop_assert!(window.bytes() > 50, "a window within its share had to give");
                    window.subtract(1);
                }
            }
            prop_assert!(budget.bytes() <= 300, "the windows together are above the budget");
            prop_assert_eq!(budget.bytes(), windows.iter().map(WindowAccount::bytes).sum::<usize>());
        }
    }
}
