//! Rules and cells for the load balancer in the status of Services and Ingresses.
//!
//! Source: `ValidateLoadBalancerStatus` in `pkg/apis/core/validation`, `ValidateIngressLoadBalancerStatus` in
//! `pkg/apis/networking/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::{sloppy_ip, subdomain};
use listwatch_validation::{Errors, Object, text};

use listwatch_printers::Json;
use listwatch_printers::text::or;

/// Validates the host name of a load balancer.
pub(crate) fn validate_hostname(point: &Object, at: &Path<'_>, errors: &mut Errors) {
    let name = text(point, "hostname");
    if !name.is_empty() {
        subdomain(name, &at.child("hostname"), errors);
        if sloppy_ip(name).is_some() {
            errors.invalid(&at.child("hostname"), name, "must be a DNS name, not an IP address");
        }
    }
}

/// The addresses or host names of the load balancer, sorted.
pub(crate) fn addresses_cell(ingress: Json<'_>) -> String {
    let address = |ingress: &Json<'_>| or(ingress.get("ip").string(), &ingress.get("hostname").string());
    let mut addresses: Vec<String> = ingress.items().iter().map(address).filter(|text| !text.is_empty()).collect();
    addresses.sort();
    addresses.dedup();
    addresses.join(",")
}
