//! Warns clients that write a kind which this server stores but does not enforce.
//!
//! kube-apiserver acts on these objects in its admission, authorization and flow control. An implementation of such a
//! kind clears [`Kind::unenforced`] in the file of the kind.

use listwatch_kinds::{Kind, Unenforced, UnenforcedPart};
use serde_json::Value;

use super::request::{WriteBody, WriteRequest, WriteVerb};

/// The warning for roles and bindings on a server that does not authorize by them.
const RBAC_OFF: Unenforced =
    Unenforced { part: UnenforcedPart::Object, consequence: "the authorization mode RBAC is off" };

/// The warning for flow schemas and priority levels on a server without priority and fairness.
const FLOW_CONTROL_OFF: Unenforced =
    Unenforced { part: UnenforcedPart::Object, consequence: "priority and fairness is off" };

/// Which of the kinds that a flag turns off have an effect on this server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Enforced {
    /// Roles and bindings.
    pub(super) rbac: bool,
    /// Flow schemas and priority levels.
    pub(super) flow_control: bool,
}

/// Returns the warning for a write that stored an object without effect.
pub(super) fn warning(request: &WriteRequest<'_>, body: &WriteBody, enforced: Enforced) -> Option<String> {
    let resource = &**request.resource;
    let stores = matches!(request.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch);
    if !stores || request.subresource.is_some() || resource.custom {
        return None;
    }
    let kind = resource.builtin?;
    let unenforced = match &*resource.group {
        "rbac.authorization.k8s.io" if !enforced.rbac => RBAC_OFF,
        "flowcontrol.apiserver.k8s.io" if !enforced.flow_control => FLOW_CONTROL_OFF,
        _ => kind.unenforced?,
    };
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

/// The name of the part without effect, for the warning.
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
    use serde_json::json;

    use super::*;

    #[test]
    fn unenforced_part_is_found_in_objects_that_have_it() {
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
