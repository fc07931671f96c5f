//! The variable `authorizer` of admission expressions (`apiserver/pkg/cel/library/authz.go`).
//!
//! An evaluation does no I/O and cannot call an authorizer. Instead, an evaluation uses known decisions:
//!
//! ```text
//!  evaluate ──▶ check without a decision ──▶ EvalError::Undecided ──▶ (authorize) ──▶ insert ──▶ evaluate again
//! ```

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use listwatch_meta::selector::{validate_dns_label, validate_dns_subdomain};

use crate::eval::{EvalError, EvalResult, Evaluator};
use crate::value::Val;

/// The cost of one check. The cost limit allows two checks per expression (`library/cost.go`).
const CHECK_COST: u64 = 350_000;

/// The base cost of a selector. [`SELECTOR_COST_PER_PAIR`] is added for every two characters (`selectorCostEstimate`).
const SELECTOR_COST: u64 = 10;
const SELECTOR_COST_PER_PAIR: u64 = 50;

/// A permission that an expression checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthorizationCheck {
    /// The namespace and the name of a service account; `None` for the user of the request.
    pub service_account: Option<(String, String)>,
    /// The verb, e.g. `get`.
    pub verb: String,
    /// The path or resource of the check.
    pub target: CheckTarget,
}

/// The path or resource of a check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckTarget {
    /// A non-resource path, e.g. `/healthz`.
    Path(String),
    /// A resource.
    Resource(ResourceCheck),
}

/// A resource in a check. Absent parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceCheck {
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The text of a field selector, which may be invalid.
    pub field_selector: String,
    /// The text of a label selector, which may be invalid.
    pub label_selector: String,
}

/// The decision on a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckDecision {
    /// Whether the authorizer allows the request. `false` if the authorizer has no opinion.
    pub allowed: bool,
    /// The reason.
    pub reason: String,
    /// The error of the authorizer; empty if there is none.
    pub error: String,
}

/// The known decisions of the authorizer. All expressions of one request share them.
#[derive(Debug, Default)]
pub struct AuthorizationDecisions {
    decided: HashMap<AuthorizationCheck, CheckDecision>,
    undecided: OnceLock<AuthorizationCheck>,
}

impl AuthorizationDecisions {
    /// Creates an empty set of decisions.
    pub fn new() -> Self {
        AuthorizationDecisions::default()
    }

    /// Adds the decision on a check.
    pub fn insert(&mut self, check: AuthorizationCheck, decision: CheckDecision) {
        self.decided.insert(check, decision);
    }

    /// Removes and returns the check that ended an evaluation with [`EvalError::Undecided`].
    pub fn take_undecided(&mut self) -> Option<AuthorizationCheck> {
        self.undecided.take()
    }

    fn decide(&self, check: AuthorizationCheck) -> Result<CheckDecision, EvalError> {
        match self.decided.get(&check) {
            Some(decision) => Ok(decision.clone()),
            None => {
                // The evaluation ends at the first such check.
                let _ = self.undecided.set(check);
                Err(EvalError::Undecided)
            }
        }
    }
}

/// The known decisions, and the request and user that a check is about.
#[derive(Clone, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) decisions: &'a AuthorizationDecisions,
    pub(crate) request_resource: &'a ResourceCheck,
    pub(crate) service_account: Option<Rc<(String, String)>>,
}

