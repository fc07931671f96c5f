//! Rules that the kinds of `resource.k8s.io` share: lists, names, selectors, configurations, binding conditions.
//!
//! Source: `pkg/apis/resource/validation/validation.go` of Kubernetes v1.36.

use std::collections::HashSet;
use std::hash::Hash;

use listwatch_cel::check_device_selector;
use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::formats::{driver_name, json, label, qualified_name, subdomain};
use listwatch_validation::{Errors, Object, given, items, text};

/// The largest number of constraints of one claim, and of configurations of one claim or class.
pub(super) const CONSTRAINTS_MAX: usize = 32;
/// The largest number of selectors of one request or class.
const SELECTORS_MAX: usize = 32;
/// The largest size of the expression of one selector, in bytes.
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
/// The largest size of the parameters of a configuration, and of a driver's data about a device, in bytes.
const OPAQUE_BYTES_MAX: usize = 10 * 1024;
/// The largest size of the name of a pool, in bytes.
const POOL_NAME_BYTES_MAX: usize = 253;
/// The largest number of conditions in each of the two lists of binding conditions.
const BINDING_CONDITIONS_MAX: usize = 4;
/// The largest size of the name of an attribute, without its domain, in bytes.
const ID_BYTES_MAX: usize = 32;

/// The effects of taints and tolerations of devices.
pub(super) const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Validates the items of a list that has at most `max` of them. Returns whether the list is short enough.
pub(super) fn list<'a>(
    object: &'a Object,
    name: &str,
    max: usize,
    at: &Path<'_>,
    errors: &mut Errors,
    mut validate: impl FnMut(&'a Value, &Path<'_>, &mut Errors),
) -> bool {
    let at = at.child(name);
    let items = items(object, name);
    if items.len() > max {
        errors.too_many(&at, items.len(), max);
        return false;
    }
    for (index, item) in items.iter().enumerate() {
        validate(item, &at.index(index), errors);
    }
    true
}

/// Validates a list whose items have unique keys (`validateSet`).
#[allow(clippy::too_many_arguments)] // one shape for all lists with keys
pub(super) fn set<'a, K: Hash + Eq>(
    object: &'a Object,
    name: &str,
    max: usize,
    at: &Path<'_>,
    errors: &mut Errors,
    validate: impl FnMut(&'a Value, &Path<'_>, &mut Errors),
    key: impl Fn(&'a Value) -> K,
    shown: impl Fn(&K) -> String,
) {
    if !list(object, name, max, at, errors, validate) {
        return;
    }
    let at = at.child(name);
    let mut seen = HashSet::new();
    for (index, item) in items(object, name).iter().enumerate() {
        let key = key(item);
        if seen.contains(&key) {
            errors.push(FieldError::duplicate(at.index(index), shown(&key)));
        } else {
            seen.insert(key);
        }
    }
}

/// The member `name` of an item; `""` if the item has none.
pub(super) fn name_of(item: &Value) -> &str {
    item.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// An item as a string; `""` if the item has another type.
pub(super) fn string_of(item: &Value) -> &str {
    item.as_str().unwrap_or_default()
}

/// The notation of a key of [`set`] in errors.
pub(super) fn quoted_key(key: &&str) -> String {
    quote(key)
}

/// An item as an object; an empty object if the item has another type.
pub(super) fn object(item: &Value) -> &Object {
    static EMPTY: Object = Object::new();
    item.as_object().unwrap_or(&EMPTY)
}

/// Validates the name of a pool (`validatePoolName`): DNS subdomains that are separated by slashes.
pub(super) fn pool_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(at, "");
    }
    if name.len() > POOL_NAME_BYTES_MAX {
        errors.too_long(at, POOL_NAME_BYTES_MAX);
        // Upstream also reports each part. A name that consists of slashes would cause an error per byte.
        if name.matches('/').count() > POOL_NAME_BYTES_MAX {
            return;
        }
    }
    for part in name.split('/') {
        subdomain(part, at, errors);
    }
}

/// Validates a C identifier (`validateCIdentifier`).
fn identifier(id: &str, at: &Path<'_>, errors: &mut Errors) {
    if id.len() > ID_BYTES_MAX {
        errors.too_long(at, ID_BYTES_MAX);
    }
    let begins = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.invalid(at, id, why);
    }
}

