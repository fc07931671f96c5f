//! Tests the stored form of values with an in-memory store.

use std::sync::Arc;

use listwatch_json::{JsonString, Value, json};
use listwatch_meta::Revision;
use listwatch_storage::{
    CreateError, Decision, DeleteError, KeyValue, ListQuery, MemoryStorage, Outcome, StoreEvent, UpdateError,
    UpdateLimits, WatchItem, guaranteed_update, unreadable_reason,
};
use proptest::prelude::*;

use super::*;

const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"x"},"spec":{"containers":[{"name":"c","resources":{}}]},"status":{}}"#;

fn encryption(rules: &[(&str, &[&str])]) -> Encryption {
    let mut text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n".to_owned();
    for (resources, providers) in rules {
        text.push_str(&format!("- resources: [{resources}]\n  providers:\n"));
        providers.iter().for_each(|provider| text.push_str(&format!("  - {provider}\n")));
    }
    Encryption::parse("test.yaml", text.as_bytes()).unwrap()
}

const ONE: &str = "aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}";
const TWO: &str = "aescbc: {keys: [{name: two, secret: ZmVkY2JhOTg3NjU0MzIxMA==}]}";
const IDENTITY: &str = "identity: {}";

fn form(rules: &[(&str, &[&str])], media_type: StorageMediaType) -> StoredForm {
    let encryption = (!rules.is_empty()).then(|| encryption(rules));
    StoredForm::new(encryption, media_type, "registry/")
}

pub(super) fn write(form: &StoredForm, key: &Key, value: Bytes) -> Result<Bytes, StoreFault> {
    form.write(key, form.find(key.as_str()), value)
}

fn key(path: &str) -> Key {
    Key::from_path(path).unwrap()
}

fn over(inner: &Arc<MemoryStorage>, form: StoredForm) -> Arc<dyn Storage> {
    Arc::new(form).storage(inner.clone())
}

#[test]
fn encryption_and_encoding_are_selected_by_the_prefix_of_the_key() {
    let rules: &[(&str, &[&str])] = &[("services, nodes", &[ONE]), ("'*.example.com'", &[ONE]), ("'*.'", &[TWO])];
    let form = form(rules, StorageMediaType::Protobuf);
    let check = |path: &str, kind: Option<&str>, prefix: &str| {
        let Form { transformer, message, .. } = form.find(path);
        assert_eq!(message.map(|(_, kind)| kind.as_str()), kind, "{path}");
        let stored = transformer.encrypt(&"x".into(), b"", &mut |nonce| nonce.fill(0)).unwrap();
        assert!(stored.starts_with(prefix.as_bytes()), "{path}: {stored:?}");
    };
    check("/services/specs/a/b", Some("Service"), "k8s:enc:aesgcm");
    check("/services/endpoints/a/b", Some("Endpoints"), "k8s:enc:aescbc");
    check("/minions/n", Some("Node"), "k8s:enc:aesgcm");
    check("/secrets/a/b", Some("Secret"), "k8s:enc:aescbc");
    check("/secrets/", Some("Secret"), "k8s:enc:aescbc");
    check("/deployments/a/b", Some("Deployment"), "x");
    check("/example.com/widgets/a/b", None, "k8s:enc:aesgcm");
    check("/other.com/widgets/a/b", None, "x");
    check("/apiextensions.k8s.io/customresourcedefinitions/a", None, "x");
    check("/ranges/serviceips", None, "k8s:enc:aescbc");
    check("/ranges/servicenodeports", Some("RangeAllocation"), "k8s:enc:aescbc");
    check("/ranges/servicenodeports/80", Some("RangeAllocation"), "k8s:enc:aescbc");
    check("/masterleases/1.2.3.4", Some("Endpoints"), "k8s:enc:aescbc");
    check("/listwatch/keys/serviceaccounts-es256", None, "k8s:enc:aescbc");
}

