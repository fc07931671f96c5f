//! Is this still the store that we have read from? [`History`] notices when it is not.
//!
//! etcd's revision never falls, and one cluster keeps one history. An operator can break both: by
//! restoring an older backup, by emptying a data directory, by naming members of two clusters. Then
//! every revision that was handed out means something else, or nothing; a watch that is resumed at
//! its old place would wait silently until the new history has grown past it. So it is looked for,
//! in what etcd says anyway:
//!
//! - the header of every linearizable answer has the revision of its moment. One that is below what
//!   was known **before the request was sent** shows a store that went back;
//! - every header names the cluster;
//! - a watch that is resumed reads the last object that it handed out at the revision that it had.
//!   Where something else is there, the history was replaced, however far it has grown since.
//!
//! One member may be behind the others or astray, so all are asked before it is believed
//! (`Shared::judge`). Then it is reported with [`History::handle_replaced`]: it is said once, every
//! watch of the store ends with [`Expired`](crate::WatchItem::Expired), and from then on the new history counts.

use std::sync::atomic::{AtomicU64, Ordering};

use listwatch_meta::Revision;
use parking_lot::Mutex;
use tokio::sync::watch;

/// What is known of the store's history. All answers of all members end here.
#[derive(Debug)]
pub(super) struct History {
    /// The newest revision that was seen in `epoch`.
    newest: AtomicU64,
    /// The newest revision that was seen in any former epoch.
    former: AtomicU64,
    /// The cluster that answers; 0 until one has said its name.
    cluster: AtomicU64,
    /// Counts the histories that this process has met.
    epoch: watch::Sender<u64>,
    /// Held while one history replaces another.
    replacing: Mutex<()>,
}

/// What was known when a request was sent: its answer must not show less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Floor {
    epoch: u64,
    revision: Revision,
}

/// How an answer shows that the history was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    /// Another cluster answers.
    Cluster { was: u64, is: u64, now: Revision },
    /// The revision fell.
    WentBack { was: Revision, now: Revision },
    /// What was handed out at this revision is not in the store's history.
    Rewritten { at: Revision, now: Revision },
    /// A place of a former history was asked for.
    Former { at: Revision, now: Revision },
}

impl Replaced {
    fn now(&self) -> Revision {
        match self {
            Replaced::Cluster { now, .. }
            | Replaced::WentBack { now, .. }
            | Replaced::Rewritten { now, .. }
            | Replaced::Former { now, .. } => *now,
        }
    }
}

impl std::fmt::Display for Replaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Replaced::Cluster { was, is, .. } => {
                write!(f, "another etcd cluster answers ({is:x} instead of {was:x})")
            }
            Replaced::WentBack { was, now } => write!(f, "etcd's revision went back from {was} to {now}"),
            Replaced::Rewritten { at, .. } => {
                write!(f, "etcd's history is another one: what it held at revision {at} is not there")
            }
            Replaced::Former { at, now } => {
                write!(f, "revision {at} was one of etcd's former history; it is at {now} now")
            }
        }
    }
}

