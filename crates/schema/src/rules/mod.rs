//! `x-kubernetes-validations`: rules in the Common Expression Language.
//!
//! `listwatch-cel` parses, checks and evaluates expressions. This module binds expressions to a schema: the variables
//! `self` and `oldSelf`, costs per definition, the budget of one validation, and ratcheting.
//!
//! Rules: apiextensions-apiserver `pkg/apiserver/schema/cel`, `pkg/apis/apiextensions/validation`,
//! Kubernetes 1.36.

mod node;

use std::collections::HashMap;

use listwatch_cel::{CompileError, EvalError, Expression, Type, Value as CelValue, count_max};
use listwatch_json::{JsonString, Value};
use listwatch_meta::FieldError;

use crate::columns::field_path;
use crate::field_errors::{self, forbidden, invalid, invalid_shown, invalid_str};
use crate::golang;
use crate::limits::{FIELD_ERRORS_MAX, RULE_CALL_COST_MAX, RULE_ESTIMATE_MAX, RULES_COST_MAX, RULES_ESTIMATE_MAX};
use crate::object::UpdateReport;
use crate::path::Path;
use crate::props::{Props, RuleProps};
use crate::ratchet::{self, Correlated, OldItems};
use crate::schema::{Kind, Node, Rule};

/// The variable that contains the replaced value on update.
const OLD_SELF: &str = "oldSelf";

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct Compiled {
    rule: Result<Expression, CompileError>,
    message: Option<Expression>,
    uses_old_self: bool,
    /// The path of the error, relative to the value.
    field: String,
}

impl Compiled {
    pub(crate) fn new(rule: &Rule, node: &Node) -> Compiled {
        let parsed = Expression::parse(rule.rule.clone());
        let uses_old_self = parsed.as_ref().is_ok_and(|rule| rule.mentions(OLD_SELF));
        let message = match rule.message_expression.is_empty() {
            true => None,
            false => Expression::parse(rule.message_expression.clone()).ok(),
        };
        let field = if rule.field_path.is_empty() { None } else { field_path(&rule.field_path, node, true).ok() };
        let field = field.map(|found| found.path).unwrap_or_default();
        Compiled { rule: parsed, message, uses_old_self, field }
    }
}

/// The maximum number of instances of a schema's part in one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleScope {
    /// The maximum number of instances; `None` if an enclosing list or map has no limit.
    count: Option<u64>,
    resource: bool,
}

impl RuleScope {
    pub(crate) fn root() -> RuleScope {
        RuleScope { count: Some(1), resource: true }
    }

    pub(crate) fn property(&self, property: &Props) -> RuleScope {
        RuleScope { count: self.count, resource: property.embedded_resource }
    }

    pub(crate) fn map_of(&self, map: &Props) -> RuleScope {
        self.times(map.max_properties, map.additional_schema())
    }

    pub(crate) fn list_of(&self, items: &Props, list: &Props) -> RuleScope {
        self.times(list.max_items, Some(items))
    }

    fn times(&self, max: Option<i64>, below: Option<&Props>) -> RuleScope {
        let max = max.map(|max| max.max(0) as u64);
        let count = self.count.zip(max).map(|(count, max)| count.saturating_mul(max));
        RuleScope { count, resource: below.is_some_and(|below| below.embedded_resource) }
    }
}

/// Checks the rules of a definition and the total of their estimated costs.
pub(crate) struct RuleChecker {
    /// Whether the rules existed before; then their costs are not checked.
    unchanged: bool,
    total: u64,
    /// The most expensive rules, for the error about the total.
    costliest: Vec<(u64, String)>,
}

impl RuleChecker {
    pub(crate) fn new(unchanged: bool) -> RuleChecker {
        RuleChecker { unchanged, total: 0, costliest: Vec::new() }
    }

