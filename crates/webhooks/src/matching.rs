//! Decides whether a webhook, a policy or a binding matches a request, and in which version
//! (`generic/webhook.go:ShouldCallHook`, `policy/matching/matching.go`).
//!
//! The order of the checks is: object selector, rules, equivalent resources, namespace selector. Upstream looks up the
//! namespace first, and reports a missing namespace only if everything else matches. The result is the same, with fewer
//! lookups.

use listwatch_admission::{Operation, ResourceName};
use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::{Object, child, objects, text};

use crate::attributes::Attributes;
use crate::rule::Rule;
use crate::webhook::Webhook;

/// The labels of the namespace of a request, if the caller has read them.
#[derive(Clone, Copy, Debug)]
pub enum NamespaceLabels<'a> {
    /// The caller has not read the namespace.
    Unread,
    /// The labels of the namespace.
    Read(&'a Object),
}

/// The resource and kind in the AdmissionReview. They differ from the resource and kind of the request if a rule
/// matches an equivalent resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation<'a> {
    /// The resource and kind that the rule matches.
    pub resource: ResourceName<'a>,
}

/// Whether a webhook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching<'a> {
    /// The webhook is not called.
    Skip,
    /// The webhook is called if its match conditions hold.
    Call(Invocation<'a>),
    /// The result depends on the namespace selector. The caller reads the namespace and calls again with
    /// [`NamespaceLabels::Read`].
    NeedsNamespace,
}

/// The requests that a webhook, a policy or a binding matches.
#[derive(Debug, Default)]
pub struct MatchCriteria {
    pub(crate) rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// Whether criteria without rules match every resource.
    pub(crate) matches_without_rules: bool,
    matches_equivalents: bool,
    /// `None` if the selector is empty; the namespace is then not looked up.
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
}

impl MatchCriteria {
    /// Parses validated criteria of a policy or a binding (`MatchResources`). Criteria without rules match every
    /// resource.
    pub fn parse(resources: &Object) -> Self {
        MatchCriteria {
            excluded: rules(resources, "excludeResourceRules"),
            matches_without_rules: true,
            ..MatchCriteria::of_rules(resources, "resourceRules")
        }
    }

    /// Parses the criteria of a webhook.
    pub(crate) fn of_webhook(hook: &Object) -> Self {
        MatchCriteria::of_rules(hook, "rules")
    }

    fn of_rules(holder: &Object, list: &str) -> Self {
        MatchCriteria {
            rules: rules(holder, list),
            excluded: Vec::new(),
            matches_without_rules: false,
            matches_equivalents: text(holder, "matchPolicy") != "Exact",
            namespace_selector: selector(holder, "namespaceSelector"),
            object_selector: selector(holder, "objectSelector"),
        }
    }

    /// Decides whether the criteria match a request. `equivalents` are the other versions and groups of the resource,
    /// in the registry's order.
    ///
    /// # Errors
    /// 500 for a selector with an unknown operator.
    pub fn matching<'a>(
        &self,
        attributes: &Attributes<'a>,
        equivalents: &[ResourceName<'a>],
        namespace: NamespaceLabels<'_>,
    ) -> Result<Matching<'a>, Status> {
        if self.matched_resource(&self.excluded, attributes, equivalents).is_some() {
            return Ok(Matching::Skip);
        }
        let resource = match self.matches_without_rules && self.rules.is_empty() {
            true => Some(attributes.resource),
            false => self.matched_resource(&self.rules, attributes, equivalents),
        };
        let Some(resource) = resource else { return Ok(Matching::Skip) };
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

    /// Returns the resource of the request if a rule matches. Otherwise returns the first equivalent resource with a
    /// matching rule.
    fn matched_resource<'a>(
        &self,
        rules: &[Rule],
        attributes: &Attributes<'a>,
        equivalents: &[ResourceName<'a>],
    ) -> Option<ResourceName<'a>> {
        if rules.iter().any(|rule| rule.matches(attributes, &attributes.resource)) {
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
        let mut pairs = rules.iter().flat_map(|rule| equivalents.iter().filter(is_other).map(move |name| (rule, name)));
        pairs.find(|(rule, name)| rule.matches(attributes, name)).map(|(_, name)| *name)
    }
}

impl Webhook {
    /// The requests that the webhook matches. The match conditions are evaluated separately
    /// ([`Webhook::check_conditions`]).
    pub fn criteria(&self) -> &MatchCriteria {
        &self.criteria
    }
}

fn rules(holder: &Object, list: &str) -> Vec<Rule> {
    objects(holder, list).map(|(_, rule)| Rule::parse(rule)).collect()
}

/// Returns a selector, or `None` if the selector is absent or empty.
fn selector(holder: &Object, name: &str) -> Option<LabelSelector> {
    let given = child(holder, name);
    let is_empty = child(given, "matchLabels").is_empty()
        && given.get("matchExpressions").and_then(Value::as_array).is_none_or(Vec::is_empty);
    (!is_empty).then(|| LabelSelector::of(given))
}

/// The source of the labels for a namespace selector (`predicates/namespace/matcher.go`).
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

fn selects(selector: &LabelSelector, labels: &listwatch_json::Map) -> Result<bool, Status> {
    selector.selects(labels).ok_or_else(|| Status::internal("the label selector has an unknown operator"))
}
