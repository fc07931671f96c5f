//! Validates references from networking kinds to other objects.
//!
//! Source: `pkg/apis/networking/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::{path_segment, subdomain};
use listwatch_validation::{Errors, Object, given, text};

/// Validates the group, kind and name of an object in the same namespace.
pub(crate) fn validate_local_reference(reference: &Object, at: &Path<'_>, errors: &mut Errors) {
    if given(reference, "apiGroup").is_some() {
        subdomain(text(reference, "apiGroup"), &at.child("apiGroup"), errors);
    }
    for name in ["kind", "name"] {
        validate_required_segment(reference, name, at, errors);
    }
}

/// Validates a required member that becomes one segment of a path.
pub(crate) fn validate_required_segment(object: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match text(object, name) {
        "" => errors.required(&at.child(name), ""),
        value => path_segment(value, &at.child(name), errors),
    }
}
