//! [`Tokens`]: the keys of service account tokens.
//!
//! The token rules are in [`listwatch_access`]. If no signing key is configured, the server signs with a key in the
//! store, which is encrypted like Secrets. The first server that needs a key creates one. All servers on one store
//! share the key, so a token remains valid after a server stops. Tokens themselves are not stored.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_access::{Claims, ServiceAccountTokenOptions, SigningKey, TokenKeys};
use listwatch_json::Value;
use listwatch_meta::{Key, Status};
use listwatch_storage::{CreateError, Storage};
use tokio::sync::OnceCell;

/// Prefix and name of the stored key, a private key for ES256 in PKCS #8. No resource is stored below this prefix.
const STORED_KEY: (&str, &str) = ("listwatch/keys", "serviceaccounts-es256");

/// The options of service account tokens, and the keys, which are set after the first read or creation.
#[derive(Default)]
pub struct Tokens {
    options: ServiceAccountTokenOptions,
    keys: OnceCell<Arc<TokenKeys>>,
}

impl Tokens {
    /// Creates the value with these options. The keys are read or created on first use.
    pub(crate) fn new(options: ServiceAccountTokenOptions) -> Self {
        Tokens { options, keys: OnceCell::new() }
    }

    /// The settings for issuing and accepting tokens.
    pub fn options(&self) -> &ServiceAccountTokenOptions {
        &self.options
    }

    /// Returns the keys. The first call reads the server's own key from the store or creates it there, unless the
    /// options have a signing key.
    ///
    /// # Errors
    /// The error of the store if the first read fails.
    pub async fn keys(&self, storage: &Arc<dyn Storage>) -> Result<Arc<TokenKeys>, Status> {
        self.keys.get_or_try_init(|| self.load(storage)).await.cloned()
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// The error of the store if the first read of the key fails.
    pub async fn sign(&self, storage: &Arc<dyn Storage>, claims: &Claims) -> Result<String, Status> {
        let keys = self.keys(storage).await?;
        claims.sign(&keys.signing).ok_or_else(|| Status::internal("failed to generate token: no random numbers"))
    }

    async fn load(&self, storage: &Arc<dyn Storage>) -> Result<Arc<TokenKeys>, Status> {
        let mut verification = self.options.verification_keys.clone();
        let signing = match &self.options.signing_key {
            Some(key) => key.clone(),
            None => load(storage).await?,
        };
        // With keys of the administrator, only these verify, as in kube-apiserver.
        if verification.is_empty() || self.options.signing_key.is_none() {
            verification.push(signing.public().clone());
        }
        Ok(Arc::new(TokenKeys { signing, verification }))
    }
}

async fn load(storage: &Arc<dyn Storage>) -> Result<SigningKey, Status> {
    let key = Key::new(STORED_KEY.0, None, STORED_KEY.1).map_err(Status::internal)?;
    let (found, _) = storage.get(&key).await.map_err(Status::internal)?;
    if let Some(found) = found {
        return from_stored(&found.value);
    }
    let created = SigningKey::generate().ok_or_else(|| Status::internal("the system has no random numbers"))?;
    let value = listwatch_json::json!({"pkcs8": BASE64.encode(&created)}).to_string();
    match storage.create(&key, value.clone().into(), None).await {
        Ok(_) => from_stored(value.as_bytes()),
        // Another server created the key first.
        Err(CreateError::AlreadyExists { current, .. }) => from_stored(&current.value),
        Err(error) => Err(Status::internal(error)),
    }
}

fn from_stored(value: &[u8]) -> Result<SigningKey, Status> {
    let key = serde_json::from_slice::<Value>(value).ok().and_then(|stored| {
        let pkcs8 = BASE64.decode(stored.get("pkcs8")?.as_str()?).ok()?;
        SigningKey::from_pkcs8(&pkcs8)
    });
    key.ok_or_else(|| Status::internal("the stored key of service accounts' tokens is damaged"))
}

#[cfg(test)]
mod tests {
    use listwatch_storage::MemoryStorage;

    use super::*;

    #[tokio::test]
    async fn generated_signing_key_is_stored_and_a_damaged_key_is_rejected() {
        let storage: Arc<dyn Storage> = MemoryStorage::new();
        let (one, other) = (Tokens::default(), Tokens::default());
        let (one, other) = tokio::join!(one.keys(&storage), other.keys(&storage));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one.signing.public(), other.signing.public(), "both servers have the same key");
        assert_eq!(one.verification, [one.signing.public().clone()]);
        let stored = Key::new(STORED_KEY.0, None, STORED_KEY.1).unwrap();
        let (Some(found), _) = storage.get(&stored).await.unwrap() else { panic!("the key is stored") };
        assert_eq!(from_stored(&found.value).unwrap().public(), one.signing.public());
        for damaged in [&b"{}"[..], b"{\"pkcs8\":\"AAAA\"}", b"{\"pkcs8\":1}", b""] {
            let error = from_stored(damaged).unwrap_err();
            assert!(error.message.ends_with("the stored key of service accounts' tokens is damaged"), "{error}");
        }
    }

    #[tokio::test]
    async fn configured_signing_keys_replace_the_stored_key() {
        let storage: Arc<dyn Storage> = MemoryStorage::new();
        let key = || SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap();
        let (signing, former) = (key(), key());
        let keys = async |signing_key: Option<&SigningKey>, verification: &[&SigningKey]| {
            let verification_keys = verification.iter().map(|key| key.public().clone()).collect();
            let options = ServiceAccountTokenOptions {
                signing_key: signing_key.cloned(),
                verification_keys,
                ..ServiceAccountTokenOptions::default()
            };
            Tokens::new(options).keys(&storage).await.unwrap()
        };
        let with = keys(Some(&signing), &[]).await;
        assert_eq!(with.verification, [signing.public().clone()]);
        let with = keys(Some(&signing), &[&former]).await;
        assert_eq!(with.verification, [former.public().clone()], "the files name all keys that verify");
        let stored = Key::new(STORED_KEY.0, None, STORED_KEY.1).unwrap();
        assert!(storage.get(&stored).await.unwrap().0.is_none(), "no key is created");
        let with = keys(None, &[&former]).await;
        assert_eq!(with.verification, [former.public().clone(), with.signing.public().clone()]);
    }
}
