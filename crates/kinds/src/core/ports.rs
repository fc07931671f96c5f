//! Rules that the ports of Services, Endpoints and EndpointSlices share.
//!
//! Source: `pkg/apis/core/validation`, `pkg/apis/discovery/validation`.

use listwatch_schema::Path;
use listwatch_validation::field_rules::required_one_of;
use listwatch_validation::formats::qualified_name;
use listwatch_validation::{Errors, Object, given, text};

/// Validates the protocol of a port. An absent protocol is an error, because defaults set it.
pub(crate) fn validate_protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    required_one_of(port, "protocol", &["SCTP", "TCP", "UDP"], at, errors);
}

/// Validates the application protocol of a port.
pub(crate) fn validate_app_protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    if given(port, "appProtocol").is_some() {
        qualified_name(text(port, "appProtocol"), &at.child("appProtocol"), errors);
    }
}
