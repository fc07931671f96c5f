//! DeviceClass (`resource.k8s.io/v1`): selectors and driver parameters that requests for devices refer to.
//!
//! Source: `pkg/registry/resource/deviceclass/strategy.go`, `ValidateDeviceClass` in `pkg/apis/resource/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::same;
use listwatch_validation::resource_names::is_extended;
use listwatch_validation::{Errors, Object, child, given};

use super::devices::{CONSTRAINTS_MAX, configuration, list, object, selectors};
use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    validate,
    printer: &listwatch_printers::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
};

fn validate(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(class, "spec");
    let at = Path::root("spec");
    let is_new = |name: &str| old.is_none_or(|old| !same(spec.get(name), child(old, "spec").get(name)));
    selectors(spec, is_new("selectors"), &at, errors);
    let config_is_new = is_new("config");
    list(spec, "config", CONSTRAINTS_MAX, &at, errors, |config, at, errors| {
        configuration(object(config), config_is_new, at, errors);
    });
    if let Some(name) = given(spec, "extendedResourceName").and_then(Value::as_str)
        && !is_extended(name)
    {
        errors.invalid(&at.child("extendedResourceName"), name, "must be a valid extended resource name");
    }
}
