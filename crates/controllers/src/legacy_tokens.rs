//! Labels the Secrets whose service account tokens are used with the day of their last use
//! (`pkg/serviceaccount/legacy.go:patchSecretWithLastUsedDate`). kube-controller-manager deletes tokens without a use
//! for a year.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use listwatch_access::LegacyTokenUse;
use listwatch_json::json;
use listwatch_meta::user::SYSTEM_MASTERS;
use listwatch_meta::{Status, UserInfo};
use listwatch_registry::LEGACY_TOKEN_LAST_USED;
use listwatch_wire::query::Query;
use listwatch_write::{WriteContext, WriteRequest, WriteVerb, Writer};

/// Delay after an error of the server, so that a store that fails is not asked for each request.
const PAUSE: Duration = Duration::from_secs(1);

/// The time limit of one write. At this limit the write is dropped, so that one Secret does not delay the others.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The user of the writes: that of kube-apiserver's loopback client (`AuthorizeClientBearerToken`).
static APISERVER: LazyLock<UserInfo> = LazyLock::new(|| UserInfo {
    username: "system:apiserver".to_owned(),
    uid: uuid::Uuid::new_v4().to_string(),
    groups: vec!["system:authenticated".to_owned(), SYSTEM_MASTERS.to_owned()],
    ..UserInfo::default()
});

/// Writes the labels one after the other, until the future is dropped. A failure is only logged: a later request with
/// the token reports a use again.
pub async fn run(writer: Arc<Writer>) {
    loop {
        let used = writer.backend().legacy_token_uses().next().await;
        let labeled = tokio::time::timeout(WRITE_TIMEOUT, label(&writer, &used)).await;
        let labeled = labeled.unwrap_or_else(|_| Err(Status::timeout("the write of the label took too long")));
        if let Err(status) = labeled {
            let LegacyTokenUse { namespace, secret, .. } = &used;
            tracing::error!(namespace, secret, %status, "cannot label a service account token with its last use");
            // Most other errors concern only this Secret: it is gone, was replaced, or a plugin rejects the label.
            if status.code >= 500 || status.code == 429 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        writer.backend().legacy_token_uses().finish(&used);
    }
}

/// Sets the label of one Secret.
///
/// # Errors
/// 404 if the Secret is gone; 409 if it was replaced; otherwise the error of a plugin or of the store.
async fn label(writer: &Writer, used: &LegacyTokenUse) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find("", "v1", "secrets") else { return Ok(()) };
    let labels = json!({LEGACY_TOKEN_LAST_USED: used.date});
    let patch = json!({"metadata": {"uid": used.uid, "labels": labels}});
    let request = WriteRequest {
        verb: WriteVerb::Patch,
        resource,
        namespace: Some(&used.namespace),
        name: Some(&used.secret),
        subresource: None,
        query: &Query::default(),
        content_type: Some("application/merge-patch+json"),
        user: &APISERVER,
        user_agent: Some("kube-apiserver"),
        body: Bytes::from(patch.to_string()),
    };
    // Webhooks receive the remaining time.
    let deadline = Some(std::time::Instant::now() + WRITE_TIMEOUT);
    let context = WriteContext { deadline, ..WriteContext::default() };
    writer.write_in(request, &context).await.map(drop)
}

#[cfg(test)]
mod tests {
    use listwatch_access::{BoundObjectReference, LegacyTokenSecret, ServiceAccountObjects as _};
    use listwatch_admission::{AdmissionChain, AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};
    use listwatch_cacher::Limits;
    use listwatch_json::{Map, Value};
    use listwatch_registry::{Backend, Registry, TokenObjects};
    use listwatch_storage::MemoryStorage;

    use super::*;

    async fn create(writer: &Writer, plural: &str, body: Value) {
        let registry = writer.backend().registry();
        let request = WriteRequest {
            verb: WriteVerb::Create,
            resource: registry.find("", "v1", plural).unwrap(),
            namespace: Some("default"),
            name: None,
            subresource: None,
            query: &Query::default(),
            content_type: Some("application/json"),
            user: UserInfo::admin(),
            user_agent: None,
            body: Bytes::from(body.to_string()),
        };
        writer.write(request).await.unwrap();
    }

