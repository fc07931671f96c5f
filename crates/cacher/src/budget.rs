//! A memory budget shared by the history windows of many caches: [`HistoryBudget`].
//!
//! [`Limits::history_bytes_max`](crate::Limits::history_bytes_max) bounds one window. A server has
//! a window for each resource, and users may define any number of resources. The budget therefore
//! bounds all windows together, so that an operator can derive it from the memory of the machine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A bound in bytes for the history windows of any number of caches. Clones share one budget.
///
/// Each window's share is the budget divided by the number of windows. While the total exceeds the
/// budget, a window above its share evicts its oldest events, each time it receives an event or its
/// timer runs. So a busy resource loses history and a quiet one keeps its history. A watcher whose
/// position is evicted receives `410 Expired`, as without a budget.
#[derive(Clone)]
pub struct HistoryBudget(Arc<BudgetState>);

struct BudgetState {
    bytes_max: usize,
    bytes: AtomicUsize,
    windows: AtomicUsize,
}

impl HistoryBudget {
    /// Creates a budget of `bytes_max` bytes for all caches that get a clone.
    pub fn new(bytes_max: usize) -> Self {
        let account = BudgetState { bytes_max, bytes: AtomicUsize::new(0), windows: AtomicUsize::new(0) };
        HistoryBudget(Arc::new(account))
    }

    /// The bytes of all windows. Right after a burst they may exceed the budget, by the bytes that
    /// the windows received since their last eviction.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// The bound in bytes.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Adds a window to the budget.
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

/// The bytes of one window, and its budget if it has one. Dropping the account returns its bytes to
/// the budget.
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

    /// Whether all windows together exceed the budget and this one exceeds its share.
    pub(crate) fn is_over_share(&self) -> bool {
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
    fn history_budgets_are_equal_only_if_they_are_clones() {
        let budget = HistoryBudget::new(100);
        assert_eq!(budget, budget.clone(), "a clone is the same budget");
        assert_ne!(budget, HistoryBudget::new(100), "an equal bound does not make the same budget");
        assert_eq!(budget.bytes_max(), 100);
    }

    #[test]
    fn window_without_a_budget_is_never_over_its_share() {
        let mut account = WindowAccount::default();
        account.add(usize::MAX / 2);
        assert!(!account.is_over_share());
    }

    #[test]
    fn dropped_history_window_frees_its_bytes_and_its_share_of_the_budget() {
        let budget = HistoryBudget::new(100);
        let (mut small, mut large) = (budget.open(), budget.open());
        small.add(40);
        large.add(70);
        assert!(large.is_over_share() && !small.is_over_share(), "only the window above its share of 50 is over");
        drop(small);
        assert_eq!(budget.bytes(), 70);
        assert!(!large.is_over_share());
    }

    proptest! {
        /// After each window has evicted, the total is within the budget, and no window below its
        /// share has lost events.
        #[test]
        fn windows_evict_to_their_shared_budget(grown in proptest::collection::vec((0usize..6, 1usize..50), 1..200)) {
            let budget = HistoryBudget::new(300);
            let mut windows: Vec<WindowAccount> = (0..6).map(|_| budget.open()).collect();
            for (at, bytes) in grown {
                windows[at].add(bytes);
            }
            for window in &mut windows {
                while window.is_over_share() {
                    prop_assert!(window.bytes() > 50, "a window within its share had to give");
                    window.subtract(1);
                }
            }
            prop_assert!(budget.bytes() <= 300, "the windows together are above the budget");
            prop_assert_eq!(budget.bytes(), windows.iter().map(WindowAccount::bytes).sum::<usize>());
        }
    }
}