    /// Checks the rules at one path. `uncorrelated` is the reason why `oldSelf` is not available
    /// there.
    pub(crate) fn check(
        &mut self,
        props: &Props,
        node: &Node,
        scope: &RuleScope,
        at: &Path<'_>,
        uncorrelated: Option<&str>,
    ) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let rules_at = at.child("x-kubernetes-validations");
        let Some(ty) = Type::of(node, scope.resource) else {
            let detail = "internal error: failed to retrieve type information for x-kubernetes-validations";
            errors.push(field_errors::internal(rules_at, detail));
            return errors;
        };
        for (index, rule) in props.rules.iter().enumerate() {
            self.check_rule(rule, node, &ty, scope, &rules_at.index(index), uncorrelated, &mut errors);
        }
        errors
    }

    #[allow(clippy::too_many_arguments)] // one caller, and each is a thing of its own
    fn check_rule(
        &mut self,
        rule: &RuleProps,
        node: &Node,
        ty: &Type<'_>,
        scope: &RuleScope,
        at: &Path<'_>,
        uncorrelated: Option<&str>,
        errors: &mut Vec<FieldError>,
    ) {
        let optional = rule.optional_old_self == Some(true);
        let old = if optional { ty.clone().optional() } else { ty.clone() };
        let variables = || [("self", ty.clone()), (OLD_SELF, old.clone())];
        let rule_at = at.child("rule");
        let value = go_format(rule);
        let compiled = Expression::parse(rule.rule.as_str())
            .and_then(|expression| Ok((expression.check(variables())?, expression.mentions(OLD_SELF))));
        let (summary, uses_old_self) = match compiled {
            Ok(compiled) => compiled,
            Err(issues) => {
                errors.push(invalid_shown(rule_at, &value, format_args!("{} failed: {issues}", issues.step())));
                return;
            }
        };
        if !matches!(summary.ty, Type::Bool) {
            errors.push(invalid_shown(rule_at, &value, "cel expression must evaluate to a bool"));
            return;
        }
        let count = scope.count.unwrap_or_else(|| count_max(node));
        let cost = summary.cost.saturating_mul(count);
        if !self.unchanged && cost > RULE_ESTIMATE_MAX {
            errors.push(forbidden(rule_at, too_costly("estimated rule cost", cost, RULE_ESTIMATE_MAX)));
        }
        self.add(cost, &rule_at);
        if !rule.message_expression.is_empty() {
            let message_at = at.child("messageExpression");
            let source = &rule.message_expression;
            match Expression::parse(source.as_str()).and_then(|expression| expression.check(variables())) {
                Err(issues) => {
                    let step = issues.step().trim_start_matches("program ");
                    let detail = format!("messageExpression {step} failed: {issues}");
                    errors.push(invalid_shown(message_at, &value, detail));
                }
                Ok(message) if !matches!(message.ty, Type::Text(_)) => {
                    errors.push(invalid_shown(message_at, &value, "messageExpression must evaluate to a string"));
                }
                Ok(message) => {
                    if !self.unchanged && message.cost > RULE_ESTIMATE_MAX {
                        let detail = too_costly("estimated messageExpression cost", message.cost, RULE_ESTIMATE_MAX);
                        errors.push(forbidden(message_at, detail));
                    }
                    self.add(message.cost, &message_at);
                }
            }
        }
        if uses_old_self {
            if let Some(place) = uncorrelated {
                let detail =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {place}");
                errors.push(invalid_str(rule_at, &rule.rule, detail));
            }
        } else if let Some(optional) = rule.optional_old_self {
            let detail = "may not be set if oldSelf is not used in rule";
            errors.push(invalid(at.child("optionalOldSelf"), &Value::Bool(optional), detail));
        }
    }

    fn add(&mut self, cost: u64, at: &Path<'_>) {
        const SHOWN_MAX: usize = 4;
        self.total = self.total.saturating_add(cost);
        if cost < RULES_ESTIMATE_MAX / 100 {
            return;
        }
        self.costliest.push((cost, at.to_string()));
        self.costliest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.costliest.truncate(SHOWN_MAX);
    }

    /// Returns the errors about the total cost.
    pub(crate) fn finish(self, at: &Path<'_>) -> Vec<FieldError> {
        if self.total <= RULES_ESTIMATE_MAX {
            return Vec::new();
        }
        let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let mut errors: Vec<FieldError> = self.costliest.iter().map(|(_, place)| forbidden(place, detail)).collect();
        let total = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(forbidden(at, too_costly(total, self.total, RULES_ESTIMATE_MAX)));
        errors
    }
}

fn too_costly(what: &str, cost: u64, max: u64) -> String {
    let factor = cost as f64 / max as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Checks a default by the rules of its schema: as a new value, and as an unchanged one.
pub(crate) fn check_default(default: &Value, node: &Node, at: &Path<'_>) -> Vec<FieldError> {
    let mut report = validate(default, node, Some(default), false, at);
    if report.errors.is_empty() {
        report = validate(default, node, None, false, at);
    }
    report.errors
}

/// Validates a value by its rules; `old` is the replaced value. `resource` is true for a whole
/// object.
pub(crate) fn validate(value: &Value, node: &Node, old: Option<&Value>, resource: bool, at: &Path<'_>) -> UpdateReport {
    let report = UpdateReport::default();
    let mut run = Run { budget: RULES_COST_MAX, report, unchanged_values: HashMap::new() };
    let current = old.map(|old| Correlated { old, node });
    run.value(value, node, old, resource, at, Ratchet { current, parent: None });
    run.report
}

/// The old values of the current value and of the nearest parent. An error is tolerated if the value is unchanged.
#[derive(Clone, Copy)]
struct Ratchet<'v> {
    current: Option<Correlated<'v>>,
    /// The nearest enclosing value with an old value.
    parent: Option<(&'v Value, Correlated<'v>)>,
}

