//! What kube-apiserver fills in when a client leaves it out, for built-in kinds, as a table.
//!
//! ```text
//!  of("apps", "Deployment") ─▶ object ─ spec ─ replicas      1
//!                                            ├ strategy ─ type   RollingUpdate
//!                                            └ template ─ spec ─ containers, each ─ imagePullPolicy ...
//! ```
//!
//! Origin: `pkg/apis/*/v*/defaults.go` of Kubernetes v1.36, and for pods the admission plugins that
//! are on by default (Priority, DefaultTolerationSeconds). The table holds what a controller or a
//! client would miss; it runs on every create and update, as the original does on every decode.

pub(crate) mod table;

use serde_json::{Map, Value};

/// The members of an object that have defaults.
#[derive(Debug)]
pub struct Defaults(pub(crate) &'static [(&'static str, Default)]);

impl Defaults {
    /// No defaults.
    pub const NONE: Defaults = Defaults(&[]);
}

/// What to do about one member.
#[derive(Debug)]
pub(crate) enum Default {
    /// When absent: this text.
    Text(&'static str),
    /// When absent: this number.
    Number(i64),
    /// When absent or zero: this number.
    Positive(i64),
    /// When absent: this boolean.
    Flag(bool),
    /// When absent: `{}`.
    Empty,
    /// When absent: what the function makes of the whole object, if anything.
    From(fn(&Map<String, Value>) -> Option<Value>),
    /// An object that is there even when the client leaves it out; its members have defaults.
    In(&'static Defaults),
    /// When present, its members have defaults.
    If(&'static Defaults),
    /// When present, a list (or a map) of objects whose members have defaults.
    Each(&'static Defaults),
    /// Whatever the function does to the whole object; the name says what it is about.
    Do(fn(&mut Map<String, Value>)),
}

/// A member that is always shown.
pub(crate) const NULL: Default = Default::From(|_| Some(Value::Null));
/// A text that is always shown.
pub(crate) const BLANK: Default = Default::From(|_| Some(Value::String(String::new())));

/// Fills in what is missing. `null` and `""` are as good as missing, as in a Go struct.
pub fn apply(defaults: &Defaults, object: &mut Map<String, Value>) {
    for (name, default) in defaults.0 {
        match default {
            Default::Text(text) => fill(object, name, || Some(Value::String((*text).to_owned()))),
            Default::Number(number) => fill(object, name, || Some(Value::Number((*number).into()))),
            Default::Positive(number) => {
                if object.get(*name).is_some_and(|value| value.as_i64() == Some(0)) {
                    object.shift_remove(*name);
                }
                fill(object, name, || Some(Value::Number((*number).into())));
            }
            Default::Flag(flag) => fill(object, name, || Some(Value::Bool(*flag))),
            Default::Empty => fill(object, name, || Some(Value::Object(Map::new()))),
            Default::From(make) => {
                if missing(object, name)
                    && let Some(value) = make(object)
                {
                    object.insert((*name).to_owned(), value);
                }
            }
            Default::In(inner) => {
                fill(object, name, || Some(Value::Object(Map::new())));
                apply_below(inner, object, name);
            }
            Default::If(inner) => apply_below(inner, object, name),
            Default::Each(inner) => {
                let items: &mut dyn Iterator<Item = &mut Value> = match object.get_mut(*name) {
                    Some(Value::Array(items)) => &mut items.iter_mut(),
                    Some(Value::Object(members)) => &mut members.values_mut(),
                    _ => continue,
                };
                for item in items {
                    if let Value::Object(item) = item {
                        apply(inner, item);
                    }
                }
            }
            Default::Do(change) => change(object),
        }
    }
}

fn apply_below(inner: &Defaults, object: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Object(inner_object)) = object.get_mut(name) {
        apply(inner, inner_object);
    }
}

fn fill(object: &mut Map<String, Value>, name: &str, make: impl FnOnce() -> Option<Value>) {
    if missing(object, name)
        && let Some(value) = make()
    {
        object.insert(name.to_owned(), value);
    }
}

/// Whether a member is absent, `null` or `""`.
pub(crate) fn missing(object: &Map<String, Value>, name: &str) -> bool {
    match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}

/// Takes out members that are `null`: in a built-in kind that is the same as leaving them out.
/// Objects of free form (a controller revision's data) are not for this.
pub fn drop_nulls(object: &mut Map<String, Value>) {
    object.retain(|_, value| {
        match value {
            Value::Null => return false,
            Value::Object(inner) => drop_nulls(inner),
            Value::Array(items) => drop_nulls_in(items),
            _ => {}
        }
        true
    });
}

fn drop_nulls_in(items: &mut [Value]) {
    for item in items {
        match item {
            Value::Object(inner) => drop_nulls(inner),
            Value::Array(items) => drop_nulls_in(items),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(group: &str, kind: &str, object: Value, expected: Value) {
        crate::testing::check_defaults(crate::find(group, kind).unwrap(), object, expected);
    }

    /// What kube-apiserver v1.36.2 makes of a pod spec with one container.
    fn pod_spec(container: Value) -> Value {
        json!({"containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"})
    }

    fn container(image: &str, pull: &str) -> Value {
        json!({"name": "c", "image": image, "resources": {}, "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File", "imagePullPolicy": pull})
    }

    #[test]
    fn workloads() {
        let template = || json!({"spec": {"containers": [{"name": "c", "image": "nginx"}]}});
        let filled = || json!({"metadata": {}, "spec": pod_spec(container("nginx", "Always"))});
        check(
            "apps",
            "Deployment",
            json!({"spec": {"template": template()}}),
            json!({"spec": {"replicas": 1, "template": filled(),
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
                "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}}),
        );
        check(
            "apps",
            "Deployment",
            json!({"spec": {"replicas": 0, "strategy": {"type": "Recreate"}, "template": template()}}),
            json!({"spec": {"replicas": 0, "template": filled(), "strategy": {"type": "Recreate"},
                "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}}),
        );
        check(
            "apps",
            "StatefulSet",
            json!({"spec": {"template": template(), "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}}),
            json!({"spec": {"replicas": 1, "serviceName": "", "template": filled(), "podManagementPolicy": "OrderedReady",
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "revisionHistoryLimit": 10,
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "volumeClaimTemplates": [{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "d"},
                    "spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}]}}),
        );
        check(
            "apps",
            "DaemonSet",
            json!({"spec": {"template": template()}}),
            json!({"spec": {"template": filled(), "revisionHistoryLimit": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}}),
        );
        check(
            "batch",
            "Job",
            json!({"spec": {"template": template()}}),
            json!({"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "manualSelector": false,
                "template": filled(), "completionMode": "NonIndexed", "suspend": false,
                "podReplacementPolicy": "TerminatingOrFailed"}}),
        );
        check(
            "batch",
            "CronJob",
            json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template()}}}}),
            json!({"spec": {"schedule": "* * * * *", "concurrencyPolicy": "Allow", "suspend": false,
                "jobTemplate": {"metadata": {}, "spec": {"template": filled()}},
                "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}}),
        );
    }

    #[test]
    fn pods() {
        let tolerations = json!([
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
        let mut limited = container("nginx:1", "IfNotPresent");
        limited["resources"] = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
        limited["ports"] = json!([{"containerPort": 80, "protocol": "TCP"}]);
        limited["livenessProbe"] = json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        let mut expected = pod_spec(limited);
        for (name, value) in [
            ("tolerations", tolerations),
            ("priority", json!(0)),
            ("enableServiceLinks", json!(true)),
            ("preemptionPolicy", json!("PreemptLowerPriority")),
            (
                "volumes",
                json!([{"name": "v", "configMap": {"name": "x", "defaultMode": 420}}, {"name": "e", "emptyDir": {}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 420}}]),
            ),
        ] {
            expected[name] = value;
        }
        check(
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "c", "image": "nginx:1", "resources": {"limits": {"cpu": "1"}},
                    "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}}}],
                "volumes": [{"name": "v", "configMap": {"name": "x"}}, {"name": "e"},
                    {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}}),
            json!({"spec": expected}),
        );
    }

    /// As kube-apiserver v1.36 does.
    #[test]
    fn pods_with_resources_of_their_own() {
        let check = |containers: Value, inits: Value, resources: Value, expected: Value| {
            let spec = json!({"containers": containers, "initContainers": inits, "resources": resources});
            let Value::Object(mut pod) = json!({ "spec": spec }) else { panic!("not an object") };
            apply(crate::find("", "Pod").unwrap().defaults, &mut pod);
            assert_eq!(pod["spec"]["resources"], expected);
        };
        let asks = |kind: &str, amounts: Value| json!([{"image": "i", "resources": {kind: amounts}}]);
        let most = json!({"limits": {"cpu": "3"}});
        check(
            asks("requests", json!({"cpu": "1500m", "memory": "1Gi"})),
            json!([]),
            most.clone(),
            json!({"limits": {"cpu": "3"}, "requests": {"cpu": "1500m", "memory": "1Gi"}}),
        );
        let pages = || asks("limits", json!({"hugepages-2Mi": "4Mi", "cpu": "1"}));
        let requests = json!({"cpu": "1", "hugepages-2Mi": "4Mi", "memory": "1Gi"});
        check(
            pages(),
            json!([]),
            json!({"limits": {"memory": "1Gi"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "requests": requests}),
        );
        check(
            pages(),
            json!([]),
            json!({"requests": {"memory": "1Gi"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": requests}),
        );
        check(
            asks("requests", json!({"cpu": "100m"})),
            json!([{"image": "i", "resources": {"requests": {"cpu": "250m"}}},
                {"image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}}]),
            most,
            json!({"limits": {"cpu": "3"}, "requests": {"cpu": "300m"}}),
        );
        let none = json!({"limits": {"ephemeral-storage": "1"}});
        check(json!([]), json!([]), none.clone(), none);
    }

    #[test]
    fn services() {
        check(
            "",
            "Service",
            json!({"spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http", "protocol": "UDP"}]}}),
            json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80},
                    {"port": 81, "targetPort": "http", "protocol": "UDP"}],
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}}),
        );
        check(
            "",
            "Service",
            json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
            json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}, "internalTrafficPolicy": "Cluster",
                "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true}}),
        );
        check(
            "",
            "Service",
            json!({"spec": {"type": "ExternalName", "externalName": "a.b"}}),
            json!({"spec": {"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"}}),
        );
    }

    #[test]
    fn the_rest() {
        check(
            "networking.k8s.io",
            "NetworkPolicy",
            json!({"spec": {"egress": [{"ports": [{"port": 1}]}]}}),
            json!({"spec": {"egress": [{"ports": [{"port": 1, "protocol": "TCP"}]}], "policyTypes": ["Ingress", "Egress"]}}),
        );
        check(
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
            json!({"roleRef": {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount", "name": "s"}]}),
        );
        check(
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"spec": {"maxReplicas": 3}}),
            json!({"spec": {"maxReplicas": 3, "minReplicas": 1, "metrics": [{"type": "Resource", "resource":
                {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}}),
        );
    }

    #[test]
    fn nulls_are_nothing() {
        let Value::Object(mut object) = json!({"a": null, "b": {"c": null, "d": [null, {"e": null}]}}) else {
            panic!()
        };
        drop_nulls(&mut object);
        assert_eq!(Value::Object(object), json!({"b": {"d": [null, {}]}}));
    }
}
