//! The objects themselves, and the two that say something of their own time: the range of the services'
//! addresses and the tracking of legacy tokens.

use std::sync::Arc;

use listwatch_meta::Status;
use serde_json::{Map, Value, json};

use super::ensure;
use crate::backend::Backend;
use crate::write::{self, Amendment};
use listwatch_kinds::conditions::{self, Saying};

pub(super) const CONFIG_MAPS: (&str, &str, &str) = ("", "v1", "configmaps");
pub(super) const SYSTEM_NAMESPACE: &str = "kube-system";

/// The value of `system-cluster-critical`; no user may define a higher one than half of it.
const SYSTEM_CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// An object that is to be there.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespace: Option<&'static str>,
    pub(super) name: &'static str,
    pub(super) body: Value,
    /// The health check of kube-apiserver that stands for it.
    pub(super) check: &'static str,
}

/// How clients inside the cluster find the API server: at the first address of the range.
pub(super) fn kubernetes_service(secure_port: u16) -> Wanted {
    Wanted {
        group: "",
        version: "v1",
        plural: "services",
        namespace: Some("default"),
        name: "kubernetes",
        check: "poststarthook/bootstrap-controller",
        body: json!({
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": secure_port}],
                "clusterIP": write::kubernetes_service_address().to_string(),
                "sessionAffinity": "None",
                "type": "ClusterIP",
                "ipFamilyPolicy": "SingleStack",
            },
        }),
    }
}

/// The classes of pods without which a node, or the cluster, does not work.
pub(super) fn priority_classes() -> [Wanted; 2] {
    let class = |name, value: i64, description: &str| Wanted {
        group: "scheduling.k8s.io",
        version: "v1",
        plural: "priorityclasses",
        namespace: None,
        name,
        check: "poststarthook/scheduling/bootstrap-system-priority-classes",
        body: json!({"metadata": {"name": name}, "value": value, "description": description}),
    };
    [
        class(
            "system-node-critical",
            SYSTEM_CRITICAL_PRIORITY + 1_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            SYSTEM_CRITICAL_PRIORITY,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}

fn service_range() -> Wanted {
    Wanted {
        group: "networking.k8s.io",
        version: "v1",
        plural: "servicecidrs",
        namespace: None,
        name: "kubernetes",
        check: "poststarthook/start-kubernetes-service-cidr-controller",
        body: json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [write::service_range()]}}),
    }
}

/// Makes the object that says from which range services have their addresses, and says that it is ready
/// where nobody has said anything about that.
pub(super) async fn ensure_service_range(backend: &Arc<Backend>) -> Result<(), Status> {
    let wanted = service_range();
    ensure(backend, &wanted).await?;
    let registry = backend.registry();
    let Some(resource) = registry.find(wanted.group, wanted.version, wanted.plural) else { return Ok(()) };
    let key = resource.key(None, wanted.name)?;
    let now = write::Clock::default().now();
    super::amend(backend, resource, &key, |range| range_is_ready(range, &now)).await
}

fn range_is_ready(range: &mut Map<String, Value>, now: &str) -> Amendment {
    let metadata = range.get("metadata");
    let deleted = metadata.and_then(|metadata| metadata.get("deletionTimestamp")).is_some_and(|at| !at.is_null());
    let ours = range.get("spec").and_then(|spec| spec.get("cidrs")) == Some(&json!([write::service_range()]));
    let present = range.get("status").and_then(|status| status.get("conditions")?.as_array()).into_iter().flatten();
    let mut said = present.filter(|condition| condition["type"] == "Ready").map(|condition| &condition["status"]);
    if deleted || !ours || said.any(|status| status != "Unknown") {
        return Amendment::Leave;
    }
    let status = range.entry("status").or_insert_with(|| json!({}));
    if let Some(conditions) =
        status.as_object_mut().and_then(|status| status.entry("conditions").or_insert_with(|| json!([])).as_array_mut())
    {
        let message = "Kubernetes default Service CIDR is ready";
        conditions::set(conditions, Saying { kind: "Ready", status: "True", reason: "", message }, now);
    }
    Amendment::Write
}

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Makes the ConfigMap that says since when this server looks after tokens of Secrets; replaces a date that is
/// none. `may_create`: it was not created too short a time ago. True when it was created.
pub(super) async fn sync_tracking(backend: &Arc<Backend>, may_create: bool) -> Result<bool, Status> {
    let today = write::Clock::default().now()[..DATE_BYTES].to_owned();
    let (group, version, plural) = CONFIG_MAPS;
    let wanted = Wanted {
        group,
        version,
        plural,
        namespace: Some(SYSTEM_NAMESPACE),
        name: TRACKING,
        check: "poststarthook/start-legacy-token-tracking-controller",
        body: json!({"metadata": {"name": TRACKING}, "data": {"since": today}}),
    };
    if may_create && ensure(backend, &wanted).await? {
        return Ok(true);
    }
    let registry = backend.registry();
    let Some(resource) = registry.find(group, version, plural) else { return Ok(false) };
    let key = resource.key(wanted.namespace, TRACKING)?;
    let dated = |map: &mut Map<String, Value>| {
        let since = map.get("data").and_then(|data| data.get("since")?.as_str());
        if since.is_some_and(is_date) {
            return Amendment::Leave;
        }
        let data = map.entry("data").or_insert(Value::Null);
        if !data.is_object() {
            *data = json!({});
        }
        data["since"] = json!(today);
        Amendment::Write
    };
    super::amend(backend, resource, &key, dated).await?;
    Ok(false)
}

/// `2006-01-02` has so many bytes, and a time stamp begins with them.
const DATE_BYTES: usize = 10;

fn is_date(text: &str) -> bool {
    text.len() == DATE_BYTES && write::parse_timestamp(&format!("{text}T00:00:00Z")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_a_day_of_the_calendar() {
        for (text, expected) in [
            ("2026-02-28", true),
            ("2026-02-30", false),
            ("2026-2-28", false),
            ("", false),
            ("yesterday", false),
            ("2026-02-28T00:00:00Z", false),
        ] {
            assert_eq!(is_date(text), expected, "{text}");
        }
    }

    #[test]
    fn readiness_of_the_range_is_said_once() {
        let range = |cidr: &str, conditions: Value| {
            let range = json!({"metadata": {}, "spec": {"cidrs": [cidr]}, "status": {"conditions": conditions}});
            range.as_object().unwrap().clone()
        };
        let ours = write::service_range();
        let check = |mut range: Map<String, Value>, written: bool| {
            let before = range.clone();
            let amended = matches!(range_is_ready(&mut range, "now"), Amendment::Write);
            assert_eq!((amended, range != before), (written, written));
            range
        };
        let ready = check(range(&ours, json!([])), true);
        assert_eq!(
            Value::Object(ready.clone())["status"]["conditions"],
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "now", "reason": "",
                "message": "Kubernetes default Service CIDR is ready"}])
        );
        check(ready, false);
        check(range(&ours, json!([{"type": "Ready", "status": "Unknown"}])), true);
        check(range(&ours, json!([{"type": "Ready", "status": "False"}])), false);
        check(range("10.0.0.0/24", json!([])), false);
        let mut deleted = range(&ours, json!([]));
        deleted["metadata"]["deletionTimestamp"] = json!("then");
        check(deleted, false);
    }
}
