//! Rules and cells that PersistentVolumes and PersistentVolumeClaims share.
//!
//! Source: `pkg/apis/core/validation`, `pkg/printers/internalversion`.

use listwatch_schema::Path;
use listwatch_validation::Errors;
use listwatch_validation::formats::whole;

use listwatch_printers::Json;

/// The annotation that the field `storageClassName` replaced.
pub(crate) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Validates an amount, which must not be negative (`validateBasicResource`). Returns whether the amount is valid.
pub(crate) fn validate_basic_amount(amount: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let units = whole(amount);
    if units < 0 {
        errors.invalid_value(at, units, "must be a valid resource quantity");
    }
    units >= 0
}

/// The cell of the class of a volume or claim. The annotation takes precedence over the field.
pub(crate) fn class_cell(annotation: Json<'_>, spec: Json<'_>) -> String {
    if annotation.exists() { annotation.string() } else { spec.get("storageClassName").string() }
}

/// The cell of the access modes, abbreviated.
pub(crate) fn access_modes_cell(modes: Json<'_>) -> String {
    let modes = modes.items();
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
        .into_iter()
        .filter(|(mode, _)| modes.iter().any(|own| own.is(mode)))
        .map(|(_, short)| short)
        .collect::<Vec<_>>()
        .join(",")
}