/// A value of the library.
#[derive(Clone, Debug)]
pub(crate) enum Authz<'a> {
    Authorizer(Source<'a>),
    Path(Source<'a>, Rc<str>),
    Group(Source<'a>, Rc<str>),
    Resource(Source<'a>, Rc<ResourceCheck>),
    Decision(Rc<CheckDecision>),
}

impl<'a> Authz<'a> {
    /// The name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Authz::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Authz::Path(..) => "kubernetes.authorization.PathCheck",
            Authz::Group(..) => "kubernetes.authorization.GroupCheck",
            Authz::Resource(..) => "kubernetes.authorization.ResourceCheck",
            Authz::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// Returns the field `requestResource` of `authorizer`; `None` for any other field.
    pub(crate) fn field(&self, name: &str) -> Option<Authz<'a>> {
        match self {
            Authz::Authorizer(source) if name == "requestResource" => {
                Some(Authz::Resource(source.clone(), Rc::new(source.request_resource.clone())))
            }
            _ => None,
        }
    }
}

/// Asks for a decision. The cost is no work of this thread, so it takes no fuel.
fn check<'a>(run: &mut Evaluator<'a>, source: &Source<'a>, verb: &str, target: CheckTarget) -> EvalResult<'a> {
    run.spend_elsewhere(CHECK_COST)?;
    let service_account = source.service_account.as_deref().cloned();
    let check = AuthorizationCheck { service_account, verb: verb.to_owned(), target };
    Ok(Val::Authz(Authz::Decision(Rc::new(source.decisions.decide(check)?))))
}

fn not_empty(text: &str, what: &str) -> Result<(), EvalError> {
    match text.trim() {
        "" => Err(EvalError::new(format!("{what} must not be empty"))),
        _ => Ok(()),
    }
}

/// Calls a function of the library.
pub(crate) fn member<'a>(run: &mut Evaluator<'a>, on: &Authz<'a>, name: &str, args: &[Val<'a>]) -> EvalResult<'a> {
    let found = match (on, name, args) {
        (Authz::Authorizer(source), "path", [Val::Text(path)]) => {
            not_empty(path, "path")?;
            Authz::Path(source.clone(), path.as_ref().into())
        }
        (Authz::Authorizer(source), "group", [Val::Text(group)]) => Authz::Group(source.clone(), group.as_ref().into()),
        (Authz::Authorizer(source), "serviceAccount", [Val::Text(namespace), Val::Text(name)]) => {
            if validate_dns_subdomain(name).is_err() {
                return Err(EvalError::new("Invalid service account name"));
            }
            if validate_dns_label(namespace).is_err() {
                return Err(EvalError::new("Invalid service account namespace"));
            }
            let service_account = Some(Rc::new((namespace.to_string(), name.to_string())));
            Authz::Authorizer(Source { service_account, ..source.clone() })
        }
        (Authz::Group(source, group), "resource", [Val::Text(resource)]) => {
            not_empty(resource, "resource")?;
            let check =
                ResourceCheck { group: group.to_string(), resource: resource.to_string(), ..ResourceCheck::default() };
            Authz::Resource(source.clone(), Rc::new(check))
        }
        (Authz::Resource(source, resource), "check", [Val::Text(verb)]) => {
            return check(run, source, verb, CheckTarget::Resource((**resource).clone()));
        }
        (Authz::Path(source, path), "check", [Val::Text(verb)]) => {
            return check(run, source, verb, CheckTarget::Path(path.to_string()));
        }
        (Authz::Resource(source, resource), name, [Val::Text(text)]) => {
            let mut changed = (**resource).clone();
            let part = match name {
                "subresource" => &mut changed.subresource,
                "namespace" => &mut changed.namespace,
                "name" => &mut changed.name,
                "fieldSelector" | "labelSelector" => {
                    let pairs = (text.len() as u64).div_ceil(2);
                    run.read(text.len())?;
                    run.spend(SELECTOR_COST + pairs.saturating_mul(SELECTOR_COST_PER_PAIR))?;
                    if name == "fieldSelector" { &mut changed.field_selector } else { &mut changed.label_selector }
                }
                _ => return Err(EvalError::overload()),
            };
            *part = text.to_string();
            Authz::Resource(source.clone(), Rc::new(changed))
        }
        (Authz::Decision(decision), name, []) => {
            return match name {
                "allowed" => Ok(Val::Bool(decision.allowed)),
                "reason" => Ok(Val::text(decision.reason.as_str())),
                "errored" => Ok(Val::Bool(!decision.error.is_empty())),
                "error" => Ok(Val::text(decision.error.as_str())),
                _ => Err(EvalError::overload()),
            };
        }
        _ => return Err(EvalError::overload()),
    };
    Ok(Val::Authz(found))
}

#[cfg(test)]
mod tests {
    use crate::{Expression, Value};

    use super::*;

