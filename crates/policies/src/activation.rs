//! [`Inputs`]: the values that the expressions of a policy can read (`admission/plugin/cel/activation.go`).

use listwatch_cel::{AuthorizationDecisions, ResourceCheck, Value as CelValue};
use listwatch_json::{Map, Value};
use listwatch_validation::{Object, child};
use listwatch_webhooks::{Attributes, Invocation, request_without_objects};

/// The values that the expressions of a policy can read.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The request, with its objects in the matched version.
    pub attributes: Attributes<'a>,
    /// The matched version.
    pub invocation: Invocation<'a>,
    /// The parameter; `None` for null.
    pub params: Option<&'a Object>,
    /// The namespace of the request; `None` for a cluster-scoped object.
    pub namespace: Option<&'a Object>,
    /// The authorizer's decisions that are already known.
    pub decisions: &'a AuthorizationDecisions,
}

/// The [`Inputs`] of one evaluation, with the values derived from them.
pub(crate) struct Activation<'a> {
    inputs: Inputs<'a>,
    request: Object,
    resource: ResourceCheck,
    namespace: Option<Object>,
}

impl<'a> Activation<'a> {
    pub(crate) fn new(inputs: &Inputs<'a>) -> Self {
        Activation {
            inputs: *inputs,
            request: request_without_objects(&inputs.attributes, &inputs.invocation),
            resource: inputs.attributes.resource_check(),
            namespace: inputs.namespace.map(namespace_object),
        }
    }

    /// Returns the CEL variables of an expression at `place`, without the variable `variables`.
    pub(crate) fn variables(&self, place: Place) -> Vec<(&'static str, CelValue<'_>)> {
        let object = |object: Option<&'a Object>| object.map_or_else(CelValue::null, CelValue::object);
        let Attributes { object: new, old_object: old, .. } = self.inputs.attributes;
        let namespace = self.namespace.as_ref().filter(|_| place != Place::Condition);
        let mut variables = vec![
            ("object", object(new)),
            ("oldObject", object(old)),
            ("request", CelValue::object(&self.request)),
            ("params", object(self.inputs.params)),
            ("namespaceObject", namespace.map_or_else(CelValue::null, CelValue::object)),
        ];
        if place != Place::Text {
            variables.push(("authorizer", CelValue::authorizer(self.inputs.decisions, &self.resource)));
        }
        variables
    }
}

/// The place of an expression in a policy. The place determines the available CEL variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A match condition; the variable `namespaceObject` is null.
    Condition,
    /// A validation or a mutation.
    Rule,
    /// A message or an audit annotation; the variable `authorizer` is not available.
    Text,
}

/// Returns the fields of a namespace that expressions can read (`CreateNamespaceObject`).
fn namespace_object(namespace: &Object) -> Object {
    const METADATA: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "uid",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "resourceVersion",
        "finalizers",
    ];
    let kept = |name: &&str| child(namespace, "metadata").get(name).map(|value| ((*name).to_owned(), value.clone()));
    let mut shown = Map::new();
    shown.insert("metadata", Value::Object(METADATA.iter().filter_map(kept).collect()));
    for name in ["spec", "status"] {
        shown.insert(name, namespace.get(name).cloned().unwrap_or_else(|| Value::Object(Map::new())));
    }
    shown
}
