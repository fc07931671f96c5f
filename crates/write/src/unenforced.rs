//! Warnings for writes of kinds that this server stores but does not enforce.
//!
//! kube-apiserver enforces these objects in admission, authorization, and priority and fairness. When this server
//! implements such a kind, clear [`Kind::unenforced`] in the file of the kind.

use listwatch_admission::AdmissionPlugins;
use listwatch_json::Value;
use listwatch_kinds::{Kind, Unenforced, UnenforcedPart};

use super::request::{WriteBody, WriteRequest, WriteVerb};

/// The warning for roles and bindings on a server without the RBAC authorizer.
const RBAC_OFF: Unenforced =
    Unenforced { part: UnenforcedPart::Object, consequence: "the authorization mode RBAC is off" };

/// The warning for flow schemas and priority levels on a server without priority and fairness.
const FLOW_CONTROL_OFF: Unenforced =
    Unenforced { part: UnenforcedPart::Object, consequence: "priority and fairness is off" };

/// The kinds that this server enforces. Only includes kinds that a flag can disable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Enforced {
    /// Roles and bindings.
    pub(super) rbac: bool,
    /// Flow schemas and priority levels.
    pub(super) flow_control: bool,
    /// The kinds that the enabled admission plugins enforce.
    pub(super) plugins: AdmissionPlugins,
}

impl Default for Enforced {
    fn default() -> Self {
        Enforced { rbac: false, flow_control: false, plugins: AdmissionPlugins::NONE }
    }
}

/// Returns the admission plugin that enforces a kind, or the labels or annotations of a kind.
fn plugin_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "IngressClass" => "DefaultIngressClass",
        "LimitRange" => "LimitRanger",
        "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding" => "MutatingAdmissionPolicy",
        "Namespace" => "PodSecurity",
        "ResourceQuota" => "ResourceQuota",
        "RuntimeClass" => "RuntimeClass",
        "StorageClass" => "DefaultStorageClass",
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => "ValidatingAdmissionPolicy",
        _ => return None,
    })
}

/// Returns the warning for a write that stored an object which this server does not enforce.
pub(super) fn warning(request: &WriteRequest<'_>, body: &WriteBody, enforced: Enforced) -> Option<String> {
    let resource = &**request.resource;
    let stores = matches!(request.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch);
    if !stores || request.subresource.is_some() {
        return None;
    }
    // Custom resources have no built-in kind.
    let kind = resource.builtin?;
    let unenforced = match &*resource.group {
        "rbac.authorization.k8s.io" if !enforced.rbac => RBAC_OFF,
        "flowcontrol.apiserver.k8s.io" if !enforced.flow_control => FLOW_CONTROL_OFF,
        _ if plugin_of(kind.kind).is_some_and(|plugin| enforced.plugins.is_enabled(plugin)) => return None,
        _ => kind.unenforced?,
    };
    let json = match body {
        WriteBody::Object(object) => object.json_slice(),
        WriteBody::DryRun(json) | WriteBody::Json(json) => json,
        WriteBody::Status(_) | WriteBody::List(..) => return None,
    };
    has_part(json, unenforced.part).then(|| {
        let subject = subject(kind, unenforced.part);
        format!("{subject} is stored and has no effect on this server: {}", unenforced.consequence)
    })
}

/// Returns the name of the unenforced part, for the warning.
fn subject(kind: &Kind, part: UnenforcedPart) -> String {
    let kind = kind.kind;
    match part {
        UnenforcedPart::Object => kind.to_owned(),
        UnenforcedPart::Label(prefix) => format!("label {prefix}* of {kind}"),
        UnenforcedPart::Annotation(key) => format!("annotation {key} of {kind}"),
    }
}

/// Whether an object, as JSON, has the unenforced part of its kind.
fn has_part(json: &[u8], part: UnenforcedPart) -> bool {
    if let UnenforcedPart::Object = part {
        return true;
    }
    let object: Value = serde_json::from_slice(json).unwrap_or_default();
    match part {
        UnenforcedPart::Object => true,
        UnenforcedPart::Label(prefix) => {
            let labels = object["metadata"]["labels"].as_object();
            labels.is_some_and(|labels| labels.keys().any(|key| key.starts_with(prefix)))
        }
        UnenforcedPart::Annotation(key) => object["metadata"]["annotations"][key] == "true",
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn kinds_with_an_enforcing_plugin_have_a_warning_without_the_plugin() {
        for kind in ["IngressClass", "LimitRange", "Namespace", "ResourceQuota", "RuntimeClass", "StorageClass"] {
            let plugin = plugin_of(kind).unwrap();
            assert!(AdmissionPlugins::upstream().is_enabled(plugin), "{plugin}");
            let found = listwatch_kinds::KINDS.iter().find(|found| found.kind == kind).unwrap();
            assert!(found.unenforced.is_some(), "{kind} has no warning without its plugin");
        }
        assert_eq!(plugin_of("ConfigMap"), None);
    }

    #[test]
    fn has_part_detects_the_unenforced_part_of_an_object() {
        let concerned = |kind: &str, object: Value| {
            let kind = listwatch_kinds::KINDS.iter().find(|found| found.kind == kind).unwrap();
            has_part(object.to_string().as_bytes(), kind.unenforced.unwrap().part)
        };
        assert!(concerned("ResourceQuota", json!({})));
        let labeled = |key: &str| json!({"metadata": {"labels": {key: "restricted"}}});
        assert!(concerned("Namespace", labeled("pod-security.kubernetes.io/enforce")));
        assert!(!concerned("Namespace", labeled("kubernetes.io/metadata.name")));
        let annotated =
            |value: &str| json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": value}}});
        assert!(concerned("StorageClass", annotated("true")));
        assert!(!concerned("StorageClass", annotated("false")));
        assert!(!concerned("StorageClass", json!({"metadata": {}})));
    }
}
