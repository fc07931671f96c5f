//! Helpers for the tests of this crate.

use listwatch_json::{Value, json};
use listwatch_validation::{Errors, Object};
use time::OffsetDateTime;

use crate::{Kind, Subresource, UpdateContext, defaults};

/// Converts a JSON value to an object.
pub(crate) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// Checks the defaults of a kind, and that a second application of the defaults changes nothing.
pub(crate) fn check_defaults(kind: &Kind, object: Value, expected: Value) {
    let mut object = map(object);
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(Value::Object(object.clone()), expected, "{kind:?}");
    let once = object.clone();
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(object, once, "the second application changes {kind:?}");
}

/// Returns the errors of [`Kind::validate_transition`] as texts.
pub(crate) fn transition_errors(kind: &Kind, new: Value, old: Value, subresource: Option<&Subresource>) -> Vec<String> {
    let mut errors = Errors::default();
    let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
    (kind.validate_transition)(&map(new), &map(old), context, &mut errors);
    errors.iter().map(listwatch_meta::FieldError::to_string).collect()
}

/// A pod spec with one container after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_pod_spec(container: Value) -> Value {
    json!({"containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"})
}

/// A container after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_container(image: &str, pull: &str) -> Value {
    json!({"name": "c", "image": image, "resources": {}, "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File", "imagePullPolicy": pull})
}

/// A pod template with one container, as a client writes it.
pub(crate) fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "nginx"}]}})
}

/// [`pod_template`] after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_pod_template() -> Value {
    json!({"metadata": {}, "spec": defaulted_pod_spec(defaulted_container("nginx", "Always"))})
}

/// Objects of a kind that reach the branches of its defaults, as a client or an older release writes them. A service has
/// the addresses and families that the server allocates. `None` for a kind without defaults.
pub(crate) fn objects_without_defaults(kind: &Kind) -> Option<Vec<Value>> {
    let template = || {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i",
            "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}}}],
            "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "s"}}]}})
    };
    let spec = |spec: Value| json!({ "spec": spec });
    let limits = json!({"limits": {"cpu": "1"}});
    let webhook = json!({"name": "a.b.c", "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        "rules": [{"operations": ["*"]}]});
    let matched = json!({"resourceRules": [{"operations": ["*"]}]});
    let devices = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k"}]}},
        {"name": "f", "firstAvailable": [{"name": "g"}]}],
        "config": [{"opaque": {"driver": "d", "parameters": {"a": null}}}]});
    let role = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]});
    let claim = |source: &str| {
        spec(json!({"accessModes": ["ReadWriteOnce"], source: {"kind": "PersistentVolumeClaim", "name": "d"}}))
    };
    let service = |members: Value| {
        let mut all = map(json!({"ports": [{"port": 80}], "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack"}));
        all.extend(map(members));
        spec(Value::Object(all))
    };
    let ingress = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h"}]}});
    Some(match kind.kind {
        "PodDisruptionBudget" => {
            let key = crate::policy::pod_disruption_budget::EMPTY_SELECTOR_MATCH;
            let reserved = json!([{"key": key, "operator": "Exists"}]);
            vec![spec(json!({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": reserved}})), spec(json!({}))]
        }
        "APIService" => vec![spec(json!({"service": {"name": "s", "namespace": "n"}})), spec(json!({}))],
        "CSIDriver" => vec![spec(json!({}))],
        "CSINode" => vec![spec(json!({"drivers": [{"name": "d", "nodeID": "n"}]}))],
        "ClusterRole" | "Role" => vec![json!({})],
        "ClusterRoleBinding" | "RoleBinding" => vec![role],
        "CronJob" => vec![spec(json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template()}}}))],
        "DaemonSet" => vec![
            spec(json!({"template": template()})),
            spec(json!({"template": template(),
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}})),
            spec(json!({"template": template(), "updateStrategy": {"type": "OnDelete"}})),
        ],
        "Deployment" | "ReplicaSet" | "ReplicationController" => vec![spec(json!({"template": template()}))],
        "EndpointSlice" => vec![json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]})],
        "Endpoints" => vec![json!({"subsets": [{"ports": [{"port": 80}]}]})],
        "Event" => vec![json!({"involvedObject": {}})],
        "FlowSchema" => vec![spec(json!({"matchingPrecedence": 0}))],
        "HorizontalPodAutoscaler" => vec![spec(json!({"maxReplicas": 3, "behavior": {"scaleUp": {}}}))],
        "IngressClass" => vec![spec(json!({"controller": "a.b/c", "parameters": {"kind": "K", "name": "n"}}))],
        "Job" => vec![
            spec(json!({"template": template(), "podFailurePolicy":
                {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}})),
            spec(json!({"template": template(), "manualSelector": true, "selector": {"matchLabels": {"a": "b"}}})),
            spec(json!({"template": {"spec": {"containers": [{"name": "c"}]}}, "backoffLimitPerIndex": 1})),
        ],
        "LimitRange" => vec![spec(json!({"limits": [{"type": "Container", "max": {"cpu": "1"}}]}))],
        "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => vec![spec(json!({"matchConstraints": matched}))],
        "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding" => {
            vec![spec(json!({"matchResources": matched}))]
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => vec![json!({"webhooks": [webhook]})],
        "Namespace" => vec![json!({})],
        "NetworkPolicy" => vec![spec(json!({"podSelector": {}, "egress": [{"ports": [{"port": 80}]}]}))],
        "Node" => vec![json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}, "status": {"capacity": {"cpu": "4"}}})],
        "PersistentVolume" => vec![spec(json!({"hostPath": {"path": "/"}, "iscsi": {}, "rbd": {}, "azureFile": {},
            "azureDisk": {}, "scaleIO": {}}))],
        "PersistentVolumeClaim" => vec![claim("dataSource"), claim("dataSourceRef"), spec(json!({}))],
        "Pod" => {
            let container = json!({"name": "c", "ports": [{"containerPort": 80}], "resources": limits});
            let spec = json!({"hostNetwork": true, "resources": limits, "containers": [container]});
            vec![json!({"spec": spec, "status": {"podIPs": [{"ip": "10.0.0.1"}]}})]
        }
        "PodTemplate" => vec![json!({"template": template()})],
        "PriorityClass" | "Secret" | "StorageClass" => vec![json!({})],
        "PriorityLevelConfiguration" => vec![
            spec(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}})),
            spec(json!({"type": "Exempt", "exempt": {}})),
        ],
        "ResourceClaim" => vec![json!({"spec": {"devices": devices},
            "status": {"devices": [{"device": "d", "data": {"a": null}}]}})],
        "ResourceClaimTemplate" => vec![spec(json!({"spec": {"devices": devices}}))],
        "ResourceSlice" => vec![spec(json!({"pool": {"name": "p"}}))],
        "Service" => {
            let external = json!({"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "Local"});
            let mut balancer = service(json!({"type": "LoadBalancer"}));
            balancer["status"] = ingress;
            vec![
                service(json!({})),
                service(json!({"type": "NodePort", "sessionAffinity": "ClientIP"})),
                service(json!({"externalIPs": ["1.2.3.4"]})),
                balancer,
                spec(external),
            ]
        }
        "StatefulSet" => vec![spec(json!({"template": template(), "ordinals": {},
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}))],
        _ => return None,
    })
}
