//! Shares etcd leases between keys: [`LeaseBook`] selects the lease of a key with a TTL.
//!
//! A lease per Event object would make etcd keep a hundred thousand leases. Therefore, as in
//! Kubernetes (`etcd3/lease_manager.go`), a lease is granted for slightly longer than requested.
//! Every later key with the same TTL shares the lease within this extra time.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Maximum time during which keys share a lease.
const WINDOW_MAX: Duration = Duration::from_secs(60);

/// The divisor of the TTL that also bounds this time.
const WINDOW_DIVISOR: u32 = 20;

/// The maximum number of keys that share a lease; etcd removes them at once when the lease ends.
const OBJECTS_MAX: u32 = 1000;

/// Allowance for the time that a put takes to reach etcd. Without it, a key could expire early.
const SLACK: Duration = Duration::from_secs(1);

/// The largest number of remembered leases. At the bound, the lease that ends first is forgotten,
/// but not revoked.
const LEASES_MAX: usize = 64;

/// The leases that can still be shared.
#[derive(Debug, Default)]
pub(super) struct LeaseBook {
    /// Leases by TTL in whole seconds.
    leases: HashMap<u64, Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    /// etcd keeps the lease at least until this time.
    ends: Instant,
    objects: u32,
}

/// The choice of a lease for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseChoice {
    /// Use this lease.
    Under(i64),
    /// Grant a new lease of this many seconds, then call [`LeaseBook::handle_granted`].
    Grant {
        /// The lease's time to live in seconds.
        seconds: u64,
    },
}

impl LeaseBook {
    /// Selects a lease for one more key that lives for `ttl` from `now` on.
    pub(super) fn place(&mut self, ttl: Duration, now: Instant) -> LeaseChoice {
        let seconds = whole_seconds(ttl);
        if let Some(lease) = self.leases.get_mut(&seconds)
            && lease.objects < OBJECTS_MAX
            && lease.ends >= now + Duration::from_secs(seconds) + SLACK
        {
            lease.objects += 1;
            return LeaseChoice::Under(lease.id);
        }
        LeaseChoice::Grant { seconds: granted_seconds(seconds) }
    }

    /// Records a granted lease. `asked` is the time when the grant was sent; etcd starts to count
    /// later. The key for which it was granted is counted.
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

    /// Removes a lease that ended early (revoked, or etcd was restored from a backup).
    pub(super) fn handle_gone(&mut self, id: i64) {
        self.leases.retain(|_, lease| lease.id != id);
    }
}

/// etcd counts TTLs in seconds; rounded up, so that a key never expires early.
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
    fn granted_lease_exceeds_the_ttl_by_a_window() {
        for (ttl_ms, expected) in
            [(1, 2), (1_000, 2), (1_500, 3), (15_000, 16), (20_000, 22), (3_600_000, 3_661), (86_400_000, 86_461)]
        {
            let place = LeaseBook::default().place(Duration::from_millis(ttl_ms), Instant::now());
            assert_eq!(place, LeaseChoice::Grant { seconds: expected }, "ttl {ttl_ms} ms");
        }
    }

    #[test]
    fn key_expires_never_early_and_at_most_a_window_late() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        assert!(matches!(book.place(HOUR, t), LeaseChoice::Grant { .. }));
        book.handle_granted(HOUR, t, 7);
        for seconds in 0..=60 {
            assert_eq!(book.place(HOUR, t + Duration::from_secs(seconds)), LeaseChoice::Under(7), "{seconds} s later");
        }
        assert!(
            matches!(book.place(HOUR, t + Duration::from_secs(61)), LeaseChoice::Grant { .. }),
            "it would go early"
        );
        assert!(matches!(book.place(HOUR * 2, t), LeaseChoice::Grant { .. }), "another TTL has its own lease");
    }

    #[test]
    fn lease_is_shared_by_at_most_a_thousand_keys() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        book.handle_granted(HOUR, t, 7);
        let shared = (0..).take_while(|_| book.place(HOUR, t) == LeaseChoice::Under(7)).count();
        assert_eq!(shared + 1, OBJECTS_MAX as usize);
    }

    #[test]
    fn revoked_lease_is_not_used_again() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        book.handle_granted(HOUR, t, 7);
        book.handle_gone(7);
        assert!(matches!(book.place(HOUR, t), LeaseChoice::Grant { .. }));
    }

    #[test]
    fn lease_book_keeps_at_most_its_limit_of_leases() {
        let t = Instant::now();
        let mut book = LeaseBook::default();
        for seconds in 1..=1_000 {
            book.handle_granted(Duration::from_secs(seconds), t, seconds as i64);
        }
        assert_eq!(book.leases.len(), LEASES_MAX);
        assert_eq!(book.place(Duration::from_secs(1_000), t), LeaseChoice::Under(1_000), "the longest are kept");
    }
}
