//! Renews the identity Lease of this server, and deletes the Leases of stopped servers.
//!
//! Source: the hooks `start-kube-apiserver-identity-lease-controller` and `…-garbage-collector` in
//! `pkg/controlplane/apiserver/server.go`, `component-helpers/apimachinery/lease`,
//! `pkg/controlplane/controller/apiserverleasegc`. The name is built as in `NewConfig` in
//! `apiserver/pkg/server/config.go`.

use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Map, Value, json};
use listwatch_meta::{KeyRange, Status};
use listwatch_registry::Resource;
use listwatch_storage::{KeyValue, ListQuery};
use listwatch_validation::clock::{Clock, parse_timestamp};
use listwatch_write::{Propagation, Writer};
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;

use crate::objects::{get_versioned, is_conflict, write};

const NAMESPACE: &str = "kube-system";
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The value of the label [`IDENTITY`], and the field manager of the Leases.
const COMPONENT: &str = "kube-apiserver";
/// The time from the last renewal to the expiry of a Lease, in seconds.
const DURATION_SECONDS: i64 = 3600;
/// Interval between two renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum random addition to [`RENEW_INTERVAL`]: 4 %. The jitter spreads the renewals of several servers.
const RENEW_JITTER: Duration = Duration::from_millis(400);
/// Interval between two searches for expired Leases.
const COLLECT_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of attempts to write a Lease after conflicts with other writers.
const ATTEMPTS_MAX: usize = 5;
/// The time limit of [`IdentityLease::stop`].
const STOP_MAX: Duration = Duration::from_secs(5);

/// The controller of one server's Lease.
#[derive(Debug)]
pub(crate) struct IdentityLease {
    writer: Arc<Writer>,
    host_name: String,
    name: String,
    /// The holder identity, which is different after each start.
    holder: String,
    /// Whether [`IdentityLease::stop`] was called. The lock orders the stop after a running renewal.
    stopped: tokio::sync::Mutex<bool>,
}

impl IdentityLease {
    /// Creates a controller for the server on this host.
    pub(crate) fn new(writer: Arc<Writer>, host_name: &str) -> Self {
        let name = lease_name(host_name);
        let holder = format!("{name}_{}", uuid::Uuid::new_v4());
        IdentityLease { writer, host_name: host_name.to_owned(), name, holder, stopped: tokio::sync::Mutex::new(false) }
    }

    /// Replaces the Lease of an earlier process on this host. Then renews the Lease until [`IdentityLease::stop`] is
    /// called or the future is dropped.
    pub(crate) async fn run(&self) {
        if let Err(status) = self.remove().await {
            tracing::warn!(%status, "cannot delete the Lease of a former process of this server");
        }
        loop {
            match self.renew().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(status) => tracing::warn!(%status, "cannot renew the Lease of this server"),
            }
            tokio::time::sleep(RENEW_INTERVAL + RENEW_JITTER.mul_f64(rand::random::<f64>())).await;
        }
    }

    /// Deletes Leases that were not renewed for an hour. Repeats this every hour until the future is dropped.
    pub(crate) async fn run_collection(writer: Arc<Writer>) {
        loop {
            if let Err(status) = collect_expired(&writer, Clock::default().time()).await {
                tracing::warn!(%status, "cannot delete the Leases of servers that are gone");
            }
            tokio::time::sleep(COLLECT_INTERVAL).await;
        }
    }

    /// Ends the renewals and deletes the Lease. Returns after five seconds if the store does not respond.
    pub(crate) async fn stop(&self) {
        let stop = async {
            *self.stopped.lock().await = true;
            self.remove().await
        };
        match tokio::time::timeout(STOP_MAX, stop).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => tracing::warn!(%status, "cannot delete the Lease of this server"),
            Err(_) => tracing::warn!("the store does not respond; the Lease of this server expires by itself"),
        }
    }

    async fn remove(&self) -> Result<(), Status> {
        let resource = leases(&self.writer)?;
        let key = resource.key(Some(NAMESPACE), &self.name)?;
        self.writer.remove(&resource, &key).await.map(drop)
    }

    /// Creates or renews the Lease. Returns false after [`IdentityLease::stop`].
    async fn renew(&self) -> Result<bool, Status> {
        let stopped = self.stopped.lock().await;
        if *stopped {
            return Ok(false);
        }
        let resource = leases(&self.writer)?;
        let key = resource.key(Some(NAMESPACE), &self.name)?;
        let mut outcome = Ok(true);
        for _ in 0..ATTEMPTS_MAX {
            let found = get_versioned(&self.writer, &key).await?;
            let name = found.is_some().then_some(&*self.name);
            let lease = Value::Object(self.lease(found, Clock::default().time()));
            match write(&self.writer, &resource, Some(NAMESPACE), name, &lease, COMPONENT).await {
                Err(status) if is_conflict(&status) => outcome = Err(status),
                Err(status) => return Err(status),
                Ok(()) => return Ok(true),
            }
        }
        outcome
    }

    /// Returns the Lease to write at `now`, based on the stored Lease.
    fn lease(&self, found: Option<Map>, now: OffsetDateTime) -> Map {
        let mut lease = found.unwrap_or_default();
        let metadata = lease.entry("metadata").or_insert_with(|| json!({"name": self.name, "namespace": NAMESPACE}));
        if !metadata["labels"].is_object() {
            metadata["labels"] = json!({});
        }
        metadata["labels"][IDENTITY] = json!(COMPONENT);
        metadata["labels"][HOSTNAME] = json!(self.host_name);
        let spec = lease.entry("spec").or_insert_with(|| json!({}));
        if !spec.is_object() {
            *spec = json!({});
        }
        spec["holderIdentity"] = json!(self.holder);
        spec["leaseDurationSeconds"] = json!(DURATION_SECONDS);
        spec["renewTime"] = json!(micro_time(now));
        lease
    }
}

