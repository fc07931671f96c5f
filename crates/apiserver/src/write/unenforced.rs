//! Kinds that this server stores and does not enforce, and the warning that a client gets who writes one.
//!
//! kube-apiserver acts on these objects in its admission, authorization and flow control. Whoever implements
//! one of them here removes its row from [`UNENFORCED`].

use serde_json::Value;

use super::{WriteBody, WriteRequest, WriteVerb};

/// One kind without effect.
struct Unenforced {
    group: &'static str,
    kind: &'static str,
    /// Which objects of the kind would have an effect in kube-apiserver.
    concerns: Concerns,
    /// What does not happen, behind `… is stored and has no effect on this server: `.
    consequence: &'static str,
}

/// Which objects of a kind a row is about.
enum Concerns {
    /// All of them.
    All,
    /// Those with a value at this JSON pointer.
    Field(&'static str),
    /// Those with a label whose key begins with this.
    Label(&'static str),
    /// Those with this annotation set to `true`.
    Annotation(&'static str),
}

const fn row(group: &'static str, kind: &'static str, concerns: Concerns, consequence: &'static str) -> Unenforced {
    Unenforced { group, kind, concerns, consequence }
}

/// The groups that most rows are in.
const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

const UNENFORCED: &[Unenforced] = &[
    row("", "LimitRange", Concerns::All, "it neither sets nor limits resources of pods"),
    row(
        "",
        "Namespace",
        Concerns::Label("pod-security.kubernetes.io/"),
        "pods are not checked against the Pod Security Standards",
    ),
    row("", "ResourceQuota", Concerns::All, "the namespace may exceed it"),
    row(ADMISSION, "MutatingAdmissionPolicy", Concerns::All, "it changes no object"),
    row(ADMISSION, "MutatingAdmissionPolicyBinding", Concerns::All, "its policy changes no object"),
    row(ADMISSION, "MutatingWebhookConfiguration", Concerns::All, "its webhooks are not called"),
    row(ADMISSION, "ValidatingAdmissionPolicy", Concerns::All, "it rejects no request"),
    row(ADMISSION, "ValidatingAdmissionPolicyBinding", Concerns::All, "its policy rejects no request"),
    row(ADMISSION, "ValidatingWebhookConfiguration", Concerns::All, "its webhooks are not called"),
    row(
        "apiregistration.k8s.io",
        "APIService",
        Concerns::Field("/spec/service"),
        "requests are not passed to its service",
    ),
    row(FLOW_CONTROL, "FlowSchema", Concerns::All, "it classifies no request"),
    row(FLOW_CONTROL, "PriorityLevelConfiguration", Concerns::All, "it limits no request"),
    row(
        "networking.k8s.io",
        "IngressClass",
        Concerns::Annotation("ingressclass.kubernetes.io/is-default-class"),
        "ingresses without a class do not get it as their default",
    ),
    row("networking.k8s.io", "ServiceCIDR", Concerns::All, "cluster IPs are not allocated from it"),
    row("node.k8s.io", "RuntimeClass", Concerns::All, "its overhead and scheduling are not added to pods"),
    row(RBAC, "ClusterRole", Concerns::All, "it grants no permission"),
    row(RBAC, "ClusterRoleBinding", Concerns::All, "it grants no permission"),
    row(RBAC, "Role", Concerns::All, "it grants no permission"),
    row(RBAC, "RoleBinding", Concerns::All, "it grants no permission"),
    row(
        "storage.k8s.io",
        "StorageClass",
        Concerns::Annotation("storageclass.kubernetes.io/is-default-class"),
        "claims without a class do not get it as their default",
    ),
];

/// The warning for a write that stored an object without effect.
pub(super) fn warning(request: &WriteRequest<'_>, body: &WriteBody) -> Option<String> {
    let resource = &**request.resource;
    let stores = matches!(request.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch);
    if !stores || request.subresource.is_some() || resource.custom {
        return None;
    }
    let row = UNENFORCED.iter().find(|row| row.kind == resource.kind && row.group == resource.group)?;
    let json = match body {
        WriteBody::Object(object) => object.json_slice(),
        WriteBody::Json(json) => json,
        WriteBody::Status(_) | WriteBody::List(..) => return None,
    };
    row.concerns
        .object(json)
        .then(|| format!("{} is stored and has no effect on this server: {}", row.subject(), row.consequence))
}

impl Unenforced {
    /// The object, or the part of it, that has no effect.
    fn subject(&self) -> String {
        let kind = self.kind;
        match self.concerns {
            Concerns::All => kind.to_owned(),
            Concerns::Field(pointer) => format!("{} of {kind}", pointer.trim_start_matches('/').replace('/', ".")),
            Concerns::Label(prefix) => format!("label {prefix}* of {kind}"),
            Concerns::Annotation(key) => format!("annotation {key} of {kind}"),
        }
    }
}

impl Concerns {
    /// Whether an object, in JSON, is one of those.
    fn object(&self, json: &[u8]) -> bool {
        if let Concerns::All = self {
            return true;
        }
        let object: Value = serde_json::from_slice(json).unwrap_or_default();
        match self {
            Concerns::All => true,
            Concerns::Field(pointer) => object.pointer(pointer).is_some_and(|value| !value.is_null()),
            Concerns::Label(prefix) => {
                let labels = object["metadata"]["labels"].as_object();
                labels.is_some_and(|labels| labels.keys().any(|key| key.starts_with(prefix)))
            }
            Concerns::Annotation(key) => object["metadata"]["annotations"][*key] == "true",
        }
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
    use crate::registry::Registry;

    #[test]
    fn each_row_names_a_served_kind_once() {
        let registry = Registry::builtin();
        for (at, row) in UNENFORCED.iter().enumerate() {
            let is_row = |kind: &str, group: &str| kind == row.kind && group == row.group;
            assert!(registry.resources().iter().any(|r| is_row(&r.kind, &r.group)), "{} is not served", row.kind);
            assert!(!UNENFORCED[..at].iter().any(|other| is_row(other.kind, other.group)), "{} is twice", row.kind);
        }
    }

    #[test]
    fn row_concerns_the_objects_that_ask_for_an_effect() {
        let concerned = |kind: &str, object: Value| {
            let row = UNENFORCED.iter().find(|row| row.kind == kind).unwrap();
            row.concerns.object(object.to_string().as_bytes())
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
