//! CSINode (`storage.k8s.io/v1`): the CSI drivers of a node.
//!
//! Source: `pkg/registry/storage/csinode/strategy.go`, `ValidateCSINode` in `pkg/apis/storage/validation`.

use std::collections::{HashMap, HashSet};

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::{
    IMMUTABLE, NOT_NEGATIVE, driver_name, is_full, json as go_json, qualified_name, same,
};
use listwatch_validation::{Errors, Object, child, items, number, objects, text};

use crate::Kind;
use crate::defaults::Default::{Each, If};
use crate::defaults::{Defaults, NULL};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    defaults: &DEFAULTS,
    validate,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "csinodes", "CSINode")
};

/// The largest size of the node ID of a driver, in bytes.
const NODE_ID_BYTES_MAX: usize = 256;

static DRIVER_DEFAULTS: Defaults = Defaults(&[("topologyKeys", NULL)]);

static SPEC_DEFAULTS: Defaults = Defaults(&[("drivers", Each(&DRIVER_DEFAULTS))]);

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

fn validate(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec_at = Path::root("spec");
    let drivers_at = spec_at.child("drivers");
    let drivers = |node| objects(child(node, "spec"), "drivers");
    let mut names = HashSet::new();
    for (index, driver) in drivers(node) {
        let at = drivers_at.index(index);
        let name = text(driver, "name");
        driver_name(name, &at.child("name"), errors);
        let (id, id_at) = (text(driver, "nodeID"), at.child("nodeID"));
        if id.is_empty() {
            errors.required(&id_at, "");
        }
        if id.len() > NODE_ID_BYTES_MAX {
            errors.invalid(&id_at, id, format_args!("must be {NODE_ID_BYTES_MAX} characters or less"));
        }
        let allocatable_at = at.child("allocatable");
        if let Some(count) = number(child(driver, "allocatable"), "count").filter(|count| *count < 0) {
            errors.invalid_value(&allocatable_at.child("count"), count, NOT_NEGATIVE);
        }
        if !names.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let mut keys = HashSet::new();
        for key in items(driver, "topologyKeys").iter().map(|key| key.as_str().unwrap_or_default()) {
            if is_full(errors) {
                return;
            }
            if key.is_empty() {
                errors.required(&at, "");
            }
            if !keys.insert(key) {
                errors.duplicate(&at, key);
            }
            qualified_name(key, &at, errors);
        }
    }
    let Some(old) = old else { return };
    let mut by_name: HashMap<&str, Vec<&Object>> = HashMap::new();
    for (_, driver) in drivers(node) {
        by_name.entry(text(driver, "name")).or_default().push(driver);
    }
    let fixed = |driver: &Object| {
        let mut driver = driver.clone();
        driver.shift_remove("allocatable");
        Value::Object(driver)
    };
    for (_, before) in drivers(old) {
        let before_fixed = fixed(before);
        for driver in by_name.get(text(before, "name")).into_iter().flatten() {
            let driver = fixed(driver);
            if !same(Some(&driver), Some(&before_fixed)) {
                errors.invalid_value(&drivers_at, go_driver(&driver), IMMUTABLE);
            }
        }
    }
}

/// A driver as Go prints upstream's internal type, without JSON names.
fn go_driver(driver: &Value) -> String {
    let text = |name: &str| go_json(Some(driver.get(name).unwrap_or(&Value::from(""))));
    format!(
        "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":null}}",
        text("name"),
        text("nodeID"),
        go_json(driver.get("topologyKeys"))
    )
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::integer("Drivers", "How many drivers the node has."), AGE],
    cells: |node| vec![node.name().into(), node.at("spec.drivers").count().into(), node.age().into()],
};