impl History {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        History {
            newest: AtomicU64::new(0),
            former: AtomicU64::new(0),
            cluster: AtomicU64::new(0),
            epoch: watch::Sender::new(0),
            replacing: Mutex::new(()),
        }
    }

    /// What an answer to a request that is sent now must show at least.
    pub(super) fn floor(&self) -> Floor {
        // In this order: a history that is replaced meanwhile makes the floor an old one, which
        // blames nobody.
        let epoch = *self.epoch.borrow();
        Floor { epoch, revision: Revision::new(self.newest.load(Ordering::Acquire)) }
    }

    /// The header of a linearizable answer to a request sent at `floor`.
    pub(super) fn handle_header(&self, floor: Floor, cluster: u64, revision: Revision) -> Result<(), Replaced> {
        self.handle_cluster(cluster, revision)?;
        if revision < floor.revision && self.is_present(floor) {
            return Err(Replaced::WentBack { was: floor.revision, now: revision });
        }
        self.learn(floor, revision);
        Ok(())
    }

    /// A header that may be behind: it names the cluster all the same. Zero names none.
    pub(super) fn handle_cluster(&self, cluster: u64, revision: Revision) -> Result<(), Replaced> {
        let known = self.cluster.load(Ordering::Acquire);
        if cluster == known || cluster == 0 {
            return Ok(());
        }
        if known == 0 {
            // Two first answers at once: whoever loses compares again.
            return match self.cluster.compare_exchange(0, cluster, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Ok(()),
                Err(first) if first == cluster => Ok(()),
                Err(first) => Err(Replaced::Cluster { was: first, is: cluster, now: revision }),
            };
        }
        Err(Replaced::Cluster { was: known, is: cluster, now: revision })
    }

    /// Something of this revision was seen by who began at `floor`.
    pub(super) fn learn(&self, floor: Floor, revision: Revision) {
        if self.newest.load(Ordering::Relaxed) >= revision.get() {
            return;
        }
        // An answer from a history that is gone must not raise the floor of the present one.
        let _replacing = self.replacing.lock();
        if self.is_present(floor) {
            self.newest.fetch_max(revision.get(), Ordering::AcqRel);
        }
    }

    /// Somebody who began at `floor` found the history replaced. True for the first one who says
    /// so; from now on the new history counts.
    pub(super) fn handle_replaced(&self, floor: Floor, how: &Replaced) -> bool {
        let _replacing = self.replacing.lock();
        if !self.is_present(floor) {
            return false;
        }
        let former = self.newest.swap(how.now().get(), Ordering::AcqRel);
        self.former.fetch_max(former, Ordering::AcqRel);
        if let Replaced::Cluster { is, .. } = how {
            self.cluster.store(*is, Ordering::Release);
        }
        self.epoch.send_modify(|epoch| *epoch += 1);
        true
    }

    /// Can `place`, which is ahead of the store at `now`, only be one of a history that is gone?
    pub(super) fn is_former(&self, place: Revision, now: Revision) -> bool {
        place > now && place.get() <= self.former.load(Ordering::Acquire)
    }

    /// Resolves when the history of `floor` is no longer that of the store.
    pub(super) async fn replaced(&self, floor: Floor) {
        // The sender lives as long as this.
        let _ = self.epoch.subscribe().wait_for(|epoch| *epoch != floor.epoch).await;
    }

    fn is_present(&self, floor: Floor) -> bool {
        *self.epoch.borrow() == floor.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(revision: u64) -> Revision {
        Revision::new(revision)
    }

    #[test]
    fn a_revision_that_falls_is_noticed_once() {
        let history = History::new();
        let first = history.floor();
        assert_eq!(history.handle_header(first, 7, r(10)), Ok(()));
        let (a, b) = (history.floor(), history.floor());
        assert_eq!(history.handle_header(a, 7, r(10)), Ok(()), "an idle store stands still");
        let how = history.handle_header(b, 7, r(3)).unwrap_err();
        assert_eq!(how, Replaced::WentBack { was: r(10), now: r(3) });
        assert!(history.handle_replaced(b, &how));
        assert!(!history.handle_replaced(a, &how), "it is said once");
        assert_eq!(history.handle_header(a, 7, r(4)), Ok(()), "who asked before is not blamed");
        assert_eq!(history.handle_header(history.floor(), 7, r(3)), Ok(()), "the new history counts");
        for (place, now, expected) in [(10, 3, true), (4, 3, true), (3, 3, false), (11, 3, false), (9, 9, false)] {
            assert_eq!(history.is_former(r(place), r(now)), expected, "{place} at {now}");
        }
    }

    #[test]
    fn an_answer_that_overlaps_a_newer_one_is_no_fall() {
        let history = History::new();
        let slow = history.floor();
        assert_eq!(history.handle_header(history.floor(), 7, r(10)), Ok(()));
        assert_eq!(history.handle_header(slow, 7, r(5)), Ok(()), "it was asked before the newer one was known");
    }

    #[test]
    fn an_answer_from_a_history_that_is_gone_raises_no_floor() {
        let history = History::new();
        let old = history.floor();
        history.handle_header(old, 7, r(10)).unwrap();
        let how = history.handle_header(history.floor(), 7, r(3)).unwrap_err();
        assert!(history.handle_replaced(history.floor(), &how));
        history.learn(old, r(11));
        assert_eq!(history.handle_header(history.floor(), 7, r(3)), Ok(()));
    }

    #[test]
    fn another_cluster_is_noticed_by_its_name() {
        let history = History::new();
        assert_eq!(history.handle_cluster(0, r(1)), Ok(()), "some servers have no name");
        assert_eq!(history.handle_cluster(7, r(1)), Ok(()));
        assert_eq!(history.handle_cluster(0, r(1)), Ok(()));
        let floor = history.floor();
        let how = history.handle_header(floor, 8, r(99)).unwrap_err();
        assert_eq!(how.to_string(), "another etcd cluster answers (8 instead of 7)");
        assert!(history.handle_replaced(floor, &how));
        assert_eq!(history.handle_header(history.floor(), 8, r(99)), Ok(()));
    }

    #[tokio::test]
    async fn who_waits_for_the_end_of_a_history_is_told() {
        let history = History::new();
        let floor = history.floor();
        let waiting = history.replaced(floor);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, waiting.as_mut()).await.is_err());
        let how = Replaced::Rewritten { at: r(4), now: r(9) };
        assert!(history.handle_replaced(floor, &how));
        waiting.await;
        assert_eq!(history.floor().revision, r(9));
    }
}
