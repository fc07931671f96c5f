//! Rules that StorageClasses and VolumeAttributesClasses share: names of drivers, parameters.
//!
//! Source: `pkg/apis/storage/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::qualified_name;
use listwatch_validation::{Errors, Object, child, text};

/// The largest number of parameters of one class.
const PARAMETERS_MAX: usize = 512;

/// The largest size of the names and values of all parameters of one class, in bytes.
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

/// Validates a required member that is the name of a driver.
pub(crate) fn validate_driver(class: &Object, name: &str, errors: &mut Errors) {
    match text(class, name) {
        "" => errors.required(&Path::root(name), ""),
        provisioner => qualified_name(&provisioner.to_lowercase(), &Path::root(name), errors),
    }
}

/// Validates `parameters`.
pub(crate) fn validate_parameters(class: &Object, may_be_empty: bool, errors: &mut Errors) {
    let at = Path::root("parameters");
    let parameters = child(class, "parameters");
    if parameters.len() > PARAMETERS_MAX {
        return errors.too_long(&at, PARAMETERS_MAX);
    }
    if parameters.contains_key("") {
        errors.invalid(&at, "", "field can not be empty.");
    }
    if byte_count(parameters) > PARAMETERS_BYTES_MAX {
        errors.too_long(&at, PARAMETERS_BYTES_MAX);
    }
    if !may_be_empty && parameters.is_empty() {
        errors.required(&at, "must contain at least one key/value pair");
    }
}

/// The bytes of all names and values.
pub(crate) fn byte_count(texts: &Object) -> usize {
    texts.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum()
}
