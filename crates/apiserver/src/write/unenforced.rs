//! Kinds that this server stores and does not enforce, and the warning that a client gets who writes one.
//!
//! kube-apiserver acts on these objects in its admission, authorization and flow control. Whoever implements
//! one of them here clears [`Kind::unenforced`] in the kind's file.

use listwatch_kinds::{Kind, UnenforcedPart};
use serde_json::Value;

use super::{WriteBody, WriteRequest, WriteVerb};

/// The warning for a write that stored an object without effect.
pub(super) fn warning(request: &WriteRequest<'_>, body: &WriteBody) -> Option<String> {
    let resource = &**request.resource;
    let stores = matches!(request.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch);
    if !stores || request.subresource.is_some() || resource.custom {
        return None;
    }
    let kind = resource.builtin?;
    let unenforced = kind.unenforced?;
    let json = match body {
        WriteBody::Object(object) => object.json_slice(),
        WriteBody::Json(json) => json,
        WriteBody::Status(_) | WriteBody::List(..) => return None,
    };
    has_part(json, unenforced.part).then(|| {
        let subject = subject(kind, unenforced.part);
        format!("{subject} is stored and has no effect on this server: {}", unenforced.consequence)
    })
}

/// The name of the part that has no effect.
fn subject(kind: &Kind, part: UnenforcedPart) -> String {
    let kind = kind.kind;
    match part {
        UnenforcedPart::Object => kind.to_owned(),
        UnenforcedPart::Field(pointer) => format!("{} of {kind}", pointer.trim_start_matches('/').replace('/', ".")),
        UnenforcedPart::Label(prefix) => format!("label {prefix}* of {kind}"),
        UnenforcedPart::Annotation(key) => format!("annotation {key} of {kind}"),
    }
}

/// Whether an object, in JSON, has the part.
fn has_part(json: &[u8], part: UnenforcedPart) -> bool {
    if let UnenforcedPart::Object = part {
        return true;
    }
    let object: Value = serde_json::from_slice(json).unwrap_or_default();
    match part {
        UnenforcedPart::Object => true,
        UnenforcedPart::Field(pointer) => object.pointer(pointer).is_some_and(|value| !value.is_null()),
        UnenforcedPart::Label(prefix) => {
            let labels = object["metadata"]["labels"].as_object();
            labels.is_some_and(|labels| labels.keys().any(|key| key.starts_with(prefix)))
        }
        UnenforcedPart::Annotation(key) => object["metadata"]["annotations"][key] == "true",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use serde_json::json;

    use super::*;
    use crate::ApiServer;

    #[test]
    fn unenforced_part_is_found_in_objects_that_have_it() {
        let concerned = |kind: &str, object: Value| {
            let kind = listwatch_kinds::KINDS.iter().find(|found| found.kind == kind).unwrap();
            has_part(object.to_string().as_bytes(), kind.unenforced.unwrap().part)
        };
        assert!(concerned("Role", json!({})));
        assert!(concerned("APIService", json!({"spec": {"service": {"name": "a"}}})));
        assert!(!concerned("APIService", json!({"spec": {"service": null}})));
        assert!(!concerned("APIService", json!({"spec": {}})));
        let labeled = |key: &str| json!({"metadata": {"labels": {key: "restricted"}}});
        assert!(concerned("Namespace", labeled("pod-security.kubernetes.io/enforce")));
        assert!(!concerned("Namespace", labeled("kubernetes.io/metadata.name")));
        let annotated =
            |value: &str| json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": value}}});
        assert!(concerned("StorageClass", annotated("true")));
        assert!(!concerned("StorageClass", annotated("false")));
        assert!(!concerned("StorageClass", json!({"metadata": {}})));
    }

    #[tokio::test]
    async fn stored_object_without_effect_is_answered_with_a_warning() {
        let server = ApiServer::builder().build().await.unwrap();
        let send = async |line: &str, body: Value| -> (u16, Vec<String>) {
            let (method, path) = line.split_once(' ').unwrap();
            let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            let request = Request::builder().method(method).uri(path).header("content-type", content_type);
            let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
            let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
            let warnings = response.headers().get_all("warning").iter();
            let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
            (response.status().as_u16(), warnings)
        };
        let warned = |code: u16, text: &str| (code, vec![format!("299 - \"{text}\"")]);
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
        let text = "ResourceQuota is stored and has no effect on this server: the namespace may exceed it";
        let (quotas, one) =
            ("/api/v1/namespaces/default/resourcequotas", "/api/v1/namespaces/default/resourcequotas/q");
        assert_eq!(send(&format!("POST {quotas}?dryRun=All"), quota.clone()).await, warned(201, text));
        assert_eq!(send(&format!("POST {quotas}"), quota.clone()).await, warned(201, text));
        assert_eq!(send(&format!("PUT {one}"), quota.clone()).await, warned(200, text));
        assert_eq!(send(&format!("PATCH {one}"), json!({"spec": {"hard": {"pods": "2"}}})).await, warned(200, text));
        for (line, body, code) in [
            (format!("PATCH {one}/status"), json!({"status": {"used": {"pods": "1"}}}), 200),
            (format!("GET {one}"), Value::Null, 200),
            (format!("POST {quotas}"), quota.clone(), 409),
            (format!("DELETE {one}"), Value::Null, 200),
            (
                "POST /api/v1/namespaces/default/configmaps".to_owned(),
                json!({"metadata": {"name": "q"}, "data": {"a": "b"}}),
                201,
            ),
            ("POST /api/v1/namespaces".to_owned(), json!({"metadata": {"name": "plain"}}), 201),
        ] {
            assert_eq!(send(&line, body).await, (code, Vec::new()), "{line}");
        }
        let namespace =
            json!({"metadata": {"name": "safe", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
        let text = "label pod-security.kubernetes.io/* of Namespace is stored and has no effect on this server: pods are not checked against the Pod Security Standards";
        assert_eq!(send("POST /api/v1/namespaces", namespace).await, warned(201, text));
        let role = json!({"metadata": {"name": "r"}, "rules": []});
        let text = "Role is stored and has no effect on this server: it grants no permission";
        let roles = "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
        assert_eq!(send(roles, role).await, warned(201, text));
    }
}
