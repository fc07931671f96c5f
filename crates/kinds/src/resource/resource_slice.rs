//! ResourceSlice (`resource.k8s.io/v1`): the devices that a driver offers in one pool.
//!
//! Source: `pkg/registry/resource/resourceslice/strategy.go`, `ValidateResourceSlice` in
//! `pkg/apis/resource/validation`.

use std::cmp::Ordering;
use std::collections::HashMap;

use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::clock::timestamp;
use listwatch_validation::field_rules::required_one_of;
use listwatch_validation::formats::{
    self, IMMUTABLE, amount, compare, driver_name, go_node_selector_terms, is_full, json, label, label_value,
    qualified_name, same, subdomain, whole,
};
use listwatch_validation::{Errors, Object, child, given, items, number, text};

use super::devices::{EFFECTS, attribute_name, binding_conditions, list, name_of, object, pool_name, quoted_key, set};
use crate::defaults::Default::{If, Number};
use crate::defaults::Defaults;
use crate::{Field, Kind};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    fields: &[Field { indexed: true, ..Field::new("spec.nodeName") }, Field::new("spec.driver")],
    defaults: &DEFAULTS,
    prepare_for_create: |slice, context| prepare(slice, context.now),
    prepare_for_update: |slice, _, context| prepare(slice, &timestamp(context.now)),
    validate,
    warnings: listwatch_kind_warnings::small::of_resource_slice,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC))]);
static SPEC: Defaults = Defaults(&[("pool", If(&POOL))]);
static POOL: Defaults = Defaults(&[("generation", Number(0))]);

/// The largest number of devices of one slice.
const DEVICES_MAX: usize = 128;
/// The largest number of devices of one slice in which a device has taints or consumes counters.
const ADVANCED_DEVICES_MAX: usize = 64;
/// The largest number of counter sets of one slice.
const COUNTER_SETS_MAX: usize = 8;
/// The largest number of counters of one set, and of counters of one set that a device consumes.
const COUNTERS_MAX: usize = 32;
/// The largest number of counter sets that one device consumes from.
const CONSUMED_SETS_MAX: usize = 2;
/// The largest number of attributes and capacities of one device together.
const ATTRIBUTES_MAX: usize = 32;
/// The largest number of values of all attributes of one device.
const ATTRIBUTE_VALUES_MAX: usize = 48;
/// The largest size of a string or version in an attribute, in bytes.
const VALUE_BYTES_MAX: usize = 64;
/// The largest size of an attribute's name in an error path (domain, slash and identifier), in bytes.
const ATTRIBUTE_NAME_BYTES_MAX: usize = 63 + 1 + 32;
/// The largest size of a counter's name in an error path, in bytes.
const COUNTER_NAME_BYTES_MAX: usize = 63;
/// The largest number of taints of one device.
const TAINTS_MAX: usize = 16;
/// The largest number of amounts in the request policy of one capacity.
const VALID_VALUES_MAX: usize = 10;

/// Removes the fields of alpha features: lists of attribute values, and mappings to node resources.
/// Sets the missing `timeAdded` of taints.
fn prepare(slice: &mut Object, now: &str) {
    let Some(devices) = slice.get_mut("spec").and_then(|spec| spec.get_mut("devices")?.as_array_mut()) else { return };
    for device in devices.iter_mut().filter_map(Value::as_object_mut) {
        device.shift_remove("nodeAllocatableResourceMappings");
        let taints = device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten();
        for taint in taints.filter_map(Value::as_object_mut).filter(|taint| given(taint, "timeAdded").is_none()) {
            taint.insert("timeAdded", Value::from(now));
        }
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut).into_iter();
        for attribute in attributes.flat_map(|attributes| attributes.values_mut()).filter_map(Value::as_object_mut) {
            for name in ["bools", "ints", "strings", "versions"] {
                attribute.shift_remove(name);
            }
        }
    }
}

const ONE_SELECTION: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