/// Returns the name of a server's Lease: `apiserver-` and a base32 digest of the host name.
fn lease_name(host_name: &str) -> String {
    let mut digest = Sha256::new();
    for part in [host_name, COMPONENT] {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        digest.update(length.to_be_bytes());
        digest.update(part.as_bytes());
    }
    format!("apiserver-{}", base32(&digest.finalize()[..16]))
}

/// Encodes bytes as RFC 4648 base32 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut buffer, mut bits) = (0_u32, 0_u32);
    for byte in bytes {
        buffer = buffer << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(buffer >> bits & 31) as usize]));
        }
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(buffer << (5 - bits) & 31) as usize]));
    }
    text
}

/// Formats a time as `metav1.MicroTime`: RFC 3339 with six fractional digits, UTC.
fn micro_time(time: OffsetDateTime) -> String {
    let format =
        time::macros::format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    time.to_offset(time::UtcOffset::UTC).format(format).unwrap_or_default()
}

fn leases(writer: &Writer) -> Result<Arc<Resource>, Status> {
    let registry = writer.backend().registry();
    registry.find("coordination.k8s.io", "v1", "leases").cloned().ok_or_else(Status::no_such_resource)
}

/// Deletes the Leases of servers that are expired at `now`.
async fn collect_expired(writer: &Writer, now: OffsetDateTime) -> Result<(), Status> {
    let resource = leases(writer)?;
    let range: KeyRange = resource.range(Some(NAMESPACE));
    let page = writer.backend().storage().list(ListQuery { range, at: None, limit: 0 }).await;
    for found in page.map_err(Status::internal)?.items {
        let Some(uid) = expired_uid(&found, now) else { continue };
        // A Lease that was renewed since then stays, and another server may have deleted it.
        match writer.collect(&resource, &found.key, (&uid, found.modified), Propagation::Background).await {
            Err(status) if status.code != 404 && !is_conflict(&status) => {
                tracing::warn!(%status, lease = found.key.name(), "cannot delete the Lease of a server that is gone");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the uid of a Lease if the Lease belongs to a server and is expired.
fn expired_uid(found: &KeyValue, now: OffsetDateTime) -> Option<String> {
    let lease: Value = serde_json::from_slice(&found.value).ok()?;
    if lease["metadata"]["labels"][IDENTITY] != COMPONENT || !is_expired(&lease["spec"], now) {
        return None;
    }
    lease["metadata"]["uid"].as_str().map(str::to_owned)
}

/// Whether a Lease is expired. Servers always set both fields, so a Lease without one of them is also expired.
fn is_expired(spec: &Value, now: OffsetDateTime) -> bool {
    let renewed = spec["renewTime"].as_str().and_then(parse_timestamp);
    let duration = spec["leaseDurationSeconds"].as_i64();
    match (renewed, duration) {
        (Some(renewed), Some(seconds)) => {
            renewed.checked_add(time::Duration::seconds(seconds)).is_some_and(|expiry| expiry < now)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::Key;
    use listwatch_storage::{MemoryStorage, Storage as _};
    use listwatch_write::testing;

    use super::*;
    use crate::namespaces;

    async fn writer(storage: &Arc<MemoryStorage>) -> Arc<Writer> {
        let writer = Arc::new(testing::writer(storage.clone()));
        namespaces::ensure_system_namespaces(&writer).await.unwrap();
        writer
    }

    async fn stored(storage: &MemoryStorage, name: &str) -> Option<Value> {
        let key = Key::new("leases", Some(NAMESPACE), name).unwrap();
        let (found, _) = storage.get(&key).await.unwrap();
        found.map(|found| serde_json::from_slice(&found.value).unwrap())
    }

    async fn rest(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[test]
    fn lease_name_is_that_of_kube_apiserver() {
        // echo -en '\0\x06node-1\0\x0ekube-apiserver' | sha256sum | cut -c-32 | xxd -r -p | base32
        assert_eq!(lease_name("node-1"), "apiserver-lgabes5ywnaqeagh5dny4zlzs4");
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn lease_is_expired_if_not_renewed_for_its_duration() {
        let now = parse_timestamp("2026-01-01T01:00:00Z").unwrap();
        for (spec, expected) in [
            (json!({"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 3600}), false),
            (json!({"renewTime": "2025-12-31T23:59:59.999999Z", "leaseDurationSeconds": 3600}), true),
            (json!({"renewTime": "2026-01-01T00:59:00.000000Z"}), true),
            (json!({"leaseDurationSeconds": 3600}), true),
            (Value::Null, true),
        ] {
            assert_eq!(is_expired(&spec, now), expected, "{spec}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn identity_lease_equals_that_of_kube_apiserver_and_is_renewed() {
        let storage = MemoryStorage::new();
        let lease = Arc::new(IdentityLease::new(writer(&storage).await, "node-1"));
        let running = tokio::spawn({
            let lease = Arc::clone(&lease);
            async move { lease.run().await }
        });
        rest(1).await;
        let first = stored(&storage, &lease.name).await.expect("the Lease is created at the start");
        assert_eq!(first["metadata"]["labels"], json!({IDENTITY: "kube-apiserver", HOSTNAME: "node-1"}));
        assert_eq!(first["spec"]["holderIdentity"], json!(lease.holder));
        assert_eq!(first["spec"]["leaseDurationSeconds"], 3600);
        rest(12).await;
        let second = stored(&storage, &lease.name).await.unwrap();
        assert!(second["spec"]["renewTime"].as_str() > first["spec"]["renewTime"].as_str(), "{second}");
        assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
        lease.stop().await;
        assert_eq!(stored(&storage, &lease.name).await, None);
        running.await.expect("a stopped controller ends");
        assert_eq!(stored(&storage, &lease.name).await, None, "it is not created again");
    }

    #[tokio::test(start_paused = true)]
    async fn restarted_server_renews_its_lease_with_a_new_holder_identity() {
        let storage = MemoryStorage::new();
        let writer = writer(&storage).await;
        let mut holders = Vec::new();
        for _ in 0..2 {
            let lease = IdentityLease::new(Arc::clone(&writer), "node-1");
            // The process ends without a stop.
            let _ = tokio::time::timeout(Duration::from_secs(1), lease.run()).await;
            holders.push(stored(&storage, &lease.name).await.unwrap()["spec"]["holderIdentity"].clone());
        }
        assert_ne!(holders[0], holders[1]);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_leases_of_servers_are_deleted_and_others_are_kept() {
        let storage = MemoryStorage::new();
        let writer = writer(&storage).await;
        let now = OffsetDateTime::now_utc();
        let one = IdentityLease::new(Arc::clone(&writer), "node-1");
        let two = IdentityLease::new(Arc::clone(&writer), "node-2");
        let resource = leases(&writer).unwrap();
        let mut foreign = one.lease(None, now - time::Duration::hours(2));
        foreign["metadata"] = json!({"name": "kube-scheduler", "namespace": NAMESPACE});
        for lease in [one.lease(None, now - time::Duration::hours(2)), two.lease(None, now), foreign] {
            write(&writer, &resource, Some(NAMESPACE), None, &Value::Object(lease), COMPONENT).await.unwrap();
        }
        collect_expired(&writer, now).await.unwrap();
        assert_eq!(stored(&storage, &one.name).await, None);
        assert!(stored(&storage, &two.name).await.is_some(), "this server renews its Lease");
        assert!(stored(&storage, "kube-scheduler").await.is_some(), "this Lease is not one of servers");
    }
}
