//! DefaultTolerationSeconds: pods tolerate a node that fails for some time, 300 seconds by default
//! (`plugin/pkg/admission/defaulttolerationseconds`).

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_validation::{Object, child_mut, items, text};

use super::AdmissionRequest;
use super::plugin::Mutator;

/// The taints of a node that fails.
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How long pods without own tolerations stay on a node that fails, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TolerationSeconds {
    /// The time on a node that is not ready (`--default-not-ready-toleration-seconds`).
    pub not_ready: i64,
    /// The time on a node that is unreachable (`--default-unreachable-toleration-seconds`).
    pub unreachable: i64,
}

impl Default for TolerationSeconds {
    fn default() -> Self {
        TolerationSeconds { not_ready: 300, unreachable: 300 }
    }
}

/// The plugin that adds tolerations of failing nodes to a pod without tolerations of them.
pub(super) struct DefaultTolerationSeconds(pub(super) TolerationSeconds);

impl Mutator for DefaultTolerationSeconds {
    const NAME: &'static str = "DefaultTolerationSeconds";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn mutate(&self, _: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        add_tolerations(object, self.0);
        Ok(())
    }
}

fn add_tolerations(pod: &mut Object, seconds: TolerationSeconds) {
    let spec = child_mut(pod, "spec");
    let is_tolerated = |taint: &str| {
        items(spec, "tolerations").iter().filter_map(Value::as_object).any(|toleration| {
            let key = text(toleration, "key");
            (key.is_empty() || key == taint) && matches!(text(toleration, "effect"), "" | "NoExecute")
        })
    };
    let added: Vec<Value> = TAINTS
        .into_iter()
        .zip([seconds.not_ready, seconds.unreachable])
        .filter(|(taint, _)| !is_tolerated(taint))
        .map(|(taint, seconds)| {
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
        })
        .collect();
    if added.is_empty() {
        return;
    }
    match spec.get_mut("tolerations") {
        Some(Value::Array(tolerations)) => tolerations.extend(added),
        _ => {
            spec.insert("tolerations", Value::Array(added));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn pod_gets_tolerations_of_the_failing_nodes_that_it_does_not_tolerate() {
        let check =
            |own: Value, added: &[&str]| {
                let mut expected = own.as_array().cloned().unwrap_or_default();
                expected.extend(added.iter().map(
                    |key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
                ));
                let mut pod = object(json!({"spec": {"tolerations": own}}));
                // The second pass is the second round of a request.
                for _ in 0..2 {
                    add_tolerations(&mut pod, TolerationSeconds::default());
                    assert_eq!(pod["spec"]["tolerations"], Value::Array(expected.clone()), "{own}");
                }
            };
        let [not_ready, unreachable] = TAINTS;
        check(Value::Null, &TAINTS);
        check(json!([]), &TAINTS);
        check(json!([{"key": "a"}]), &TAINTS);
        check(json!([{"key": not_ready, "effect": "NoSchedule"}]), &TAINTS);
        check(json!([{"key": not_ready}]), &[unreachable]);
        check(json!([{"key": unreachable, "effect": "NoExecute", "tolerationSeconds": 5}]), &[not_ready]);
        check(json!([{"operator": "Exists"}]), &[]);
    }

    #[test]
    fn each_taint_has_its_own_seconds() {
        let mut pod = object(json!({"spec": {}}));
        add_tolerations(&mut pod, TolerationSeconds { not_ready: 30, unreachable: 0 });
        let seconds = |at: usize| &pod["spec"]["tolerations"][at]["tolerationSeconds"];
        assert_eq!((seconds(0), seconds(1)), (&json!(30), &json!(0)));
    }
}