#[tokio::test]
async fn requests_to_the_store_are_timed_by_operation_and_resource() {
    let form = Arc::new(form(&[], StorageMediaType::Json));
    let storage = form.storage(MemoryStorage::new());
    let (pod, service) = (key("/pods/x/a"), key("/services/specs/x/a"));
    let created = storage.create(&pod, POD.into(), None).await.unwrap();
    storage.create(&pod, POD.into(), None).await.unwrap_err();
    storage.get(&pod).await.unwrap();
    storage.get_unless(&pod, created).await.unwrap();
    storage.update(&service, created, POD.into(), None).await.unwrap_err();
    storage.delete(&pod, created).await.unwrap();
    let everything = KeyRange::below("/").starting_at("/pods/x/a");
    for range in [KeyRange::namespace("pods", "x"), KeyRange::resource("example.com/widgets"), everything] {
        storage.list(ListQuery { range, at: None, limit: 0 }).await.unwrap();
    }
    let range = KeyRange::resource("apiextensions.k8s.io/customresourcedefinitions");
    storage.list_keys(ListQuery { range, at: None, limit: 0 }).await.unwrap();
    assert!(form.custom_requests.of("example.com/widgets").is_some(), "requests for custom resources are timed");
    let text = form.metrics_text(&Registry::builtin());
    let counts = text.lines().filter_map(|line| line.strip_prefix("etcd_request_duration_seconds_count"));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [
            r#"{group="",operation="create",resource="pods"} 2"#,
            r#"{group="",operation="delete",resource="pods"} 1"#,
            r#"{group="",operation="get",resource="pods"} 2"#,
            r#"{group="",operation="list",resource="pods"} 1"#,
            r#"{group="",operation="update",resource="services"} 1"#,
            r#"{group="apiextensions.k8s.io",operation="listOnlyKeys",resource="customresourcedefinitions"} 1"#,
        ],
        "the registry has no widgets"
    );
    assert!(form.custom_requests.all().is_empty());
}

#[test]
fn range_is_read_as_plain_json_only_if_every_value_can_be_plain() {
    const POD: &[u8] = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#;
    /// `all`, `some` (the JSON of a Pod, but not all JSON) or `none`.
    fn of(form: &StoredForm, range: &KeyRange) -> &'static str {
        let plain = form.plain_json(range);
        match (plain.has(b"{}"), plain.has(POD)) {
            (true, true) => "all",
            (false, true) => "some",
            (false, false) => "none",
            (true, false) => panic!("{range:?}"),
        }
    }
    let form = form(&[("secrets", &[ONE, IDENTITY]), ("pods", &[IDENTITY, ONE])], StorageMediaType::Json);
    for (range, expected) in [
        (KeyRange::resource("secrets"), "none"),
        (KeyRange::namespace("secrets", "a"), "none"),
        (KeyRange::resource("pods"), "some"),
        (KeyRange::resource("configmaps"), "none"),
        (KeyRange::resource("services/specs"), "none"),
        (KeyRange::resource("example.com/widgets"), "all"),
        (KeyRange::resource("pods").starting_at("/pods/x/y\0"), "some"),
        (KeyRange::single(&key("/pods/a/b")), "some"),
        (KeyRange::below("/"), "none"),
        (KeyRange::below("/services/"), "none"),
        (KeyRange::resource("apiextensions.k8s.io/customresourcedefinitions"), "none"),
        (KeyRange::single(&key("/apiextensions.k8s.io/customresourcedefinitions/a")), "none"),
    ] {
        assert_eq!(of(&form, &range), expected, "{range:?}");
    }
    let plain = StoredForm::default();
    assert_eq!(of(&plain, &KeyRange::below("/ranges/")), "all", "without encryption JSON is plain");
    assert_eq!(of(&plain, &KeyRange::below("/services/")), "none", "an old service can lack defaults");
    assert_eq!(of(&plain, &KeyRange::below("/")), "none", "definitions can have an old version");
}