fn validate(slice: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(slice, "spec");
    let before = old.map(|old| child(old, "spec"));
    let at = Path::root("spec");
    driver_name(text(spec, "driver"), &at.child("driver"), errors);
    let (pool, pool_at) = (child(spec, "pool"), at.child("pool"));
    pool_name(text(pool, "name"), &pool_at.child("name"), errors);
    let count = number(pool, "resourceSliceCount").unwrap_or(0);
    if count <= 0 {
        errors.invalid_value(&pool_at.child("resourceSliceCount"), count, "must be greater than zero");
    }
    if let Some(generation) = number(pool, "generation").filter(|generation| *generation < 0) {
        errors.invalid_value(&pool_at.child("generation"), generation, "must be greater than or equal to zero");
    }
    if let Some(before) = before {
        let mut fixed = |now: &Object, then: &Object, name: &str, at: &Path<'_>| {
            if given(now, name) != given(then, name) {
                errors.invalid_value(&at.child(name), json(given(now, name)), IMMUTABLE);
            }
        };
        fixed(pool, child(before, "pool"), "name", &pool_at);
        fixed(spec, before, "driver", &at);
        fixed(spec, before, "nodeName", &at);
    }
    slice_nodes(spec, &at, errors);
    if given(spec, "sharedCounters").is_some() && given(spec, "devices").is_some() {
        errors.invalid(&at, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let advanced = |device: &Value| {
        let device = object(device);
        !items(device, "taints").is_empty() || !items(device, "consumesCounters").is_empty()
    };
    let max = if items(spec, "devices").iter().any(advanced) { ADVANCED_DEVICES_MAX } else { DEVICES_MAX };
    let known: HashMap<&str, &Object> = before
        .map(|before| items(before, "devices").iter().map(|device| (name_of(device), object(device))).collect())
        .unwrap_or_default();
    let per_device = spec.get("perDeviceNodeSelection") == Some(&Value::Bool(true));
    let validate = |device: &Value, at: &Path<'_>, errors: &mut Errors| {
        self::device(object(device), known.get(name_of(device)).copied(), per_device, at, errors);
    };
    set(spec, "devices", max, &at, errors, validate, name_of, quoted_key);
    let validate =
        |counters: &Value, at: &Path<'_>, errors: &mut Errors| counter_set(object(counters), "name", at, errors);
    set(spec, "sharedCounters", COUNTER_SETS_MAX, &at, errors, validate, name_of, quoted_key);
}

/// Validates the fields that select nodes, and returns the names of the fields that are set. `flags` lists the boolean
/// fields. `empty_name` is the error for an empty `nodeName`. `one_term` rejects selectors with several terms.
fn selected_by(
    holder: &Object,
    flags: &[&str],
    empty_name: &str,
    one_term: bool,
    at: &Path<'_>,
    errors: &mut Errors,
) -> Vec<String> {
    let mut fields = Vec::new();
    let name_at = at.child("nodeName");
    match given(holder, "nodeName").and_then(Value::as_str) {
        None => {}
        Some("") => errors.invalid(&name_at, "", empty_name),
        Some(name) => {
            fields.push("`nodeName`".to_owned());
            subdomain(name, &name_at, errors);
        }
    }
    if let Some(Value::Object(selector)) = given(holder, "nodeSelector") {
        fields.push("`nodeSelector`".to_owned());
        let selector_at = at.child("nodeSelector");
        formats::node_selector(selector, true, &selector_at, errors);
        if one_term && items(selector, "nodeSelectorTerms").len() != 1 {
            let terms = selector.get("nodeSelectorTerms").map_or(Value::Null, go_node_selector_terms);
            let why = "must have exactly one node selector term";
            errors.invalid_value(&selector_at.child("nodeSelectorTerms"), terms, why);
        }
    }
    for flag in flags {
        match holder.get(flag) {
            Some(Value::Bool(true)) => fields.push(format!("`{flag}`")),
            Some(Value::Bool(false)) => {
                errors.invalid_value(&at.child(flag), false, "must be either unset or set to true");
            }
            _ => {}
        }
    }
    fields
}

/// Validates the node selection of a slice: exactly one of four fields.
fn slice_nodes(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let flags = ["allNodes", "perDeviceNodeSelection"];
    let empty_name = "must be either unset or set to a non-empty string";
    match selected_by(spec, &flags, empty_name, true, at, errors).as_slice() {
        [] => errors.required(at, ONE_SELECTION),
        [_] => {}
        several => {
            let why = format_args!("{ONE_SELECTION}, but multiple fields are set");
            errors.invalid(at, &format!("{{{}}}", several.join(", ")), why);
        }
    }
}

fn counter_set(counters: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match text(counters, name) {
        "" => errors.required(&at.child(name), ""),
        value => label(value, &at.child(name), errors),
    }
    let counters_at = at.child("counters");
    if child(counters, "counters").is_empty() {
        errors.required(&counters_at, "");
    } else {
        map(counters, "counters", Some(COUNTERS_MAX), COUNTER_NAME_BYTES_MAX, at, errors, label, |_, _, _| {});
    }
}

