//! [`param_query`]: determines the parameter objects of a policy for one request (`CollectParams` in
//! `policy/generic/policy_dispatcher.go`).

use listwatch_meta::Status;
use listwatch_validation::{Object, child};

use crate::policy::{Binding, ParamRef, Policy};

/// The parameter objects that a binding refers to.
#[derive(Clone, Copy, Debug)]
pub struct ParamQuery<'a> {
    /// The namespace of the objects; `None` for a cluster-scoped kind.
    pub namespace: Option<&'a str>,
    /// The name of the object; `None` for the objects that the binding selects by their labels.
    pub name: Option<&'a str>,
    reference: &'a ParamRef,
}

/// Returns the query for the parameter objects. `None` means that the policy is evaluated once, without parameters.
/// `namespaced` states whether the parameter kind is namespaced. `namespace` is the namespace of the request.
///
/// # Errors
/// The configuration error of the binding.
pub fn param_query<'a>(
    policy: &Policy,
    binding: &'a Binding,
    namespaced: bool,
    namespace: &'a str,
) -> Result<Option<ParamQuery<'a>>, String> {
    let (Some(_), Some(reference)) = (&policy.param_kind, &binding.param_ref) else { return Ok(None) };
    let namespace = match (namespaced, reference.namespace.as_str()) {
        (true, "") if namespace.is_empty() => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(why.to_owned());
        }
        (true, "") => Some(namespace),
        (true, named) => Some(named),
        (false, "") => None,
        (false, _) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
    };
    let name = match (reference.name.as_str(), &reference.selector) {
        ("", Some(_)) => None,
        ("", None) => return Err("one of name or selector must be provided".to_owned()),
        (_, Some(_)) => return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned()),
        (name, None) => Some(name),
    };
    Ok(Some(ParamQuery { namespace, name, reference }))
}

impl ParamQuery<'_> {
    /// Whether the label selector of the binding matches an object. Without a selector, every object matches.
    ///
    /// # Errors
    /// 500 for a selector with an unknown operator.
    pub fn selects(&self, object: &Object) -> Result<bool, Status> {
        let Some(selector) = &self.reference.selector else { return Ok(true) };
        let labels = child(child(object, "metadata"), "labels");
        selector.selects(labels).ok_or_else(|| Status::internal("the label selector has an unknown operator"))
    }

    /// Checks the number of parameter objects that were found against `parameterNotFoundAction`.
    ///
    /// # Errors
    /// The configuration error of a binding with the action `Deny` if there is no object.
    pub fn check_found(&self, count: usize) -> Result<(), String> {
        if count == 0 && self.reference.denies_without_params {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(())
    }
}
