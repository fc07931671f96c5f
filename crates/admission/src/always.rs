//! AlwaysDeny: rejects every write (`plugin/pkg/admission/deny`). AlwaysAdmit needs no code.

use listwatch_meta::Status;
use listwatch_validation::Object;

use super::AdmissionRequest;
use super::plugin::{Mutator, Validator};

/// The plugin that rejects every write.
pub(super) struct AlwaysDeny;

const WHY: &str = "admission control is denying all modifications";

impl Mutator for AlwaysDeny {
    const NAME: &'static str = "AlwaysDeny";

    fn concerns(_: &AdmissionRequest<'_>) -> bool {
        true
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        Err(request.forbid(object, WHY))
    }
}

impl Validator for AlwaysDeny {
    const NAME: &'static str = "AlwaysDeny";

    fn concerns(_: &AdmissionRequest<'_>) -> bool {
        true
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        Err(request.forbid(object, WHY))
    }
}