/// Validates the members of a map with at most `max` members. Error paths show names of up to `shown_bytes_max` bytes.
#[allow(clippy::too_many_arguments)] // one shape for four maps
fn map(
    holder: &Object,
    name: &str,
    max: Option<usize>,
    shown_bytes_max: usize,
    at: &Path<'_>,
    errors: &mut Errors,
    validate_name: impl Fn(&str, &Path<'_>, &mut Errors),
    mut validate: impl FnMut(&Object, &Path<'_>, &mut Errors),
) {
    let at = at.child(name);
    let members = child(holder, name);
    if let Some(max) = max.filter(|max| members.len() > *max) {
        return errors.too_many(&at, members.len(), max);
    }
    for (name, value) in members {
        if is_full(errors) {
            return;
        }
        validate_name(name, &at, errors);
        validate(object(value), &at.key(&shortened(name, shown_bytes_max)), errors);
    }
}

/// Shortens a name to `max` bytes, by `...` in its middle.
fn shortened(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let remaining = max - "...".len();
    let (mut front, mut back) = (remaining.div_ceil(2), name.len() - remaining / 2);
    while !name.is_char_boundary(front) {
        front -= 1;
    }
    while !name.is_char_boundary(back) {
        back += 1;
    }
    format!("{}...{}", &name[..front], &name[back..])
}

fn device(device: &Object, before: Option<&Object>, per_device: bool, at: &Path<'_>, errors: &mut Errors) {
    if is_full(errors) {
        return;
    }
    label(text(device, "name"), &at.child("name"), errors);
    let count = child(device, "attributes").len() + child(device, "capacity").len();
    if count > ATTRIBUTES_MAX {
        let why = format_args!("the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}");
        errors.invalid_value(at, count, why);
    }
    let values = child(device, "attributes").len();
    if values > ATTRIBUTE_VALUES_MAX {
        let why = format_args!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}");
        errors.invalid_value(at, values, why);
    }
    map(device, "attributes", None, ATTRIBUTE_NAME_BYTES_MAX, at, errors, attribute_name, attribute);
    let several = device.get("allowMultipleAllocations") == Some(&Value::Bool(true));
    map(device, "capacity", None, ATTRIBUTE_NAME_BYTES_MAX, at, errors, attribute_name, |capacity, at, errors| {
        let Some(Value::Object(policy)) = given(capacity, "requestPolicy") else { return };
        let at = at.child("requestPolicy");
        if several {
            request_policy(capacity.get("value").map_or("0", amount), policy, &at, errors);
        } else {
            errors.forbidden(&at, "allowMultipleAllocations must be true");
        }
    });
    if before.is_none_or(|before| !same(before.get("taints"), device.get("taints"))) {
        list(device, "taints", TAINTS_MAX, at, errors, |taint, at, errors| self::taint(object(taint), at, errors));
    }
    let validate = |counters: &Value, at: &Path<'_>, errors: &mut Errors| {
        counter_set(object(counters), "counterSet", at, errors);
    };
    let key = |counters| text(object(counters), "counterSet");
    set(device, "consumesCounters", CONSUMED_SETS_MAX, at, errors, validate, key, quoted_key);
    device_nodes(device, per_device, at, errors);
    binding_conditions(device, at, errors);
}

/// Validates the node selection of a device, for slices with `perDeviceNodeSelection`.
fn device_nodes(device: &Object, per_device: bool, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    if !per_device {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|name| given(device, name).is_some()) {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.invalid_value(at, "null", why);
        }
        return;
    }
    match selected_by(device, &["allNodes"], "must not be empty", false, at, errors).as_slice() {
        [] => errors.required(at, WHY),
        [_] => {}
        several => errors.invalid(at, &format!("{{{}}}", several.join(", ")), WHY),
    }
}

fn taint(taint: &Object, at: &Path<'_>, errors: &mut Errors) {
    qualified_name(text(taint, "key"), &at.child("key"), errors);
    label_value(text(taint, "value"), &at.child("value"), errors);
    required_one_of(taint, "effect", &EFFECTS, at, errors);
}

/// Whether a text is a semantic version (semver.org 2.0.0).
fn is_version(text: &str) -> bool {
    let number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part.len() == 1 || !part.starts_with('0'))
    };
    let identifier =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && before.is_none_or(|all| all.split('.').all(|part| identifier(part) && (!numeric(part) || number(part))))
        && build.is_none_or(|all| all.split('.').all(identifier))
}

/// Validates that an attribute has exactly one value. Lists of values are an alpha feature; [`prepare`] removes them.
fn attribute(attribute: &Object, at: &Path<'_>, errors: &mut Errors) {
    let text = |name: &str| given(attribute, name).and_then(Value::as_str);
    if text("string").is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
        errors.too_long(&at.child("string"), VALUE_BYTES_MAX);
    }
    if let Some(version) = text("version") {
        let at = at.child("version");
        if !is_version(version) {
            errors.invalid(&at, version, "must be a string compatible with semver.org spec 2.0.0");
        }
        if version.len() > VALUE_BYTES_MAX {
            errors.too_long(&at, VALUE_BYTES_MAX);
        }
    }
    let values = [("IntValue", "int"), ("BoolValue", "bool"), ("StringValue", "string"), ("VersionValue", "version")];
    match values.iter().filter(|(_, name)| given(attribute, name).is_some()).count() {
        0 => errors.invalid(at, "", "exactly one value must be specified"),
        1 => {}
        _ => {
            // As Go prints the internal type `DeviceAttribute`.
            let mut shown: Vec<String> =
                values.iter().map(|(name, member)| format!("\"{name}\":{}", json(given(attribute, member)))).collect();
            shown.extend(
                ["IntValues", "BoolValues", "StringValues", "VersionValues"].map(|name| format!("\"{name}\":null")),
            );
            errors.invalid_value(at, format_args!("{{{}}}", shown.join(",")), "exactly one value must be specified");
        }
    }
}

