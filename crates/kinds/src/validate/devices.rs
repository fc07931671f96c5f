//! What `resource.k8s.io` demands: ResourceClaim, ResourceClaimTemplate, DeviceClass, and ResourceSlice
//! (`pkg/apis/resource/validation`, Kubernetes v1.36).

mod slices;

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use listwatch_cel::check_device_selector;
use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::Value;

use listwatch_meta::go::quote;
use listwatch_validation::formats::{
    self, IMMUTABLE, driver_name, interface_address, json, label, label_value, qualified_name, same, subdomain,
};
use listwatch_validation::resource_names::is_extended;
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};
pub(crate) use slices::resource_slice;

/// Requests of one claim, and names in one list of them.
const REQUESTS_MAX: usize = 32;
/// Constraints, and configurations, of one claim or class.
const CONSTRAINTS_MAX: usize = 32;
/// Alternatives of one request.
const ALTERNATIVES_MAX: usize = 8;
/// Selectors of one request or class.
const SELECTORS_MAX: usize = 32;
/// Bytes of the expression of one selector.
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
/// Bytes of the parameters of a configuration, and of what a driver says about a device.
const OPAQUE_BYTES_MAX: usize = 10 * 1024;
/// Bytes of the name of a pool.
const POOL_NAME_BYTES_MAX: usize = 253;
/// Consumers for which one claim is reserved.
const CONSUMERS_MAX: usize = 256;
/// Devices that are allocated for one claim.
const RESULTS_MAX: usize = 32;
/// Conditions of one device.
const CONDITIONS_MAX: usize = 8;
/// Conditions that bind a device, and those that fail to.
const BINDING_CONDITIONS_MAX: usize = 4;
/// Bytes of the name of a network interface.
const INTERFACE_BYTES_MAX: usize = 256;
/// Bytes of a hardware address.
const HARDWARE_ADDRESS_BYTES_MAX: usize = 128;
/// Addresses of one network device.
const ADDRESSES_MAX: usize = 16;
/// Bytes of the name of an attribute below its domain.
const ID_BYTES_MAX: usize = 32;

const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

// Lists.

/// Judges a list: not more than `max` items, and each of them. Returns whether it was not too long.
fn list<'a>(
    object: &'a Object,
    name: &str,
    max: usize,
    at: &Path<'_>,
    errors: &mut Errors,
    mut judge: impl FnMut(&'a Value, &Path<'_>, &mut Errors),
) -> bool {
    let at = at.child(name);
    let items = items(object, name);
    if items.len() > max {
        errors.too_many(&at, items.len(), max);
        return false;
    }
    for (index, item) in items.iter().enumerate() {
        judge(item, &at.index(index), errors);
    }
    true
}

/// Judges a list whose items have a key each, which is shown where it stands twice.
#[allow(clippy::too_many_arguments)] // one shape for all lists with keys
fn set<'a, K: Hash + Eq>(
    object: &'a Object,
    name: &str,
    max: usize,
    at: &Path<'_>,
    errors: &mut Errors,
    judge: impl FnMut(&'a Value, &Path<'_>, &mut Errors),
    key: impl Fn(&'a Value) -> K,
    shown: impl Fn(&K) -> String,
) {
    if !list(object, name, max, at, errors, judge) {
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

fn name_of(item: &Value) -> &str {
    item.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn itself(item: &Value) -> &str {
    item.as_str().unwrap_or_default()
}

fn shown(text: &&str) -> String {
    quote(text)
}

fn object(item: &Value) -> &Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Object::new);
    item.as_object().unwrap_or(&EMPTY)
}

// Names.

fn pool_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(at, "");
    }
    if name.len() > POOL_NAME_BYTES_MAX {
        errors.too_long(at, POOL_NAME_BYTES_MAX);
        // Upstream says what is wrong with each part as well, however many there are.
        if name.matches('/').count() > POOL_NAME_BYTES_MAX {
            return;
        }
    }
    for part in name.split('/') {
        subdomain(part, at, errors);
    }
}

/// A name in C (`validateCIdentifier`).
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

