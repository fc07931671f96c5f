//! The leases of the servers on one store: one key per server address below `/masterleases`. A key expires unless the
//! server renews the lease.
//!
//! Source: `storageLeases` in `pkg/controlplane/reconcilers/lease.go`. kube-apiserver reads and writes the same keys.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use listwatch_json::{Map, Value, json};
use listwatch_meta::{Key, KeyRange, Status};
use listwatch_storage::{CreateError, DeleteError, KeyValue, ListQuery, Storage, UpdateError};

/// The time after which a lease expires unless it is renewed (`DefaultEndpointReconcilerTTL`).
const TTL: Duration = Duration::from_secs(15);
/// The prefix of the keys.
const PREFIX: &str = "masterleases";
/// Maximum number of attempts to write a lease after conflicts with another server that has the same address.
const ATTEMPTS_MAX: usize = 5;

/// Writes the lease of an address. The lease expires after [`TTL`].
///
/// # Errors
/// 500 when the store fails, or when the lease changed during each attempt.
pub(crate) async fn renew(storage: &dyn Storage, address: IpAddr) -> Result<(), Status> {
    let key = key(address)?;
    let (mut found, _) = storage.get(&key).await.map_err(Status::internal)?;
    for _ in 0..ATTEMPTS_MAX {
        let value = Bytes::from(renewed(found.as_ref(), address).to_string());
        found = match &found {
            None => match storage.create(&key, value, Some(TTL)).await {
                Ok(_) => return Ok(()),
                Err(CreateError::AlreadyExists { current, .. }) => Some(current),
                Err(CreateError::Fault(fault)) => return Err(Status::internal(fault)),
            },
            Some(stored) => match storage.update(&key, stored.modified, value, Some(TTL)).await {
                Ok(_) => return Ok(()),
                Err(UpdateError::Conflict { current }) => current,
                Err(UpdateError::Fault(fault)) => return Err(Status::internal(fault)),
            },
        };
    }
    Err(Status::internal(format!("another server uses the address {address} as well")))
}

/// Deletes the lease of an address. Returns false if there is none.
///
/// # Errors
/// 500 when the store fails, or when the lease changed during each attempt.
pub(crate) async fn remove(storage: &dyn Storage, address: IpAddr) -> Result<bool, Status> {
    let key = key(address)?;
    let (mut found, _) = storage.get(&key).await.map_err(Status::internal)?;
    for _ in 0..ATTEMPTS_MAX {
        let Some(stored) = &found else { return Ok(false) };
        found = match storage.delete(&key, stored.modified).await {
            Ok(_) => return Ok(true),
            Err(DeleteError::Conflict { current }) => current,
            Err(DeleteError::Fault(fault)) => return Err(Status::internal(fault)),
        };
    }
    Err(Status::internal(format!("another server uses the address {address} as well")))
}

/// Returns the addresses of all servers, in the order of their keys.
///
/// # Errors
/// 500 when the store fails or a lease is unreadable, because the server of an unreadable lease may be running.
pub(crate) async fn addresses(storage: &dyn Storage) -> Result<Vec<String>, Status> {
    let query = ListQuery { range: KeyRange::resource(PREFIX), at: None, limit: 0 };
    let page = storage.list(query).await.map_err(Status::internal)?;
    let mut addresses = Vec::with_capacity(page.items.len());
    for item in &page.items {
        let lease: Value = serde_json::from_slice(&item.value)
            .map_err(|error| Status::internal(format!("cannot read {}: {error}", item.key)))?;
        addresses.extend(lease["subsets"][0]["addresses"][0]["ip"].as_str().map(str::to_owned));
    }
    Ok(addresses)
}

fn key(address: IpAddr) -> Result<Key, Status> {
    Key::new(PREFIX, None, &address.to_string()).map_err(Status::internal)
}

/// Returns the next value of a lease. The generation counts the renewals.
fn renewed(found: Option<&KeyValue>, address: IpAddr) -> Value {
    let stored = found.and_then(|found| serde_json::from_slice::<Map>(&found.value).ok());
    let generation = stored.as_ref().and_then(|lease| lease.get("metadata")?.get("generation")?.as_i64()).unwrap_or(0);
    json!({
        "kind": "Endpoints",
        "apiVersion": "v1",
        "metadata": {"generation": generation.saturating_add(1)},
        "subsets": [{"addresses": [{"ip": address.to_string()}]}],
    })
}

#[cfg(test)]
mod tests {
    use listwatch_storage::MemoryStorage;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[tokio::test(start_paused = true)]
    async fn master_lease_expires_unless_it_is_renewed() {
        let storage = MemoryStorage::new();
        for address in [TWO, ONE] {
            renew(&*storage, address).await.unwrap();
        }
        assert_eq!(addresses(&*storage).await.unwrap(), ["192.0.2.1", "192.0.2.2"]);
        for _ in 0..3 {
            tokio::time::sleep(TTL - Duration::from_secs(5)).await;
            renew(&*storage, ONE).await.unwrap();
        }
        assert_eq!(addresses(&*storage).await.unwrap(), ["192.0.2.1"]);
        let (lease, _) = storage.get(&key(ONE).unwrap()).await.unwrap();
        let lease: Value = serde_json::from_slice(&lease.unwrap().value).unwrap();
        assert_eq!(lease["metadata"]["generation"], 4, "kube-apiserver counts renewals: {lease}");
    }

    #[tokio::test]
    async fn removed_master_lease_is_not_listed() {
        let storage = MemoryStorage::new();
        renew(&*storage, ONE).await.unwrap();
        assert_eq!(remove(&*storage, ONE).await, Ok(true));
        assert_eq!(remove(&*storage, ONE).await, Ok(false));
        assert_eq!(addresses(&*storage).await.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn unreadable_master_lease_fails_the_list_of_addresses() {
        let storage = MemoryStorage::new();
        renew(&*storage, ONE).await.unwrap();
        storage.create(&key(TWO).unwrap(), Bytes::from_static(b"?"), None).await.unwrap();
        assert_eq!(addresses(&*storage).await.unwrap_err().code, 500);
    }
}
