//! VolumeAttributesClass (`storage.k8s.io/v1`): changeable attributes of volumes.
//!
//! Source: `pkg/registry/storage/volumeattributesclass/strategy.go`, `ValidateVolumeAttributesClass` in
//! `pkg/apis/storage/validation`.

use listwatch_meta::FieldError;
use listwatch_validation::formats::same;
use listwatch_validation::{Errors, Object, text};

use crate::Kind;
use crate::storage::class_parameters::{validate_driver, validate_parameters};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["vac"],
    validate,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass")
};

fn validate(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    if let Some(old) = old {
        if text(old, "driverName") != text(class, "driverName") {
            errors.push(FieldError::forbidden("driverName", "updates to driverName are forbidden."));
        }
        if !same(old.get("parameters"), class.get("parameters")) {
            errors.push(FieldError::forbidden("parameters", "updates to parameters are forbidden."));
        }
    }
    validate_driver(class, "driverName", errors);
    validate_parameters(class, false, errors);
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("DriverName", "The driver that the attributes are for."), AGE],
    cells: |class| vec![class.name().into(), class.get("driverName").string().into(), class.age().into()],
};
