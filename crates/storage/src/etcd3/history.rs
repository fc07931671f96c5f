//! Detects a replaced history of etcd: [`History`].
//!
//! etcd's revision never decreases, and one cluster has one history. An operator can break both by restoring an older
//! backup, emptying a data directory, or configuring members of two clusters. Delivered revisions then refer to other
//! changes or to none, and a resumed watch would wait silently until the new history has passed its position. The
//! responses of etcd reveal a replaced history:
//!
//! - The header of every linearizable response has the store's current revision. A revision below
//!   the one known **before the request was sent** means that the store was restored to an older
//!   state.
//! - Every header names the cluster.
//! - A resumed watch reads the last object that it delivered, at its revision. If the object
//!   differs, the history was replaced, however far it has advanced since.
//!
//! One member may be behind the others or belong to another cluster, so all members are queried first, and the majority
//! of them must show the same (`Shared::confirm_replaced`). [`History::handle_replaced`] then records the replacement, which is reported once.
//! Every watch of the store ends with [`Expired`](crate::WatchItem::Expired), and later requests use the new history.

use std::sync::atomic::{AtomicU64, Ordering};

use listwatch_meta::{Key, Revision};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The known state of the store's history, updated by all responses of all members.
#[derive(Debug)]
pub(super) struct History {
    /// The newest revision seen in `epoch`.
    newest: AtomicU64,
    /// The newest revision seen in any former epoch.
    former: AtomicU64,
    /// The id of the cluster; 0 until a response has named it.
    cluster: AtomicU64,
    /// The number of histories that this process has seen.
    epoch: watch::Sender<u64>,
    /// Held while one history replaces another.
    replacing: Mutex<()>,
}

/// The state known when a request was sent: a lower bound for the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Floor {
    epoch: u64,
    revision: Revision,
}

/// The evidence that the history was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    /// The cluster id changed.
    Cluster { was: u64, is: u64, now: Revision },
    /// The revision decreased.
    WentBack { was: Revision, now: Revision },
    /// The object delivered at this revision is not in the store's history.
    Rewritten { key: Key, at: Revision, now: Revision },
    /// A revision of a former history was requested.
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
    /// Creates a history without a known revision or cluster.
    pub(super) fn new() -> Self {
        History {
            newest: AtomicU64::new(0),
            former: AtomicU64::new(0),
            cluster: AtomicU64::new(0),
            epoch: watch::Sender::new(0),
            replacing: Mutex::new(()),
        }
    }

    /// The lower bound for the response to a request that is sent now.
    pub(super) fn floor(&self) -> Floor {
        // The order matters: if the history is replaced in between, the floor belongs to the old
        // epoch and is ignored.
        let epoch = *self.epoch.borrow();
        Floor { epoch, revision: Revision::new(self.newest.load(Ordering::Acquire)) }
    }

    /// Checks the header of a linearizable response to a request sent at `floor`.
    pub(super) fn handle_header(&self, floor: Floor, cluster: u64, revision: Revision) -> Result<(), Replaced> {
        self.handle_cluster(cluster, revision)?;
        if revision < floor.revision && self.is_present(floor) {
            return Err(Replaced::WentBack { was: floor.revision, now: revision });
        }
        self.learn(floor, revision);
        Ok(())
    }

    /// Checks the cluster of a header whose revision may be old. Zero means that the header names no cluster.
    pub(super) fn handle_cluster(&self, cluster: u64, revision: Revision) -> Result<(), Replaced> {
        if cluster == 0 {
            return Ok(());
        }
        // Every response passes here. A load leaves the cache line shared between all cores.
        let known = match self.cluster.load(Ordering::Acquire) {
            0 => match self.cluster.compare_exchange(0, cluster, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => cluster,
                Err(first) => first,
            },
            known => known,
        };
        if known == cluster { Ok(()) } else { Err(Replaced::Cluster { was: known, is: cluster, now: revision }) }
    }

    /// Whether a response with this cluster id comes from the known cluster. Zero means that the response names none.
    pub(super) fn is_cluster(&self, cluster: u64) -> bool {
        cluster == 0 || cluster == self.cluster.load(Ordering::Acquire)
    }

    /// Records a revision seen by a reader that began at `floor`.
    pub(super) fn learn(&self, floor: Floor, revision: Revision) {
        if self.newest.load(Ordering::Relaxed) >= revision.get() {
            return;
        }
        // A response of a former history must not raise the current floor.
        let _replacing = self.replacing.lock();
        if self.is_present(floor) {
            self.newest.fetch_max(revision.get(), Ordering::AcqRel);
        }
    }

    /// Records a replacement found by a reader that began at `floor`. True for the first report;
    /// from then on the new history is used.
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

    /// Whether `place`, which is ahead of the store at `now`, belongs to a former history.
    pub(super) fn is_former(&self, place: Revision, now: Revision) -> bool {
        place > now && place.get() <= self.former.load(Ordering::Acquire)
    }

    /// Completes when the history of `floor` was replaced.
    pub(super) async fn replaced(&self, floor: Floor) {
        // The sender lives as long as this value.
        let _ = self.epoch.subscribe().wait_for(|epoch| *epoch != floor.epoch).await;
    }

    /// Whether the history of `floor` is the present one.
    pub(super) fn is_present(&self, floor: Floor) -> bool {
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
    fn decreased_revision_is_reported_once() {
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
    fn older_response_of_an_overlapping_request_is_not_reported_as_a_decrease() {
        let history = History::new();
        let slow = history.floor();
        assert_eq!(history.handle_header(history.floor(), 7, r(10)), Ok(()));
        assert_eq!(history.handle_header(slow, 7, r(5)), Ok(()), "it was asked before the newer one was known");
    }

    #[test]
    fn response_of_a_former_history_does_not_raise_the_floor() {
        let history = History::new();
        let old = history.floor();
        history.handle_header(old, 7, r(10)).unwrap();
        let how = history.handle_header(history.floor(), 7, r(3)).unwrap_err();
        assert!(history.handle_replaced(history.floor(), &how));
        history.learn(old, r(11));
        assert_eq!(history.handle_header(history.floor(), 7, r(3)), Ok(()));
    }

    #[test]
    fn changed_cluster_id_is_detected() {
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
    async fn waiting_reader_is_notified_when_the_history_is_replaced() {
        let history = History::new();
        let floor = history.floor();
        let waiting = history.replaced(floor);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, waiting.as_mut()).await.is_err());
        let key = Key::new("pods", Some("ns"), "a").unwrap();
        let how = Replaced::Rewritten { key, at: r(4), now: r(9) };
        assert!(history.handle_replaced(floor, &how));
        waiting.await;
        assert_eq!(history.floor().revision, r(9));
    }
}
