//! ExtendedResourceToleration: pods tolerate the taints of nodes that have the requested devices
//! (`plugin/pkg/admission/extendedresourcetoleration`).

use std::collections::BTreeSet;

use listwatch_json::{JsonString, Value, json};
use listwatch_meta::Status;
use listwatch_validation::resource_names::is_extended;
use listwatch_validation::{Object, child, child_mut, items, objects};

use super::AdmissionRequest;
use super::plugin::Mutator;
use super::tolerations::is_superset;

/// The plugin that adds tolerations for the extended resources that a pod requests.
pub(super) struct ExtendedResourceToleration;

impl Mutator for ExtendedResourceToleration {
    const NAME: &'static str = "ExtendedResourceToleration";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn mutate(&self, _: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        add_tolerations(object);
        Ok(())
    }
}

fn add_tolerations(pod: &mut Object) {
    let spec = child_mut(pod, "spec");
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().flat_map(|list| objects(spec, list));
    let names = containers.flat_map(|(_, container)| child(child(container, "resources"), "requests").keys());
    let names: BTreeSet<JsonString> = names.filter(|name| is_extended(name)).cloned().collect();
    for name in names {
        let toleration = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
        let own = items(spec, "tolerations").iter().filter_map(Value::as_object);
        let is_tolerated = toleration.as_object().is_some_and(|new| own.into_iter().any(|own| is_superset(own, new)));
        if is_tolerated {
            continue;
        }
        match spec.get_mut("tolerations") {
            Some(Value::Array(tolerations)) => tolerations.push(toleration),
            _ => {
                spec.insert("tolerations", json!([toleration]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn pod_tolerates_the_taints_of_its_extended_resources() {
        let requests = |name: &str| json!({"resources": {"requests": {name: "1", "cpu": "1"}}});
        let containers = json!([requests("b.example/y"), requests("a.example/x")]);
        let mut pod = object(json!({"spec": {"containers": containers, "initContainers": [requests("a.example/x")]}}));
        for _ in 0..2 {
            add_tolerations(&mut pod);
            let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
            let keys: Vec<&str> = tolerations.iter().map(|toleration| toleration["key"].as_str().unwrap()).collect();
            assert_eq!(keys, ["a.example/x", "b.example/y"]);
        }
    }
}
