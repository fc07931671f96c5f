//! PodNodeSelector: pods of a namespace run only on the nodes that an annotation of the namespace selects
//! (`plugin/pkg/admission/podnodeselector`).

use std::collections::BTreeMap;

use listwatch_json::{JsonString, Value};
use listwatch_meta::selector::{label_value_problems, qualified_name_problems};
use listwatch_meta::{FieldError, GroupResource, Status};
use listwatch_validation::{Object, child, child_mut, metadata, quoted, text};

use super::AdmissionRequest;
use super::plugin::{Mutator, Validator};

/// The annotation of a namespace with the selector of its pods.
const SELECTOR: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// The selector, in the configuration, of pods in namespaces without the annotation.
const CLUSTER_DEFAULT: &str = "clusterDefaultNodeSelector";
const CONFLICT: &str = "pod node label selector conflicts with its namespace node label selector";
const NOT_ALLOWED: &str = "pod node label selector labels conflict with its namespace whitelist";

type Labels = BTreeMap<String, String>;

/// The plugin that sets node selectors. The configuration has, by namespace, the labels that pods may select.
pub(super) struct PodNodeSelector(BTreeMap<String, String>);

impl PodNodeSelector {
    /// A plugin with the `podNodeSelectorPluginConfig` of a configuration.
    pub(super) fn new(selectors: BTreeMap<String, String>) -> Self {
        PodNodeSelector(selectors)
    }

    /// Reads the configuration (`readConfig`).
    pub(super) fn parse(file: &Object) -> BTreeMap<String, String> {
        let selectors = child(file, "podNodeSelectorPluginConfig").iter();
        selectors.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.as_str()?.to_owned()))).collect()
    }

    /// Returns the node selector that the configuration contains for a namespace or for `clusterDefaultNodeSelector`.
    fn configured(&self, name: &str) -> Result<Labels, Status> {
        self.0.get(name).map_or(Ok(Labels::new()), |selector| labels(selector)).map_err(Status::unknown)
    }

    /// The labels that the nodes of the namespace's pods must have (`getNamespaceNodeSelectorMap`).
    async fn required(&self, request: &AdmissionRequest<'_>) -> Result<Labels, Status> {
        let name = request.namespace.unwrap_or_default();
        let found = request.get_cached("", "namespaces", None, name).await?;
        let namespace = found.ok_or_else(|| Status::internal(format_args!("namespace {name} does not exist")))?;
        match child(metadata(&namespace), "annotations").get(SELECTOR).and_then(Value::as_str) {
            Some(selector) => labels(selector).map_err(Status::unknown),
            None => self.configured(CLUSTER_DEFAULT),
        }
    }

    fn check_pod(&self, request: &AdmissionRequest<'_>, pod: &Object, required: &Labels) -> Result<(), Status> {
        let own = child(child(pod, "spec"), "nodeSelector");
        let resource = GroupResource { group: request.group, resource: request.resource };
        // Upstream names a pod with a generated name by the empty name here.
        let forbid = |why| Status::forbidden(resource, text(metadata(pod), "name"), why);
        let conflicts = required.iter().any(|(key, value)| own.get(key).is_some_and(|own| own != value));
        if conflicts {
            return Err(forbid(CONFLICT));
        }
        let allowed = self.configured(request.namespace.unwrap_or_default())?;
        let is_allowed =
            |(key, value): (&JsonString, &Value)| allowed.get(key.as_str()).is_some_and(|allowed| value == allowed);
        if !allowed.is_empty() && !own.iter().all(is_allowed) {
            return Err(forbid(NOT_ALLOWED));
        }
        Ok(())
    }
}

