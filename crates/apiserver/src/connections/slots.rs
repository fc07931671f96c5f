//! [`ConnectSlots`]: limits the connections to nodes, pods and services, in total and per user.

use std::collections::HashMap;
use std::sync::Arc;

use listwatch_meta::Status;
use parking_lot::Mutex;

/// The largest number of concurrent logs and proxied requests that are not upgrades. Further requests fail with 429.
/// [`Limits::upgrades_max`](listwatch_proxy::Limits::upgrades_max) limits upgrades.
pub(super) const CONNECTS_MAX: usize = 1_024;
/// Maximum number of slots of one user. Further requests of the user fail with 429.
const CONNECTS_PER_USER_MAX: usize = 256;

/// The slots of a server.
#[derive(Debug, Default)]
pub(super) struct ConnectSlots(Mutex<TakenSlots>);

#[derive(Debug, Default)]
struct TakenSlots {
    all: usize,
    /// The number of slots of each user. Users without a slot have no entry.
    by_user: HashMap<Arc<str>, usize>,
}

/// A slot of a user, which is freed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ConnectSlot {
    slots: Arc<ConnectSlots>,
    user: Arc<str>,
}

impl ConnectSlots {
    /// Takes a slot.
    ///
    /// # Errors
    /// 429 if no slot is free, or if the user holds the maximum number of slots.
    pub(super) fn take(self: &Arc<Self>, user: &str) -> Result<ConnectSlot, Status> {
        let mut taken = self.0.lock();
        let own = taken.by_user.get(user).copied().unwrap_or_default();
        if taken.all >= CONNECTS_MAX || own >= CONNECTS_PER_USER_MAX {
            let text = "too many connections to nodes, pods and services, please try again later";
            return Err(Status::too_many_requests(text, 1));
        }
        let user = Arc::<str>::from(user);
        taken.all += 1;
        *taken.by_user.entry(Arc::clone(&user)).or_default() += 1;
        Ok(ConnectSlot { slots: Arc::clone(self), user })
    }
}

impl Drop for ConnectSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_user.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                taken.by_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_at_its_connection_limit_does_not_block_other_users() {
        let slots = Arc::<ConnectSlots>::default();
        let mut alice: Vec<_> = (0..CONNECTS_PER_USER_MAX).map(|_| slots.take("alice").unwrap()).collect();
        assert_eq!(slots.take("alice").unwrap_err().code, 429);
        drop(slots.take("bob").unwrap());
        alice.pop();
        alice.push(slots.take("alice").unwrap());
        let others: Vec<_> = (CONNECTS_PER_USER_MAX..CONNECTS_MAX)
            .map(|number| slots.take(&format!("user{}", number / CONNECTS_PER_USER_MAX)).unwrap())
            .collect();
        assert_eq!(slots.take("bob").unwrap_err().code, 429, "all are taken");
        drop((alice, others));
        assert!(slots.0.lock().by_user.is_empty() && slots.0.lock().all == 0);
    }
}
