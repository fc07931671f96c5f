//! Tests that values of built-in kinds are decoded, defaulted and validated as upstream's decoder does, up to the response.

use listwatch_json::json;

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn written_value_is_stored_as_upstream_decodes_it() {
    let world = World::new().await;
    let secret = r#"{"metadata":{"name":"s"},"data":{"a":null,"b":"eA=="}}"#;
    let lease = r#"{"metadata":{"name":"l"},"spec":{"renewTime":"2020-01-01T00:00:00.123456+02:00","strategy":"x"}}"#;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"schedulingGroup":{"podGroupName":"g"},"containers":[{"name":"c","image":"nginx:latest@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","args":[null],"resources":{"limits":{"cpu":"500u"}},"lifecycle":{"stopSignal":"SIGINT"}}]}}"#;
    let status = format!("PUT {NAMESPACES}/n/status");
    let labels = json!({"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}});
    let active = json!({"phase": "Active"});
    for (line, body, values) in [
        (post(SECRETS), secret, vec![("/data", json!({"a": "", "b": "eA=="}))]),
        (post(LEASES), lease, vec![("/spec", json!({"renewTime": "2019-12-31T22:00:00.123456Z"}))]),
        (
            post(PODS),
            pod,
            vec![
                ("/spec/containers/0/args", json!([""])),
                ("/spec/containers/0/resources/limits/cpu", json!("1m")),
                ("/spec/containers/0/imagePullPolicy", json!("Always")),
                ("/spec/containers/0/lifecycle", Value::Null),
                ("/spec/schedulingGroup", Value::Null),
            ],
        ),
        (
            post(NAMESPACES),
            r#"{"metadata":{"name":"n"}}"#,
            // The default of the status has no field manager.
            vec![("/status", active.clone()), ("/metadata/managedFields/0/fieldsV1", labels)],
        ),
        (status.clone(), r#"{"metadata":{"name":"n"}}"#, vec![("/status", active.clone())]),
        (
            status,
            r#"{"metadata":{"name":"n"},"status":{}}"#,
            vec![("/status", active), ("/metadata/managedFields/1", Value::Null)],
        ),
    ] {
        let response = world.send(&line, body).await.unwrap_or_else(|status| panic!("{line}: {}", status.message));
        let WriteBody::Object(object) = &response.body else { panic!("{line} returns no object") };
        let object: Value = serde_json::from_slice(object.json_slice()).unwrap();
        for (pointer, expected) in values {
            assert_eq!(object.pointer(pointer).cloned().unwrap_or_default(), expected, "{line} {body} {pointer}");
        }
    }
}

#[tokio::test]
async fn invalid_value_returns_upstreams_error() {
    let world = World::new().await;
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    for (path, body, code, message) in [
        (
            SCALERS,
            r#"{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"a"},"behavior":{"scaleUp":{"policies":[]}}}}"#,
            422,
            "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
        ),
        (
            hooks,
            r#"{"metadata":{"name":"w"},"webhooks":[{"name":"a.b.c","clientConfig":{"caBundle":"${CA_BUNDLE}"}}]}"#,
            400,
            "ValidatingWebhookConfiguration in version \"v1\" cannot be handled as a ValidatingWebhookConfiguration: illegal base64 data at input byte 0",
        ),
        (
            LEASES,
            r#"{"metadata":{"name":"l"},"spec":{"renewTime":"2020-01-01T00:00:00Z"}}"#,
            400,
            "Lease in version \"v1\" cannot be handled as a Lease: parsing time \"2020-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\"",
        ),
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            r#"{"metadata":{"name":"d","annotations":{"deprecated.daemonset.template.generation":"x"}}}"#,
            400,
            "DaemonSet in version \"v1\" cannot be handled as a DaemonSet: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            PODS,
            r#"{"metadata":{"name":"p"},"spec":{"containers":[null]}}"#,
            422,
            "spec.containers[0].name: Required value",
        ),
    ] {
        let status = world.send(&post(path), body).await.expect_err(path);
        assert!(status.code == code && status.message.contains(message), "{path} {body}: {}", status.message);
    }
}

/// The tolerations are not a default but an admission plugin's, which ignores subresources.
#[tokio::test]
async fn stored_pod_without_tolerations_keeps_its_spec_in_writes_of_subresources() {
    let world = World::new().await;
    world
        .send(&post(PODS), r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#)
        .await
        .unwrap();
    let key = Key::from_path("/pods/default/p").unwrap();
    let read = async || {
        let found = world.writer.backend().storage().get(&key).await.unwrap().0.unwrap();
        serde_json::from_slice::<Value>(&found.value).unwrap()
    };
    let mut raw = read().await;
    assert_eq!(raw["spec"]["tolerations"].as_array().unwrap().len(), 2, "a new pod has the tolerations");
    raw["spec"].as_object_mut().unwrap().shift_remove("tolerations");
    let put_raw = async || {
        let storage = world.writer.backend().storage();
        let found = storage.get(&key).await.unwrap().0.unwrap();
        storage.delete(&key, found.modified).await.unwrap();
        storage.create(&key, raw.to_string().into(), None).await.unwrap();
    };
    let status = format!("PATCH {PODS}/p/status {STRATEGIC}");
    for (line, body, revisions) in [
        (status.clone(), "{}", 0),
        (status, r#"{"status":{"phase":"Running"}}"#, 1),
        (format!("POST {PODS}/p/binding"), r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"n"}}"#, 1),
    ] {
        put_raw().await;
        let before = world.revision().await;
        world.send(&line, body).await.unwrap_or_else(|status| panic!("{line}: {}", status.message));
        assert_eq!(world.revision().await, before + revisions, "{line} {body}");
        let mut spec = read().await["spec"].take();
        let mut expected = raw["spec"].clone();
        for spec in [&mut spec, &mut expected] {
            spec.as_object_mut().unwrap().shift_remove("nodeName");
        }
        assert_eq!(spec, expected, "{line} {body}");
    }
    // The pod is bound now, so its deletion waits.
    world.send(&format!("DELETE {PODS}/p?gracePeriodSeconds=9"), "").await.unwrap();
    assert_eq!(read().await["spec"].get("tolerations"), None, "graceful deletion");
}

#[tokio::test]
async fn stored_object_without_defaults_is_changed_as_if_it_had_them() {
    const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
    let world = World::new().await;
    let claim = r#"{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"c","namespace":"default","uid":"u"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"10G"}},"dataSource":{"apiGroup":null,"kind":"PersistentVolumeClaim","name":"foo"}},"status":{}}"#;
    let deployment = r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","namespace":"default","uid":"u","generation":1},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}},"status":{}}"#;
    let put_raw = async |path: &str, value: &'static str| {
        let (storage, key) = (world.writer.backend().storage(), Key::from_path(path).unwrap());
        if let Some(found) = storage.get(&key).await.unwrap().0 {
            storage.delete(&key, found.modified).await.unwrap();
        }
        storage.create(&key, value.into(), None).await.unwrap();
    };
    for (prefix, collection, name, stored, pointer, default) in [
        ("/persistentvolumeclaims", CLAIMS, "c", claim, "/spec/volumeMode", r#""Filesystem""#),
        ("/deployments", DEPLOYMENTS, "d", deployment, "/spec/replicas", "1"),
    ] {
        let test_of_default = format!(r#"[{{"op":"test","path":"{pointer}","value":{default}}}]"#);
        for (line, body) in [
            (put(collection, name), stored),
            (patch(collection, name, MERGE), "{}"),
            (patch(collection, name, STRATEGIC), "{}"),
            (patch(collection, name, JSON_PATCH), test_of_default.as_str()),
        ] {
            put_raw(&format!("{prefix}/default/{name}"), stored).await;
            let before = world.revision().await;
            let answer = world.answer(&line, body).await;
            assert!(answer.starts_with("200 "), "{line}: {answer}");
            // Upstream compares the stored bytes, so the write stores the defaults.
            assert_eq!(world.revision().await, before + 1, "{line}: {answer}");
            let now = world.stored(&format!("{prefix}/")).await.concat();
            let (_, json) = now.split_once('=').unwrap();
            let now: Value = serde_json::from_str(json).unwrap();
            assert_eq!(now.pointer(pointer), Some(&serde_json::from_str(default).unwrap()), "{line}: {now}");
            assert!(now["metadata"]["generation"].as_i64().is_none_or(|generation| generation == 1), "{line}: {now}");
            // The next write that changes nothing is none.
            let answer = world.answer(&line, body).await;
            assert!(answer.starts_with("200 "), "{line}: {answer}");
            assert_eq!(world.revision().await, before + 1, "{line} again: {answer}");
        }
    }
    put_raw("/persistentvolumeclaims/default/c", claim).await;
    let deleted = world.answer(&format!("DELETE {CLAIMS}/c"), "").await;
    assert!(deleted.starts_with("200 ") && deleted.contains(r#""volumeMode":"Filesystem""#), "{deleted}");
}
