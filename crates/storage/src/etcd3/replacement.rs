//! Decides whether etcd's history was replaced, from the responses of its members.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::endpoints::Connection;
use super::fault::{Cause, Failure};
use super::history::{Floor, Replaced};
use super::keys::{number, revision};
use super::lease::LeaseBook;
use super::proto::{RangeRequest, ResponseHeader};
use super::{HEALTH_TIMEOUT, Shared};

/// Time after which a response of another history is checked again, because the member may just be
/// behind.
const RECONSIDER_AFTER: Duration = Duration::from_millis(100);

/// Completes with the output of the first future that completes, and removes this future.
async fn next_ready<F: Future + Unpin>(futures: &mut Vec<F>) -> F::Output {
    poll_fn(|cx| {
        for index in 0..futures.len() {
            if let Poll::Ready(output) = Pin::new(&mut futures[index]).poll(cx) {
                drop(futures.swap_remove(index));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

impl Shared {
    /// Checks the header of a write. A write is acknowledged if the cluster executed it, also in a
    /// history that replaced the known one. A write that a single contradicting member executed is
    /// not acknowledged.
    pub(super) async fn check_write(
        &self,
        floor: Floor,
        index: usize,
        header: Option<&ResponseHeader>,
    ) -> Result<(), Failure> {
        let Err(replaced) = self.check_header(floor, header)? else { return Ok(()) };
        let cluster = header.map_or(0, |header| header.cluster_id);
        match Box::pin(self.confirm_replaced(floor, index, replaced)).await {
            Failure { cause: Cause::Replaced(_), .. } if self.history.is_cluster(cluster) => Ok(()),
            failure => Err(failure),
        }
    }

    /// Decides on the evidence of member `suspect`. Either the store's history was replaced, or this member is behind
    /// the others or in another cluster. A history is replaced if the majority of the configured endpoints shows the same
    /// replacement before a member that has the known history answers. Otherwise one member without its cluster could
    /// decide while the others have no leader.
    ///
    /// Another caller may decide meanwhile. Members then agree with the new history, so the probes prove nothing.
    pub(super) async fn confirm_replaced(&self, floor: Floor, suspect: usize, replaced: Replaced) -> Failure {
        tokio::time::sleep(RECONSIDER_AFTER).await;
        if !self.history.is_present(floor) {
            return Failure::replaced(&replaced);
        }
        let needed = self.endpoints.len() / 2 + 1;
        let mut confirmed = 0;
        // At once, because the caller may have little time and a member without a network is silent.
        let mut probes: Vec<_> =
            (0..self.endpoints.len()).map(|index| Box::pin(self.probe_replaced(floor, index, &replaced))).collect();
        while !probes.is_empty() && confirmed < needed {
            let found = next_ready(&mut probes).await;
            if !self.history.is_present(floor) {
                return Failure::replaced(&replaced);
            }
            match found {
                Some(true) => confirmed += 1,
                Some(false) => {
                    self.endpoints.handle_failed(suspect);
                    let failure = Failure::astray(self.endpoints.url(suspect), &replaced);
                    tracing::warn!(?failure, "a member of etcd is behind the others or in another cluster");
                    return failure;
                }
                None => {}
            }
        }
        if confirmed < needed {
            self.endpoints.handle_failed(suspect);
            let failure = Failure::unconfirmed(self.endpoints.url(suspect), &replaced, confirmed, needed);
            tracing::warn!(?failure, "a member of etcd has another history, and too few members answer to decide");
            return failure;
        }
        self.handle_replaced(floor, &replaced)
    }

    /// Whether this member shows the same replacement (true) or has the known history (false). `None` if it shows
    /// neither, or does not answer within [`HEALTH_TIMEOUT`].
    async fn probe_replaced(&self, floor: Floor, index: usize, replaced: &Replaced) -> Option<bool> {
        let request = &match replaced {
            Replaced::Rewritten { key, at, .. } => {
                RangeRequest { key: self.keys.full(key.as_str()), revision: number(*at), ..self.probe() }
            }
            _ => self.probe(),
        };
        let call = |connection: Arc<Connection>| async move { connection.calls.range(request.clone()).await };
        let probe = self.endpoints.try_call(index, HEALTH_TIMEOUT, call);
        // This limit includes the time to connect.
        let Ok(answer) = tokio::time::timeout(HEALTH_TIMEOUT, probe).await else {
            self.endpoints.handle_silent(index);
            return None;
        };
        let answer = answer.ok()?;
        let checked = self.check_header(floor, answer.header.as_ref()).ok()?;
        let found = answer.kvs.first().map(|kv| revision(kv.mod_revision));
        match (replaced, &checked) {
            (Replaced::Rewritten { at, .. }, Ok(_)) => Some(found != Some(*at)),
            (Replaced::Cluster { is, .. }, Err(Replaced::Cluster { is: other, .. })) => Some(is == other),
            (Replaced::WentBack { .. }, Err(Replaced::WentBack { .. })) => Some(true),
            // Another member that contradicts the known history in another way confirms nothing.
            (_, Err(_)) => None,
            (_, Ok(_)) => Some(false),
        }
    }

    /// Logs that etcd's history was replaced, and ends every watch of the former one.
    fn handle_replaced(&self, floor: Floor, replaced: &Replaced) -> Failure {
        if self.history.handle_replaced(floor, replaced) {
            // Known compactions and leases belong to the former history too.
            self.compacted.store(0, Ordering::Relaxed);
            *self.leases.lock() = LeaseBook::default();
            tracing::error!(
                "{replaced}: was it restored from an older backup, or its data removed? Every watch is told that its \
                 place is gone, and what etcd holds now is served. After a restore, raise etcd's revision \
                 (etcdutl snapshot restore --bump-revision) and restart every server and controller"
            );
        }
        Failure::replaced(replaced)
    }
}
