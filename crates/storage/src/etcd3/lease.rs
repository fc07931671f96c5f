//! One etcd lease for many keys: [`LeaseBook`] decides which lease a key with a TTL is put under.
//!
//! A lease per Event object would make etcd keep a hundred thousand of them. So, as in Kubernetes
//! (`etcd3/lease_manager.go`), a lease is granted for a little longer than was asked for and given
//! to every key with the same TTL that comes within that little while.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// A lease is shared by the keys of this span at most.
const WINDOW_MAX: Duration = Duration::from_secs(60);

/// … and of this part of the TTL at most: one twentieth.
const WINDOW_DIVISOR: u32 = 20;

/// A lease is shared by at most this many keys; etcd removes them in one go when it ends.
const OBJECTS_MAX: u32 = 1000;

/// The time that a put may take from here to etcd. Without it a key put under a lease that is
/// just long enough would go early.
const SLACK: Duration = Duration::from_secs(1);

/// So many different TTLs are remembered; the lease that ends first is forgotten, not revoked.
const LEASES_MAX: usize = 64;

/// The leases that can still be shared.
#[derive(Debug, Default)]
pub(super) struct LeaseBook {
    /// By TTL in whole seconds.
    leases: HashMap<u64, Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    /// etcd keeps the lease at least until here.
    ends: Instant,
    objects: u32,
}

/// Where a key goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Under this lease.
    Under(i64),
    /// Under a new lease: grant one of this many seconds, then [`LeaseBook::handle_granted`].
    Grant {
        /// How long, in seconds.
        seconds: u64,
    },
}

impl LeaseBook {
    /// A place for one more key that is to live for `ttl` from `now` on.
    pub(super) fn place(&mut self, ttl: Duration, now: Instant) -> Place {
        let seconds = whole_seconds(ttl);
        if let Some(lease) = self.leases.get_mut(&seconds)
            && lease.objects < OBJECTS_MAX
            && lease.ends >= now + Duration::from_secs(seconds) + SLACK
        {
            lease.objects += 1;
            return Place::Under(lease.id);
        }
        Place::Grant { seconds: granted_seconds(seconds) }
    }

    /// A lease was granted for a TTL. `asked` is when the grant was sent: etcd counts from later.
    /// The key that it was granted for is counted.
    pub(super) fn handle_granted(&mut self, ttl: Duration, asked: Instant, id: i64) {
        let seconds = whole_seconds(ttl);
        if self.leases.len() >= LEASES_MAX
            && !self.leases.contains_key(&seconds)
            && let Some(first) = self.leases.iter().min_by_key(|(_, lease)| lease.ends).map(|(ttl, _)| *ttl)
        {
            self.leases.remove(&first);
        }
        let ends = asked + Duration::from_secs(granted_seconds(seconds));
        self.leases.insert(seconds, Lease { id, ends, objects: 1 });
    }

    /// A lease is gone before its time (revoked by somebody, or etcd was restored from a backup).
    pub(super) fn handle_gone(&mut self, id: i64) {
        self.leases.retain(|_, lease| lease.id != id);
    }
}

/// etcd counts TTLs in seconds; a key must not go early, so up.
fn whole_seconds(ttl: Duration) -> u64 {
    (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(1)
}

fn granted_seconds(seconds: u64) -> u64 {
    let window = (Duration::from_secs(seconds) / WINDOW_DIVISOR).min(WINDOW_MAX).as_secs();
    seconds + window + SLACK.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_lease_lasts_a_window_longer() {
        for (ttl_ms, expected) in
            [(1, 2), (1_000, 2), (1_500, 3), (15_000, 16), (20_000, 22), (3_600_000, 3_661), (86_400_000, 86_461)]
        {
            let place = LeaseBook::default().place(Duration::from_millis(ttl_ms), Instant::now());
            assert_eq!(place, Place::Grant { seconds: expected }, "ttl {ttl_ms} ms");
        }
    }

    #[test]
    fn a_key_never_goes_early_and_at_most_a_window_late() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        assert!(matches!(book.place(HOUR, t), Place::Grant { .. }));
        book.handle_granted(HOUR, t, 7);
        for seconds in 0..=60 {
            assert_eq!(book.place(HOUR, t + Duration::from_secs(seconds)), Place::Under(7), "{seconds} s later");
        }
        assert!(matches!(book.place(HOUR, t + Duration::from_secs(61)), Place::Grant { .. }), "it would go early");
        assert!(matches!(book.place(HOUR * 2, t), Place::Grant { .. }), "another TTL has its own lease");
    }

    #[test]
    fn a_lease_is_shared_by_a_thousand() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        book.handle_granted(HOUR, t, 7);
        let shared = (0..).take_while(|_| book.place(HOUR, t) == Place::Under(7)).count();
        assert_eq!(shared + 1, OBJECTS_MAX as usize);
    }

    #[test]
    fn a_lease_that_is_gone_is_not_used_again() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        book.handle_granted(HOUR, t, 7);
        book.handle_gone(7);
        assert!(matches!(book.place(HOUR, t), Place::Grant { .. }));
    }

    #[test]
    fn the_book_has_a_limit() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        for seconds in 1..=1_000 {
            book.handle_granted(Duration::from_secs(seconds), t, seconds as i64);
        }
        assert_eq!(book.leases.len(), LEASES_MAX);
        assert_eq!(book.place(Duration::from_secs(1_000), t), Place::Under(1_000), "the longest are kept");
    }
}
