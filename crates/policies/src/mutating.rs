//! [`MutatingPolicy`]: evaluates the mutations of a policy and returns patches (`policy/mutating`).

use listwatch_cel::{EvalError, ResultType, Value as CelValue, compile_expression};
use listwatch_json::{Map, Value};
use listwatch_meta::Status;
use listwatch_meta::status::StatusCause;
use listwatch_validation::{Object, child, objects, text};
use listwatch_webhooks::{Attributes, FailurePolicy};

use crate::activation::{Activation, Inputs, Place};
use crate::evaluation::{Compiled, Conditions, Evaluator, POLICY_COST_MAX, match_conditions};
use crate::policy::{Binding, Policy};
use crate::report::forbidden;
use crate::validating::Reason;

/// Maximum size of a patch, in steps: one step per JSON value, and one more per 64 bytes of a string. A larger patch
/// fails.
pub const PATCH_STEPS_MAX: u64 = 1_000_000;

/// A compiled MutatingAdmissionPolicy.
#[derive(Debug)]
pub struct MutatingPolicy {
    policy: Policy,
    mutations: Vec<Mutation>,
    /// Whether the policy runs again after later changes (`reinvocationPolicy: IfNeeded`).
    pub reinvoked_if_needed: bool,
}

#[derive(Debug)]
struct Mutation {
    kind: PatchKind,
    expression: Compiled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchKind {
    ApplyConfiguration,
    JsonPatch,
}

/// The patch that a mutation returns.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// An apply configuration without `apiVersion` and `kind`. The caller merges the configuration without a change of
    /// managed fields.
    ApplyConfiguration(Object),
    /// The operations of a JSON patch (RFC 6902). A failed `test` leaves the object unchanged.
    JsonPatch(Vec<Value>),
}

impl AsRef<Policy> for MutatingPolicy {
    fn as_ref(&self) -> &Policy {
        &self.policy
    }
}

impl MutatingPolicy {
    /// Compiles a policy that has passed validation. An expression that does not compile fails when it is evaluated.
    pub fn parse(object: &Object) -> Self {
        let ((policy, variables), spec) = (Policy::parse(object), child(object, "spec"));
        let mutations = objects(spec, "mutations").map(|(_, mutation)| {
            let (kind, field, outcome) = match text(mutation, "patchType") {
                "JSONPatch" => (PatchKind::JsonPatch, "jsonPatch", ResultType::JsonPatch),
                _ => (PatchKind::ApplyConfiguration, "applyConfiguration", ResultType::Object),
            };
            let source = text(child(mutation, field), "expression");
            let expression = compile_expression(source, &variables, true, outcome);
            Mutation { kind, expression: Compiled { source: source.to_owned(), expression } }
        });
        MutatingPolicy {
            mutations: mutations.collect(),
            reinvoked_if_needed: text(spec, "reinvocationPolicy") == "IfNeeded",
            policy,
        }
    }

    /// The number of mutations. The mutations run in order, each on the result of the previous one.
    pub fn mutations(&self) -> usize {
        self.mutations.len()
    }

    /// Whether the match conditions hold. See [`MutatingPolicy::patch`] for authorization checks and fuel.
    ///
    /// # Errors
    /// The text of a condition that failed under the failure policy `Fail`.
    pub fn conditions_hold(&self, inputs: &Inputs<'_>) -> Result<bool, String> {
        match match_conditions(&self.policy, &Activation::new(inputs)) {
            Conditions::Hold => Ok(true),
            Conditions::Skip => Ok(false),
            Conditions::Failed(why) => Err(why),
        }
    }

    /// Evaluates a mutation. `None` if there is no mutation at this position.
    ///
    /// The result has no meaning if an authorization check is undecided. The caller then adds the decision to
    /// `decisions` and calls again. The result also has no meaning if the fuel (`listwatch_meta::fuel`) is used up.
    ///
    /// # Errors
    /// The error message of the evaluation.
    pub fn patch(&self, position: usize, inputs: &Inputs<'_>) -> Result<Option<Patch>, String> {
        let Some(Mutation { kind, expression }) = self.mutations.get(position) else { return Ok(None) };
        if let Err(why) = &expression.expression {
            return Err(why.clone());
        }
        let activation = Activation::new(inputs);
        let mut evaluator = Evaluator::new(&self.policy.variables, &activation, Place::Rule, POLICY_COST_MAX);
        let value = evaluator.evaluate(expression)??;
        match kind {
            PatchKind::ApplyConfiguration => apply_configuration(&value).map(Some),
            PatchKind::JsonPatch => json_patch(&value).map(Some),
        }
    }
}

