//! Tests the upgrades of stored values: defaults that older releases did not store, and former versions.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::{Value, json};
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{ListQuery, MemoryStorage, Storage, StoreEvent, WatchItem, unreadable_reason};
use listwatch_wire::protobuf::{self, push_raw_field};

use crate::stored_form::tests::write;
use crate::stored_form::{ReadValue, StorageMediaType, StoredForm};

fn form(media_type: StorageMediaType) -> StoredForm {
    StoredForm::new(None, media_type, "/registry")
}

fn key(path: &str) -> Key {
    Key::from_path(path).unwrap()
}

/// Builds an object with the name `a`.
fn object(api_version: &str, kind: &str, members: Value) -> Value {
    let mut object = json!({"kind": kind, "apiVersion": api_version, "metadata": {"name": "a"}});
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}

/// Encodes an object in a former version whose messages have the field numbers of the current one.
fn former_message(former: &str, current: &str, kind: &str, object: &Value) -> Bytes {
    let body = protobuf::encode(current, kind, object.to_string().as_bytes()).unwrap();
    let envelope = protobuf::Envelope::parse(&body).unwrap();
    protobuf::body(former, kind, envelope.raw(&body)).into()
}

/// Reads an outdated value. Checks that the result, once written, is read unchanged.
fn upgraded(media_type: StorageMediaType, path: &str, stored: Bytes) -> Value {
    let form = form(media_type);
    let read = form.read(&key(path), stored, true);
    assert!(read.stale, "{media_type:?} {path}: the stored value is outdated");
    let written = write(&form, &key(path), read.value.clone()).unwrap();
    let again = form.read(&key(path), written, true);
    assert_eq!(again, ReadValue { value: read.value.clone(), stale: false }, "{media_type:?} {path}");
    serde_json::from_slice(&read.value).unwrap_or_else(|error| panic!("{path}: {error}: {:?}", read.value))
}

/// Checks members of an object that is stored in both encodings.
fn check_both(path: &str, json: &Value, message: Bytes, expected: &[(&str, Value)]) {
    let stored = Bytes::from(json.to_string());
    for (media_type, stored) in [(StorageMediaType::Json, stored), (StorageMediaType::Protobuf, message)] {
        let object = upgraded(media_type, path, stored);
        for (pointer, value) in expected {
            let found = object.pointer(pointer).cloned().unwrap_or_default();
            assert_eq!(found, *value, "{media_type:?} {path} {pointer}: {object}");
        }
    }
}

