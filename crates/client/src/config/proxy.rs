//! The proxy settings of the environment: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, in upper or
//! lower case, interpreted as by Go programs.

use std::net::IpAddr;

use http::Uri;

use super::{ConfigError, is_local};
use crate::transport::ProxyUrl;

/// The proxy of the environment for this server: `HTTPS_PROXY` for `https://`, `HTTP_PROXY` for
/// `http://`. Servers on this machine and servers in `NO_PROXY` have no proxy. Entries of
/// `NO_PROXY` are separated by commas: `*`, a name (with all its subdomains), an address, or a
/// network (`10.0.0.0/8`), each with an optional port.
pub(super) fn from_environment(
    server: &Uri,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<ProxyUrl>, ConfigError> {
    let given = |name: &str| {
        let found = variable(name).filter(|value| !value.is_empty());
        found.or_else(|| variable(&name.to_lowercase()).filter(|value| !value.is_empty()))
    };
    let name = if server.scheme_str() == Some("https") { "HTTPS_PROXY" } else { "HTTP_PROXY" };
    let Some(url) = given(name) else { return Ok(None) };
    if is_local(server) || given("NO_PROXY").is_some_and(|list| is_no_proxy(server, &list)) {
        return Ok(None);
    }
    // Go treats a value without a scheme as `http://`.
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    let invalid = |why: String| ConfigError::invalid(format!("the environment variable {name}"), why);
    ProxyUrl::parse(&url).map(Some).map_err(invalid)
}

fn is_no_proxy(server: &Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_lowercase();
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("https") { 443 } else { 80 });
    let address: Option<IpAddr> = host.parse().ok();
    list.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some(address), Some((network, bits))) = (address, entry.split_once('/')) {
            return is_within(address, network, bits);
        }
        let (name, only) = match entry.rsplit_once(':') {
            // An IPv6 address contains colons itself.
            Some((name, only)) if !name.contains(':') || name.ends_with(']') => (name.to_owned(), only.parse().ok()),
            _ => (entry.clone(), None),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if only.is_some_and(|only: u16| only != port) {
            return false;
        }
        if let Some(address) = address {
            return name.parse() == Ok(address);
        }
        let name = name.trim_start_matches('*');
        match name.strip_prefix('.') {
            Some(below) => host.strip_suffix(below).is_some_and(|rest| rest.ends_with('.')),
            None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
        }
    })
}

fn is_within(address: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(server: &str, environment: &[(&str, &str)], expected: bool) {
        let variable =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let found = from_environment(&server.parse().unwrap(), &variable).unwrap();
        assert_eq!(found.is_some(), expected, "{server} with {environment:?}");
    }

    #[test]
    fn proxy_is_taken_from_the_environment_per_scheme() {
        check("https://far:6443", &[], false);
        check("https://far:6443", &[("HTTPS_PROXY", "http://p:1")], true);
        check("https://far:6443", &[("https_proxy", "p:1")], true);
        check("https://far:6443", &[("HTTPS_PROXY", ""), ("https_proxy", "p:1")], true);
        check("https://far:6443", &[("HTTP_PROXY", "http://p:1")], false);
        check("http://far:80", &[("HTTP_PROXY", "http://p:1")], true);
        for local in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            check(local, &[("HTTPS_PROXY", "http://p:1")], false);
        }
        let odd = from_environment(&"https://far".parse().unwrap(), &|_| Some("ftp://p".to_owned())).unwrap_err();
        assert_eq!(
            odd.to_string(),
            "the environment variable HTTPS_PROXY: proxies are reached by http:// or socks5://, not by ftp://"
        );
    }

    #[test]
    fn no_proxy_exempts_listed_servers() {
        let not = |server: &str, list: &str, excepted: bool| {
            check(server, &[("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", list)], !excepted);
        };
        not("https://far.example.com", "*", true);
        not("https://far.example.com", "example.com", true);
        not("https://far.example.com", ".example.com", true);
        not("https://example.com", ".example.com", false);
        not("https://FAR.example.com", "other, far.EXAMPLE.com", true);
        not("https://notexample.com", "example.com", false);
        not("https://far:6443", "far:6443", true);
        not("https://far:6443", "far:443", false);
        not("https://10.1.2.3:6443", "10.0.0.0/8", true);
        not("https://11.1.2.3:6443", "10.0.0.0/8", false);
        not("https://10.1.2.3", "0.0.0.0/0", true);
        not("https://10.1.2.3", "10.1.2.3", true);
        not("https://[fd00::7]:6443", "fd00::/8", true);
        not("https://[fd00::7]:6443", "fd00::7", true);
        not("https://[fd00::7]:6443", "[fd00::7]:6443", true);
        not("https://10.1.2.3", "10.1.2.3/99", false);
        not("https://[fd00::107]", "fd00::100/120", true);
        not("https://[fd00::107]", "fd00::200/120", false);
        not("https://[fd00::107]", "::/0", true);
        not("https://[fd00::107]", "fd00::107/129", false);
        // The port of a URL without one is that of its scheme.
        not("https://far", "far:443", true);
        not("https://far", "far:80", false);
        check("http://far", &[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "far:80")], false);
        check("http://far", &[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "far:443")], true);
    }
}