/// The name of an attribute, with its domain or without.
fn attribute_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    match name.split_once('/') {
        None => identifier(name, at, errors),
        // Upstream looks away from names with more slashes.
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

fn full_attribute_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    attribute_name(name, at, errors);
    if !name.contains('/') {
        errors.invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

// Claims.

pub(crate) fn claim(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("spec");
    match old {
        None => claim_spec(child(claim, "spec"), &at, errors),
        Some(old) if !same(claim.get("spec"), old.get("spec")) => {
            errors.invalid_value(&at, json(claim.get("spec")), IMMUTABLE);
        }
        Some(_) => {}
    }
}

pub(crate) fn claim_template(template: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(template, "spec");
    let at = Path::root("spec");
    let mut metadata = Errors::default();
    listwatch_validation::object_meta::validate_labels(
        child(child(spec, "metadata"), "labels"),
        "spec.metadata.labels",
        &mut metadata,
    );
    errors.extend(metadata.iter().cloned());
    claim_spec(child(spec, "spec"), &at.child("spec"), errors);
    if let Some(old) = old
        && !same(template.get("spec"), old.get("spec"))
    {
        errors.invalid_value(&at, json(template.get("spec")), IMMUTABLE);
    }
}

/// The requests of a claim, each with the names of its alternatives.
struct Requests<'a>(HashMap<&'a str, HashSet<&'a str>>);

impl<'a> Requests<'a> {
    fn of(devices: &'a Object) -> Requests<'a> {
        let requests = items(devices, "requests").iter();
        Requests(
            requests
                .map(|request| {
                    let alternatives = items(object(request), "firstAvailable").iter().map(name_of);
                    (name_of(request), alternatives.collect())
                })
                .collect(),
        )
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|names| names.contains(alternative)),
        }
    }

    /// A name in a list that says which requests something is about.
    fn judge(&self, name: &str, at: &Path<'_>, errors: &mut Errors) {
        const WHY: &str =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        if name.matches('/').count() > 1 {
            return errors.invalid(at, name, WHY);
        }
        name.split('/').for_each(|part| label(part, at, errors));
        if !self.has(name) {
            errors.invalid(at, name, WHY);
        }
    }

    fn judge_list(&self, holder: &Object, at: &Path<'_>, errors: &mut Errors) {
        let judge = |name: &Value, at: &Path<'_>, errors: &mut Errors| self.judge(itself(name), at, errors);
        set(holder, "requests", REQUESTS_MAX, at, errors, judge, itself, shown);
    }
}

fn claim_spec(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let devices = child(spec, "devices");
    let at = at.child("devices");
    let requests = Requests::of(devices);
    set(devices, "requests", REQUESTS_MAX, &at, errors, request, name_of, shown);
    list(devices, "constraints", CONSTRAINTS_MAX, &at, errors, |constraint, at, errors| {
        let constraint = object(constraint);
        requests.judge_list(constraint, at, errors);
        let attribute = |name: &str| given(constraint, name).and_then(Value::as_str);
        match (attribute("matchAttribute"), attribute("distinctAttribute")) {
            (Some(name), _) => full_attribute_name(name, &at.child("matchAttribute"), errors),
            (None, Some(name)) => full_attribute_name(name, &at.child("distinctAttribute"), errors),
            (None, None) => {
                let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
                errors.required(at, why);
            }
        }
    });
    list(devices, "config", CONSTRAINTS_MAX, &at, errors, |config, at, errors| {
        requests.judge_list(object(config), at, errors);
        configuration(object(config), true, at, errors);
    });
}

fn request(request: &Value, at: &Path<'_>, errors: &mut Errors) {
    let request = object(request);
    label(text(request, "name"), &at.child("name"), errors);
    let alternatives = !items(request, "firstAvailable").is_empty();
    match (given(request, "exactly").and_then(Value::as_object), alternatives) {
        (None, false) => errors.required(at, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), true) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid_value(at, "null", why);
        }
        (Some(exactly), false) => wanted(exactly, &at.child("exactly"), errors),
        (None, true) => {
            let judge = |alternative: &Value, at: &Path<'_>, errors: &mut Errors| {
                label(name_of(alternative), &at.child("name"), errors);
                wanted(object(alternative), at, errors);
            };
            set(request, "firstAvailable", ALTERNATIVES_MAX, at, errors, judge, name_of, shown);
        }
    }
}