#[test]
fn default_that_an_older_release_did_not_store_is_added_by_a_read() {
    let check = |path: &str, api_version: &str, kind: &str, members: Value, expected: &[(&str, Value)]| {
        let object = object(api_version, kind, members);
        let message = protobuf::encode(api_version, kind, object.to_string().as_bytes()).unwrap();
        check_both(path, &object, message.into(), expected);
    };
    let template =
        || json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let selector = || json!({"matchLabels": {"a": "b"}});
    check(
        "/persistentvolumeclaims/x/a",
        "v1",
        "PersistentVolumeClaim",
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10G"}},
            "dataSource": {"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "foo"}}, "status": {}}),
        &[
            ("/spec/volumeMode", json!("Filesystem")),
            ("/spec/dataSourceRef/name", json!("foo")),
            ("/status/phase", json!("Pending")),
        ],
    );
    check(
        "/persistentvolumes/a",
        "v1",
        "PersistentVolume",
        json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/", "type": ""}, "persistentVolumeReclaimPolicy": "Retain"},
            "status": {"phase": "Available"}}),
        &[("/spec/volumeMode", json!("Filesystem")), ("/status/phase", json!("Available"))],
    );
    check(
        "/namespaces/a",
        "v1",
        "Namespace",
        json!({"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        &[("/metadata/labels", json!({"kubernetes.io/metadata.name": "a"}))],
    );
    check(
        "/minions/a",
        "v1",
        "Node",
        json!({"spec": {}, "status": {"capacity": {"cpu": "4"}}}),
        &[("/status/allocatable", json!({"cpu": "4"}))],
    );
    let port = || json!([{"protocol": "TCP", "port": 80, "targetPort": 80}]);
    let service = |spec: Value, status: Value, expected: &[(&str, Value)]| {
        let mut all = json!({"ports": port(), "sessionAffinity": "None"});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let members = json!({"spec": all, "status": {"loadBalancer": status}});
        check("/services/specs/x/a", "v1", "Service", members, expected);
    };
    service(
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.9"}),
        json!({}),
        &[
            ("/spec/clusterIPs", json!(["10.96.0.9"])),
            ("/spec/ipFamilies", json!(["IPv4"])),
            ("/spec/ipFamilyPolicy", json!("SingleStack")),
            ("/spec/internalTrafficPolicy", json!("Cluster")),
        ],
    );
    service(
        json!({"type": "ClusterIP", "clusterIP": "None"}),
        json!({}),
        &[("/spec/ipFamilies", json!(["IPv4", "IPv6"])), ("/spec/ipFamilyPolicy", json!("RequireDualStack"))],
    );
    service(
        json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}}),
        json!({}),
        &[("/spec/ipFamilies", json!(["IPv4"])), ("/spec/ipFamilyPolicy", json!("SingleStack"))],
    );
    service(
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.9", "externalTrafficPolicy": "Cluster"}),
        json!({"ingress": [{"ip": "1.2.3.4"}]}),
        &[
            ("/spec/allocateLoadBalancerNodePorts", json!(true)),
            ("/status/loadBalancer/ingress/0/ipMode", json!("VIP")),
        ],
    );
    service(
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "externalIPs": ["1.2.3.4"]}),
        json!({}),
        &[("/spec/externalTrafficPolicy", json!("Cluster"))],
    );
    service(
        json!({"type": "ExternalName", "externalName": "example.com", "internalTrafficPolicy": "Cluster"}),
        json!({}),
        &[("/spec/internalTrafficPolicy", Value::Null), ("/spec/ipFamilies", Value::Null)],
    );
    check(
        "/daemonsets/x/a",
        "apps/v1",
        "DaemonSet",
        json!({"spec": {"selector": selector(), "template": template(),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}}),
        &[("/spec/updateStrategy/rollingUpdate/maxSurge", json!(0))],
    );
    check(
        "/statefulsets/x/a",
        "apps/v1",
        "StatefulSet",
        json!({"spec": {"selector": selector(), "template": template(), "serviceName": "",
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {"resources": {}}}]}}),
        &[
            ("/spec/persistentVolumeClaimRetentionPolicy/whenScaled", json!("Retain")),
            ("/spec/volumeClaimTemplates/0/kind", json!("PersistentVolumeClaim")),
            ("/spec/volumeClaimTemplates/0/spec/volumeMode", json!("Filesystem")),
        ],
    );
    check(
        "/jobs/x/a",
        "batch/v1",
        "Job",
        json!({"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "selector": selector(),
            "template": template()}}),
        &[
            ("/spec/completionMode", json!("NonIndexed")),
            ("/spec/suspend", json!(false)),
            ("/spec/podReplacementPolicy", json!("TerminatingOrFailed")),
            ("/spec/manualSelector", json!(false)),
            ("/metadata/labels", json!({"a": "b"})),
        ],
    );
    check(
        "/csidrivers/a",
        "storage.k8s.io/v1",
        "CSIDriver",
        json!({"spec": {"attachRequired": true, "podInfoOnMount": false}}),
        &[
            ("/spec/volumeLifecycleModes", json!(["Persistent"])),
            ("/spec/storageCapacity", json!(false)),
            ("/spec/fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
            ("/spec/requiresRepublish", json!(false)),
            ("/spec/seLinuxMount", json!(false)),
        ],
    );
    check(
        "/storageclasses/a",
        "storage.k8s.io/v1",
        "StorageClass",
        json!({"provisioner": "example.com/p"}),
        &[("/reclaimPolicy", json!("Delete")), ("/volumeBindingMode", json!("Immediate"))],
    );
    check(
        "/priorityclasses/a",
        "scheduling.k8s.io/v1",
        "PriorityClass",
        json!({"value": 5}),
        &[("/preemptionPolicy", json!("PreemptLowerPriority"))],
    );
    check(
        "/networkpolicies/x/a",
        "networking.k8s.io/v1",
        "NetworkPolicy",
        json!({"spec": {"podSelector": {}, "egress": [{}]}}),
        &[("/spec/policyTypes", json!(["Ingress", "Egress"]))],
    );
    check(
        "/ingressclasses/a",
        "networking.k8s.io/v1",
        "IngressClass",
        json!({"spec": {"controller": "example.com/c", "parameters": {"kind": "K", "name": "n"}}}),
        &[("/spec/parameters/scope", json!("Cluster"))],
    );
    let api_service = object(
        "apiregistration.k8s.io/v1",
        "APIService",
        json!({"spec": {"service": {"namespace": "n", "name": "s"}, "groupPriorityMinimum": 1, "versionPriority": 1}}),
    );
    let path = "/apiregistration.k8s.io/apiservices/a";
    let read = upgraded(StorageMediaType::Protobuf, path, api_service.to_string().into());
    assert_eq!(read["spec"]["service"]["port"], 443);
}