impl<'v> Ratchet<'v> {
    /// Returns `value`, or the nearest enclosing value, with its old value. An error of `value` is tolerated
    /// if both are equal.
    fn compared_value(&self, value: &'v Value) -> Option<(&'v Value, Correlated<'v>)> {
        self.current.map(|current| (value, current)).or(self.parent)
    }

    fn below(self, value: &'v Value, find: impl FnOnce(Correlated<'v>) -> Option<Correlated<'v>>) -> Ratchet<'v> {
        match self.current {
            None => self,
            Some(current) => Ratchet { current: find(current), parent: Some((value, current)) },
        }
    }
}

/// The state of one validation: the remaining budget and the errors.
struct Run {
    budget: u64,
    report: UpdateReport,
    /// Whether a value is unchanged, by its address. A list is compared once instead of once per
    /// item.
    unchanged_values: HashMap<*const Value, bool>,
}

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

impl Run {
    /// Whether errors of `value` are tolerated, because the value is unchanged.
    fn tolerates<'v>(&mut self, ratchet: Ratchet<'v>, value: &'v Value) -> bool {
        let Some((compared_value, old)) = ratchet.compared_value(value) else { return false };
        *self
            .unchanged_values
            .entry(std::ptr::from_ref(compared_value))
            .or_insert_with(|| ratchet::is_unchanged(compared_value, old))
    }

    /// Returns false if the budget is used up.
    fn value<'v>(
        &mut self,
        value: &'v Value,
        node: &'v Node,
        old: Option<&'v Value>,
        resource: bool,
        at: &Path<'_>,
        ratchet: Ratchet<'v>,
    ) -> bool {
        if !node.has_rules || value.is_null() {
            return true;
        }
        let old = old.filter(|old| !old.is_null());
        for rule in node.rules() {
            if !self.rule(rule, value, node, old, resource, at, ratchet) {
                return false;
            }
        }
        match value {
            Value::Array(items) => {
                let Some(below) = node.items.as_deref() else { return true };
                let correlated = old.and_then(|old| OldItems::of(Correlated { old, node }));
                let mut goes_on = items.iter().enumerate().map(|(index, item)| {
                    let old = correlated.as_ref().and_then(|correlated| correlated.get(item)).map(|found| found.old);
                    let ratchet = ratchet.below(value, |_| old.map(|old| Correlated { old, node: below }));
                    self.value(item, below, old, below.embedded, &at.index(index), ratchet)
                });
                goes_on.all(|goes_on| goes_on)
            }
            Value::Object(members) => {
                let is_root = ratchet.parent.is_none();
                let mut fields: Vec<&JsonString> = members.keys().collect();
                fields.sort_unstable();
                fields.into_iter().all(|name| {
                    let Some(below) = node.field(name) else { return true };
                    let old = old.and_then(|old| old.get(name.as_str()));
                    let ratchet = if is_root && matches!(name.as_str(), "apiVersion" | "kind") {
                        Ratchet { current: None, parent: None }
                    } else {
                        ratchet.below(value, |current| current.field(name))
                    };
                    let at = if node.property(name).is_some() { at.child(name) } else { at.key(name) };
                    self.value(&members[name], below, old, below.embedded, &at, ratchet)
                })
            }
            _ => true,
        }
    }

    #[allow(clippy::too_many_arguments)] // one caller, and each is a thing of its own
    fn rule<'v>(
        &mut self,
        rule: &'v Rule,
        value: &'v Value,
        node: &'v Node,
        old: Option<&'v Value>,
        resource: bool,
        at: &Path<'_>,
        ratchet: Ratchet<'v>,
    ) -> bool {
        let kind = kind_name(node.kind);
        if self.budget == 0 || self.report.errors.len() >= FIELD_ERRORS_MAX {
            self.report.errors.push(invalid_str(at, kind, OUT_OF_BUDGET));
            return false;
        }
        let compiled = rule.compiled(node);
        let program = match &compiled.rule {
            Ok(program) => program,
            Err(issues) => {
                let detail = format!("rule compile error: compilation failed: {issues}");
                self.report.errors.push(invalid_str(at, kind, detail));
                return true;
            }
        };
        if compiled.uses_old_self && old.is_none() && !rule.optional_old_self {
            return true;
        }
        let variables = || {
            let old = old.map(|old| CelValue::json(old, Some(node), resource));
            let old = if rule.optional_old_self { CelValue::optional(old) } else { old.unwrap_or_else(CelValue::null) };
            [("self", CelValue::json(value, Some(node), resource)), (OLD_SELF, old)]
        };
        let evaluation = program.evaluate(variables(), RULE_CALL_COST_MAX);
        if evaluation.cost > self.budget {
            self.report.errors.push(invalid_str(at, kind, OUT_OF_BUDGET));
            return false;
        }
        self.budget -= evaluation.cost;
        let shown = rule.rule.trim();
        match evaluation.result {
            Ok(value) if value.as_bool() == Some(true) => return true,
            Ok(_) => {}
            // Rules have no authorizer to ask.
            Err(EvalError::Limit | EvalError::Undecided) => {
                let detail = format!(
                    "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}",
                    EvalError::Limit
                );
                self.report.errors.push(invalid_str(at, kind, detail));
                return false;
            }
            Err(EvalError::Failed(why)) if why.starts_with("no such overload") => {
                let detail = format!(
                    "'{why}': call arguments did not match a supported operator, function or macro signature for rule: \
                     {shown}"
                );
                self.report.errors.push(invalid_str(at, kind, detail));
                return true;
            }
            Err(EvalError::Failed(why)) => {
                self.report.errors.push(invalid_str(at, kind, format_args!("{why} evaluating rule: {shown}")));
                return true;
            }
        }
        let is_tolerated = !compiled.uses_old_self && self.tolerates(ratchet, value);
        let found = if is_tolerated { &mut self.report.tolerated } else { &mut self.report.errors };
        let message = match &compiled.message {
            None => None,
            Some(message) => {
                let evaluation = message.evaluate(variables(), RULE_CALL_COST_MAX);
                if evaluation.cost > self.budget || matches!(evaluation.result, Err(EvalError::Limit)) {
                    let detail = "messageExpression evaluation failed due to running out of cost budget";
                    found.push(invalid_str(at, kind, detail));
                    return false;
                }
                self.budget -= evaluation.cost;
                let text = evaluation.result.ok().and_then(|value| value.as_str().map(str::to_owned));
                text.filter(|text| !text.trim().is_empty() && !text.contains(['\n', '\r']))
            }
        };
        let detail = match message {
            Some(message) => message,
            None if rule.message.is_empty() => format!("failed rule: {shown}"),
            None => rule.message.trim().to_owned(),
        };
        if found.len() < FIELD_ERRORS_MAX {
            found.push(if compiled.field.is_empty() {
                violation(rule, at, value, node, &detail)
            } else {
                violation(rule, &at.child(&compiled.field), value, node, &detail)
            });
        }
        true
    }
}

