//! [`BodyBudget`]: limits the memory of the request bodies that are received or processed.
//!
//! The bytes of a body are charged from arrival until the response. When the budget is used up, the oldest incomplete
//! body is rejected first. Complete bodies are kept, because their requests are already being processed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum memory of all request bodies together, in bytes. A body is charged from the first byte until the response.
/// At the limit, the oldest incomplete body is rejected with 429. If no incomplete body is older than
/// [`RECEIVING_GRACE`], the body that needs more memory is rejected.
pub(crate) const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The largest total size of the request bodies of one connection, in bytes. A further body is rejected with 429.
pub(crate) const CONNECTION_BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The size of a small body, in bytes. Small bodies may use the whole budget; larger bodies must leave one sixteenth of
/// the budget free.
const SMALL_BODY_BYTES: usize = 64 * 1024;
/// The age below which an incomplete body is never rejected in favor of other bodies.
pub(crate) const RECEIVING_GRACE: Duration = Duration::from_secs(1);

/// The error of a body for which the budget has no more memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The charged bytes of the bodies of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionBodies(Arc<AtomicUsize>);

/// The memory budget of all request bodies. Limits: [`BODIES_BYTES_MAX`], [`CONNECTION_BODIES_BYTES_MAX`].
pub(crate) struct BodyBudget {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// Incomplete bodies, the oldest first.
    incomplete: BTreeMap<u64, Arc<Incomplete>>,
    next: u64,
}

struct Incomplete {
    since: Instant,
    /// The number of bytes that have been received.
    bytes: AtomicUsize,
    reclaimed: AtomicBool,
    notify: Notify,
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(BodyBudget { bytes_max, state: Mutex::default() })
    }

    /// Starts to charge a body.
    pub(crate) fn begin(self: &Arc<Self>, connection: Option<ConnectionBodies>) -> BodyCharge {
        BodyCharge { budget: Arc::clone(self), connection, bytes: 0, incomplete: None }
    }

    /// Returns the number of charged bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl State {
    /// Frees memory by rejecting old incomplete bodies other than `own`.
    fn reclaim(&mut self, excess: usize, own: Option<u64>, now: Instant) {
        let mut freed = 0;
        let old = |body: &Incomplete| now.saturating_duration_since(body.since) >= RECEIVING_GRACE;
        let ids: Vec<u64> = self
            .incomplete
            .iter()
            .take_while(|(_, body)| old(body))
            .filter(|(id, _)| own != Some(**id))
            .take_while(|(_, body)| {
                let enough = freed >= excess;
                freed += body.bytes.load(Relaxed);
                !enough
            })
            .map(|(id, _)| *id)
            .collect();
        for body in ids.iter().filter_map(|id| self.incomplete.remove(id)) {
            self.bytes -= body.bytes.load(Relaxed);
            body.reclaimed.store(true, Relaxed);
            body.notify.notify_one();
        }
    }
}

/// The charge of one body, which is released when the value is dropped.
pub(crate) struct BodyCharge {
    budget: Arc<BodyBudget>,
    connection: Option<ConnectionBodies>,
    bytes: usize,
    incomplete: Option<(u64, Arc<Incomplete>)>,
}

impl BodyCharge {
    /// Charges more bytes.
    ///
    /// # Errors
    /// [`Exhausted`] if the budget has no memory for these bytes.
    pub(crate) fn add(&mut self, bytes: usize, now: impl FnOnce() -> Instant) -> Result<(), Exhausted> {
        let of_connection = self.connection.as_ref().map_or(0, |connection| connection.0.load(Relaxed));
        if of_connection + bytes > CONNECTION_BODIES_BYTES_MAX {
            return Err(Exhausted);
        }
        let mut state = self.budget.state.lock();
        let own = self.incomplete.as_ref();
        if own.is_some_and(|(_, own)| own.reclaimed.load(Relaxed)) {
            return Err(Exhausted);
        }
        let large = self.bytes + bytes > SMALL_BODY_BYTES;
        let bytes_max = self.budget.bytes_max - if large { self.budget.bytes_max / 16 } else { 0 };
        let excess = (state.bytes + bytes).saturating_sub(bytes_max);
        if excess > 0 {
            state.reclaim(excess, own.map(|(id, _)| *id), now());
        }
        if state.bytes + bytes > bytes_max {
            return Err(Exhausted);
        }
        state.bytes += bytes;
        self.bytes += bytes;
        if let Some(connection) = &self.connection {
            connection.0.fetch_add(bytes, Relaxed);
        }
        if let Some((_, own)) = own {
            own.bytes.store(self.bytes, Relaxed);
        }
        Ok(())
    }