#[test]
fn complete_value_is_read_with_the_same_bytes() {
    let external = object(
        "v1",
        "Service",
        json!({"spec": {"externalName": "x", "type": "ExternalName", "sessionAffinity": "None"}}),
    );
    let on_delete = object("apps/v1", "DaemonSet", json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}));
    let node = object("v1", "Node", json!({"status": {}}));
    // A Job whose template has no labels has no default for its own.
    let job = object(
        "batch/v1",
        "Job",
        json!({"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed",
            "suspend": false, "podReplacementPolicy": "TerminatingOrFailed", "manualSelector": false,
            "template": {"metadata": {}, "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
                "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"}}}}),
    );
    // Another order of members than that of this server.
    let lease = json!({"metadata": {"name": "a"}, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}});
    for (path, value) in [
        ("/services/specs/x/a", external),
        ("/daemonsets/x/a", on_delete),
        ("/minions/a", node),
        ("/jobs/x/a", job),
        ("/leases/x/a", lease),
    ] {
        let stored = Bytes::from(value.to_string());
        let read = form(StorageMediaType::Json).read(&key(path), stored.clone(), true);
        assert_eq!(read, ReadValue { value: stored, stale: false }, "{path}");
    }
}

#[test]
fn value_in_a_former_version_with_the_same_fields_is_read_in_the_current_one() {
    for (path, former, current, kind) in [
        ("/deployments/x/a", "apps/v1beta2", "apps/v1", "Deployment"),
        ("/controllerrevisions/x/a", "apps/v1beta1", "apps/v1", "ControllerRevision"),
        ("/cronjobs/x/a", "batch/v1beta1", "batch/v1", "CronJob"),
        ("/leases/x/a", "coordination.k8s.io/v1beta1", "coordination.k8s.io/v1", "Lease"),
        ("/networkpolicies/x/a", "extensions/v1beta1", "networking.k8s.io/v1", "NetworkPolicy"),
        ("/clusterroles/a", "rbac.authorization.k8s.io/v1beta1", "rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("/storageclasses/a", "storage.k8s.io/v1beta1", "storage.k8s.io/v1", "StorageClass"),
        ("/resourceclaims/x/a", "resource.k8s.io/v1beta2", "resource.k8s.io/v1", "ResourceClaim"),
        (
            "/mutatingadmissionpolicies/a",
            "admissionregistration.k8s.io/v1alpha1",
            "admissionregistration.k8s.io/v1",
            "MutatingAdmissionPolicy",
        ),
    ] {
        let stored = object(former, kind, json!({}));
        let message = former_message(former, current, kind, &stored);
        check_both(path, &stored, message, &[("/apiVersion", json!(current)), ("/metadata/name", json!("a"))]);
    }
    let service = json!({"spec": {"service": {"namespace": "n", "name": "s"}}});
    let stored = object("apiregistration.k8s.io/v1beta1", "APIService", service);
    let path = "/apiregistration.k8s.io/apiservices/a";
    let read = upgraded(StorageMediaType::Json, path, stored.to_string().into());
    assert_eq!(
        (&read["apiVersion"], &read["spec"]["service"]["port"]),
        (&json!("apiregistration.k8s.io/v1"), &json!(443))
    );
    // An event is stored in another group.
    let event = object("events.k8s.io/v1beta1", "Event", json!({"note": "hello"}));
    let message = former_message("events.k8s.io/v1beta1", "events.k8s.io/v1", "Event", &event);
    check_both("/events/x/a", &event, message, &[("/apiVersion", json!("v1")), ("/message", json!("hello"))]);
}

#[test]
fn value_in_a_former_version_gets_the_conversion_of_that_version() {
    let budget = object("policy/v1beta1", "PodDisruptionBudget", json!({"spec": {"minAvailable": 2, "selector": {}}}));
    let message = former_message("policy/v1beta1", "policy/v1", "PodDisruptionBudget", &budget);
    let none = json!({"matchExpressions":
        [{"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": "Exists"}]});
    let expected = [("/apiVersion", json!("policy/v1")), ("/spec/selector", none), ("/spec/minAvailable", json!(2))];
    check_both("/poddisruptionbudgets/x/a", &budget, message, &expected);

    // Former builds stored the expression beside other terms.
    let expression = json!({"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": "Exists"});
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [expression]});
    let budget = object("policy/v1", "PodDisruptionBudget", json!({"spec": {"selector": selector}}));
    let message = protobuf::encode("policy/v1", "PodDisruptionBudget", budget.to_string().as_bytes()).unwrap();
    let expected = [("/spec/selector", json!({"matchLabels": {"a": "b"}}))];
    check_both("/poddisruptionbudgets/x/a", &budget, message.into(), &expected);

    let version = "admissionregistration.k8s.io/v1beta1";
    let hooks = json!({"webhooks": [{"name": "a.b.c", "clientConfig": {"url": "https://a"}, "failurePolicy": "Fail"}]});
    let hooks = object(version, "ValidatingWebhookConfiguration", hooks);
    let message = former_message(version, "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", &hooks);
    let expected = [
        ("/apiVersion", json!("admissionregistration.k8s.io/v1")),
        ("/webhooks/0/failurePolicy", json!("Fail")),
        ("/webhooks/0/matchPolicy", json!("Exact")),
        ("/webhooks/0/timeoutSeconds", json!(30)),
        ("/webhooks/0/admissionReviewVersions", json!(["v1beta1"])),
        ("/webhooks/0/namespaceSelector", json!({})),
    ];
    check_both("/validatingwebhookconfigurations/a", &hooks, message, &expected);

    let level = |shares: &str| json!({"spec": {"type": "Limited", "limited": {shares: 7, "limitResponse": {"type": "Reject"}}}});
    let (version, kind) = ("flowcontrol.apiserver.k8s.io/v1beta2", "PriorityLevelConfiguration");
    let current = object(version, kind, level("nominalConcurrencyShares"));
    let message = former_message(version, "flowcontrol.apiserver.k8s.io/v1", kind, &current);
    let stored = object(version, kind, level("assuredConcurrencyShares"));
    let expected = [("/spec/limited/nominalConcurrencyShares", json!(7))];
    check_both("/prioritylevelconfigurations/a", &stored, message, &expected);
}

