//! CSIStorageCapacity (`storage.k8s.io/v1`): the free capacity of a driver in a part of the cluster.
//!
//! Source: `pkg/registry/storage/csistoragecapacity/strategy.go`, `ValidateCSIStorageCapacity` in
//! `pkg/apis/storage/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::{
    IMMUTABLE, amount, is_invalid_selector, json as go_json, label_selector, not_negative_amount, same, subdomain,
};
use listwatch_validation::{Errors, Object, given, text};

use crate::Kind;
use listwatch_printers::Printer;
use listwatch_printers::text::UNSET;
use listwatch_printers::{Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    validate,
    warnings: listwatch_kind_warnings::storage::of_capacity,
    printer: &PRINTER,
    ..Kind::namespaced("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
};

fn validate(capacity: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (topology_at, class_at) = (Path::root("nodeTopology"), Path::root("storageClassName"));
    let values_too = old.is_none_or(|old| !is_invalid_selector(old.get("nodeTopology")));
    label_selector(capacity.get("nodeTopology"), values_too, &topology_at, errors);
    let class = text(capacity, "storageClassName");
    subdomain(class, &class_at, errors);
    if let Some(amount) = given(capacity, "capacity").map(amount) {
        not_negative_amount(amount, &Path::root("capacity"), errors);
    }
    let Some(old) = old else { return };
    if !same(capacity.get("nodeTopology"), old.get("nodeTopology")) {
        errors.invalid_value(&topology_at, go_json(capacity.get("nodeTopology")), IMMUTABLE);
    }
    if text(old, "storageClassName") != class {
        errors.invalid(&class_at, class, IMMUTABLE);
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("StorageClassName", "The class that has this capacity."),
        Column::text("Capacity", "How much is left."),
    ],
    cells: |capacity| {
        vec![
            capacity.name().into(),
            capacity.get("storageClassName").string().into(),
            capacity.get("capacity").scalar().unwrap_or_else(|| UNSET.to_owned()).into(),
        ]
    },
};
