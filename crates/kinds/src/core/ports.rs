//! Fields that the ports of Services, Endpoints and EndpointSlices share.
//!
//! Upstream: `pkg/apis/core/validation`, `pkg/apis/discovery/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::qualified_name;
use listwatch_validation::{Errors, Object, given, text};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Validates the protocol of a port. Defaults have set it.
pub(crate) fn validate_protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    match text(port, "protocol") {
        "" => errors.required(&at.child("protocol"), ""),
        protocol if PROTOCOLS.contains(&protocol) => {}
        other => errors.not_supported(&at.child("protocol"), other, &PROTOCOLS),
    }
}

/// Validates the application protocol of a port.
pub(crate) fn validate_app_protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    if given(port, "appProtocol").is_some() {
        qualified_name(text(port, "appProtocol"), &at.child("appProtocol"), errors);
    }
}
