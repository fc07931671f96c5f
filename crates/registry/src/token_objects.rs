//! [`TokenObjects`]: reads the objects that service account tokens are bound to from caches and the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_access::{
    BootstrapTokenSecret, BootstrapTokenSecrets, BoundObjectReference, FoundObject, LegacyTokenAccount,
    LegacyTokenSecret, LegacyTokenUse, ServiceAccountObjects, ServiceAccountTokenOptions, TokenKeys,
};
use listwatch_json::Value;
use listwatch_meta::Object;
use listwatch_validation::clock::parse_timestamp;

use crate::backend::Backend;

/// The label of a Secret whose token is no longer accepted.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// The label of a Secret with the day on which its token was last used.
pub const LEGACY_TOKEN_LAST_USED: &str = "kubernetes.io/legacy-token-last-used";

/// Reads the keys and the objects that service account tokens are bound to.
#[derive(Debug)]
pub struct TokenObjects(Arc<Backend>);

impl TokenObjects {
    /// Creates a reader of this server's caches and store.
    pub fn new(backend: Arc<Backend>) -> Self {
        TokenObjects(backend)
    }

    /// Returns the cached object that a token names. A cache may be stale: a cached object with the uid of the reference
    /// proves existence, but a missing object proves nothing. `None` also for an object that is being deleted.
    fn cached(&self, plural: &str, namespace: Option<&str>, reference: &BoundObjectReference) -> Option<Object> {
        let registry = self.0.registry();
        let resource = registry.find("", "v1", plural)?;
        let key = resource.key(namespace, &reference.name).ok()?;
        // Each request of a service account needs its account, so the account's cache is started.
        let cacher = match plural {
            "serviceaccounts" => Some(self.0.cacher(resource)),
            _ => self.0.running_cacher(resource),
        };
        let cached = cacher.and_then(|cacher| cacher.peek(&key));
        cached.filter(|cached| cached.uid() == reference.uid.as_str() && !cached.is_being_deleted())
    }

    /// Reads an object of a core kind from the store.
    async fn stored(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let registry = self.0.registry();
        let key = registry.find("", "v1", plural)?.key(namespace, name).ok()?;
        let found = match self.0.storage().get(&key).await {
            Ok((found, _)) => found?,
            Err(error) => {
                tracing::warn!(%error, plural, "cannot read an object that a token names");
                return None;
            }
        };
        serde_json::from_slice(&found.value).ok()
    }
}

#[async_trait::async_trait]
impl ServiceAccountObjects for TokenObjects {
    fn options(&self) -> &ServiceAccountTokenOptions {
        self.0.tokens().options()
    }

    async fn keys(&self) -> Option<Arc<TokenKeys>> {
        match self.0.tokens().keys(self.0.storage()).await {
            Ok(keys) => Some(keys),
            Err(status) => {
                tracing::warn!(%status, "cannot read the keys of service accounts' tokens");
                None
            }
        }
    }

    async fn bound_object(
        &self,
        plural: &str,
        namespace: Option<&str>,
        reference: &BoundObjectReference,
    ) -> Option<FoundObject> {
        if self.cached(plural, namespace, reference).is_some() {
            return Some(FoundObject { uid: reference.uid.clone(), deletion: None });
        }
        self.stored(plural, namespace, &reference.name).await.as_ref().map(found_object)
    }

    async fn legacy_secret(&self, namespace: &str, name: &str) -> Option<LegacyTokenSecret> {
        let secret = self.stored("secrets", Some(namespace), name).await?;
        let metadata = secret.get("metadata")?;
        let label = |name| metadata.get("labels").and_then(|labels| labels.get(name)?.as_str()).unwrap_or_default();
        Some(LegacyTokenSecret {
            token: data(&secret).remove("token").unwrap_or_default(),
            is_being_deleted: metadata.get("deletionTimestamp").is_some(),
            is_invalidated: !label(INVALID_SINCE).is_empty(),
            uid: metadata.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned(),
            last_used: label(LEGACY_TOKEN_LAST_USED).to_owned(),
        })
    }

    async fn legacy_account(&self, namespace: &str, reference: &BoundObjectReference) -> Option<LegacyTokenAccount> {
        let cached = self.cached("serviceaccounts", Some(namespace), reference);
        let account = match cached.and_then(|cached| serde_json::from_slice(cached.json_slice()).ok()) {
            Some(account) => account,
            None => self.stored("serviceaccounts", Some(namespace), &reference.name).await?,
        };
        let secrets = account.get("secrets").and_then(Value::as_array).into_iter().flatten();
        let secrets = secrets.filter_map(|secret| Some(secret.get("name")?.as_str()?.to_owned())).collect();
        Some(LegacyTokenAccount { account: found_object(&account), secrets })
    }