    /// Evaluates an expression whose checks are all allowed for the service account `ns/sa`, and for the verb `get`.
    /// Returns the value or the error, and the checks.
    fn check(source: &str) -> (Result<Option<bool>, String>, Vec<AuthorizationCheck>) {
        let expression = Expression::parse(source).unwrap();
        let resource = ResourceCheck { resource: "pods".into(), name: "p".into(), ..ResourceCheck::default() };
        let (mut decisions, mut checks) = (AuthorizationDecisions::new(), Vec::new());
        loop {
            let variables = [("authorizer", Value::authorizer(&decisions, &resource))];
            let result = expression.evaluate(variables, 1_000_000).result;
            let result = result.map(|value| value.as_bool()).map_err(|error| error.to_string());
            let Some(check) = decisions.take_undecided() else { return (result, checks) };
            let allowed = check.service_account.is_some() || check.verb == "get";
            let error = if check.verb == "fail" { "down" } else { "" }.to_owned();
            decisions.insert(check.clone(), CheckDecision { allowed, reason: "r".to_owned(), error });
            checks.push(check);
        }
    }

    fn resource(part: impl FnOnce(&mut ResourceCheck)) -> CheckTarget {
        let mut check = ResourceCheck { resource: "pods".to_owned(), ..ResourceCheck::default() };
        part(&mut check);
        CheckTarget::Resource(check)
    }

    #[test]
    fn authorizer_check_requests_one_decision_for_its_resource_and_user() {
        let pods = "authorizer.group('').resource('pods')";
        for (source, expected, target) in [
            (format!("{pods}.check('get').allowed()"), true, resource(|_| ())),
            (format!("!{pods}.check('list').allowed()"), true, resource(|_| ())),
            (
                format!("{pods}.subresource('status').namespace('n').name('x').check('get').reason() == 'r'"),
                true,
                resource(|check| {
                    (check.subresource, check.namespace) = ("status".to_owned(), "n".to_owned());
                    check.name = "x".to_owned();
                }),
            ),
            (
                format!("{pods}.fieldSelector('a=b').labelSelector('c=d').check('get').allowed()"),
                true,
                resource(|check| {
                    (check.field_selector, check.label_selector) = ("a=b".to_owned(), "c=d".to_owned());
                }),
            ),
            (
                "authorizer.requestResource.check('get').allowed()".to_owned(),
                true,
                resource(|check| check.name = "p".to_owned()),
            ),
            (
                "authorizer.path('/healthz').check('get').allowed()".to_owned(),
                true,
                CheckTarget::Path("/healthz".to_owned()),
            ),
            (
                format!("{pods}.check('fail').errored() && {pods}.check('fail').error() == 'down'"),
                true,
                resource(|_| ()),
            ),
        ] {
            let (result, checks) = check(&source);
            assert_eq!(result, Ok(Some(expected)), "{source}");
            assert_eq!(checks.len(), 1, "{source}: an answer is asked for once");
            assert_eq!((checks[0].target.clone(), checks[0].service_account.as_ref()), (target, None), "{source}");
        }
        let source = "authorizer.serviceAccount('ns', 'sa').group('').resource('pods').check('delete').allowed()";
        let (result, checks) = check(source);
        assert_eq!((result, checks[0].service_account.clone()), (Ok(Some(true)), Some(("ns".into(), "sa".into()))));
    }

    #[test]
    fn authorizer_check_with_invalid_arguments_fails_with_upstreams_text() {
        for (source, expected) in [
            ("authorizer.path(' ').check('get').allowed()", "path must not be empty"),
            ("authorizer.group('').resource('').check('get').allowed()", "resource must not be empty"),
            ("authorizer.serviceAccount('ns', 'a@').path('/').check('get').allowed()", "Invalid service account name"),
            (
                "authorizer.serviceAccount('a.b', 'a').path('/').check('get').allowed()",
                "Invalid service account namespace",
            ),
            ("authorizer.check('get').allowed()", "no such overload"),
        ] {
            assert_eq!(check(source), (Err(expected.to_owned()), Vec::new()), "{source}");
        }
    }

    #[test]
    fn undecided_authorizer_check_ends_loops_and_logical_operators() {
        // `||` absorbs errors of its operands, but an undecided check is no error.
        let (result, checks) = check("[1].exists(i, authorizer.path('/a').check('get').allowed()) || true");
        assert_eq!((result, checks.len()), (Ok(Some(true)), 1));
    }

    #[test]
    fn third_authorizer_check_exceeds_the_cost_limit() {
        let path = |name: &str| format!("authorizer.path('/{name}').check('get').allowed()");
        assert_eq!(check(&format!("{} && {}", path("a"), path("b"))).0, Ok(Some(true)));
        let three = format!("{} && {} && {}", path("a"), path("b"), path("c"));
        assert_eq!(check(&three).0, Err(EvalError::Limit.to_string()));
    }
}