    #[tokio::test]
    async fn used_token_secret_is_labeled_with_the_day() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default()));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let account = json!({"metadata": {"name": "robot"}, "secrets": [{"name": "generated"}]});
        create(&writer, "serviceaccounts", account).await;
        // The data of an immutable Secret may not change, but its labels may.
        let secret = json!({"metadata": {"name": "s"}, "immutable": true, "stringData": {"token": "t"}});
        create(&writer, "secrets", secret).await;
        let objects = TokenObjects::new(Arc::clone(writer.backend()));
        let LegacyTokenSecret { token, uid, last_used, .. } = objects.legacy_secret("default", "s").await.unwrap();
        assert_eq!((&*token, &*last_used), (&b"t"[..], ""));
        let of = async |name: &str| {
            let reference = BoundObjectReference { name: name.to_owned(), uid: String::new() };
            objects.legacy_account("default", &reference).await.map(|account| account.secrets)
        };
        assert_eq!(of("robot").await, Some(vec!["generated".to_owned()]));
        assert_eq!(of("x").await, None);

        let controller = tokio::spawn(run(Arc::clone(&writer)));
        let report = |secret: &str, uid: &str, date: &str| {
            let [namespace, secret, uid, date] = ["default", secret, uid, date].map(str::to_owned);
            objects.report_use(LegacyTokenUse { namespace, secret, uid, date });
        };
        let wait_for = async |date: &str| {
            let labeled = async {
                while objects.legacy_secret("default", "s").await.unwrap().last_used != date {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), labeled).await.expect("the Secret gets the label");
        };
        report("s", &uid, "2026-11-30");
        wait_for("2026-11-30").await;
        report("gone", "other", "2026-12-01");
        report("s", "another Secret of this name", "2026-12-02");
        report("s", &uid, "2026-12-03");
        wait_for("2026-12-03").await;
        controller.abort();
    }

    /// Records the users of updates. The update of the Secret `stuck` never ends.
    struct Updates(Arc<parking_lot::Mutex<Vec<String>>>);

    impl ValidatingAdmission for Updates {
        fn name(&self) -> &str {
            "Updates"
        }

        fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
            request.operation == Operation::Update
        }

        fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
            self.0.lock().push(format!("{} {}", request.user.username, request.user.groups.join(",")));
            Box::pin(async move {
                match request.name {
                    "stuck" => std::future::pending().await,
                    _ => Ok(()),
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_does_not_end_delays_other_secrets_only_until_its_deadline() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let users = Arc::default();
        let mut chain = AdmissionChain::default();
        chain.add_validating(Arc::new(Updates(Arc::clone(&users))));
        let writer = Arc::new(Writer::new(Arc::new(backend), chain));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let objects = TokenObjects::new(Arc::clone(writer.backend()));
        for name in ["stuck", "s"] {
            create(&writer, "secrets", json!({"metadata": {"name": name}, "stringData": {"token": "t"}})).await;
        }
        let report = async |secret: &str| {
            let found = objects.legacy_secret("default", secret).await.unwrap_or_default();
            let [namespace, secret, date] = ["default", secret, "2026-11-30"].map(str::to_owned);
            objects.report_use(LegacyTokenUse { namespace, secret, uid: found.uid, date });
        };
        let wait_for_label = async || {
            let start = tokio::time::Instant::now();
            while objects.legacy_secret("default", "s").await.unwrap().last_used.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            start.elapsed()
        };
        report("stuck").await;
        report("s").await;
        let controller = tokio::spawn(run(Arc::clone(&writer)));
        let waited = wait_for_label().await;
        assert!((WRITE_TIMEOUT..WRITE_TIMEOUT + 2 * PAUSE).contains(&waited), "{waited:?}");
        let user = "system:apiserver system:authenticated,system:masters";
        assert_eq!(*users.lock(), [user, user]);
        controller.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn missing_secret_does_not_delay_the_labels_of_others() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default()));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let objects = TokenObjects::new(Arc::clone(writer.backend()));
        create(&writer, "secrets", json!({"metadata": {"name": "s"}, "stringData": {"token": "t"}})).await;
        let uid = objects.legacy_secret("default", "s").await.unwrap().uid;
        for (secret, uid) in [("gone", "1"), ("s", "replaced"), ("s", &*uid)] {
            let [namespace, secret, uid, date] = ["default", secret, uid, "2026-11-30"].map(str::to_owned);
            objects.report_use(LegacyTokenUse { namespace, secret, uid, date });
        }
        let start = tokio::time::Instant::now();
        let controller = tokio::spawn(run(Arc::clone(&writer)));
        while objects.legacy_secret("default", "s").await.unwrap().last_used.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(start.elapsed() < PAUSE, "a Secret that is gone or replaced does not pause the writer");
        controller.abort();
    }
}