/// Validates the amounts of a capacity that requests can ask for (`validateRequestPolicy`).
fn request_policy(capacity: &str, policy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let values = items(policy, "validValues");
    let range = given(policy, "validRange").and_then(Value::as_object);
    let default = given(policy, "default").map(amount);
    match (values.is_empty(), range) {
        (false, Some(_)) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            errors.forbidden(at, why);
        }
        (false, None) => match default {
            None => errors.required(&at.child("default"), "required when validValues is defined"),
            Some(default) => valid_values(capacity, policy, default, at, errors),
        },
        (true, Some(range)) => match default {
            None => errors.required(&at.child("default"), "required when validRange is defined"),
            Some(default) => valid_range(capacity, range, default, &at.child("validRange"), errors),
        },
        (true, None) => {}
    }
}

fn valid_values(capacity: &str, policy: &Object, default: &str, at: &Path<'_>, errors: &mut Errors) {
    let values_at = at.child("validValues");
    let values: Vec<&str> = items(policy, "validValues").iter().map(amount).collect();
    for (index, pair) in values.windows(2).enumerate() {
        if compare(pair[0], pair[1]).is_gt() {
            errors.invalid(&values_at.index(index + 1), pair[1], "values must be sorted in ascending order");
        }
    }
    let validate = |value: &Value, at: &Path<'_>, errors: &mut Errors| {
        if compare(amount(value), capacity).is_gt() {
            errors.invalid(at, amount(value), format_args!("option is larger than capacity value: {capacity}"));
        }
    };
    let key = |value| whole(amount(value));
    set(policy, "validValues", VALID_VALUES_MAX, at, errors, validate, key, |key: &i64| quote(&key.to_string()));
    if values.len() > VALID_VALUES_MAX || !values.iter().any(|value| compare(value, default) == Ordering::Equal) {
        errors.invalid(&values_at, default, "default value is not valid according to the requestPolicy");
    }
}

fn valid_range(capacity: &str, range: &Object, default: &str, at: &Path<'_>, errors: &mut Errors) {
    let bound = |name: &str| given(range, name).map(amount);
    let (min_at, max_at, step_at) = (at.child("min"), at.child("max"), at.child("step"));
    let Some(min) = bound("min") else {
        return errors.required(&min_at, "required when validRange is defined");
    };
    if compare(min, capacity).is_gt() {
        errors.invalid(&min_at, min, format_args!("min is larger than capacity value: {capacity}"));
    }
    if compare(default, min).is_lt() {
        errors.invalid(&min_at, default, format_args!("default is less than min: {min}"));
    }
    if let Some(max) = bound("max") {
        if compare(min, max).is_gt() {
            errors.invalid(&max_at, min, format_args!("min is larger than max: {max}"));
        }
        if compare(max, capacity).is_gt() {
            errors.invalid(&max_at, max, format_args!("max is larger than capacity value: {capacity}"));
        }
        if compare(default, max).is_gt() {
            errors.invalid(&max_at, default, format_args!("default is more than max: {max}"));
        }
    }
    let Some(step) = bound("step") else { return };
    if let Some(sum) = listwatch_meta::quantity::sum(min, step)
        && compare(&sum, capacity).is_gt()
    {
        errors.invalid(&step_at, step, format_args!("one step {sum} is larger than capacity value: {capacity}"));
    }
    for value in [Some(default), bound("max")].into_iter().flatten() {
        // Upstream divides by the step and panics if the step is 0. This server reports a field error.
        if whole(step) == 0 || whole(value).wrapping_sub(whole(min)) % whole(step) != 0 {
            let why = format_args!("value is not a multiple of a given step ({step}) from ({min})");
            errors.invalid(&step_at, value, why);
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Node", "The node that has the devices."),
        Column::text("Driver", "The driver that publishes them."),
        Column::text("Pool", "The pool that they belong to."),
        AGE,
    ],
    cells: |slice| {
        let spec = slice.spec();
        vec![
            slice.name().into(),
            spec.get("nodeName").string().into(),
            spec.get("driver").string().into(),
            spec.at("pool.name").string().into(),
            slice.age().into(),
        ]
    },
};
