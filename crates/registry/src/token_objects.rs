//! [`TokenObjects`]: reads the objects that service account tokens are bound to from caches and the store.

use std::sync::Arc;

use listwatch_access::{BoundObjectReference, ServiceAccountObjects, SigningKey};
use listwatch_meta::Key;
use serde_json::Value;

use crate::backend::Backend;

/// Reads the signing key and the objects that service account tokens are bound to.
#[derive(Debug)]
pub struct TokenObjects(Arc<Backend>);

impl TokenObjects {
    /// Creates a reader of this server's caches and store.
    pub fn new(backend: Arc<Backend>) -> Self {
        TokenObjects(backend)
    }
}

#[async_trait::async_trait]
impl ServiceAccountObjects for TokenObjects {
    async fn signing_key(&self) -> Option<SigningKey> {
        match self.0.tokens().key(self.0.storage()).await {
            Ok(key) => Some(key.clone()),
            Err(status) => {
                tracing::warn!(%status, "cannot read the key of service accounts' tokens");
                None
            }
        }
    }

    async fn exists(&self, plural: &str, namespace: Option<&str>, object: &BoundObjectReference) -> bool {
        let backend = &self.0;
        let registry = backend.registry();
        let Some(resource) = registry.find("", "v1", plural) else { return false };
        let key: Key = match resource.key(namespace, &object.name) {
            Ok(key) => key,
            Err(_) => return false,
        };
        // A cache may be stale. A cached object proves existence; a missing one proves nothing.
        let cached = backend.running_cacher(resource).and_then(|cacher| cacher.peek(&key));
        if cached.is_some_and(|cached| cached.uid() == object.uid.as_str() && !cached.is_being_deleted()) {
            return true;
        }
        let Ok((Some(found), _)) = backend.storage().get(&key).await else { return false };
        let Ok(tree) = serde_json::from_slice::<Value>(&found.value) else { return false };
        let metadata = |name: &str| tree.get("metadata").and_then(|metadata| metadata.get(name)?.as_str());
        metadata("uid").unwrap_or_default() == object.uid && metadata("deletionTimestamp").is_none()
    }
}
