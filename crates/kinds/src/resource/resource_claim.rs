//! ResourceClaim (`resource.k8s.io/v1`): requests devices, and records which devices are allocated.
//!
//! Source: `pkg/registry/resource/resourceclaim/strategy.go`, `ValidateResourceClaim` and
//! `ValidateResourceClaimStatusUpdate` in `pkg/apis/resource/validation`.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::field_rules::required_one_of;
use listwatch_validation::formats::{self, IMMUTABLE, interface_address, json, same};
use listwatch_validation::{Errors, Object, child, given, items, objects, text};

use super::claim_spec::{self, Requests};
use super::devices::{
    CONSTRAINTS_MAX, binding_conditions, configuration, device_id, list, object, quoted_key, raw_extension, set,
    string_of,
};
use crate::defaults::Default::If;
use crate::defaults::Defaults;
use crate::{Kind, Subresource, UpdateContext, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    prepare_for_update,
    validate,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&claim_spec::DEFAULTS))]);

/// The largest number of consumers for which one claim is reserved.
const CONSUMERS_MAX: usize = 256;
/// The largest number of devices that are allocated for one claim.
const RESULTS_MAX: usize = 32;
/// The largest number of conditions of one device.
const CONDITIONS_MAX: usize = 8;
/// The largest size of the name of a network interface, in bytes.
const INTERFACE_BYTES_MAX: usize = 256;
/// The largest size of a hardware address, in bytes.
const HARDWARE_ADDRESS_BYTES_MAX: usize = 128;
/// The largest number of addresses of one network device.
const ADDRESSES_MAX: usize = 16;

fn validate(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("spec");
    match old {
        None => claim_spec::validate(child(claim, "spec"), &at, errors),
        Some(old) if !same(claim.get("spec"), old.get("spec")) => {
            errors.invalid_value(&at, json(claim.get("spec")), IMMUTABLE);
        }
        Some(_) => {}
    }
}

/// The driver, pool, name and share that identify an allocated device.
type Device<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);

fn device(holder: &Object) -> Device<'_> {
    let share = given(holder, "shareID").and_then(Value::as_str);
    (text(holder, "driver"), text(holder, "pool"), text(holder, "device"), share)
}

/// A device as Go prints upstream's type `structured.SharedDeviceID`.
fn shown_device(&(driver, pool, device, share): &Device<'_>) -> String {
    let [driver, pool, device, share] = [driver, pool, device, share.unwrap_or_default()].map(Value::from);
    format!("{{\"Driver\":{driver},\"Pool\":{pool},\"Device\":{device},\"ShareID\":{share}}}")
}

fn allocated(status: &Object) -> HashSet<Device<'_>> {
    let devices = child(child(status, "allocation"), "devices");
    objects(devices, "results").map(|(_, result)| device(result)).collect()
}

/// Removes the status of devices that a write to `/status` deallocates (`dropDeallocatedStatusDevices`).
fn prepare_for_update(claim: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource != Some(&Subresource::Status) {
        return;
    }
    let status = child(claim, "status");
    let (before, after) = (allocated(child(old, "status")), allocated(status));
    let is_gone = |item: &Value| {
        let device = device(object(item));
        before.contains(&device) && !after.contains(&device)
    };
    let devices = items(status, "devices");
    if !devices.iter().any(is_gone) {
        return;
    }
    let kept: Vec<Value> = devices.iter().filter(|item| !is_gone(item)).cloned().collect();
    let Some(Value::Object(status)) = claim.get_mut("status") else { return };
    if kept.is_empty() {
        status.shift_remove("devices");
    } else {
        status.insert("devices", Value::Array(kept));
    }
}

fn validate_status(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let status = child(claim, "status");
    let before = old.map(|old| child(old, "status"));
    let at = Path::root("status");
    let uid = |consumer| text(object(consumer), "uid");
    let validate = |consumer: &Value, at: &Path<'_>, errors: &mut Errors| {
        for name in ["resource", "name", "uid"] {
            if text(object(consumer), name).is_empty() {
                errors.required(&at.child(name), "");
            }
        }
    };
    set(status, "reservedFor", CONSUMERS_MAX, &at, errors, validate, uid, quoted_key);
    let known = allocated(status);
    let validate = |item: &Value, at: &Path<'_>, errors: &mut Errors| {
        device_status(object(item), &known, at, errors);
    };
    set(status, "devices", usize::MAX, &at, errors, validate, |item| device(object(item)), shown_device);
    let reserved = items(status, "reservedFor");
    let reserved_at = at.child("reservedFor");
    let allocation = given(status, "allocation");
    if !reserved.is_empty() {
        if allocation.is_none() {
            errors.forbidden(&reserved_at, "may not be specified when `allocated` is not set");
        } else if given(child(claim, "metadata"), "deletionTimestamp").is_some() {
            // A search per consumer is cheap: both lists have at most CONSUMERS_MAX items.
            let had = before.map(|before| items(before, "reservedFor")).unwrap_or_default();
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
            validate_allocation(allocation, &Requests::of(child(claim, "spec")), &allocation_at, errors);
        }
        _ => {}
    }
}

