//! [`LegacyTokenUses`]: the uses of tokens in Secrets that wait for their label.
//!
//! ```text
//!  authenticator ─report─▶ waiting ─next─▶ controller: label the Secret ─▶ finish
//! ```

use std::collections::{HashSet, VecDeque};

use listwatch_access::LegacyTokenUse;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The largest number of Secrets whose label is being written. Further uses are not recorded; a later request with the
/// token reports a use again.
const LEGACY_TOKEN_USES_MAX: usize = 1_000;

/// A bounded queue of uses. Each Secret is in it once, until its use is finished.
#[derive(Debug, Default)]
pub struct LegacyTokenUses {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<LegacyTokenUse>,
    /// The UIDs of the Secrets with a use that is not finished.
    unfinished: HashSet<String>,
}

impl LegacyTokenUses {
    /// Adds a use, unless a use of the same Secret is not finished, or the queue is full.
    pub fn report(&self, used: LegacyTokenUse) {
        let mut state = self.state.lock();
        if state.unfinished.len() < LEGACY_TOKEN_USES_MAX && state.unfinished.insert(used.uid.clone()) {
            state.waiting.push_back(used);
            self.arrived.notify_one();
        }
    }

    /// Waits for a use. The caller passes it to [`LegacyTokenUses::finish`] after the write.
    pub async fn next(&self) -> LegacyTokenUse {
        loop {
            let arrived = self.arrived.notified();
            if let Some(used) = self.state.lock().waiting.pop_front() {
                return used;
            }
            arrived.await;
        }
    }

    /// Ends a use. If the write failed, the next request with the token reports a use again.
    pub fn finish(&self, used: &LegacyTokenUse) {
        self.state.lock().unfinished.remove(&used.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(uid: usize) -> LegacyTokenUse {
        let [namespace, secret, date] = ["a", "s", "2026-11-30"].map(str::to_owned);
        LegacyTokenUse { namespace, secret, uid: uid.to_string(), date }
    }

    #[tokio::test]
    async fn each_secret_is_queued_once_until_its_use_is_finished() {
        let uses = LegacyTokenUses::default();
        for uid in [1, 1, 2] {
            uses.report(used(uid));
        }
        let first = uses.next().await;
        assert_eq!(first, used(1));
        uses.report(used(1));
        assert_eq!(uses.next().await, used(2), "the first use is not finished");
        uses.finish(&first);
        uses.report(used(1));
        assert_eq!(uses.next().await, used(1));
        (0..2 * LEGACY_TOKEN_USES_MAX).for_each(|uid| uses.report(used(uid)));
        assert_eq!(uses.state.lock().unfinished.len(), LEGACY_TOKEN_USES_MAX, "the queue is bounded");
    }
}
