//! TaintNodesByCondition: taints a new node, so that no pods are scheduled to it before its
//! conditions are known (`plugin/pkg/admission/nodetaint`).

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_validation::{Object, child_mut, objects, text};

use super::AdmissionRequest;
use super::plugin::Mutator;

/// The key and the effect of the taint.
const NOT_READY: (&str, &str) = ("node.kubernetes.io/not-ready", "NoSchedule");

/// The plugin that taints new nodes.
pub(super) struct TaintNodesByCondition;

impl Mutator for TaintNodesByCondition {
    const NAME: &'static str = "TaintNodesByCondition";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "nodes")
    }

    async fn mutate(&self, _: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        add_taint(object);
        Ok(())
    }
}

fn add_taint(node: &mut Object) {
    let (key, effect) = NOT_READY;
    let spec = child_mut(node, "spec");
    if objects(spec, "taints").any(|(_, taint)| (text(taint, "key"), text(taint, "effect")) == NOT_READY) {
        return;
    }
    let taint = json!({"key": key, "effect": effect});
    match spec.get_mut("taints") {
        Some(Value::Array(taints)) => taints.push(taint),
        _ => {
            spec.insert("taints", json!([taint]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn new_node_has_the_not_ready_taint_once() {
        let not_ready = json!({"key": NOT_READY.0, "effect": NOT_READY.1});
        let other = json!({"key": NOT_READY.0, "effect": "NoExecute"});
        for (taints, expected) in [
            (json!(null), json!([not_ready])),
            (json!([other]), json!([other, not_ready])),
            (json!([not_ready, other]), json!([not_ready, other])),
        ] {
            let mut node = object(json!({"spec": {"taints": taints}}));
            add_taint(&mut node);
            assert_eq!(node["spec"]["taints"], expected, "{taints}");
        }
    }
}
