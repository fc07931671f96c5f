//! PodTolerationRestriction: pods get the tolerations of their namespace, and have no others than the namespace allows
//! (`plugin/pkg/admission/podtolerationrestriction`).

use listwatch_json::{Value, json};
use listwatch_kinds::quality_of_service;
use listwatch_meta::Status;
use listwatch_validation::{Object, child, child_mut, items, metadata};

use super::plugin::{Mutator, Validator};
use super::tolerations::{is_superset, merge};
use super::{AdmissionRequest, Operation};

/// The annotation of a namespace with the tolerations that its pods get.
const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
/// The annotation of a namespace with the tolerations that its pods may have.
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const NOT_ALLOWED: &str =
    "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace allowlist";

/// The configuration of the plugin (`podtolerationrestriction.Configuration`), for namespaces without annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TolerationRestriction {
    /// The tolerations that pods get.
    defaults: Vec<Value>,
    /// The tolerations that pods may have; empty for all.
    allowed: Vec<Value>,
}

impl TolerationRestriction {
    /// Reads a `Configuration` of `podtolerationrestriction.admission.k8s.io`.
    pub(super) fn parse(file: &Object) -> Self {
        let list = |name: &str| items(file, name).to_vec();
        TolerationRestriction { defaults: list("default"), allowed: list("whitelist") }
    }
}

/// The plugin that sets and restricts tolerations.
pub(super) struct PodTolerationRestriction(TolerationRestriction);

impl PodTolerationRestriction {
    /// A plugin with this configuration.
    pub(super) fn new(configuration: TolerationRestriction) -> Self {
        PodTolerationRestriction(configuration)
    }
}

/// The tolerations in an annotation of the namespace; `None` without the annotation, and empty for an empty one
/// (`extractNSTolerations`).
async fn of_namespace(request: &AdmissionRequest<'_>, annotation: &str) -> Result<Option<Vec<Value>>, Status> {
    let name = request.namespace.unwrap_or_default();
    let found = request.get_cached("", "namespaces", None, name).await?;
    let namespace = found.ok_or_else(|| Status::internal(format_args!("namespace {name} does not exist")))?;
    match child(metadata(&namespace), "annotations").get(annotation).and_then(Value::as_str) {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(list) => serde_json::from_str(list).map(Some).map_err(|error| Status::unknown(error.to_string())),
    }
}

impl Mutator for PodTolerationRestriction {
    const NAME: &'static str = "PodTolerationRestriction";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let mut added = Vec::new();
        if request.operation == Operation::Create {
            added = of_namespace(request, DEFAULTS).await?.unwrap_or_else(|| self.0.defaults.clone());
        }
        if quality_of_service(object.get("spec")) != "BestEffort" {
            let key = "node.kubernetes.io/memory-pressure";
            added.push(json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}));
        }
        if !added.is_empty() {
            let spec = child_mut(object, "spec");
            let merged = merge(items(spec, "tolerations"), &added);
            spec.insert("tolerations", Value::Array(merged));
        }
        self.check(request, object).await
    }
}

impl Validator for PodTolerationRestriction {
    const NAME: &'static str = "PodTolerationRestriction";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let own = items(child(object, "spec"), "tolerations");
        if own.is_empty() {
            return Ok(());
        }
        let allowed = of_namespace(request, ALLOWED).await?.unwrap_or_else(|| self.0.allowed.clone());
        let allowed: Vec<&Object> = allowed.iter().filter_map(Value::as_object).collect();
        let is_allowed = |one: &Value| {
            let one = one.as_object();
            one.is_some_and(|one| allowed.iter().any(|allowed| is_superset(allowed, one)))
        };
        match allowed.is_empty() || own.iter().all(is_allowed) {
            true => Ok(()),
            false => Err(Status::unknown(NOT_ALLOWED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn toleration(key: &str) -> Value {
        json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    }

    async fn admitted(annotations: Value, configuration: Value, spec: Value, update: bool) -> Result<Value, String> {
        let fixture = Fixture::new(&[("namespaces", json!({"metadata": {"name": "ns", "annotations": annotations}}))]);
        let plugin = PodTolerationRestriction::new(TolerationRestriction::parse(&object(configuration)));
        let request = create(&fixture, "", "pods", "Pod", "p");
        let operation = if update { Operation::Update } else { Operation::Create };
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": spec}));
        let admitted = plugin.mutate(&AdmissionRequest { operation, ..request }, &mut pod).await;
        admitted.map_err(|status| format!("{} {}", status.code, status.message))?;
        Ok(pod["spec"].get("tolerations").cloned().unwrap_or_default())
    }

    #[tokio::test]
    async fn new_pod_gets_the_tolerations_of_its_namespace_or_of_the_configuration() {
        let of_namespace = json!({DEFAULTS: json!([toleration("ns")]).to_string()});
        let configured = json!({"default": [toleration("cluster")]});
        let own = json!({"tolerations": [toleration("own")]});
        for (annotations, spec, update, expected) in [
            (of_namespace.clone(), json!({}), false, json!([toleration("ns")])),
            (of_namespace.clone(), own.clone(), false, json!([toleration("own"), toleration("ns")])),
            (json!({}), json!({}), false, json!([toleration("cluster")])),
            (json!({DEFAULTS: ""}), json!({}), false, json!(null)),
            (of_namespace, own, true, json!([toleration("own")])),
        ] {
            assert_eq!(
                admitted(annotations.clone(), configured.clone(), spec, update).await,
                Ok(expected),
                "{annotations}"
            );
        }
        let burstable = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
        let found = admitted(json!({}), json!({}), burstable.clone(), false).await;
        assert_eq!(found, Ok(json!([toleration("node.kubernetes.io/memory-pressure")])));
        let again = json!({"containers": burstable["containers"], "tolerations": found.clone().unwrap()});
        assert_eq!(admitted(json!({}), json!({}), again, false).await, found, "a second run changes nothing");
    }

    #[tokio::test]
    async fn toleration_outside_the_list_of_the_namespace_is_rejected() {
        let allow = |keys: &[&str]| json!(keys.iter().map(|key| toleration(key)).collect::<Vec<_>>()).to_string();
        let refused = Err(format!("500 {NOT_ALLOWED}"));
        let own = json!({"tolerations": [toleration("own")]});
        for (annotations, configuration, allowed) in [
            (json!({ALLOWED: allow(&["own", "x"])}), json!({}), true),
            (json!({ALLOWED: allow(&["x"])}), json!({}), false),
            (json!({ALLOWED: allow(&["x"])}), json!({"whitelist": [toleration("own")]}), false),
            (json!({}), json!({"whitelist": [toleration("x")]}), false),
            (json!({}), json!({"whitelist": [toleration("own")]}), true),
            (json!({ALLOWED: ""}), json!({"whitelist": [toleration("x")]}), true),
            (json!({ALLOWED: json!([{"operator": "Exists"}]).to_string()}), json!({}), true),
            (json!({ALLOWED: allow(&["own"]), DEFAULTS: allow(&["ns"])}), json!({}), false),
        ] {
            let found = admitted(annotations.clone(), configuration, own.clone(), false).await;
            if allowed {
                assert!(found.is_ok(), "{annotations}: {found:?}");
            } else {
                assert_eq!(found, refused, "{annotations}");
            }
        }
        let unreadable = admitted(json!({ALLOWED: "{"}), json!({}), own.clone(), false).await;
        assert!(unreadable.is_err_and(|why| why.starts_with("500 ")));
        assert_eq!(admitted(json!({ALLOWED: allow(&["x"])}), json!({}), own, true).await, refused, "also on update");
    }
}