fn validate_allocation(allocation: &Object, requests: &Requests<'_>, at: &Path<'_>, errors: &mut Errors) {
    let devices = child(allocation, "devices");
    let devices_at = at.child("devices");
    list(devices, "results", RESULTS_MAX, &devices_at, errors, |result, at, errors| {
        let result = object(result);
        requests.validate_name(text(result, "request"), &at.child("request"), errors);
        device_id(result, at, errors);
        binding_conditions(result, at, errors);
        share_id(result, at, errors);
    });
    // A claim and its class can have CONSTRAINTS_MAX configurations each.
    list(devices, "config", 2 * CONSTRAINTS_MAX, &devices_at, errors, |config, at, errors| {
        let config = object(config);
        required_one_of(config, "source", &["FromClaim", "FromClass"], at, errors);
        requests.validate_list(config, at, errors);
        configuration(config, true, at, errors);
    });
    if let Some(Value::Object(nodes)) = given(allocation, "nodeSelector") {
        formats::node_selector(nodes, true, &at.child("nodeSelector"), errors);
    }
}

/// Validates a share id: a UUID in lowercase. The errors are those of `github.com/google/uuid`.
fn share_id(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(id) = given(holder, "shareID").and_then(Value::as_str) else { return };
    let at = at.child("shareID");
    let is_grouped = |id: &str| {
        let is_dash = |at: usize| [8, 13, 18, 23].contains(&at);
        let mut bytes = id.bytes().enumerate();
        id.len() == 36 && bytes.all(|(at, byte)| if is_dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
    };
    if is_grouped(id) && id == id.to_lowercase() {
        return;
    }
    // The library also reads 32 digits, braces and URNs. Upstream then rejects them because they are not normal.
    let inner = match id.len() {
        38 => id.strip_prefix('{').and_then(|id| id.strip_suffix('}')),
        45 => id.get(..9).filter(|prefix| prefix.eq_ignore_ascii_case("urn:uuid:")).and(id.get(9..)),
        _ => None,
    };
    let is_digits = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_grouped(id) || is_digits || inner.is_some_and(is_grouped) {
        let why = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        return errors.invalid(&at, id, why);
    }
    let why = match id.len() {
        38 if inner.is_none() => "invalid bracketed UUID format".to_owned(),
        45 if inner.is_none() => format!("invalid urn prefix: {}", quote(id.get(..9).unwrap_or_default())),
        32 | 36 | 38 | 45 => "invalid UUID format".to_owned(),
        length => format!("invalid UUID length: {length}"),
    };
    errors.invalid(&at, id, format_args!("error validating uid: {why}"));
}

fn device_status(status: &Object, known: &HashSet<Device<'_>>, at: &Path<'_>, errors: &mut Errors) {
    device_id(status, at, errors);
    share_id(status, at, errors);
    let device = device(status);
    if !known.contains(&device) {
        errors.invalid_value(at, shown_device(&device), "must be an allocated device in the claim");
    }
    let count = items(status, "conditions").len();
    if count > CONDITIONS_MAX {
        errors.too_many(&at.child("conditions"), count, CONDITIONS_MAX);
    }
    listwatch_validation::conditions(status, &format!("{at}."), errors);
    if let Some(data) = given(status, "data") {
        raw_extension(Some(data), true, &at.child("data"), errors);
    }
    let Some(Value::Object(network)) = given(status, "networkData") else { return };
    let at = at.child("networkData");
    for (name, max) in [("interfaceName", INTERFACE_BYTES_MAX), ("hardwareAddress", HARDWARE_ADDRESS_BYTES_MAX)] {
        if text(network, name).len() > max {
            errors.too_long(&at.child(name), max);
        }
    }
    let validate =
        |address: &Value, at: &Path<'_>, errors: &mut Errors| interface_address(string_of(address), at, errors);
    set(network, "ips", ADDRESSES_MAX, &at, errors, validate, string_of, quoted_key);
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("State", "Whether devices are allocated and reserved."), AGE],
    cells: |claim| {
        let status = claim.status();
        let allocated = status.get("allocation").exists();
        let states = [
            (claim.is_being_deleted(), "deleted"),
            (!allocated && !claim.is_being_deleted(), "pending"),
            (allocated, "allocated"),
            (allocated && status.get("reservedFor").count() > 0, "reserved"),
        ];
        let state: Vec<&str> = states.into_iter().filter(|(is, _)| *is).map(|(_, state)| state).collect();
        vec![claim.name().into(), state.join(",").into(), claim.age().into()]
    },
};
