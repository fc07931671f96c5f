//! [`TokenObjects`]: reads the objects that service account tokens are bound to from caches and the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_access::{
    BootstrapTokenSecret, BootstrapTokenSecrets, BoundObjectReference, FoundObject, LegacyTokenSecret,
    ServiceAccountObjects, ServiceAccountTokenOptions, TokenKeys,
};
use listwatch_json::Value;
use listwatch_validation::clock::parse_timestamp;

use crate::backend::Backend;

/// The label of a Secret whose token is no longer accepted.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Reads the keys and the objects that service account tokens are bound to.
#[derive(Debug)]
pub struct TokenObjects(Arc<Backend>);

impl TokenObjects {
    /// Creates a reader of this server's caches and store.
    pub fn new(backend: Arc<Backend>) -> Self {
        TokenObjects(backend)
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
        let backend = &self.0;
        let registry = backend.registry();
        let resource = registry.find("", "v1", plural)?;
        let key = resource.key(namespace, &reference.name).ok()?;
        // Each request of a service account needs its account, so the account's cache is started.
        let cacher = match plural {
            "serviceaccounts" => Some(backend.cacher(resource)),
            _ => backend.running_cacher(resource),
        };
        // A cache may be stale. A cached object proves existence; a missing one proves nothing.
        let cached = cacher.and_then(|cacher| cacher.peek(&key));
        if cached.is_some_and(|cached| cached.uid() == reference.uid.as_str() && !cached.is_being_deleted()) {
            return Some(FoundObject { uid: reference.uid.clone(), deletion: None });
        }
        let tree = self.stored(plural, namespace, &reference.name).await?;
        let metadata = |name: &str| tree.get("metadata").and_then(|metadata| metadata.get(name)?.as_str());
        // An unreadable time counts as long ago.
        let deletion = metadata("deletionTimestamp")
            .map(|time| parse_timestamp(time).map_or(i64::MIN, |time| time.unix_timestamp()));
        Some(FoundObject { uid: metadata("uid").unwrap_or_default().to_owned(), deletion })
    }

    async fn legacy_secret(&self, namespace: &str, name: &str) -> Option<LegacyTokenSecret> {
        let secret = self.stored("secrets", Some(namespace), name).await?;
        let metadata = secret.get("metadata")?;
        let label = metadata.get("labels").and_then(|labels| labels.get(INVALID_SINCE)?.as_str());
        Some(LegacyTokenSecret {
            token: data(&secret).remove("token").unwrap_or_default(),
            is_being_deleted: metadata.get("deletionTimestamp").is_some(),
            is_invalidated: label.is_some_and(|since| !since.is_empty()),
        })
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

/// Returns the decoded data of a Secret.
fn data(secret: &Value) -> BTreeMap<String, Vec<u8>> {
    let data = secret.get("data").and_then(Value::as_object).into_iter().flatten();
    data.filter_map(|(name, value)| Some((name.as_str().to_owned(), BASE64.decode(value.as_str()?).ok()?))).collect()
}
