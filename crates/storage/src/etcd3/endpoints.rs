//! The members of etcd and the connections to them: the selection of a member, and retries.
//!
//! Requests go to the members round-robin, as with Kubernetes' client. A failed member is skipped for [`PENALTY`]; when
//! all have failed, the request goes to the member that failed the longest ago. A read is always retried. A write is
//! retried only if it certainly never reached a server.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use listwatch_grpc::{Channel, Status};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::client::Client;
use super::fault::{Cause, Failure};
use super::options::{Dial, Etcd3Options};
use super::proto::ResponseHeader;
use super::version::Version;
use crate::error::StoreFault;

/// Time for which a failed member is skipped while another one is available.
pub(super) const PENALTY: Duration = Duration::from_secs(15);

/// Whether a request may be sent again when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// The request changes nothing, so it may be repeated.
    Read,
    /// The request may have taken effect, so it must not be repeated.
    Write,
}

/// The connections to one member.
pub(super) struct Connection {
    /// The member's index.
    pub(super) index: usize,
    /// Distinguishes this connection from earlier ones to the same member.
    serial: u64,
    pub(super) url: String,
    /// The client for everything except watches.
    pub(super) calls: Client,
    /// The client for watches, with its own connection and token.
    pub(super) watches: Client,
}

impl Connection {
    /// Fetches a new token for watches; has no effect without a user.
    pub(super) async fn renew_watch_token(&self) -> Result<(), Failure> {
        self.watches.renew_token().await.map_err(|status| Failure::from_status(&self.url, &status))
    }
}

struct Member {
    dial: Dial,
    connection: RwLock<Option<Arc<Connection>>>,
    /// Held while a connection is made, so that concurrent requests authenticate once.
    dialing: tokio::sync::Mutex<()>,
    version: RwLock<Option<Version>>,
    /// Whether the member denies reading its version, and the log has reported the denial.
    denies_version: AtomicBool,
}

/// The result of asking a member for its version.
#[derive(Debug)]
pub(super) enum VersionAnswer {
    /// The version, if parsable, and the header, which names the cluster.
    Version(Option<Version>, Option<ResponseHeader>),
    /// The member denies it, with the reason: `Maintenance.Status` needs the role `root` there, or
    /// the credential is rejected.
    Denied(String),
}

/// All members of an etcd.
pub(super) struct Endpoints {
    members: Vec<Member>,
    picker: Mutex<Picker>,
    serial: AtomicU64,
    user: Option<(String, String)>,
    request_timeout: Duration,
    dial_timeout: Duration,
}