/// Validates the name of an attribute or capacity, with or without a domain (`validateQualifiedName`).
pub(super) fn attribute_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    match name.split_once('/') {
        None => identifier(name, at, errors),
        // Upstream accepts names with more slashes.
        Some((_, id)) if id.contains('/') => {}
        Some((domain, id)) => {
            match domain {
                "" => errors.invalid(at, "", "the domain must not be empty"),
                domain => driver_name(domain, at, errors),
            }
            match id {
                "" => errors.invalid(at, "", "the name must not be empty"),
                id => identifier(id, at, errors),
            }
        }
    }
}

/// Validates the CEL selectors of a request or class. Stored expressions are not compiled again, because a newer server
/// may have written them with functions that this server lacks.
pub(super) fn selectors(holder: &Object, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    list(holder, "selectors", SELECTORS_MAX, at, errors, |selector, at, errors| {
        let at = at.child("cel");
        let Some(Value::Object(cel)) = given(object(selector), "cel") else {
            return errors.required(&at, "");
        };
        let (expression, at) = (text(cel, "expression"), at.child("expression"));
        if expression.len() > EXPRESSION_BYTES_MAX {
            errors.too_long(&at, EXPRESSION_BYTES_MAX);
        } else if is_new && let Err(why) = check_device_selector(expression) {
            errors.invalid(&at, expression, why);
        }
    });
}

/// Validates one opaque configuration (`validateDeviceConfiguration`).
pub(super) fn configuration(config: &Object, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("opaque");
    let Some(Value::Object(opaque)) = given(config, "opaque") else {
        return errors.required(&at, "");
    };
    driver_name(text(opaque, "driver"), &at.child("driver"), errors);
    raw_extension(opaque.get("parameters"), is_new, &at.child("parameters"), errors);
}

/// Validates an object of any form (`validateRawExtension`). The size of a stored object is not checked again.
pub(super) fn raw_extension(value: Option<&Value>, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    match value {
        None | Some(Value::Null) => errors.required(at, ""),
        Some(value) if is_new && value.to_string().len() > OPAQUE_BYTES_MAX => errors.too_long(at, OPAQUE_BYTES_MAX),
        Some(Value::Object(_)) => {}
        Some(_) => errors.invalid(at, "<value omitted>", "must be a valid JSON object"),
    }
}

/// Validates the driver, pool and device that identify an allocated device.
pub(super) fn device_id(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    driver_name(text(holder, "driver"), &at.child("driver"), errors);
    pool_name(text(holder, "pool"), &at.child("pool"), errors);
    label(text(holder, "device"), &at.child("device"), errors);
}

/// Validates the conditions that confirm or fail the binding of a device to a node
/// (`validateDeviceBindingParameters`).
pub(super) fn binding_conditions(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    const LISTS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    for name in LISTS {
        list(holder, name, BINDING_CONDITIONS_MAX, at, errors, |condition, at, errors| {
            qualified_name(string_of(condition), at, errors);
        });
    }
    let [success, failure] = LISTS.map(|name| items(holder, name));
    let successes: HashSet<&str> = success.iter().map(string_of).collect();
    for (name, conditions) in LISTS.into_iter().zip([success, failure]) {
        let list_at = at.child(name);
        let mut seen = HashSet::new();
        for (index, condition) in conditions.iter().map(string_of).enumerate() {
            if !seen.insert(condition) {
                errors.duplicate(&list_at.index(index), condition);
            }
            if name == LISTS[1] && successes.contains(condition) {
                let why = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(&list_at.index(index), condition, why);
            }
        }
    }
    let missing = |index: usize, why: &str, errors: &mut Errors| {
        errors.invalid_value(&at.child(LISTS[index]), json(holder.get(LISTS[index])), why);
    };
    match (success.is_empty(), failure.is_empty()) {
        (true, false) => missing(0, "bindingConditions are required to use bindingFailureConditions", errors),
        (false, true) => missing(1, "bindingFailureConditions are required to use bindingConditions", errors),
        _ => {}
    }
}