#[test]
fn authenticated_data_is_the_full_key_in_etcd() {
    for (prefix, expected) in
        [("registry/", "/registry/a"), ("/registry", "/registry/a"), ("", "/a"), ("/x/y", "/x/y/a")]
    {
        assert_eq!(StoredForm::new(None, StorageMediaType::Json, prefix).full_key(&key("/a")), expected, "{prefix:?}");
    }
    // As kube-apiserver would write it: AES-GCM over the full key.
    let transformer = encryption(&[("secrets", &[ONE])]).transformer("", "secrets");
    let stored = transformer.encrypt(&"{}".into(), b"/registry/secrets/a/b", &mut |nonce| nonce.fill(1)).unwrap();
    let form = form(&[("secrets", &[ONE])], StorageMediaType::Json);
    assert_eq!(form.read(&key("/secrets/a/b"), stored.clone(), true), ReadValue { value: "{}".into(), stale: false });
    let moved = form.read(&key("/secrets/a/c"), stored, true);
    assert_eq!(unreadable_reason(&moved.value), Some("cipher: message authentication failed"));
}

#[test]
fn built_in_kinds_are_written_in_the_configured_encoding_and_others_as_json() {
    let protobuf = form(&[], StorageMediaType::Protobuf);
    let json = form(&[], StorageMediaType::Json);
    let check = |path: &str, value: &str, is_protobuf: bool| {
        let key = key(path);
        let stored = write(&protobuf, &key, value.to_owned().into()).unwrap();
        assert_eq!(stored.starts_with(protobuf::MAGIC), is_protobuf, "{path}: {value}");
        assert_eq!(
            protobuf.read(&key, stored.clone(), true),
            ReadValue { value: value.to_owned().into(), stale: false }
        );
        let by_json = json.read(&key, stored, true);
        assert_eq!((by_json.value, by_json.stale), (value.to_owned().into(), is_protobuf), "{path}: {value}");
        let stored = write(&json, &key, value.to_owned().into()).unwrap();
        assert_eq!(stored, value);
        assert_eq!(
            protobuf.read(&key, stored.clone(), true).stale,
            is_protobuf,
            "{path}: JSON is stale where protobuf is possible"
        );
        assert!(!protobuf.read(&key, stored, false).stale);
    };
    check("/pods/x/a", POD, true);
    check(
        "/example.com/widgets/x/a",
        r#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"a"}}"#,
        false,
    );
    let definition =
        r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"a"}}"#;
    check("/apiextensions.k8s.io/customresourcedefinitions/a", definition, false);
    // A member that protobuf would lose keeps the value JSON.
    check("/pods/x/a", &POD.replace("\"spec\":{", "\"spec\":{\"unknown\":1,"), false);
    // So does nesting that an object may have and that a protobuf decoder rejects. The data is at level 2.
    for (levels, is_protobuf) in [(98, true), (99, true), (100, false), (110, false)] {
        let data = format!("{}1{}", "{\"a\":".repeat(levels - 1), "}".repeat(levels - 1));
        let revision = format!(
            r#"{{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{{"name":"a"}},"data":{data},"revision":1}}"#
        );
        check("/controllerrevisions/x/a", &revision, is_protobuf);
    }
}

#[test]
fn allocated_node_ports_are_encoded_as_in_kube_apiserver() {
    // 30000 and 30008 of the range 30000-32767, with empty metadata.
    const STORED: &[u8] = b"k8s\0\n\x15\n\x02v1\x12\x0fRangeAllocation\x12#\n\x10\n\0\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x0b30000-32767\x1a\x02\x01\x01\x1a\0\"\0";
    const JSON: &str =
        r#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-32767","data":"AQE="}"#;
    let form = form(&[], StorageMediaType::Protobuf);
    let key = key("/ranges/servicenodeports");
    assert_eq!(write(&form, &key, JSON.into()).unwrap(), STORED);
    let read = form.read(&key, Bytes::from_static(STORED), true);
    assert_eq!((std::str::from_utf8(&read.value).unwrap(), read.stale), (JSON, false));
}

