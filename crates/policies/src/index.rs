//! [`PolicyIndex`]: finds the policies that can match a request without a scan of all policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use listwatch_admission::{Operation, ResourceName};
use listwatch_webhooks::RuleIndex;

use crate::policy::{Binding, Policy};

/// A policy with its bindings.
#[derive(Debug)]
pub struct BoundPolicy<P> {
    /// The policy.
    pub policy: Arc<P>,
    /// The bindings, in the order of their names. Never empty.
    pub bindings: Vec<Arc<Binding>>,
}

/// The policies that have bindings, in the order of their names, indexed by their rules. A lookup does not visit
/// policies without a rule for the resource.
#[derive(Debug)]
pub struct PolicyIndex<P> {
    policies: Vec<BoundPolicy<P>>,
    index: RuleIndex,
}

impl<P> Default for PolicyIndex<P> {
    fn default() -> Self {
        PolicyIndex { policies: Vec::new(), index: RuleIndex::default() }
    }
}

impl<P: AsRef<Policy>> PolicyIndex<P> {
    /// Creates an index of policies and bindings. A policy without a binding and a binding without a policy have no
    /// effect.
    pub fn new(policies: impl IntoIterator<Item = Arc<P>>, bindings: impl IntoIterator<Item = Arc<Binding>>) -> Self {
        let mut by_policy: BTreeMap<String, Vec<Arc<Binding>>> = BTreeMap::new();
        for binding in bindings {
            by_policy.entry(binding.policy_name.clone()).or_default().push(binding);
        }
        let mut bound: Vec<BoundPolicy<P>> = Vec::new();
        for policy in policies {
            let name = &(*policy).as_ref().name;
            if let Some(mut bindings) = by_policy.remove(name) {
                bindings.sort_by(|a, b| a.name.cmp(&b.name));
                bound.push(BoundPolicy { policy, bindings });
            }
        }
        bound.sort_by(|a, b| (*a.policy).as_ref().name.cmp(&(*b.policy).as_ref().name));
        let index = RuleIndex::new(bound.iter().map(|bound| &(*bound.policy).as_ref().criteria));
        PolicyIndex { policies: bound, index }
    }

    /// Returns true if no policy has a binding.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// The policies that have bindings.
    pub fn policies(&self) -> &[BoundPolicy<P>] {
        &self.policies
    }

    /// Returns the policies that may match an operation on a resource, in the order of their names. `equivalents` are
    /// the other versions and groups of the resource.
    pub fn candidates(
        &self,
        operation: Operation,
        resource: &ResourceName<'_>,
        equivalents: &[ResourceName<'_>],
    ) -> impl Iterator<Item = &BoundPolicy<P>> + use<'_, P> {
        self.index.candidates(operation, resource, equivalents).into_iter().map(|position| &self.policies[position])
    }
}

/// Whether the resource is exempt from policies. Otherwise a policy could reject the removal of policies. Reviews are
/// exempt because the server does not store them (`policy/generic/plugin.go`, `pkg/kubeapiserver/admission/exclusion`).
pub fn is_exempt(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        (
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        ) | ("authentication.k8s.io", "tokenreviews" | "selfsubjectreviews")
            | (
                "authorization.k8s.io",
                "subjectaccessreviews"
                    | "localsubjectaccessreviews"
                    | "selfsubjectaccessreviews"
                    | "selfsubjectrulesreviews"
            )
    )
}