/// Converts the value of an expression to an apply configuration (`patch/smd.go`).
fn apply_configuration(value: &CelValue<'_>) -> Result<Patch, String> {
    if value.type_name() != "Object" {
        return Err(format!("unsupported return type from ApplyConfiguration expression: {}", value.type_name()));
    }
    check_types(value)?;
    match value.to_json(PATCH_STEPS_MAX) {
        Ok(Value::Object(configuration)) => Ok(Patch::ApplyConfiguration(configuration)),
        Ok(_) => Err("invalid return type".to_owned()),
        Err(error) => Err(format!("invalid return type: {error}")),
    }
}

fn check_types(value: &CelValue<'_>) -> Result<(), String> {
    value.check_object_types(PATCH_STEPS_MAX).map_err(|error| match error {
        EvalError::Failed(why) => format!("type mismatch: {why}"),
        error => error.to_string(),
    })
}

/// Converts the value of an expression to JSON patch operations (`patch/json_patch.go`).
fn json_patch(value: &CelValue<'_>) -> Result<Patch, String> {
    let items = value.items().ok_or("type mismatch: JSONPatchType.expression should evaluate to array")?;
    let mut steps = PATCH_STEPS_MAX;
    let mut operations = Vec::with_capacity(items.len());
    for item in items {
        let fields = item.object_fields().filter(|_| item.type_name() == "JSONPatch").ok_or_else(|| {
            format!(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {}",
                item.type_name()
            )
        })?;
        let mut operation = Map::new();
        for (name, field) in fields {
            let json = match name.as_str() {
                "op" | "path" | "from" => match field.as_str() {
                    Some(text) => Value::from(text),
                    None => {
                        let ty = field.type_name();
                        return Err(format!("unexpected type {ty} for JSONPatchType '{name}' field"));
                    }
                },
                "value" => {
                    check_types(&field)?;
                    let json = field.to_json(steps);
                    let json = json.map_err(|error| {
                        format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {error}")
                    })?;
                    steps = steps.saturating_sub(size_of(&json));
                    json
                }
                _ => return Err(format!("unexpected JSONPatchType field: {name}")),
            };
            if name != "from" || json != "" {
                operation.insert(name, json);
            }
        }
        operations.push(Value::Object(operation));
    }
    Ok(Patch::JsonPatch(operations))
}

/// Returns the size of a JSON value in steps (see [`PATCH_STEPS_MAX`]).
fn size_of(json: &Value) -> u64 {
    1 + match json {
        Value::Array(items) => items.iter().map(size_of).sum(),
        Value::Object(members) => members.values().map(size_of).sum(),
        Value::String(text) => text.len() as u64 / 64,
        _ => 0,
    }
}

/// Collects the errors of mutating policies about one request (`policy/generic/policy_dispatcher.go`).
#[derive(Debug, Default)]
pub struct MutatingReport(Vec<(Option<Reason>, String)>);

impl MutatingReport {
    /// Adds a configuration error of a policy, or of a binding if `binding` is set.
    pub fn add_configuration_error(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str) {
        let what = if binding.is_some() { "binding" } else { "policy" };
        self.add(policy, binding, None, &format!("failed to configure {what}: {why}"));
    }

    /// Adds the error of a match condition or of a mutation.
    pub fn add_evaluation_error(&mut self, policy: &Policy, binding: &Binding, why: &str) {
        self.add(policy, Some(binding), Some(Reason::Invalid), why);
    }

    fn add(&mut self, policy: &Policy, binding: Option<&Binding>, reason: Option<Reason>, why: &str) {
        if policy.failure_policy == FailurePolicy::Ignore {
            return;
        }
        let name = &policy.name;
        let message = match binding {
            Some(binding) => format!("policy '{name}' with binding '{}' denied request: {why}", binding.name),
            None => format!("policy {} denied request: {why}", listwatch_meta::go::quote(name)),
        };
        self.0.push((reason, message));
    }

    /// Rejects the request if there is an error.
    ///
    /// # Errors
    /// 403 with the message of the first error, and one cause per error. The reason is `Invalid` for an error of an
    /// expression.
    pub fn finish(self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let Some((reason, message)) = self.0.first().cloned() else { return Ok(()) };
        let mut status = forbidden(attributes, "admission request denied by policy");
        if let Some(reason) = reason {
            status.reason = reason.name().into();
        }
        status.message = message;
        let causes = self.0.into_iter().map(|(_, message)| StatusCause { message, ..StatusCause::default() });
        status.details.get_or_insert_default().causes.extend(causes);
        Err(status)
    }
}