/// Reads a selector of the form `key=value,key=value` (`labels.ConvertSelectorToLabelsMap`).
fn labels(selector: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    if selector.is_empty() {
        return Ok(labels);
    }
    for label in selector.split(',') {
        let parts: Vec<&str> = label.split('=').collect();
        let [key, value] = parts[..] else { return Err(format!("invalid selector: [{}]", parts.join(" "))) };
        let (key, value) = (key.trim(), value.trim());
        for (text, problems) in [(key, qualified_name_problems(key)), (value, label_value_problems(value))] {
            if !problems.is_empty() {
                return Err(FieldError::invalid("<nil>", quoted(text), problems.join("; ")).to_string());
            }
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}

impl Mutator for PodNodeSelector {
    const NAME: &'static str = "PodNodeSelector";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let required = self.required(request).await?;
        self.check_pod(request, object, &required)?;
        if !required.is_empty() {
            let selector = child_mut(child_mut(object, "spec"), "nodeSelector");
            selector.extend(required.into_iter().map(|(key, value)| (key, Value::from(value))));
        }
        Ok(())
    }
}

impl Validator for PodNodeSelector {
    const NAME: &'static str = "PodNodeSelector";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let required = self.required(request).await?;
        self.check_pod(request, object, &required)
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    async fn admitted(annotation: Option<&str>, configuration: Value, own: Value) -> Result<Value, String> {
        let annotations = annotation.map(|selector| json!({SELECTOR: selector}));
        let namespace = json!({"metadata": {"name": "ns", "annotations": annotations}});
        let fixture = Fixture::new(&[("namespaces", namespace)]);
        let file = object(json!({"podNodeSelectorPluginConfig": configuration}));
        let plugin = PodNodeSelector::new(PodNodeSelector::parse(&file));
        let request = create(&fixture, "", "pods", "Pod", "p");
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": own}}));
        let why = |status: Status| status.message.replace("pods \"p\" is forbidden: ", "");
        plugin.mutate(&request, &mut pod).await.map_err(why)?;
        plugin.check(&request, &pod).await.map_err(why)?;
        Ok(pod["spec"]["nodeSelector"].clone())
    }

    #[tokio::test]
    async fn pod_gets_the_selector_of_its_namespace_or_of_the_cluster() {
        let cluster = json!({CLUSTER_DEFAULT: "zone=a"});
        for (annotation, configuration, own, expected) in [
            (Some("env = test, tier=1"), json!({}), json!({}), json!({"env": "test", "tier": "1"})),
            (Some("env=test"), cluster.clone(), json!({"x": "y"}), json!({"env": "test", "x": "y"})),
            (None, cluster.clone(), json!({}), json!({"zone": "a"})),
            (Some(""), cluster, json!({}), json!({})),
            (None, json!({}), json!({"x": "y"}), json!({"x": "y"})),
            (None, json!({"ns": "x=y,z=1"}), json!({"x": "y"}), json!({"x": "y"})),
        ] {
            assert_eq!(admitted(annotation, configuration, own).await, Ok(expected), "{annotation:?}");
        }
    }

    #[tokio::test]
    async fn pod_whose_node_selector_conflicts_with_the_namespace_is_rejected() {
        let long = "k".repeat(64);
        let too_long = format!("{long}=v");
        let long = format!("<nil>: Invalid value: \"{long}\": name part must be no more than 63 bytes");
        for (annotation, configuration, own, expected) in [
            (Some("env=test"), json!({}), json!({"env": "prod"}), CONFLICT),
            (None, json!({CLUSTER_DEFAULT: "zone=a"}), json!({"zone": "b"}), CONFLICT),
            (None, json!({"ns": "x=y"}), json!({"x": "z"}), NOT_ALLOWED),
            (None, json!({"ns": "x=y"}), json!({"other": "y"}), NOT_ALLOWED),
            (Some("env=test"), json!({"ns": "x=y"}), json!({}), NOT_ALLOWED),
            (Some("a=b=c"), json!({}), json!({}), "invalid selector: [a b c]"),
            (Some("a"), json!({}), json!({}), "invalid selector: [a]"),
            (Some(too_long.as_str()), json!({}), json!({}), long.as_str()),
        ] {
            assert_eq!(admitted(annotation, configuration, own).await, Err(expected.to_owned()), "{annotation:?}");
        }
    }
}
