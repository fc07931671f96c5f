//! Warnings about IP addresses and CIDR ranges in other notations than the canonical one.
//!
//! Source: `GetWarningsForIP` and `GetWarningsForCIDR` in `apimachinery/pkg/util/validation/ip.go`.

use std::net::IpAddr;

use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::formats::{Range, sloppy_ip};

use crate::{Warnings, is_displayed_as};

/// Warns of an IP address. Validation reports a text that is not an address.
pub(crate) fn add_ip(text: &str, at: &Path<'_>, warnings: &mut Warnings) {
    match text.parse() {
        Ok(IpAddr::V4(_)) => {}
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none() => {
            if !is_displayed_as(address, text) {
                let (text, canonical) = (quote(text), quote(&address.to_string()));
                warnings.add(format_args!(
                    "{at}: IPv6 address {text} should be in RFC 5952 canonical format ({canonical})"
                ));
            }
        }
        // Leading zeros, or IPv4 inside IPv6.
        Ok(IpAddr::V6(_)) | Err(_) => {
            let Some(address) = sloppy_ip(text) else { return };
            let (text, canonical) = (quote(text), quote(&address.to_canonical().to_string()));
            warnings.add(format_args!("{at}: non-standard IP address {text} is invalid: use {canonical}"));
        }
    }
}

/// Warns of a CIDR range. Validation reports a text that is not a range.
pub(crate) fn add_cidr(text: &str, at: &Path<'_>, warnings: &mut Warnings) {
    let Some(range) = Range::parse(text) else { return };
    let before = warnings.len();
    let (address, network) = (range.address, range.network());
    if address != network {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let (network, single) = (quote(&shown(range)), quote(&format!("{}/{bits}", address.to_canonical())));
        let text = quote(text);
        warnings.add(format_args!(
            "{at}: CIDR value {text} is ambiguous in this context (should be {network} or {single}?)"
        ));
    }
    let is_standard = text.split_once('/').is_some_and(|(address, prefix)| {
        let is_mapped = |address| matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
        address.parse().is_ok_and(|address| !is_mapped(address)) && (prefix == "0" || !prefix.starts_with('0'))
    });
    if !is_standard {
        let (text, network) = (quote(text), quote(&shown(range)));
        warnings.add(format_args!("{at}: non-standard CIDR value {text} is invalid: use {network}"));
    }
    let prefix = range.prefix;
    if warnings.len() == before && address.is_ipv6() && !is_displayed_as(format_args!("{address}/{prefix}"), text) {
        let (text, canonical) = (quote(text), quote(&format!("{address}/{prefix}")));
        warnings.add(format_args!("{at}: IPv6 CIDR value {text} should be in RFC 5952 canonical format ({canonical})"));
    }
}

/// Formats the network of a range as Go does: IPv4 inside IPv6 as IPv4.
fn shown(range: Range) -> String {
    match range.network() {
        IpAddr::V6(network) => match network.to_ipv4_mapped() {
            Some(inner) => format!("{inner}/{}", range.prefix.saturating_sub(96)),
            None => format!("{network}/{}", range.prefix),
        },
        IpAddr::V4(network) => format!("{network}/{}", range.prefix),
    }
}
