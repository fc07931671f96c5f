//! Checks device selectors: expressions in claims and classes of `resource.k8s.io`.
//!
//! An expression has one variable, `device`, and returns a bool or a dynamic value. Syntax, names,
//! fields and types are checked. Unknown functions are accepted, and the worst-case cost is not
//! estimated.
//!
//! Rules: `dynamic-resource-allocation/cel` of Kubernetes 1.36.

use std::rc::Rc;

use crate::expression::Expression;
use crate::types::Type;

/// The number of attributes or capacities of a device
/// (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
const ATTRIBUTES_MAX: u64 = 32;
/// The length of an attribute's domain and of a driver's name, in bytes (`DeviceMaxDomainLength`).
const DOMAIN_BYTES_MAX: u64 = 63;
/// The length of an attribute's name after its domain, in bytes (`DeviceMaxIDLength`).
const ID_BYTES_MAX: u64 = 32;

/// Checks the expression of a device selector.
///
/// # Errors
/// The reason for the rejection, in kube-apiserver's words.
pub fn check_device_selector(expression: &str) -> Result<(), String> {
    let checked = Expression::parse(expression)
        .and_then(|parsed| parsed.check_leniently(vec![("device", Type::Device)]))
        .map_err(|issues| format!("{} failed: {issues}", issues.step()))?;
    match checked {
        // The type is uncertain if the expression calls an unknown function.
        None | Some(Type::Bool | Type::Dyn(_)) => Ok(()),
        Some(other) => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}

/// The type of a field of `device`.
pub(crate) fn field<'n>(name: &str) -> Option<Type<'n>> {
    let by_domain = |value: Type<'n>| {
        let by_id = Type::Map(Rc::new(Type::Text(ID_BYTES_MAX)), Rc::new(value), ATTRIBUTES_MAX);
        Type::Map(Rc::new(Type::Text(DOMAIN_BYTES_MAX)), Rc::new(by_id), ATTRIBUTES_MAX)
    };
    match name {
        "driver" => Some(Type::Text(DOMAIN_BYTES_MAX)),
        "allowMultipleAllocations" => Some(Type::Bool),
        "attributes" => Some(by_domain(Type::DYN)),
        "capacity" => Some(by_domain(Type::Named(crate::signatures::QUANTITY))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str, expected: &str) {
        let found = check_device_selector(expression).err().unwrap_or_default();
        assert_eq!(found.lines().next().unwrap_or_default(), expected, "{expression}");
    }

    #[test]
    fn device_selectors_are_checked_for_syntax_names_and_types() {
        check("device.driver == \"a.example\"", "");
        check("device.attributes[\"a.example\"].model == \"x\"", "");
        check("device.attributes[\"a.example\"].ok", "");
        check("device.attributes[\"a.example\"].version.isGreaterThan(semver(\"1.0.0\"))", "");
        check("device.capacity[\"a.example\"].memory.compareTo(quantity(\"10Gi\")) >= 0", "");
        check("\"a.example\" in device.attributes && device.allowMultipleAllocations", "");
        check("has(device.attributes[\"a.example\"].model)", "");
        check("cel.bind(a, device.attributes[\"a.example\"], a.x && a.y)", "");
        check("device.driver", "must evaluate to bool or the unknown type, not string");
        check("device.nothing", "compilation failed: ERROR: <input>:1:7: undefined field 'nothing'");
        check("other", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')");
        assert!(check_device_selector("device.driver ==").unwrap_err().starts_with("compilation failed: ERROR: "));
    }

    #[test]
    fn twenty_nested_loops_are_checked_within_the_limit_of_type_checks() {
        // If each loop checked its body twice, the inner nodes would be visited 2^20 times, which is above
        // `TYPE_CHECKS_MAX`.
        check(&format!("{}1{}.size() == 1", "[1].map(a, ".repeat(20), ")".repeat(20)), "");
    }
}
