//! Definitions of the bootstrap objects. Two objects need further updates: the ServiceCIDR `kubernetes` and the
//! ConfigMap that tracks legacy tokens.

use std::sync::Arc;

use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;

use super::ensure::{BootstrapObject, amend, ensure};
use listwatch_kinds::conditions::{self, NewCondition};
use listwatch_validation::clock::Clock;
use listwatch_write::{Amendment, ServiceRanges, Writer};

pub(super) const CONFIG_MAPS: (&str, &str, &str) = ("", "v1", "configmaps");
pub(super) const SYSTEM_NAMESPACE: &str = "kube-system";

/// The priority of `system-cluster-critical`. Priorities of user-defined classes are at most half of this value.
const SYSTEM_CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// Returns the Service `kubernetes` for clients inside the cluster, at the first address of the range.
pub(super) fn kubernetes_service(ranges: &ServiceRanges, secure_port: u16) -> BootstrapObject {
    BootstrapObject {
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
                "clusterIP": ranges.kubernetes_service_address().to_string(),
                "sessionAffinity": "None",
                "type": "ClusterIP",
                "ipFamilyPolicy": "SingleStack",
            },
        }),
    }
}

/// Returns the system priority classes for pods that are critical for a node or for the cluster.
pub(super) fn priority_classes() -> [BootstrapObject; 2] {
    let class = |name, value: i64, description: &str| BootstrapObject {
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

fn service_range(ranges: &ServiceRanges) -> BootstrapObject {
    BootstrapObject {
        group: "networking.k8s.io",
        version: "v1",
        plural: "servicecidrs",
        namespace: None,
        name: "kubernetes",
        check: "poststarthook/start-kubernetes-service-cidr-controller",
        body: json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [ranges.cluster_addresses()]}}),
    }
}

/// Creates the ServiceCIDR `kubernetes`, and sets the condition `Ready` if its status is missing or unknown.
pub(super) async fn ensure_service_range(writer: &Arc<Writer>) -> Result<(), Status> {
    let wanted = service_range(writer.service_ranges());
    ensure(writer, &wanted).await?;
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(wanted.group, wanted.version, wanted.plural) else { return Ok(()) };
    let key = resource.key(None, wanted.name)?;
    let now = Clock::default().now();
    let ours = writer.service_ranges().cluster_addresses();
    amend(writer, resource, &key, |range| range_is_ready(range, &ours, &now)).await
}

fn range_is_ready(range: &mut Map, ours: &str, now: &str) -> Amendment {
    let metadata = range.get("metadata");
    let deleted = metadata.and_then(|metadata| metadata.get("deletionTimestamp")).is_some_and(|at| !at.is_null());
    let ours = range.get("spec").and_then(|spec| spec.get("cidrs")) == Some(&json!([ours]));
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
        conditions::set(conditions, NewCondition { kind: "Ready", status: "True", reason: "", message }, now);
    }
    Amendment::Write
}

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Creates the ConfigMap that records the start date of the tracking of legacy tokens, and replaces an invalid date.
/// `may_create` is false if the ConfigMap was created less than 30 minutes ago. Returns true if the ConfigMap was
/// created.
pub(super) async fn sync_tracking(writer: &Arc<Writer>, may_create: bool) -> Result<bool, Status> {
    let today = Clock::default().now()[..DATE_BYTES].to_owned();
    let (group, version, plural) = CONFIG_MAPS;
    let wanted = BootstrapObject {
        group,
        version,
        plural,
        namespace: Some(SYSTEM_NAMESPACE),
        name: TRACKING,
        check: "poststarthook/start-legacy-token-tracking-controller",
        body: json!({"metadata": {"name": TRACKING}, "data": {"since": today}}),
    };
    if may_create && ensure(writer, &wanted).await? {
        return Ok(true);
    }
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(group, version, plural) else { return Ok(false) };
    let key = resource.key(wanted.namespace, TRACKING)?;
    let dated = |map: &mut Map| {
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
    amend(writer, resource, &key, dated).await?;
    Ok(false)
}

/// Length of a date such as `2006-01-02` in bytes. A timestamp starts with the date.
const DATE_BYTES: usize = 10;

fn is_date(text: &str) -> bool {
    text.len() == DATE_BYTES && listwatch_write::parse_timestamp(&format!("{text}T00:00:00Z")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_date_accepts_only_valid_calendar_dates() {
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
    fn service_range_gets_the_ready_condition_once() {
        let range = |cidr: &str, conditions: Value| {
            let range = json!({"metadata": {}, "spec": {"cidrs": [cidr]}, "status": {"conditions": conditions}});
            range.as_object().unwrap().clone()
        };
        let ours = ServiceRanges::default().cluster_addresses();
        let check = |mut range: Map, written: bool| {
            let before = range.clone();
            let amended = matches!(range_is_ready(&mut range, &ours, "now"), Amendment::Write);
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
