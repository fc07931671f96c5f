//! Decides whether a policy plugin handles a request. ValidatingAdmissionPolicy and MutatingAdmissionPolicy share this
//! code.

use listwatch_admission::AdmissionRequest;
use listwatch_policies::is_exempt;

use crate::policies::{AdmissionPolicies, CompiledPolicy};

/// Whether a policy with a binding has a rule for the operation and the resource of the request.
pub(crate) fn handles<P: CompiledPolicy>(policies: &AdmissionPolicies<P>, request: &AdmissionRequest<'_>) -> bool {
    if policies.is_empty() {
        return false;
    }
    let requested = request.details.requested();
    if is_exempt(requested.group, requested.resource) {
        return false;
    }
    let snapshot = policies.snapshot();
    snapshot.candidates(request.operation, &requested, &request.details.equivalents()).next().is_some()
}
