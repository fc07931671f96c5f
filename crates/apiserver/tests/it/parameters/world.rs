//! A server whose store has a short known history, with helpers for requests.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use listwatch_apiserver::ApiServer;
use listwatch_json::Value;
use listwatch_meta::{ContinueToken, Key, Revision};
use listwatch_storage::{MemoryStorage, Storage as _};

use super::rules::{Change, Found, Model};

/// The number of namespaces that a server writes to an empty store: `default` and three with the prefix `kube-`.
const FIRST_NAMESPACES: u64 = 4;

/// The server, and the known history of its store.
pub(crate) struct World {
    server: ApiServer,
    changes: Vec<Change>,
    /// The oldest version that is not compacted.
    oldest: u64,
    /// The versions of the first, a middle and the last change.
    pub(crate) first: u64,
    pub(crate) middle: u64,
    pub(crate) last: u64,
    /// Continue tokens: for the middle version, for the current version, and invalid tokens.
    pub(crate) tokens: Vec<String>,
}

impl World {
    /// Creates a server. If `compacted` is set, the store has only the history of the last two changes.
    pub(crate) async fn new(compacted: bool) -> Self {
        let store = MemoryStorage::new();
        let server = ApiServer::builder().storage(store.clone()).build().await.expect("a server");
        // The server's own namespaces are changes, too; the test's changes must follow them.
        while store.current_revision().await.expect("read").get() < FIRST_NAMESPACES {
            tokio::task::yield_now().await;
        }
        let mut changes: Vec<Change> = Vec::new();
        // Namespace, name and label; a change without a label is a deletion.
        for (namespace, name, app) in [
            ("shop", "a", Some("web")),
            ("shop", "b", Some("db")),
            ("shop", "c", Some("web")),
            ("yard", "a", Some("web")),
            ("shop", "d", Some("web")),
            ("shop", "a", Some("db")),
            ("shop", "c", None),
            ("shop", "e", Some("web")),
            ("shop", "b", Some("web")),
        ] {
            let key = Key::new("configmaps", Some(namespace), name).expect("a key");
            let there = store.get(&key).await.expect("read").0;
            let value = Bytes::from(format!(
                r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{"app":"{}"}}}}}}"#,
                app.unwrap_or_default()
            ));
            let revision = match (there, app) {
                (None, _) => store.create(&key, value, None).await.expect("created"),
                (Some(there), Some(_)) => store.update(&key, there.modified, value, None).await.expect("updated"),
                (Some(there), None) => store.delete(&key, there.modified).await.expect("deleted"),
            };
            changes.push(Change {
                revision: revision.get(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                app: app.map(str::to_owned),
            });
        }
        let revision_of = |n: usize| changes[n].revision;
        let (first, middle, last) = (revision_of(0), revision_of(4), revision_of(changes.len() - 1));
        let oldest = if compacted { last - 1 } else { first };
        if compacted {
            store.compact(Revision::new(oldest)).await.expect("compacted");
        }
        let token = ContinueToken::after(Revision::new(middle), "a");
        let raw = |json: &str| {
            use base64::Engine as _;
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)
        };
        let tokens = vec![
            token.encode(),
            token.inconsistent().encode(),
            ContinueToken::after(Revision::new(middle), "e").encode(),
            String::new(),
            "garbage".to_owned(),
            raw(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            raw(r#"{"v":"meta.k8s.io/v2","rv":3,"start":"a"}"#),
        ];
        World { server, changes, oldest, first, middle, last, tokens }
    }

    pub(crate) fn model(&self) -> Model<'_> {
        Model { changes: &self.changes, oldest: self.oldest }
    }

    /// Sends a request, and returns code, headers and the complete body.
    pub(crate) async fn ask(&self, path: &str) -> Found {
        let request = Request::get(path).body(Empty::<Bytes>::new()).expect("a request");
        let response = self.server.service().handle(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let documents: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(&body).into_iter().collect();
        Found { code, documents: documents.unwrap_or_else(|error| panic!("GET {path}: {error}: {body:?}")) }
    }
}