    fn report_use(&self, used: LegacyTokenUse) {
        self.0.legacy_token_uses().report(used);
    }
}

#[async_trait::async_trait]
impl BootstrapTokenSecrets for TokenObjects {
    async fn bootstrap_secret(&self, name: &str) -> Option<BootstrapTokenSecret> {
        let secret = self.stored("secrets", Some("kube-system"), name).await?;
        Some(BootstrapTokenSecret {
            secret_type: secret.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            data: data(&secret),
            is_being_deleted: secret.get("metadata")?.get("deletionTimestamp").is_some(),
        })
    }
}

/// Returns the uid and the time of deletion of an object.
fn found_object(object: &Value) -> FoundObject {
    let metadata = |name: &str| object.get("metadata").and_then(|metadata| metadata.get(name)?.as_str());
    // An unreadable time counts as long ago.
    let deletion =
        metadata("deletionTimestamp").map(|time| parse_timestamp(time).map_or(i64::MIN, |time| time.unix_timestamp()));
    FoundObject { uid: metadata("uid").unwrap_or_default().to_owned(), deletion }
}

/// Returns the decoded data of a Secret.
fn data(secret: &Value) -> BTreeMap<String, Vec<u8>> {
    let data = secret.get("data").and_then(Value::as_object).into_iter().flatten();
    data.filter_map(|(name, value)| Some((name.as_str().to_owned(), BASE64.decode(value.as_str()?).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use listwatch_cacher::Limits;
    use listwatch_json::json;
    use listwatch_meta::{Key, KeyRange, Revision};
    use listwatch_storage::{
        Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Storage,
        StoreFault, StoreStats, UpdateError, Watch, WatchError,
    };

    use super::*;
    use crate::Registry;

    /// A store whose reads of single objects can fail.
    struct FailingReads {
        inner: Arc<MemoryStorage>,
        fails: Arc<AtomicBool>,
    }

    #[async_trait::async_trait]
    impl Storage for FailingReads {
        async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
            match self.fails.load(Ordering::Relaxed) {
                true => Err(StoreFault::Unavailable("the store is down".to_owned()).into()),
                false => self.inner.get(key).await,
            }
        }
        async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
            self.inner.list(query).await
        }
        async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
            self.inner.create(key, value, ttl).await
        }
        async fn update(
            &self,
            key: &Key,
            expected: Revision,
            value: Bytes,
            ttl: Option<Duration>,
        ) -> Result<Revision, UpdateError> {
            self.inner.update(key, expected, value, ttl).await
        }
        async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
            self.inner.delete(key, expected).await
        }
        async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
            self.inner.watch(range, after).await
        }
        async fn current_revision(&self) -> Result<Revision, ReadError> {
            self.inner.current_revision().await
        }
        async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
            self.inner.compact(revision).await
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
        async fn health(&self) -> Result<(), StoreFault> {
            self.inner.health().await
        }
        async fn stats(&self) -> Result<StoreStats, StoreFault> {
            self.inner.stats().await
        }
    }

    #[tokio::test]
    async fn account_of_a_legacy_token_is_read_from_the_cache_with_its_secrets() {
        let fails = Arc::<AtomicBool>::default();
        let store = FailingReads { inner: MemoryStorage::new(), fails: Arc::clone(&fails) };
        let backend = Arc::new(Backend::new(Arc::new(store), Registry::builtin(), true, Limits::default()));
        let registry = backend.registry();
        let accounts = registry.find("", "v1", "serviceaccounts").unwrap();
        let key = accounts.key(Some("default"), "robot").unwrap();
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "secrets": [{"name": "generated"}],
            "metadata": {"name": "robot", "namespace": "default", "uid": "u"},
        });
        backend.storage().create(&key, account.to_string().into(), None).await.unwrap();
        let objects = TokenObjects::new(Arc::clone(&backend));
        let find = async |name: &str, uid: &str| {
            let reference = BoundObjectReference { name: name.to_owned(), uid: uid.to_owned() };
            objects.legacy_account("default", &reference).await
        };
        let account = FoundObject { uid: "u".to_owned(), deletion: None };
        let robot = Some(LegacyTokenAccount { account, secrets: vec!["generated".to_owned()] });
        assert_eq!(find("robot", "u").await, robot);
        assert_eq!(find("robot", "other").await, robot, "the caller compares the uid");
        assert_eq!(find("absent", "u").await, None);
        let cached = async {
            while backend.cacher(accounts).peek(&key).is_none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), cached).await.expect("the cache is filled");
        fails.store(true, Ordering::Relaxed);
        assert_eq!(find("robot", "u").await, robot, "the store is not read");
        assert_eq!(find("robot", "other").await, None, "the cached account may be stale");
    }
}
