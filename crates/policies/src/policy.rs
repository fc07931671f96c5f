//! The parts that ValidatingAdmissionPolicy and MutatingAdmissionPolicy share, and their bindings
//! (`policy/generic/accessor.go`).

use listwatch_cel::{AdmissionVariables, LazyVariables};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::{Object, child, given, objects, text, texts};
use listwatch_webhooks::{FailurePolicy, MatchConditions, MatchCriteria};

/// The parts that policies of both kinds share, compiled.
#[derive(Debug)]
pub struct Policy {
    /// The name of the policy.
    pub name: String,
    /// The effect of failed expressions and of configuration errors.
    pub failure_policy: FailurePolicy,
    /// The kind of the parameters; `None` for a policy without parameters.
    pub param_kind: Option<ParamKind>,
    /// The requests that the policy matches.
    pub criteria: MatchCriteria,
    pub(crate) conditions: MatchConditions,
    pub(crate) variables: LazyVariables,
}

/// The kind of a policy's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParamKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version, e.g. `v1`.
    pub version: String,
    /// The kind, e.g. `ConfigMap`.
    pub kind: String,
}

impl ParamKind {
    /// Parses `spec.paramKind`.
    pub fn parse(reference: &Object) -> Self {
        let version = text(reference, "apiVersion");
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        ParamKind { group: group.to_owned(), version: version.to_owned(), kind: text(reference, "kind").to_owned() }
    }

    /// Returns the configuration error for a `paramKind` that the server does not serve.
    pub fn not_found(&self) -> String {
        let ParamKind { group, version, kind } = self;
        format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
    }
}

impl Policy {
    /// Compiles the shared parts of a policy. Also returns the variable declarations for the other expressions.
    pub(crate) fn parse(policy: &Object) -> (Self, AdmissionVariables<'static>) {
        let spec = child(policy, "spec");
        let param_kind = given(spec, "paramKind").and_then(listwatch_json::Value::as_object).map(ParamKind::parse);
        let declared = AdmissionVariables::new().with_params(param_kind.is_some()).with_authorizer(true);
        let mut declared = declared.with_composition();
        let variables: Vec<_> = objects(spec, "variables")
            .map(|(_, variable)| {
                let name = text(variable, "name");
                (name.to_owned(), declared.declare(name, text(variable, "expression")))
            })
            .collect();
        let policy = Policy {
            name: text(child(policy, "metadata"), "name").to_owned(),
            failure_policy: match text(spec, "failurePolicy") {
                "Ignore" => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            criteria: MatchCriteria::parse(child(spec, "matchConstraints")),
            conditions: MatchConditions::compile(spec, &declared),
            variables: LazyVariables::new(variables),
            param_kind,
        };
        (policy, declared)
    }
}

/// An action after a failed validation (`validationActions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request is rejected.
    Deny,
    /// The client receives a warning.
    Warn,
    /// The audit event receives an annotation.
    Audit,
}

impl Action {
    /// Returns the name of the action in `validationActions`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Deny => "Deny",
            Action::Warn => "Warn",
            Action::Audit => "Audit",
        }
    }
}

/// A ValidatingAdmissionPolicyBinding or a MutatingAdmissionPolicyBinding.
#[derive(Debug)]
pub struct Binding {
    /// The name of the binding.
    pub name: String,
    /// The name of the policy.
    pub policy_name: String,
    /// The match criteria of the binding (`matchResources`). A request must match both the policy and the binding.
    pub criteria: MatchCriteria,
    /// The reference to the parameter objects; `None` if the binding has no parameters.
    pub param_ref: Option<ParamRef>,
    /// The actions after a failed validation, in the order of the binding. A mutating policy has none.
    pub actions: Vec<Action>,
}

/// The reference of a binding to the parameter objects (`spec.paramRef`).
#[derive(Debug)]
pub struct ParamRef {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) denies_without_params: bool,
}

impl Binding {
    /// Parses a binding that has passed validation.
    pub fn parse(binding: &Object) -> Self {
        let spec = child(binding, "spec");
        let action = |name: &str| match name {
            "Deny" => Some(Action::Deny),
            "Warn" => Some(Action::Warn),
            "Audit" => Some(Action::Audit),
            _ => None,
        };
        Binding {
            name: text(child(binding, "metadata"), "name").to_owned(),
            policy_name: text(spec, "policyName").to_owned(),
            criteria: MatchCriteria::parse(child(spec, "matchResources")),
            param_ref: given(spec, "paramRef").and_then(listwatch_json::Value::as_object).map(ParamRef::parse),
            actions: texts(spec, "validationActions").filter_map(action).collect(),
        }
    }
}

impl ParamRef {
    fn parse(reference: &Object) -> Self {
        let selects = given(reference, "selector").is_some();
        ParamRef {
            name: text(reference, "name").to_owned(),
            namespace: text(reference, "namespace").to_owned(),
            selector: selects.then(|| LabelSelector::of(child(reference, "selector"))),
            denies_without_params: text(reference, "parameterNotFoundAction") != "Allow",
        }
    }
}
