//! Forgetting history at a steady pace: the compactor that agrees with its peers through a key.
//!
//! Every server on one etcd runs a compactor, kube-apiservers included, and only one of them may
//! compact in each interval. They meet at [`COMPACT_KEY`]: its etcd *version* is a clock that
//! ticks once per interval, because a server moves it only if it still shows the time the server
//! last saw; its value is the revision that was current then. Who wins the tick compacts up to the
//! revision of **its own last round**, one interval ago. So history is kept for one to two
//! intervals (`etcd3/compact.go:runCompactLoop`).
//!
//! ```text
//!   server A   time 0 ── txn: version == 0? put ──▶ won, time 1      (first round: only notes)
//!   server B   time 0 ── txn: version == 0? put ──▶ lost, time 1, notes the present revision
//!      … one interval …
//!   server B   time 1 ── txn: version == 1? put ──▶ won, time 2 ──▶ compact(what B noted)
//!   server A   time 1 ── txn: version == 1? put ──▶ lost, time 2, notes the present revision
//! ```

use listwatch_meta::Revision;

/// Where the compactors of one etcd meet. It is no object's place: Kubernetes keeps it outside of
/// every prefix, and so that both agree, so do we.
pub const COMPACT_KEY: &str = "compact_rev_key";

/// The decisions of one compactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compactor {
    /// The version of the key that this server saw last.
    time: i64,
    /// The store's revision at the last round; zero before the first.
    noted: Revision,
}

/// The transaction of one round: if the key is still at `expected_version` put `value`, else tell
/// its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// What the key's version has to be.
    pub(super) expected_version: i64,
    /// What to put.
    pub(super) value: Revision,
}

impl Compactor {
    /// What to ask etcd for in this round.
    pub(super) fn round(&self) -> Round {
        Round { expected_version: self.time, value: self.noted }
    }

    /// This server won the tick; `now` is the revision of its put. Returns what to compact.
    pub(super) fn handle_won(&mut self, now: Revision) -> Option<Revision> {
        let compact = Some(self.noted).filter(|revision| !revision.is_zero());
        self.time += 1;
        self.noted = now;
        compact
    }

    /// Somebody else was first; the key's version is now `version` (0: it is gone).
    pub(super) fn handle_lost(&mut self, version: i64, now: Revision) {
        self.time = version;
        self.noted = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key in etcd, and the clock that everybody's writes move.
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
    fn a_lonely_server_keeps_one_interval() {
        let mut etcd = Etcd::default();
        let mut server = Compactor::default();
        for _ in 0..3 {
            etcd.revision += 99;
            assert!(etcd.run(&mut server));
        }
        assert_eq!(etcd.compacted, [100, 200], "the first round only notes where it is");
    }

    #[test]
    fn a_key_that_somebody_deleted_does_not_stop_the_clock() {
        let mut etcd = Etcd::default();
        let mut server = Compactor::default();
        etcd.run(&mut server);
        etcd.run(&mut server);
        etcd.version = 0;
        assert!(!etcd.run(&mut server), "its time is no longer the key's");
        assert!(etcd.run(&mut server), "but the next round finds the key's new time");
    }

    proptest! {
        /// Whatever order the servers come in, one compacts per interval and none forgets history
        /// younger than the interval.
        #[test]
        fn one_of_many_compacts(orders in proptest::collection::vec(Just(vec![0usize, 1, 2]).prop_shuffle(), 1..20)) {
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