/// Which devices are wanted, and how many.
fn wanted(request: &Object, at: &Path<'_>, errors: &mut Errors) {
    let class_at = at.child("deviceClassName");
    match text(request, "deviceClassName") {
        "" => errors.required(&class_at, ""),
        class => subdomain(class, &class_at, errors),
    }
    list(request, "selectors", SELECTORS_MAX, at, errors, |selector, at, errors| {
        self::selector(object(selector), true, at, errors);
    });
    let count = number(request, "count").unwrap_or(0);
    let mode = text(request, "allocationMode");
    match mode {
        "All" if count != 0 => {
            errors.invalid_value(&at.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => errors.invalid_value(&at.child("count"), count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => errors.not_supported(&at.child("allocationMode"), other, &["All", "ExactCount"]),
    }
    let tolerations_at = at.child("tolerations");
    for (index, toleration) in objects(request, "tolerations") {
        let at = tolerations_at.index(index);
        if !text(toleration, "key").is_empty() {
            qualified_name(text(toleration, "key"), &at.child("key"), errors);
        }
        let value = text(toleration, "value");
        match text(toleration, "operator") {
            "Exists" if !value.is_empty() => {
                errors.invalid(&at.child("value"), value, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            "Equal" => label_value(value, &at.child("value"), errors),
            "" => errors.required(&at.child("operator"), ""),
            other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
        }
        let effect = text(toleration, "effect");
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.not_supported(&at.child("effect"), effect, &EFFECTS);
        }
    }
}

/// A selector. One that is stored already is not compiled again: a newer server may know more functions.
fn selector(selector: &Object, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("cel");
    let Some(Value::Object(cel)) = given(selector, "cel") else {
        return errors.required(&at, "");
    };
    let (expression, at) = (text(cel, "expression"), at.child("expression"));
    if expression.len() > EXPRESSION_BYTES_MAX {
        errors.too_long(&at, EXPRESSION_BYTES_MAX);
    } else if is_new && let Err(why) = check_device_selector(expression) {
        errors.invalid(&at, expression, why);
    }
}

fn configuration(config: &Object, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("opaque");
    let Some(Value::Object(opaque)) = given(config, "opaque") else {
        return errors.required(&at, "");
    };
    driver_name(text(opaque, "driver"), &at.child("driver"), errors);
    raw(opaque.get("parameters"), is_new, &at.child("parameters"), errors);
}

/// An object of any form.
fn raw(value: Option<&Value>, is_new: bool, at: &Path<'_>, errors: &mut Errors) {
    match value {
        None | Some(Value::Null) => errors.required(at, ""),
        Some(value) if is_new && value.to_string().len() > OPAQUE_BYTES_MAX => errors.too_long(at, OPAQUE_BYTES_MAX),
        Some(Value::Object(_)) => {}
        Some(_) => errors.invalid(at, "<value omitted>", "must be a valid JSON object"),
    }
}

// DeviceClass.

pub(crate) fn device_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(class, "spec");
    let at = Path::root("spec");
    let is_new = |name: &str| old.is_none_or(|old| !same(spec.get(name), child(old, "spec").get(name)));
    let (selectors_new, config_new) = (is_new("selectors"), is_new("config"));
    list(spec, "selectors", SELECTORS_MAX, &at, errors, |selector, at, errors| {
        self::selector(object(selector), selectors_new, at, errors);
    });
    list(spec, "config", CONSTRAINTS_MAX, &at, errors, |config, at, errors| {
        configuration(object(config), config_new, at, errors);
    });
    if let Some(name) = given(spec, "extendedResourceName").and_then(Value::as_str)
        && !is_extended(name)
    {
        errors.invalid(&at.child("extendedResourceName"), name, "must be a valid extended resource name");
    }
}

// The status of a claim.

/// A device: its driver, its pool, its name, and which share of it.
type Device<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);

fn device(holder: &Object) -> Device<'_> {
    let share = given(holder, "shareID").and_then(Value::as_str);
    (text(holder, "driver"), text(holder, "pool"), text(holder, "device"), share)
}

/// A device as upstream's own type prints it.
fn shown_device(&(driver, pool, device, share): &Device<'_>) -> String {
    let [driver, pool, device, share] = [driver, pool, device, share.unwrap_or_default()].map(Value::from);
    format!("{{\"Driver\":{driver},\"Pool\":{pool},\"Device\":{device},\"ShareID\":{share}}}")
}

fn allocated(status: &Object) -> HashSet<Device<'_>> {
    let devices = child(child(status, "allocation"), "devices");
    objects(devices, "results").map(|(_, result)| device(result)).collect()
}