impl Endpoints {
    pub(super) fn new(options: &Etcd3Options, dials: Vec<Dial>) -> Self {
        Endpoints {
            picker: Mutex::new(Picker::new(dials.len())),
            members: dials
                .into_iter()
                .map(|dial| Member {
                    dial,
                    connection: RwLock::new(None),
                    dialing: tokio::sync::Mutex::new(()),
                    version: RwLock::new(None),
                    denies_version: AtomicBool::new(false),
                })
                .collect(),
            serial: AtomicU64::new(0),
            user: options.user.clone(),
            request_timeout: options.request_timeout,
            dial_timeout: options.dial_timeout,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn url(&self, index: usize) -> &str {
        &self.members[index].dial.url
    }

    /// The connection to a member, created if absent. Without a user no data is sent before the
    /// first request.
    pub(super) async fn connection(&self, index: usize) -> Result<Arc<Connection>, Failure> {
        let member = &self.members[index];
        if let Some(connection) = &*member.connection.read() {
            return Ok(connection.clone());
        }
        let _dialing = member.dialing.lock().await;
        if let Some(connection) = &*member.connection.read() {
            return Ok(connection.clone());
        }
        let url = &member.dial.url;
        let client = async |channel: Channel| {
            let client = Client::new(channel, self.user.as_ref());
            match tokio::time::timeout(self.dial_timeout, client).await {
                Ok(client) => client.map_err(|status| Failure::from_status(url, &status)),
                Err(_) => Err(Failure::dial_timeout(url, self.dial_timeout)),
            }
        };
        let calls = client(member.dial.calls()).await?;
        let watches = client(member.dial.watches()).await?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection { index, serial, url: url.clone(), calls, watches });
        *member.connection.write() = Some(connection.clone());
        Ok(connection)
    }

    /// Drops a silent connection. The next request opens a new connection; the old one ends with its last user.
    pub(super) fn handle_dead(&self, connection: &Connection) {
        let mut slot = self.members[connection.index].connection.write();
        if slot.as_ref().is_some_and(|current| current.serial == connection.serial) {
            *slot = None;
        }
        drop(slot);
        self.handle_failed(connection.index);
    }

    /// Drops the current connection of a member that did not answer in time.
    pub(super) fn handle_silent(&self, index: usize) {
        *self.members[index].connection.write() = None;
        self.handle_failed(index);
    }

    /// Records that a member failed.
    pub(super) fn handle_failed(&self, index: usize) {
        self.picker.lock().handle_failed(index, Instant::now());
    }

    /// The member for the next request.
    pub(super) fn pick(&self, tried: &[usize]) -> usize {
        self.picker.lock().pick(tried, Instant::now())
    }

    /// Sends a request, and retries it at another member if that is safe and may help. Every member receives the
    /// request once. A single member receives it twice, because its first connection may just have died.
    pub(super) async fn call<T, Fut>(
        &self,
        verb: Verb,
        limit: Duration,
        request: impl Fn(Arc<Connection>) -> Fut,
    ) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, Status>>,
    {
        let attempts = self.members.len().max(2);
        let mut tried = Vec::new();
        loop {
            let index = self.pick(&tried);
            tried.push(index);
            let failure = match self.try_call(index, limit, &request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.elsewhere {
                self.handle_failed(index);
            }
            let again = failure.unsent || (verb == Verb::Read && failure.elsewhere);
            if !again || tried.len() >= attempts {
                return Err(failure);
            }
            tracing::debug!(endpoint = self.url(index), ?failure, "asking again");
        }
    }

    /// Sends one request to one member.
    pub(super) async fn try_call<T, Fut>(
        &self,
        index: usize,
        limit: Duration,
        request: impl Fn(Arc<Connection>) -> Fut,
    ) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, Status>>,
    {
        let connection = self.connection(index).await?;
        match tokio::time::timeout(limit, request(connection.clone())).await {
            Ok(answer) => answer.map_err(|status| Failure::from_status(&connection.url, &status)),
            Err(_) => {
                // The connection may be dead without having noticed it.
                self.handle_dead(&connection);
                Err(Failure::timeout(&connection.url, limit))
            }
        }
    }

    /// Sends a read with the usual timeout.
    pub(super) async fn read<T, Fut>(&self, request: impl Fn(Arc<Connection>) -> Fut) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, Status>>,
    {
        self.call(Verb::Read, self.request_timeout, request).await
    }

    /// Sends a write with the usual timeout.
    pub(super) async fn write<T, Fut>(&self, request: impl Fn(Arc<Connection>) -> Fut) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, Status>>,
    {
        self.call(Verb::Write, self.request_timeout, request).await
    }

    /// Requests the version of a member and stores it.
    ///
    /// etcd 3.4.42 to 3.4.44, 3.5.28 to 3.5.31 and 3.6.0 to 3.6.11 deny this to users without the
    /// role `root`. The rights on keys do not depend on this, so the denial is not a failure.
    pub(super) async fn learn_version(&self, index: usize, limit: Duration) -> Result<VersionAnswer, Failure> {
        let member = &self.members[index];
        let status = self.try_call(index, limit, |connection| async move { connection.calls.status().await });
        match status.await {
            Ok(status) => {
                let version = Version::parse(&status.version);
                *member.version.write() = version;
                member.denies_version.store(false, Ordering::Relaxed);
                Ok(VersionAnswer::Version(version, status.header))
            }
            Err(Failure { cause: Cause::Fault(StoreFault::Denied(reason)), .. }) => {
                *member.version.write() = None;
                Ok(VersionAnswer::Denied(reason))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Records that a member serves this user but denies reading its version.
    pub(super) fn handle_version_denied(&self, index: usize, reason: &str) {
        if !self.members[index].denies_version.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                endpoint = self.url(index),
                reason,
                "etcd does not tell this user its version, so it is treated as an old one: consistent lists are read \
                 from etcd and not from the cache; a newer etcd or the role root changes that"
            );
        }
    }

    /// The members whose version is unknown.
    pub(super) fn unknown(&self) -> Vec<usize> {
        (0..self.len()).filter(|index| self.members[*index].version.read().is_none()).collect()
    }

    /// Whether this member responds to progress requests reliably, as far as its version is known now.
    pub(super) fn is_progress_reliable(&self, index: usize) -> bool {
        self.members[index].version.read().is_some_and(Version::has_reliable_progress)
    }

    /// Whether every member responds to progress requests reliably. False if a member was not reached yet.
    pub(super) fn has_reliable_progress(&self) -> bool {
        (0..self.len()).all(|index| self.is_progress_reliable(index))
    }
}

/// Selects members round-robin.
#[derive(Debug)]
struct Picker {
    failed: Vec<Option<Instant>>,
    next: usize,
}

impl Picker {
    fn new(members: usize) -> Self {
        Picker { failed: vec![None; members], next: 0 }
    }

    fn handle_failed(&mut self, index: usize, now: Instant) {
        self.failed[index] = Some(now);
    }

    /// Selects the next untried member without a recent failure. If there is none, selects the untried member that
    /// failed the longest ago; if all were tried, the next member.
    fn pick(&mut self, tried: &[usize], now: Instant) -> usize {
        let members = self.failed.len();
        let turn = |offset: usize| (self.next + offset) % members;
        let untried = || (0..members).map(turn).filter(|index| !tried.contains(index));
        let well = |index: &usize| self.failed[*index].is_none_or(|failed| now >= failed + PENALTY);
        let index = untried()
            .find(well)
            .or_else(|| untried().min_by_key(|index| self.failed[*index]))
            .unwrap_or_else(|| turn(0));
        self.next = (index + 1) % members;
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_members_are_tried_in_turn() {
        let now = Instant::now();
        let mut picker = Picker::new(3);
        let turns: Vec<_> = (0..6).map(|_| picker.pick(&[], now)).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn failed_member_is_skipped_during_its_penalty() {
        let now = Instant::now();
        let mut picker = Picker::new(3);
        picker.handle_failed(1, now);
        let turns: Vec<_> = (0..4).map(|_| picker.pick(&[], now)).collect();
        assert_eq!(turns, [0, 2, 0, 2]);
        let later = now + PENALTY;
        let turns: Vec<_> = (0..3).map(|_| picker.pick(&[], later)).collect();
        assert_eq!(turns, [0, 1, 2]);
    }

    #[test]
    fn member_with_oldest_failure_is_tried_when_all_failed() {
        let now = Instant::now();
        let mut picker = Picker::new(3);
        for (index, seconds) in [(0, 3), (1, 1), (2, 2)] {
            picker.handle_failed(index, now + Duration::from_secs(seconds));
        }
        let now = now + Duration::from_secs(4);
        assert_eq!(picker.pick(&[], now), 1);
        assert_eq!(picker.pick(&[1], now), 2);
        assert_eq!(picker.pick(&[1, 2], now), 0);
    }

    #[test]
    fn single_member_is_tried_again_after_a_failure() {
        let now = Instant::now();
        let mut picker = Picker::new(1);
        picker.handle_failed(0, now);
        assert_eq!(picker.pick(&[], now), 0);
        assert_eq!(picker.pick(&[0], now), 0);
    }
}