    /// Records that the body is incomplete, so that its memory can be reclaimed.
    pub(crate) fn wait(&mut self, now: Instant) {
        if self.incomplete.is_some() {
            return;
        }
        let body = Incomplete {
            since: now,
            bytes: AtomicUsize::new(self.bytes),
            reclaimed: AtomicBool::new(false),
            notify: Notify::new(),
        };
        let body = Arc::new(body);
        let mut state = self.budget.state.lock();
        let id = state.next;
        state.next += 1;
        state.incomplete.insert(id, Arc::clone(&body));
        self.incomplete = Some((id, body));
    }

    /// Resolves when the memory of the body is reclaimed.
    pub(crate) async fn reclaimed(&self) {
        match &self.incomplete {
            Some((_, own)) => own.notify.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Records that the body is complete.
    ///
    /// # Errors
    /// [`Exhausted`] if the memory of the body was just reclaimed.
    pub(crate) fn complete(&mut self) -> Result<(), Exhausted> {
        let Some((id, _)) = &self.incomplete else { return Ok(()) };
        if self.budget.state.lock().incomplete.remove(id).is_none() {
            return Err(Exhausted);
        }
        self.incomplete = None;
        Ok(())
    }
}

impl Drop for BodyCharge {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.0.fetch_sub(self.bytes, Relaxed);
        }
        let mut state = self.budget.state.lock();
        // The bytes of a reclaimed body are no longer charged.
        if self.incomplete.as_ref().is_none_or(|(id, _)| state.incomplete.remove(id).is_some()) {
            state.bytes -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn exhausted_budget_reclaims_the_oldest_incomplete_body() {
        let (budget, start) = (BodyBudget::new(100), Instant::now());
        let mut complete = budget.begin(None);
        complete.add(20, || start).unwrap();
        complete.complete().unwrap();
        let [mut oldest, mut older, mut young] = [0, 1, 2].map(|_| budget.begin(None));
        for body in [&mut oldest, &mut older] {
            body.add(30, || start).unwrap();
            body.wait(start);
        }
        assert_eq!(young.add(30, || start + RECEIVING_GRACE / 2), Err(Exhausted), "none is old enough");
        assert_eq!(oldest.add(50, || start + RECEIVING_GRACE), Ok(()), "the next oldest makes room for the oldest");
        assert!(older.reclaimed().now_or_never().is_some());
        assert_eq!((older.add(1, || start), older.complete()), (Err(Exhausted), Err(Exhausted)));
        assert_eq!(budget.bytes(), 100);
        assert_eq!(young.add(30, || start + RECEIVING_GRACE), Ok(()));
        assert!(oldest.reclaimed().now_or_never().is_some());
        drop((oldest, older));
        assert_eq!(budget.bytes(), 50, "bytes are given back once");
        assert_eq!(young.add(51, || start + RECEIVING_GRACE), Err(Exhausted), "complete bodies are never given up");
        drop((complete, young));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn request_bodies_of_one_connection_share_a_limit_below_the_budget() {
        let (budget, now) = (BodyBudget::new(usize::MAX / 2), Instant::now());
        let connection = ConnectionBodies::default();
        let mut first = budget.begin(Some(connection.clone()));
        first.add(CONNECTION_BODIES_BYTES_MAX, || now).unwrap();
        let mut second = budget.begin(Some(connection));
        assert_eq!(second.add(1, || now), Err(Exhausted));
        assert_eq!(budget.begin(Some(ConnectionBodies::default())).add(1, || now), Ok(()), "another connection");
        drop(first);
        assert_eq!(second.add(1, || now), Ok(()));
    }
}
