//! Compacts history at a steady rate, coordinated with other servers through a key.
//!
//! Every server on one etcd runs a compactor, including kube-apiservers, and only one of them may
//! compact in each interval. The servers coordinate through [`COMPACT_KEY`]. The etcd *version* of
//! this key is a clock with one tick per interval. A server increments the version only if it still
//! equals the version the server last saw. The key's value is the revision that was current then.
//! The incrementing server compacts up to the revision of **its own last round**, one interval ago.
//! So history is kept for one to two intervals (`etcd3/compact.go:runCompactLoop`).
//!
//! ```text
//!   server A   time 0 ── txn: version == 0? put ──▶ won, time 1      (first round: only notes)
//!   server B   time 0 ── txn: version == 0? put ──▶ lost, time 1, notes the present revision
//!      … one interval …
//!   server B   time 1 ── txn: version == 1? put ──▶ won, time 2 ──▶ compact(what B noted)
//!   server A   time 1 ── txn: version == 1? put ──▶ lost, time 2, notes the present revision
//! ```

use listwatch_meta::Revision;

/// The key through which the compactors of one etcd coordinate. Like Kubernetes, this crate keeps
/// it outside of every prefix.
pub const COMPACT_KEY: &str = "compact_rev_key";

/// The state machine of the compactor in one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compactor {
    /// The version of the key that this server saw last.
    time: i64,
    /// The store's revision in the last round; zero before the first.
    noted: Revision,
}

/// The transaction of one round: put `value` if the key is at `expected_version`, else read its
/// version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// The expected version of the key.
    pub(super) expected_version: i64,
    /// The value to put.
    pub(super) value: Revision,
}

impl Compactor {
    /// The transaction of this round.
    pub(super) fn round(&self) -> Round {
        Round { expected_version: self.time, value: self.noted }
    }

    /// This server incremented the version; `now` is the revision of its put. Returns the revision
    /// to compact to.
    pub(super) fn handle_won(&mut self, now: Revision) -> Option<Revision> {
        let compact = Some(self.noted).filter(|revision| !revision.is_zero());
        self.time += 1;
        self.noted = now;
        compact
    }

    /// Another server was first; the key's version is now `version` (0 if the key was deleted).
    pub(super) fn handle_lost(&mut self, version: i64, now: Revision) {
        self.time = version;
        self.noted = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key in etcd, and the revision that every write increments.
    #[derive(Default)]
    struct Etcd {
        version: i64,
        revision: u64,
        compacted: Vec<u64>,
    }

    impl Etcd {
        fn run(&mut self, server: &mut Compactor) -> bool {
            let round = server.round();
            if round.expected_version == self.version {
                self.version += 1;
                self.revision += 1;
                if let Some(revision) = server.handle_won(Revision::new(self.revision)) {
                    self.compacted.push(revision.get());
                }
                return true;
            }
            server.handle_lost(self.version, Revision::new(self.revision));
            false
        }
    }

    #[test]
    fn single_server_keeps_one_interval_of_history() {
        let mut etcd = Etcd::default();
        let mut server = Compactor::default();
        for _ in 0..3 {
            etcd.revision += 99;
            assert!(etcd.run(&mut server));
        }
        assert_eq!(etcd.compacted, [100, 200], "the first round only notes where it is");
    }

    #[test]
    fn deleted_compact_key_does_not_stop_compaction() {
        let mut etcd = Etcd::default();
        let mut server = Compactor::default();
        etcd.run(&mut server);
        etcd.run(&mut server);
        etcd.version = 0;
        assert!(!etcd.run(&mut server), "its time is no longer the key's");
        assert!(etcd.run(&mut server), "but the next round finds the key's new time");
    }

    proptest! {
        /// In any order of the servers, one server compacts per interval, and no server drops
        /// history younger than the interval.
        #[test]
        fn exactly_one_server_compacts_per_interval(orders in proptest::collection::vec(Just(vec![0usize, 1, 2]).prop_shuffle(), 1..20)) {
            let mut etcd = Etcd::default();
            let mut servers = [Compactor::default(); 3];
            let mut interval_began = 0;
            for order in orders {
                etcd.revision += 50;
                let before = etcd.compacted.len();
                let began = etcd.revision;
                let winners = order.iter().filter(|index| etcd.run(&mut servers[**index])).count();
                prop_assert_eq!(winners, 1, "one tick per interval");
                prop_assert!(etcd.compacted.len() <= before + 1);
                if let Some(last) = etcd.compacted[before..].last() {
                    prop_assert!(*last <= interval_began + 3, "history younger than one interval was forgotten");
                }
                interval_began = began;
            }
            prop_assert!(etcd.compacted.is_sorted());
        }
    }
}