#[test]
fn mutating_admission_policies_are_stored_in_v1beta1_and_read_in_v1() {
    const V1: &str = r#"{"kind":"MutatingAdmissionPolicy","apiVersion":"admissionregistration.k8s.io/v1","metadata":{"name":"a"},"spec":{"failurePolicy":"Fail","reinvocationPolicy":"Never"}}"#;
    let key = key("/mutatingadmissionpolicies/a");
    for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
        let form = form(&[], media_type);
        let stored = write(&form, &key, V1.into()).unwrap();
        let text = String::from_utf8_lossy(&stored).into_owned();
        assert!(text.contains("admissionregistration.k8s.io/v1beta1"), "{text}");
        let read = form.read(&key, stored.clone(), true);
        assert_eq!((std::str::from_utf8(&read.value).unwrap(), read.stale), (V1, false));
        // A former build stored v1.
        let former = form.encode(form.find(key.as_str()).message, V1.into());
        assert_ne!(former, stored);
        let read = form.read(&key, former, true);
        assert_eq!((std::str::from_utf8(&read.value).unwrap(), read.stale), (V1, true));
        assert!(!form.plain_json(&KeyRange::resource("mutatingadmissionpolicies")).has(&stored));
    }
}

#[test]
fn value_in_a_second_version_is_read_in_the_validated_version() {
    let old = r#"{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1","metadata":{"name":"a"},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"maxReplicas":3,"targetCPUUtilizationPercentage":50},"status":{"currentReplicas":0,"desiredReplicas":0}}"#;
    let stored = protobuf::encode("autoscaling/v1", "HorizontalPodAutoscaler", old.as_bytes()).unwrap();
    let read = StoredForm::default().read(&key("/horizontalpodautoscalers/x/a"), stored.into(), true).value;
    let tree: Value = serde_json::from_slice(&read).unwrap();
    assert_eq!(tree["apiVersion"], "autoscaling/v2");
    assert_eq!(tree["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
}

#[test]
fn node_without_allocatable_resources_is_read_with_those_of_its_capacity() {
    let read = |status: &str| {
        let node =
            format!(r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"a"}},"spec":{{}},"status":{status}}}"#);
        let stored = protobuf::encode("v1", "Node", node.as_bytes()).unwrap();
        let read = StoredForm::default().read(&key("/minions/a"), stored.into(), true).value;
        let node: Value = serde_json::from_slice(&read).unwrap();
        let status = node["status"].as_object().unwrap();
        let first: Vec<&str> = status.keys().map(JsonString::as_str).take(2).collect();
        (first.join(","), status.get("allocatable").cloned().unwrap_or_default())
    };
    assert_eq!(read(r#"{"capacity":{"cpu":"4"}}"#), ("capacity,allocatable".to_owned(), json!({"cpu": "4"})));
    let both = r#"{"capacity":{"cpu":"4"},"allocatable":{"cpu":"3"}}"#;
    assert_eq!(read(both), ("capacity,allocatable".to_owned(), json!({"cpu": "3"})));
    assert_eq!(read("{}").1, Value::Null);
}

#[tokio::test]
async fn definition_that_kube_apiserver_stored_is_read_as_v1() {
    let stored = |spec: &str| {
        Bytes::from(format!(
            r#"{{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{{"name":"a"}},"spec":{spec},"status":{{"storedVersions":["v1"]}}}}"#
        ))
    };
    let key = key("/apiextensions.k8s.io/customresourcedefinitions/a");
    let check = |spec: &str, expected: &str| {
        let expected = String::from_utf8(stored(expected).to_vec()).unwrap().replacen("/v1beta1", "/v1", 1);
        let expected = ReadValue { value: expected.into(), stale: true };
        assert_eq!(StoredForm::default().read(&key, stored(spec), true), expected, "{spec}");
    };
    // Members that are the same in all versions.
    check(
        r#"{"group":"g","version":"v1","names":{"plural":"as","kind":"A"},"scope":"Cluster","validation":{"openAPIV3Schema":{"type":"object"}},"subresources":{"status":{}},"versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,"storage":false}],"additionalPrinterColumns":[{"name":"X","type":"string","priority":1,"JSONPath":".x"}],"selectableFields":[{"jsonPath":".x"}],"conversion":{"strategy":"None"},"preserveUnknownFields":false}"#,
        r#"{"group":"g","names":{"plural":"as","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"X","type":"string","priority":1,"jsonPath":".x"}],"selectableFields":[{"jsonPath":".x"}]},{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"X","type":"string","priority":1,"jsonPath":".x"}],"selectableFields":[{"jsonPath":".x"}]}],"conversion":{"strategy":"None"}}"#,
    );
    // Members that differ, and a conversion by webhook.
    check(
        r#"{"group":"g","version":"v1","names":{"plural":"as","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object"}},"additionalPrinterColumns":[{"name":"X","type":"string","JSONPath":".x"}]}],"conversion":{"strategy":"Webhook","webhookClientConfig":{"url":"https://a"},"conversionReviewVersions":["v1"]},"preserveUnknownFields":false}"#,
        r#"{"group":"g","names":{"plural":"as","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object"}},"additionalPrinterColumns":[{"name":"X","type":"string","jsonPath":".x"}]}],"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a"},"conversionReviewVersions":["v1"]}}}"#,
    );
    // As releases before 1.11 wrote it.
    check(
        r#"{"group":"g","version":"v1","names":{"plural":"as","kind":"A"},"scope":"Cluster"}"#,
        r#"{"group":"g","names":{"plural":"as","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true}],"preserveUnknownFields":true}"#,
    );
    // Lists and watches pass JSON on as it is elsewhere.
    let inner = MemoryStorage::new();
    inner.create(&key, stored(r#"{"version":"v1"}"#), None).await.unwrap();
    let storage = over(&inner, StoredForm::default());
    let range = KeyRange::resource(upgrade::DEFINITIONS);
    let page = storage.list(ListQuery { range: range.clone(), at: None, limit: 0 }).await.unwrap();
    let is_v1 = |value: &Bytes| {
        value.starts_with(br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","#)
    };
    assert!(is_v1(&page.items[0].value), "{page:?}");
    let mut watch = storage.watch(range, Revision::ZERO).await.unwrap();
    let seen = loop {
        if let Some(WatchItem::Event(StoreEvent::Put { current, .. })) = watch.next().await {
            break current;
        }
    };
    assert!(is_v1(&seen.value), "{seen:?}");
}

#[test]
fn fields_absent_in_protobuf_are_added_at_each_read() {
    let form = form(&[], StorageMediaType::Protobuf);
    let round_trip = |path: &str, value: &str| {
        let stored = write(&form, &key(path), value.to_owned().into()).unwrap();
        assert!(stored.starts_with(protobuf::MAGIC));
        form.read(&key(path), stored, true).value
    };
    let set = r#"{"kind":"StatefulSet","apiVersion":"apps/v1","metadata":{"name":"a"},"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"d"},"spec":{"resources":{},"volumeMode":"Filesystem"},"status":{"phase":"Pending"}}],"serviceName":"","updateStrategy":{},"persistentVolumeClaimRetentionPolicy":{}},"status":{"replicas":0,"availableReplicas":0}}"#;
    assert_eq!(round_trip("/statefulsets/x/a", set), set);
    assert_eq!(round_trip("/statefulsets/x/a", &set.replace(r#","status":{"phase":"Pending"}"#, "")), set);
    let claim = r#"{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"a"},"spec":{"resources":{},"volumeMode":"Filesystem"},"status":{"phase":"Pending"}}"#;
    assert_eq!(round_trip("/persistentvolumeclaims/x/a", &claim.replace(r#""phase":"Pending""#, "")), claim);
    let bound = claim.replace("Pending", "Bound");
    assert_eq!(round_trip("/persistentvolumeclaims/x/a", &bound), bound);
    let job = |labels: &str| {
        format!(
            r#"{{"kind":"Job","apiVersion":"batch/v1","metadata":{{"name":"a"{labels}}},"spec":{{"parallelism":1,"completions":1,"backoffLimit":6,"manualSelector":false,"template":{{"metadata":{{"labels":{{"job-name":"a"}}}},"spec":{{"containers":null,"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}},"completionMode":"NonIndexed","suspend":false,"podReplacementPolicy":"TerminatingOrFailed"}},"status":{{}}}}"#
        )
    };
    let (generated, own) = (job(r#","labels":{"job-name":"a"}"#), job(r#","labels":{"own":"x"}"#));
    assert_eq!(round_trip("/jobs/x/a", &job("")), generated);
    assert_eq!(round_trip("/jobs/x/a", &own), own);
}

#[test]
fn unknown_protobuf_fields_are_dropped_at_each_read() {
    let json = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"x":"y"}}"#;
    let stored = protobuf::encode("v1", "ConfigMap", json.as_bytes()).unwrap();
    // Field 100 of the message: the lengths of the envelope grow by three bytes.
    let envelope = protobuf::Envelope::parse(&stored).unwrap();
    let raw = [envelope.raw(&stored), b"\xa0\x06\x01"].concat();
    let mut other = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12".to_vec();
    other.push(u8::try_from(raw.len()).unwrap());
    other.extend_from_slice(&raw);
    assert!(matches!(protobuf::decode_strict(&other), Err(protobuf::DecodeError::UnknownField { .. })));
    let read = StoredForm::default().read(&key("/configmaps/x/a"), other.into(), false);
    assert_eq!(read.value, json);
}

#[test]
fn unreadable_values_keep_their_error_and_are_never_written_back() {
    let form = form(&[("secrets", &[ONE])], StorageMediaType::Json);
    let check = |stored: &[u8], reason: &str| {
        let value = form.read(&key("/secrets/a/b"), Bytes::copy_from_slice(stored), true).value;
        assert_eq!(unreadable_reason(&value), Some(reason), "{stored:?}");
        assert!(matches!(write(&form, &key("/secrets/a/b"), value), Err(StoreFault::Corrupt(_))));
    };
    check(b"{\"kind\":\"Secret\"}", "no matching prefix found");
    check(b"k8s:enc:kms:v2:p:x", "no matching prefix found");
    check(b"k8s:enc:aesgcm:v1:one:x", "the stored data was shorter than the required size");
    let plain = StoredForm::default();
    let read = |stored: &'static [u8]| plain.read(&key("/secrets/a/b"), stored.into(), true).value;
    assert_eq!(
        unreadable_reason(&read(b"k8s:enc:aescbc:v1:two:x")),
        Some("identity transformer tried to read encrypted data")
    );
    assert_eq!(unreadable_reason(&read(b"k8s\0")), Some("empty body"));
    assert_eq!(unreadable_reason(&read(b"\0unreadable: forged")), Some("the stored value is not an object"));
    assert_eq!(read(b"rubbish"), "rubbish", "other damage is the reader's to report");
}

#[tokio::test]
async fn every_read_operation_returns_decrypted_values() {
    let inner = MemoryStorage::new();
    let storage = over(&inner, form(&[("secrets", &[ONE])], StorageMediaType::Protobuf));
    let (secrets, one) = (KeyRange::resource("secrets"), key("/secrets/a/one"));
    let value = |text: &str| {
        Bytes::from(format!(
            r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"one"}},"data":{{"k":"{text}"}}}}"#
        ))
    };
    let mut watch = storage.watch(secrets.clone(), Revision::ZERO).await.unwrap();
    let created = storage.create(&one, value("MQ=="), None).await.unwrap();
    let updated = storage.update(&one, created, value("Mg=="), None).await.unwrap();
    let raw = inner.get(&one).await.unwrap().0.unwrap().value;
    assert!(raw.starts_with(b"k8s:enc:aesgcm:v1:one:"));
    assert_eq!(storage.get(&one).await.unwrap().0.unwrap().value, value("Mg=="));
    let page = storage.list(ListQuery { range: secrets.clone(), at: None, limit: 0 }).await.unwrap();
    assert_eq!(page.items[0].value, value("Mg=="));
    let page = storage.list(ListQuery { range: secrets.clone(), at: Some(created), limit: 0 }).await.unwrap();
    assert_eq!(page.items[0].value, value("MQ=="));
    let page = storage.list_keys(ListQuery { range: secrets, at: None, limit: 0 }).await.unwrap();
    assert_eq!(page.items[0].value, "");
    match storage.create(&one, value("Mw=="), None).await {
        Err(CreateError::AlreadyExists { current, .. }) => assert_eq!(current.value, value("Mg==")),
        other => panic!("{other:?}"),
    }
    match storage.update(&one, created, value("Mw=="), None).await {
        Err(UpdateError::Conflict { current: Some(current) }) => assert_eq!(current.value, value("Mg==")),
        other => panic!("{other:?}"),
    }
    match storage.delete(&one, created).await {
        Err(DeleteError::Conflict { current: Some(current) }) => assert_eq!(current.value, value("Mg==")),
        other => panic!("{other:?}"),
    }
    storage.delete(&one, updated).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        if let Some(WatchItem::Event(event)) = watch.next().await {
            seen.push(event);
        }
    }
    let texts = |event: &StoreEvent| match event {
        StoreEvent::Put { current, previous } => {
            (Some(current.value.clone()), previous.clone().map(|entry| entry.value))
        }
        StoreEvent::Delete { previous, .. } => (None, previous.clone().map(|entry| entry.value)),
    };
    let (first, second) = (Some(value("MQ==")), Some(value("Mg==")));
    let seen: Vec<_> = seen.iter().map(texts).collect();
    assert_eq!(seen, [(first.clone(), None), (second.clone(), first), (None, second)]);
}

#[tokio::test]
async fn stale_value_is_rewritten_by_an_update_that_changes_nothing() {
    let inner = MemoryStorage::new();
    let pod = key("/pods/x/a");
    let stages = [
        (form(&[], StorageMediaType::Json), "{"),
        (form(&[], StorageMediaType::Protobuf), "k8s\0"),
        (form(&[("pods", &[ONE, IDENTITY])], StorageMediaType::Protobuf), "k8s:enc:aesgcm:v1:one:"),
        (form(&[("'*.'", &[TWO, ONE])], StorageMediaType::Protobuf), "k8s:enc:aescbc:v1:two:"),
        (form(&[("'*.*'", &[TWO])], StorageMediaType::Json), "k8s:enc:aescbc:v1:two:"),
        (form(&[("'*.*'", &[IDENTITY, TWO])], StorageMediaType::Json), "{"),
    ];
    inner.create(&pod, protobuf::encode("v1", "Pod", POD.as_bytes()).unwrap().into(), None).await.unwrap();
    for (stage, (form, prefix)) in stages.into_iter().enumerate() {
        let storage = over(&inner, form);
        // The suggestion of a cache does not know that the value is stale.
        let (found, _) = storage.get(&pod).await.unwrap();
        let suggestion = found.map(|found| KeyValue { stale: false, ..found });
        let decide = |found: Option<&KeyValue>| {
            let found = found.unwrap();
            Ok::<_, ()>(Decision::Write { value: found.value.clone(), ttl: None })
        };
        let first = guaranteed_update(&*storage, &pod, suggestion.clone(), UpdateLimits::default(), decide).await;
        assert!(matches!(first, Ok(Outcome::Updated { .. })), "stage {stage}: {first:?}");
        let raw = inner.get(&pod).await.unwrap().0.unwrap().value;
        assert!(raw.starts_with(prefix.as_bytes()), "stage {stage}: {raw:?}");
        let again = guaranteed_update(&*storage, &pod, None, UpdateLimits::default(), decide).await;
        assert!(matches!(again, Ok(Outcome::Unchanged(_))), "stage {stage}: {again:?}");
    }
}

proptest! {
    #[test]
    fn damaged_values_never_panic_and_never_become_objects(
        at: proptest::sample::Index,
        bit in 0..8u8,
        cut: bool,
        encrypted: bool,
    ) {
        let rules: &[(&str, &[&str])] = if encrypted { &[("pods", &[ONE])] } else { &[] };
        let form = form(rules, StorageMediaType::Protobuf);
        let stored = write(&form, &key("/pods/x/a"), POD.into()).unwrap();
        let at = at.index(stored.len());
        let mut damaged = stored.to_vec();
        damaged[at] ^= 1 << bit;
        let damaged = if cut { stored.slice(..at) } else { damaged.into() };
        let read = form.read(&key("/pods/x/a"), damaged, true).value;
        if encrypted {
            prop_assert!(unreadable_reason(&read).is_some(), "{read:?}");
        }
    }
}
