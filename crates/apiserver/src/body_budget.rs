//! The memory of request bodies that are being received or worked on: [`BodyBudget`].
//!
//! A body is charged as its bytes arrive and until the request is answered. When the budget is used
//! up, the oldest body that is still incomplete is given up first: complete bodies are worked on, and
//! a client that sends what it announced is done within a moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes of all request bodies together, from their first byte until the answer. At the bound the
/// oldest incomplete body is refused with a 429; when none is older than [`RECEIVING_GRACE`], the one
/// that asks for more is.
pub(crate) const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes of the bodies of one connection, the same way; a body beyond is refused with a 429.
pub(crate) const CONNECTION_BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bodies of at most this many bytes may use all of the budget; larger ones leave a sixteenth of it to them.
const SMALL_BODY_BYTES: usize = 64 * 1024;
/// For this long an incomplete body is not given up for the sake of others.
pub(crate) const RECEIVING_GRACE: Duration = Duration::from_secs(1);

/// There is no room for more bytes of this body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The bytes that the bodies of one connection take.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionBodies(Arc<AtomicUsize>);

/// See the module.
pub(crate) struct BodyBudget {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// Bodies that are not complete, the oldest first.
    incomplete: BTreeMap<u64, Arc<Incomplete>>,
    next: u64,
}

struct Incomplete {
    since: Instant,
    /// Bytes received so far.
    bytes: AtomicUsize,
    reclaimed: AtomicBool,
    told: Notify,
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(BodyBudget { bytes_max, state: Mutex::default() })
    }

    /// A body of which nothing has been received.
    pub(crate) fn begin(self: &Arc<Self>, connection: Option<ConnectionBodies>) -> BodyCharge {
        BodyCharge { budget: Arc::clone(self), connection, bytes: 0, incomplete: None }
    }

    /// Bytes charged.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl State {
    /// Makes room by giving up incomplete bodies other than `own`.
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
            body.told.notify_one();
        }
    }
}

/// What one body takes, given back when it is dropped.
pub(crate) struct BodyCharge {
    budget: Arc<BodyBudget>,
    connection: Option<ConnectionBodies>,
    bytes: usize,
    incomplete: Option<(u64, Arc<Incomplete>)>,
}

impl BodyCharge {
    /// More bytes have come.
    ///
    /// # Errors
    /// [`Exhausted`] when there is no room for them.
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

    /// The rest of the body is awaited.
    pub(crate) fn wait(&mut self, now: Instant) {
        if self.incomplete.is_some() {
            return;
        }
        let body = Incomplete {
            since: now,
            bytes: AtomicUsize::new(self.bytes),
            reclaimed: AtomicBool::new(false),
            told: Notify::new(),
        };
        let body = Arc::new(body);
        let mut state = self.budget.state.lock();
        let id = state.next;
        state.next += 1;
        state.incomplete.insert(id, Arc::clone(&body));
        self.incomplete = Some((id, body));
    }

    /// Resolves when the body is given up for others.
    pub(crate) async fn reclaimed(&self) {
        match &self.incomplete {
            Some((_, own)) => own.told.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The body is complete.
    ///
    /// # Errors
    /// [`Exhausted`] when it was given up a moment before.
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
        // The bytes of a body that was given up are no longer charged.
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
    fn oldest_incomplete_body_is_given_up_when_the_budget_is_used_up() {
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
    fn bodies_of_one_connection_have_a_bound_of_their_own() {
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
