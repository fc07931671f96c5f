//! [`Tokens`]: the key that signs service account tokens.
//!
//! The rules of tokens are in [`listwatch_access`]. The store keeps the key beside the Secrets. The first server
//! that needs the key creates it. All servers on one store share the key, so a token stays valid after a server
//! ends. Tokens themselves are not stored.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_access::{Claims, SIGNING_KEY_BYTES, SigningKey};
use listwatch_meta::{Key, Status};
use listwatch_storage::{CreateError, Storage};
use serde_json::Value;
use tokio::sync::OnceCell;

/// Prefix and name of the stored key. No resource is stored below this prefix.
const STORED_KEY: (&str, &str) = ("listwatch/keys", "serviceaccounts");

/// The signing key, set after the first read or creation.
#[derive(Default)]
pub struct Tokens(OnceCell<SigningKey>);

impl Tokens {
    /// Returns the key. The first call reads the key from the store or creates it there.
    pub(crate) async fn key(&self, storage: &Arc<dyn Storage>) -> Result<&SigningKey, Status> {
        self.0.get_or_try_init(|| load(storage)).await
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// The error of the store if the first read of the key fails.
    pub async fn sign(&self, storage: &Arc<dyn Storage>, claims: &Claims) -> Result<String, Status> {
        Ok(self.key(storage).await?.sign(claims))
    }
}

async fn load(storage: &Arc<dyn Storage>) -> Result<SigningKey, Status> {
    let key = Key::new(STORED_KEY.0, None, STORED_KEY.1).map_err(Status::internal)?;
    let (found, _) = storage.get(&key).await.map_err(Status::internal)?;
    if let Some(found) = found {
        return from_stored(&found.value);
    }
    let mut bytes = [0; SIGNING_KEY_BYTES];
    rand::fill(&mut bytes);
    let value = serde_json::json!({"key": BASE64.encode(bytes)}).to_string();
    match storage.create(&key, value.into(), None).await {
        Ok(_) => Ok(SigningKey::new(&bytes)),
        // Another server created the key first.
        Err(CreateError::AlreadyExists { current, .. }) => from_stored(&current.value),
        Err(error) => Err(Status::internal(error)),
    }
}

fn from_stored(value: &[u8]) -> Result<SigningKey, Status> {
    let bytes = serde_json::from_slice::<Value>(value).ok().and_then(|stored| {
        let bytes = BASE64.decode(stored.get("key")?.as_str()?).ok()?;
        bytes.try_into().ok()
    });
    let bytes = bytes.ok_or_else(|| Status::internal("the stored key of service accounts' tokens is damaged"))?;
    Ok(SigningKey::new(&bytes))
}

#[cfg(test)]
mod tests {
    use listwatch_storage::MemoryStorage;

    use super::*;

    #[tokio::test]
    async fn signing_key_is_stored_and_a_damaged_key_is_rejected() {
        let storage: Arc<dyn Storage> = MemoryStorage::new();
        let (one, other) = (Tokens::default(), Tokens::default());
        let keys = tokio::join!(one.key(&storage), other.key(&storage));
        assert!(keys.0.is_ok() && keys.1.is_ok());
        let stored = Key::new(STORED_KEY.0, None, STORED_KEY.1).unwrap();
        let (Some(found), _) = storage.get(&stored).await.unwrap() else { panic!("the key is stored") };
        assert!(from_stored(&found.value).is_ok());
        assert!(from_stored(b"{}").is_err());
    }
}