/// Drops what is said about devices that are not allocated any more (`dropDeallocatedStatusDevices`).
pub(crate) fn drop_deallocated(claim: &mut Object, old: &Object) {
    let status = child(claim, "status");
    let (before, after) = (allocated(child(old, "status")), allocated(status));
    let gone = |item: &Value| {
        let device = device(object(item));
        before.contains(&device) && !after.contains(&device)
    };
    let devices = items(status, "devices");
    if !devices.iter().any(gone) {
        return;
    }
    let kept: Vec<Value> = devices.iter().filter(|item| !gone(item)).cloned().collect();
    let Some(Value::Object(status)) = claim.get_mut("status") else { return };
    if kept.is_empty() {
        status.shift_remove("devices");
    } else {
        status.insert("devices".to_owned(), Value::Array(kept));
    }
}

pub(crate) fn claim_status(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let status = child(claim, "status");
    let before = old.map(|old| child(old, "status"));
    let at = Path::root("status");
    let uid = |consumer| text(object(consumer), "uid");
    let judge = |consumer: &Value, at: &Path<'_>, errors: &mut Errors| {
        for name in ["resource", "name", "uid"] {
            if text(object(consumer), name).is_empty() {
                errors.required(&at.child(name), "");
            }
        }
    };
    set(status, "reservedFor", CONSUMERS_MAX, &at, errors, judge, uid, shown);
    let known = allocated(status);
    let judge = |item: &Value, at: &Path<'_>, errors: &mut Errors| {
        device_status(object(item), &known, at, errors);
    };
    set(status, "devices", usize::MAX, &at, errors, judge, |item| device(object(item)), shown_device);
    let reserved = items(status, "reservedFor");
    let reserved_at = at.child("reservedFor");
    let allocation = given(status, "allocation");
    if !reserved.is_empty() {
        if allocation.is_none() {
            errors.forbidden(&reserved_at, "may not be specified when `allocated` is not set");
        } else if given(child(claim, "metadata"), "deletionTimestamp").is_some() {
            let had = before.map(|before| items(before, "reservedFor")).unwrap_or_default();
            // Both are short.
            if reserved.iter().any(|consumer| !had.contains(consumer)) {
                let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
                errors.forbidden(&reserved_at, why);
            }
        }
    }
    let allocation_at = at.child("allocation");
    match (before.and_then(|before| given(before, "allocation")), allocation) {
        (Some(before), Some(after)) if !same(Some(after), Some(before)) => {
            errors.invalid_value(&allocation_at, after, IMMUTABLE);
        }
        (None, Some(Value::Object(allocation))) => {
            let requests = Requests::of(child(child(claim, "spec"), "devices"));
            self::allocation(allocation, &requests, &allocation_at, errors);
        }
        _ => {}
    }
}

fn allocation(allocation: &Object, requests: &Requests<'_>, at: &Path<'_>, errors: &mut Errors) {
    let devices = child(allocation, "devices");
    let devices_at = at.child("devices");
    list(devices, "results", RESULTS_MAX, &devices_at, errors, |result, at, errors| {
        let result = object(result);
        requests.judge(text(result, "request"), &at.child("request"), errors);
        device_name(result, at, errors);
        binding_conditions(result, at, errors);
        share_id(result, at, errors);
    });
    list(devices, "config", 2 * CONSTRAINTS_MAX, &devices_at, errors, |config, at, errors| {
        let config = object(config);
        match text(config, "source") {
            "" => errors.required(&at.child("source"), ""),
            "FromClaim" | "FromClass" => {}
            other => errors.not_supported(&at.child("source"), other, &["FromClaim", "FromClass"]),
        }
        requests.judge_list(config, at, errors);
        configuration(config, true, at, errors);
    });
    if let Some(Value::Object(nodes)) = given(allocation, "nodeSelector") {
        formats::node_selector(nodes, true, &at.child("nodeSelector"), errors);
    }
}

fn device_name(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    driver_name(text(holder, "driver"), &at.child("driver"), errors);
    pool_name(text(holder, "pool"), &at.child("pool"), errors);
    label(text(holder, "device"), &at.child("device"), errors);
}

