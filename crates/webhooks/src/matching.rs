//! Whether a webhook is called for a request, and in which version (`generic/webhook.go:ShouldCallHook`).
//!
//! The tests run in this order: object selector, rules, equivalent resources, namespace selector. Upstream looks up the namespace
//! first, and reports a missing namespace only if everything else matches. The result is the same with fewer look-ups.

use listwatch_meta::Status;
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::{Object, child};
use serde_json::Value;

use crate::attributes::{Attributes, Operation, ResourceName};
use crate::webhook::Webhook;

/// The labels of the namespace of a request, as far as the caller knows them.
#[derive(Clone, Copy, Debug)]
pub enum NamespaceLabels<'a> {
    /// The caller has not read the namespace.
    Unread,
    /// The labels of the namespace.
    Read(&'a Object),
}

/// The resource and kind in which a webhook is called. They differ from those of the request for an equivalent resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation<'a> {
    /// The resource and kind that the rule of the webhook names.
    pub resource: ResourceName<'a>,
}

/// Whether a webhook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching<'a> {
    /// The webhook is not called.
    Skip,
    /// The webhook is called if its match conditions hold.
    Call(Invocation<'a>),
    /// The namespace selector decides: the caller reads the namespace and asks again with [`NamespaceLabels::Read`].
    NeedsNamespace,
}

impl Webhook {
    /// Decides whether the webhook is called. `equivalents` are the other versions and groups of the resource, in the
    /// registry's order. Match conditions come after this decision ([`Webhook::check_conditions`]).
    ///
    /// # Errors
    /// 500 for a selector with an unknown operator.
    pub fn matching<'a>(
        &self,
        attributes: &Attributes<'a>,
        equivalents: &[ResourceName<'a>],
        namespace: NamespaceLabels<'_>,
    ) -> Result<Matching<'a>, Status> {
        let Some(resource) = self.matched_resource(attributes, equivalents) else { return Ok(Matching::Skip) };
        if let Some(selector) = &self.object_selector {
            let selects = |object: Option<&Object>| match object {
                Some(object) if object.contains_key("metadata") => selects(selector, labels(object)),
                _ => Ok(false),
            };
            if !(selects(attributes.object)? || selects(attributes.old_object)?) {
                return Ok(Matching::Skip);
            }
        }
        let Some(selector) = &self.namespace_selector else { return Ok(Matching::Call(Invocation { resource })) };
        let is_selected = match own_labels(attributes) {
            OwnLabels::OfObject(object) => selects(selector, labels(object))?,
            OwnLabels::ClusterScoped => true,
            OwnLabels::OfNamespace => match namespace {
                NamespaceLabels::Unread => return Ok(Matching::NeedsNamespace),
                NamespaceLabels::Read(labels) => selects(selector, labels)?,
            },
        };
        Ok(if is_selected { Matching::Call(Invocation { resource }) } else { Matching::Skip })
    }

    /// The resource of the request if a rule matches it, otherwise the first equivalent that a rule matches.
    fn matched_resource<'a>(
        &self,
        attributes: &Attributes<'a>,
        equivalents: &[ResourceName<'a>],
    ) -> Option<ResourceName<'a>> {
        if self.rules.iter().any(|rule| rule.matches(attributes, &attributes.resource)) {
            return Some(attributes.resource);
        }
        if !self.matches_equivalents {
            return None;
        }
        let is_other = |name: &&ResourceName<'_>| {
            (name.group, name.version, name.resource)
                != (attributes.resource.group, attributes.resource.version, attributes.resource.resource)
        };
        // Earlier rules come first, and equivalents after them.
        let mut pairs =
            self.rules.iter().flat_map(|rule| equivalents.iter().filter(is_other).map(move |name| (rule, name)));
        pairs.find(|(rule, name)| rule.matches(attributes, name)).map(|(_, name)| *name)
    }
}

/// The labels that a namespace selector judges (`predicates/namespace/matcher.go`).
enum OwnLabels<'a> {
    /// The labels of the Namespace that the request creates or updates.
    OfObject(&'a Object),
    /// The object is cluster-scoped: every selector matches.
    ClusterScoped,
    /// The labels of the stored namespace.
    OfNamespace,
}

fn own_labels<'a>(attributes: &Attributes<'a>) -> OwnLabels<'a> {
    let creates_or_updates = matches!(attributes.operation, Operation::Create | Operation::Update);
    match attributes.object {
        Some(object)
            if attributes.resource.resource == "namespaces"
                && attributes.subresource.is_empty()
                && creates_or_updates =>
        {
            OwnLabels::OfObject(object)
        }
        _ if attributes.namespace.is_empty() => OwnLabels::ClusterScoped,
        _ => OwnLabels::OfNamespace,
    }
}

/// The labels of an object; empty if it has none.
fn labels(object: &Object) -> &Object {
    child(child(object, "metadata"), "labels")
}

fn selects(selector: &LabelSelector, labels: &serde_json::Map<String, Value>) -> Result<bool, Status> {
    selector.selects(labels).ok_or_else(|| Status::internal("the label selector of a webhook has an unknown operator"))
}