/// The error of a violated rule, with the reason in the rule.
fn violation(rule: &Rule, at: &Path<'_>, value: &Value, node: &Node, detail: &str) -> FieldError {
    let whole = matches!(node.kind, Kind::Object | Kind::Array);
    match rule.reason.as_deref() {
        Some("FieldValueForbidden") => forbidden(at, detail),
        Some("FieldValueRequired") => field_errors::required(at, detail),
        Some("FieldValueDuplicate") if whole => {
            FieldError { field: at.to_string(), reason: "FieldValueDuplicate", message: "Duplicate value".to_owned() }
        }
        Some("FieldValueDuplicate") => field_errors::duplicate(at, value),
        _ if whole => {
            let message = format!("Invalid value: {detail}");
            FieldError { field: at.to_string(), reason: "FieldValueInvalid", message }
        }
        _ => invalid(at, value, detail),
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Any => "",
        Kind::Object => "object",
        Kind::Array => "array",
        Kind::String => "string",
        Kind::Integer => "integer",
        Kind::Number => "number",
        Kind::Boolean => "boolean",
    }
}

/// Formats a rule as Go formats it in errors.
fn go_format(rule: &RuleProps) -> String {
    let text = |text: &str| golang::json(&Value::from(text));
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        text(&rule.rule),
        text(&rule.message),
        text(&rule.message_expression),
        rule.reason.as_deref().map_or("null".to_owned(), text),
        text(&rule.field_path),
        rule.optional_old_self.map_or("null".to_owned(), |set| set.to_string()),
    )
}
