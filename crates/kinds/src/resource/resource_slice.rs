//! ResourceSlice (`resource.k8s.io/v1`): the devices that a driver offers in one pool.
//!
//! Upstream: `pkg/registry/resource/resourceslice/strategy.go`, `ValidateResourceSlice` in
//! `pkg/apis/resource/validation`.

use listwatch_validation::clock::timestamp;
use listwatch_validation::{Object, given};
use serde_json::Value;

use crate::defaults::Default::{If, Number};
use crate::defaults::Defaults;
use crate::printers::Printer;
use crate::table::{AGE, Column, NAME};
use crate::validate::devices;
use crate::{Field, Kind};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    fields: &[Field { indexed: true, ..Field::new("spec.nodeName") }, Field::new("spec.driver")],
    defaults: &DEFAULTS,
    prepare_for_create: |slice, context| prepare(slice, context.now),
    prepare_for_update: |slice, _, context| prepare(slice, &timestamp(context.now)),
    validate: devices::resource_slice,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC))]);
static SPEC: Defaults = Defaults(&[("pool", If(&POOL))]);
static POOL: Defaults = Defaults(&[("generation", Number(0))]);

/// Removes the fields of alpha features: lists of attribute values, and mappings to node resources.
/// Sets the missing `timeAdded` of taints.
fn prepare(slice: &mut Object, now: &str) {
    let Some(devices) = slice.get_mut("spec").and_then(|spec| spec.get_mut("devices")?.as_array_mut()) else { return };
    for device in devices.iter_mut().filter_map(Value::as_object_mut) {
        device.shift_remove("nodeAllocatableResourceMappings");
        let taints = device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten();
        for taint in taints.filter_map(Value::as_object_mut).filter(|taint| given(taint, "timeAdded").is_none()) {
            taint.insert("timeAdded".to_owned(), Value::from(now));
        }
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut).into_iter();
        for attribute in attributes.flat_map(|attributes| attributes.values_mut()).filter_map(Value::as_object_mut) {
            for name in ["bools", "ints", "strings", "versions"] {
                attribute.shift_remove(name);
            }
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
