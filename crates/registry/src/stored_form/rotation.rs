//! [`rewrite_stale_keys`]: encrypts the server's own values with the current key when the server starts.
//!
//! After a key rotation, clients rewrite objects (`kubectl get secrets -A -o json | kubectl replace -f -`). Clients
//! cannot see keys that belong to no resource, so the server rewrites these. Otherwise a removal of the old encryption
//! key would make the signing key of all tokens unreadable.

use std::sync::Arc;

use listwatch_meta::KeyRange;
use listwatch_storage::{ListQuery, ReadError, Storage, StoreFault, UpdateError, unreadable_reason};

/// The prefixes of this server's own keys, which belong to no resource. `ranges/servicenodeports` is missing here,
/// because the node port repair rewrites that key.
const OWN_PREFIXES: [&str; 1] = ["listwatch"];

/// The maximum number of entries per list request to the store.
const PAGE_ENTRIES: usize = 500;

/// Rewrites each value that is encrypted with an old key, or that is plaintext but should be encrypted. Unreadable
/// values stay unchanged.
///
/// # Errors
/// The error of the store. Some values may then still need the old key.
pub async fn rewrite_stale_keys(storage: &Arc<dyn Storage>) -> Result<(), StoreFault> {
    for prefix in OWN_PREFIXES {
        let mut range = KeyRange::resource(prefix);
        loop {
            let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ENTRIES };
            let page = storage.list(query).await.map_err(|error| match error {
                ReadError::Fault(fault) => fault,
                other => StoreFault::Corrupt(other.to_string()),
            })?;
            let last = page.items.last().map(|entry| format!("{}\0", entry.key));
            for entry in page.items {
                if !entry.stale || unreadable_reason(&entry.value).is_some() {
                    continue;
                }
                match storage.update(&entry.key, entry.modified, entry.value, None).await {
                    // On a conflict another server wrote or deleted the value meanwhile.
                    Ok(_) | Err(UpdateError::Conflict { .. }) => {}
                    Err(UpdateError::Fault(fault)) => return Err(fault),
                }
            }
            match last {
                Some(last) if page.more => range = range.starting_at(&last),
                _ => break,
            }
        }
    }
    Ok(())
}