fn share_id(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(id) = given(holder, "shareID").and_then(Value::as_str) else { return };
    let at = at.child("shareID");
    let dashes = [8, 13, 18, 23];
    let bytes = id.as_bytes();
    let digits = |id: &[u8]| id.iter().all(u8::is_ascii_hexdigit);
    let grouped = bytes.len() == 36
        && bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| if dashes.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() });
    if grouped && id == id.to_lowercase() {
        return;
    }
    // Other forms are read by the library, and refused as not normal.
    let inner = match bytes.len() {
        38 => id.strip_prefix('{').and_then(|id| id.strip_suffix('}')),
        45 => id.get(..9).filter(|prefix| prefix.eq_ignore_ascii_case("urn:uuid:")).and(id.get(9..)),
        _ => None,
    };
    let inner_grouped = inner.is_some_and(|inner| {
        inner
            .bytes()
            .enumerate()
            .all(|(at, byte)| if dashes.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
    });
    if grouped || (bytes.len() == 32 && digits(bytes)) || inner_grouped {
        let why = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        return errors.invalid(&at, id, why);
    }
    let why = match bytes.len() {
        32 | 36 => "invalid UUID format".to_owned(),
        38 if inner.is_none() => "invalid bracketed UUID format".to_owned(),
        38 => "invalid UUID format".to_owned(),
        45 if inner.is_none() => format!("invalid urn prefix: {}", quote(id.get(..9).unwrap_or_default())),
        45 => "invalid UUID format".to_owned(),
        length => format!("invalid UUID length: {length}"),
    };
    errors.invalid(&at, id, format_args!("error validating uid: {why}"));
}

fn device_status(status: &Object, known: &HashSet<Device<'_>>, at: &Path<'_>, errors: &mut Errors) {
    device_name(status, at, errors);
    share_id(status, at, errors);
    let device = device(status);
    if !known.contains(&device) {
        errors.invalid_value(at, shown_device(&device), "must be an allocated device in the claim");
    }
    let count = items(status, "conditions").len();
    if count > CONDITIONS_MAX {
        errors.too_many(&at.child("conditions"), count, CONDITIONS_MAX);
    }
    super::conditions(status, &format!("{at}."), errors);
    if let Some(data) = given(status, "data") {
        raw(Some(data), true, &at.child("data"), errors);
    }
    let Some(Value::Object(network)) = given(status, "networkData") else { return };
    let at = at.child("networkData");
    for (name, max) in [("interfaceName", INTERFACE_BYTES_MAX), ("hardwareAddress", HARDWARE_ADDRESS_BYTES_MAX)] {
        if text(network, name).len() > max {
            errors.too_long(&at.child(name), max);
        }
    }
    let judge = |address: &Value, at: &Path<'_>, errors: &mut Errors| interface_address(itself(address), at, errors);
    set(network, "ips", ADDRESSES_MAX, &at, errors, judge, itself, shown);
}

/// Conditions by which a device is known to be bound to a node, or not to become so.
fn binding_conditions(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    const LISTS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    for name in LISTS {
        list(holder, name, BINDING_CONDITIONS_MAX, at, errors, |condition, at, errors| {
            qualified_name(itself(condition), at, errors);
        });
    }
    let [good, bad] = LISTS.map(|name| items(holder, name));
    let all_good: HashSet<&str> = good.iter().map(itself).collect();
    for (name, conditions) in LISTS.into_iter().zip([good, bad]) {
        let list_at = at.child(name);
        let mut seen = HashSet::new();
        for (index, condition) in conditions.iter().map(itself).enumerate() {
            if !seen.insert(condition) {
                errors.duplicate(&list_at.index(index), condition);
            }
            if name == LISTS[1] && all_good.contains(condition) {
                let why = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(&list_at.index(index), condition, why);
            }
        }
    }
    let empty = |name: &str| json(holder.get(name));
    match (good.is_empty(), bad.is_empty()) {
        (true, false) => {
            let why = "bindingConditions are required to use bindingFailureConditions";
            errors.invalid_value(&at.child(LISTS[0]), empty(LISTS[0]), why);
        }
        (false, true) => {
            let why = "bindingFailureConditions are required to use bindingConditions";
            errors.invalid_value(&at.child(LISTS[1]), empty(LISTS[1]), why);
        }
        _ => {}
    }
}