#[test]
fn workload_in_a_former_version_gets_the_defaults_of_both_versions() {
    let check = |version: &str, kind: &str, path: &str, members: Value, expected: &[(&str, Value)]| {
        let mut spec = json!({"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}});
        spec.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let stored = object(version, kind, json!({ "spec": spec }));
        let message = former_message(version, "apps/v1", kind, &stored);
        let common = [
            ("/apiVersion", json!("apps/v1")),
            ("/metadata/labels", json!({"a": "b"})),
            ("/spec/selector", json!({"matchLabels": {"a": "b"}})),
            ("/spec/template/spec/dnsPolicy", json!("ClusterFirst")),
        ];
        check_both(path, &stored, message, &[&common, expected].concat());
    };
    let rolling =
        |count: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": count, "maxSurge": count}});
    check(
        "apps/v1beta1",
        "Deployment",
        "/deployments/x/a",
        json!({}),
        &[
            ("/spec/revisionHistoryLimit", json!(2)),
            ("/spec/progressDeadlineSeconds", json!(600)),
            ("/spec/strategy", rolling(json!("25%"))),
            ("/spec/replicas", json!(1)),
        ],
    );
    check(
        "extensions/v1beta1",
        "Deployment",
        "/deployments/x/a",
        json!({}),
        &[
            ("/spec/revisionHistoryLimit", json!(i32::MAX)),
            ("/spec/progressDeadlineSeconds", json!(i32::MAX)),
            ("/spec/strategy", rolling(json!(1))),
        ],
    );
    let on_delete = ("/spec/updateStrategy", json!({"type": "OnDelete"}));
    let limit = ("/spec/revisionHistoryLimit", json!(10));
    check(
        "apps/v1beta1",
        "StatefulSet",
        "/statefulsets/x/a",
        json!({"serviceName": "s"}),
        &[on_delete.clone(), limit.clone(), ("/spec/podManagementPolicy", json!("OrderedReady"))],
    );
    check("extensions/v1beta1", "DaemonSet", "/daemonsets/x/a", json!({}), &[on_delete, limit]);
    check("extensions/v1beta1", "ReplicaSet", "/replicasets/x/a", json!({}), &[("/spec/replicas", json!(1))]);
}

#[test]
fn encrypted_value_is_upgraded_and_written_with_the_current_key() {
    let budget = object("policy/v1beta1", "PodDisruptionBudget", json!({"spec": {"minAvailable": 1}}));
    let message = former_message("policy/v1beta1", "policy/v1", "PodDisruptionBudget", &budget);
    let configuration = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
        - resources: [poddisruptionbudgets.policy]\n  providers:\n  \
        - aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}\n";
    let key = key("/poddisruptionbudgets/x/a");
    for (media_type, plain) in
        [(StorageMediaType::Json, Bytes::from(budget.to_string())), (StorageMediaType::Protobuf, message)]
    {
        let encryption = listwatch_at_rest::Encryption::parse("test.yaml", configuration.as_bytes()).unwrap();
        let transformer = encryption.transformer("policy", "poddisruptionbudgets");
        let encrypted = transformer.encrypt(&plain, b"/registry/poddisruptionbudgets/x/a", &mut |nonce| nonce.fill(1));
        let form = StoredForm::new(Some(encryption), media_type, "/registry");
        let read = form.read(&key, encrypted.unwrap(), true);
        assert!(read.stale && read.value.starts_with(br#"{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","#));
        let written = write(&form, &key, read.value.clone()).unwrap();
        assert!(written.starts_with(b"k8s:enc:aesgcm:v1:one:"), "{media_type:?}");
        assert_eq!(form.read(&key, written, true), ReadValue { value: read.value, stale: false }, "{media_type:?}");
    }
}

#[test]
fn normal_form_is_the_json_that_a_read_returns() {
    let service = object(
        "v1",
        "Service",
        json!({"spec": {"externalName": "x", "type": "ExternalName", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster"}}),
    );
    let config_map = object("v1", "ConfigMap", json!({"data": {"a": "b"}}));
    for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
        for (path, value) in [("/services/specs/x/a", &service), ("/configmaps/x/a", &config_map)] {
            let (form, key, value) = (form(media_type), key(path), Bytes::from(value.to_string()));
            let normal = form.normal_form(&key, value.clone());
            let written = write(&form, &key, value).unwrap();
            let read = StoredForm::new(None, media_type, "/registry").read(&key, written, true);
            assert_eq!(normal, read.value, "{media_type:?} {path}");
        }
    }
}

/// Encodes a field of a message.
fn field(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    push_raw_field(number, payload, &mut encoded);
    encoded
}

#[test]
fn message_of_a_former_version_with_other_field_numbers_is_rewritten() {
    let check = |path: &str, version: &str, kind: &str, fields: &[u8], expected: &[(&str, Value)]| {
        let message = [field(1, &field(1, b"a")), fields.to_vec()].concat();
        let stored = protobuf::body(version, kind, &message);
        let object = upgraded(StorageMediaType::Protobuf, path, stored.into());
        for (pointer, value) in expected {
            let found = object.pointer(pointer).cloned().unwrap_or_default();
            assert_eq!(found, *value, "{path} {pointer}: {object}");
        }
    };
    // IntOrString: type, number, text.
    let backend = |port: &[u8]| [field(1, b"s"), field(2, port)].concat();
    let path = [field(1, b"/"), field(2, &backend(b"\x08\x01\x10\0\x1a\x04http"))].concat();
    let rule = [field(1, b"h"), field(2, &field(1, &field(1, &path)))].concat();
    let spec = [field(1, &backend(b"\x08\0\x10\x50\x1a\0")), field(3, &rule)].concat();
    for version in ["extensions/v1beta1", "networking.k8s.io/v1beta1"] {
        let named = json!({"path": "/", "pathType": "ImplementationSpecific",
            "backend": {"service": {"name": "s", "port": {"name": "http"}}}});
        let expected = [
            ("/apiVersion", json!("networking.k8s.io/v1")),
            ("/spec/defaultBackend", json!({"service": {"name": "s", "port": {"number": 80}}})),
            ("/spec/rules/0/host", json!("h")),
            ("/spec/rules/0/http/paths/0", named),
        ];
        check("/ingress/x/a", version, "Ingress", &field(2, &spec), &expected);
    }
    let hints = field(1, &field(1, b"z"));
    let endpoint = [field(1, b"10.0.0.1"), field(7, &hints)].concat();
    let slice = [field(2, &endpoint), field(4, b"IPv4")].concat();
    let expected = [
        ("/endpoints/0/hints/forZones/0/name", json!("z")),
        ("/endpoints/0/zone", Value::Null),
        ("/addressType", json!("IPv4")),
    ];
    check("/endpointslices/x/a", "discovery.k8s.io/v1beta1", "EndpointSlice", &slice, &expected);
    let rule = [field(1, b"get"), field(3, b""), field(4, b"pods"), field(5, b"p")].concat();
    let expected =
        [("/rules", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"]}]))];
    let rbac = "rbac.authorization.k8s.io/v1alpha1";
    check("/clusterroles/a", rbac, "ClusterRole", &field(2, &rule), &expected);
    let subject = [field(1, b"User"), field(2, rbac.as_bytes()), field(3, b"jane")].concat();
    let bound = [field(2, &subject), field(3, &[field(2, b"Role"), field(3, b"r")].concat())].concat();
    let expected = [
        ("/subjects", json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}])),
        ("/roleRef", json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"})),
    ];
    check("/rolebindings/x/a", rbac, "RoleBinding", &bound, &expected);
    let number = |number: u8, value: u8| vec![number << 3, value];
    let spec = field(2, &[field(2, b""), number(5, 3), number(6, 7)].concat());
    let expected = [
        ("/metadata/annotations", json!({"deprecated.daemonset.template.generation": "3"})),
        ("/spec/revisionHistoryLimit", json!(7)),
        ("/spec/minReadySeconds", Value::Null),
    ];
    check("/daemonsets/x/a", "extensions/v1beta1", "DaemonSet", &spec, &expected);
    for version in ["extensions/v1beta1", "apps/v1beta1"] {
        let spec = field(2, &[field(3, b""), field(8, &number(1, 4)), number(9, 60)].concat());
        let expected = [
            ("/metadata/annotations", json!({"deprecated.deployment.rollback.to": "4"})),
            ("/spec/progressDeadlineSeconds", json!(60)),
        ];
        check("/deployments/x/a", version, "Deployment", &spec, &expected);
    }
    let class = field(2, &field(1, b"runc"));
    let expected = [("/handler", json!("runc")), ("/apiVersion", json!("node.k8s.io/v1"))];
    check("/runtimeclasses/a", "node.k8s.io/v1alpha1", "RuntimeClass", &class, &expected);
}

#[test]
fn device_requests_and_devices_of_v1beta1_are_read_in_both_encodings() {
    const VERSION: &str = "resource.k8s.io/v1beta1";
    let number = |number: u8, value: u8| vec![number << 3, value];
    let message = |kind: &str, fields: &[u8]| -> Bytes {
        protobuf::body(VERSION, kind, &[field(1, &field(1, b"a")), fields.to_vec()].concat()).into()
    };
    // As Go writes the two requests: with an empty class, an empty mode and the count 0 in the second one.
    let toleration = [field(2, b"Exists"), field(4, b"NoExecute")].concat();
    let amounts = |name: &[u8], amount: &[u8]| field(1, &[field(1, name), field(2, &field(1, amount))].concat());
    let first = [
        field(1, b"r"),
        field(2, b"c"),
        field(3, &field(1, &field(1, b"true"))),
        field(4, b"ExactCount"),
        number(5, 2),
        number(6, 1),
        field(8, &toleration),
        field(9, &amounts(b"m", b"1Gi")),
    ];
    let alternative = [
        field(1, b"s"),
        field(2, b"c"),
        field(4, b"All"),
        number(5, 0),
        field(7, &toleration),
        field(8, &amounts(b"m", b"1Gi")),
    ];
    let second = [field(1, b"q"), field(2, b""), field(4, b""), number(5, 0), field(7, &alternative.concat())];
    let devices = [field(1, &first.concat()), field(1, &second.concat())].concat();
    let (tolerations, capacity) =
        (json!([{"operator": "Exists", "effect": "NoExecute"}]), json!({"requests": {"m": "1Gi"}}));
    let exactly = json!({"deviceClassName": "c", "selectors": [{"cel": {"expression": "true"}}],
        "allocationMode": "ExactCount", "count": 2, "adminAccess": true, "tolerations": tolerations,
        "capacity": capacity});
    let alternatives = json!([{"name": "s", "deviceClassName": "c", "allocationMode": "All", "tolerations": tolerations,
        "capacity": capacity}]);
    let mut former = exactly.clone();
    former["name"] = json!("r");
    let spec = json!({"devices": {"requests": [former, {"name": "q", "firstAvailable": alternatives}]}});
    let requests = json!([{"name": "r", "exactly": exactly}, {"name": "q", "firstAvailable": alternatives}]);
    let current = ("/apiVersion", json!("resource.k8s.io/v1"));

    let claim = object(VERSION, "ResourceClaim", json!({"spec": spec, "status": {}}));
    let stored = message("ResourceClaim", &[field(2, &field(1, &devices)), field(3, b"")].concat());
    let expected = [current.clone(), ("/spec/devices/requests", requests.clone())];
    check_both("/resourceclaims/x/a", &claim, stored, &expected);

    let template = object(VERSION, "ResourceClaimTemplate", json!({"spec": {"spec": spec}}));
    let stored = message("ResourceClaimTemplate", &field(2, &field(2, &field(1, &devices))));
    let expected = [current.clone(), ("/spec/spec/devices/requests", requests)];
    check_both("/resourceclaimtemplates/x/a", &template, stored, &expected);

    let basic = json!({"attributes": {"a": {"int": 7}}, "capacity": {"m": {"value": "1Gi"}}, "nodeName": "n",
        "bindingConditions": ["b"], "allowMultipleAllocations": true});
    let mut device = basic.clone();
    device["name"] = json!("d");
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let slice = json!({"spec": {"driver": "e.f", "pool": pool, "nodeName": "", "perDeviceNodeSelection": true,
        "devices": [{"name": "d", "basic": basic}]}});
    let slice = object(VERSION, "ResourceSlice", slice);
    let entry = |name: &[u8], value: &[u8]| [field(1, name), field(2, value)].concat();
    let basic = [
        field(1, &entry(b"a", &number(2, 7))),
        field(2, &entry(b"m", &field(1, &field(1, b"1Gi")))),
        field(4, b"n"),
        field(9, b"b"),
        number(11, 1),
    ];
    let spec = [
        field(1, b"e.f"),
        field(2, &[field(1, b"p"), number(2, 1), number(3, 1)].concat()),
        field(3, b""),
        number(5, 0),
        field(6, &[field(1, b"d"), field(2, &basic.concat())].concat()),
        number(7, 1),
    ];
    let expected = [
        current,
        ("/spec/devices", json!([device])),
        ("/spec/nodeName", Value::Null),
        ("/spec/allNodes", Value::Null),
        ("/spec/perDeviceNodeSelection", json!(true)),
    ];
    check_both("/resourceslices/a", &slice, message("ResourceSlice", &field(2, &spec.concat())), &expected);
}

#[test]
fn value_in_an_unknown_version_stays_unreadable() {
    for (path, version, kind) in [
        ("/resourceclaims/x/a", "resource.k8s.io/v1alpha3", "ResourceClaim"),
        ("/cronjobs/x/a", "batch/v2alpha1", "CronJob"),
    ] {
        let read = form(StorageMediaType::Protobuf).read(&key(path), protobuf::body(version, kind, b"").into(), true);
        let expected = format!("no kind \"{kind}\" is registered for version \"{version}\"");
        assert_eq!(unreadable_reason(&read.value), Some(expected.as_str()));
    }
    for (path, version, kind) in [
        ("/resourceclaims/x/a", "resource.k8s.io/v1alpha3", "ResourceClaim"),
        ("/cronjobs/x/a", "batch/v2alpha1", "CronJob"),
        ("/pods/x/a", "v2", "Pod"),
        ("/pods/x/a", "v1", "Secret"),
        ("/services/specs/x/a", "example.com/v1", "Service"),
        ("/services/specs/x/a", "v1", "Pod"),
        ("/deployments/x/a", "batch/v1beta1", "CronJob"),
        ("/mutatingadmissionpolicies/a", "admissionregistration.k8s.io/v2", "MutatingAdmissionPolicy"),
        ("/apiextensions.k8s.io/customresourcedefinitions/a", "apiextensions.k8s.io/v2", "CustomResourceDefinition"),
    ] {
        let stored = Bytes::from(object(version, kind, json!({})).to_string());
        for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
            let read = form(media_type).read(&key(path), stored.clone(), true);
            let expected = format!("no kind \"{kind}\" is registered for version \"{version}\"");
            assert_eq!(unreadable_reason(&read.value), Some(expected.as_str()), "{path}");
            assert!(!form(media_type).plain_json(&KeyRange::single(&key(path))).has(&stored), "{path}");
        }
    }
    // A message of another kind.
    let secret = protobuf::encode("v1", "Secret", object("v1", "Secret", json!({})).to_string().as_bytes()).unwrap();
    let read = form(StorageMediaType::Protobuf).read(&key("/pods/x/a"), secret.into(), true);
    assert_eq!(unreadable_reason(&read.value), Some("no kind \"Secret\" is registered for version \"v1\""));
    // A damaged message in a former version.
    let damaged = protobuf::body("extensions/v1beta1", "Ingress", b"\x12\x05hi");
    let read = form(StorageMediaType::Protobuf).read(&key("/ingress/x/a"), damaged.into(), true);
    assert!(unreadable_reason(&read.value).is_some(), "{read:?}");
}

#[test]
fn json_without_a_kind_or_version_stays_readable() {
    for (path, value) in [
        ("/pods/x/a", r#"{"metadata":{"name":"a"}}"#),
        ("/pods/x/a", r#"{"kind":"Pod","metadata":{"name":"a"}}"#),
        ("/services/specs/x/a", r#"{"apiVersion":"v1","metadata":{"name":"a"}}"#),
        ("/services/specs/x/a", r#"{"metadata":{"name":"a"}}"#),
        ("/leases/x/a", r#"{"kind":7,"apiVersion":"v1","metadata":{"name":"a"}}"#),
        ("/example.com/widgets/x/a", r#"{"kind":"Widget","apiVersion":"example.com/v7","metadata":{"name":"a"}}"#),
        ("/ranges/serviceips", r#"{"kind":"Other","apiVersion":"v7"}"#),
    ] {
        let read = form(StorageMediaType::Json).read(&key(path), value.into(), true);
        assert_eq!(read, ReadValue { value: value.into(), stale: false }, "{path}");
    }
}

#[tokio::test]
async fn lists_and_watches_return_upgraded_values() {
    let inner = MemoryStorage::new();
    let key = key("/poddisruptionbudgets/x/a");
    let stored = object("policy/v1beta1", "PodDisruptionBudget", json!({"spec": {"selector": {}}}));
    inner.create(&key, stored.to_string().into(), None).await.unwrap();
    let storage = Arc::new(form(StorageMediaType::Json)).storage(inner);
    let range = KeyRange::resource("poddisruptionbudgets");
    let page = storage.list(ListQuery { range: range.clone(), at: None, limit: 0 }).await.unwrap();
    let is_current = |value: &Bytes| value.starts_with(br#"{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","#);
    assert!(is_current(&page.items[0].value) && page.items[0].stale, "{page:?}");
    let mut watch = storage.watch(range, Revision::ZERO).await.unwrap();
    let seen = loop {
        if let Some(WatchItem::Event(StoreEvent::Put { current, .. })) = watch.next().await {
            break current;
        }
    };
    assert!(is_current(&seen.value), "{seen:?}");
}
