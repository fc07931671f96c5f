//! The addresses of a client and of its proxies (`apimachinery/pkg/util/net.SourceIPs`).

use std::net::IpAddr;

/// The addresses in `X-Forwarded-For` (`forwarded_for`), then `X-Real-Ip` (`real_ip`), then the peer of the connection.
/// Only the first line of each header is read. Values that are not addresses are omitted. Clients choose the headers,
/// so only the last address can be trusted.
pub fn source_ips(forwarded_for: Option<&str>, real_ip: Option<&str>, peer: Option<IpAddr>) -> Vec<String> {
    let parse = |text: &str| text.trim().parse::<IpAddr>().ok();
    let mut found: Vec<IpAddr> = forwarded_for.unwrap_or_default().split(',').filter_map(parse).collect();
    if let Some(real) = real_ip.and_then(parse)
        && !found.contains(&real)
    {
        found.push(real);
    }
    if let Some(peer) = peer
        && found.last() != Some(&peer)
    {
        found.push(peer);
    }
    found.iter().map(IpAddr::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ips_list_header_addresses_before_the_peer() {
        let peer: IpAddr = "10.0.0.9".parse().unwrap();
        for (forwarded, real, expected) in [
            (None, None, "10.0.0.9"),
            (Some("1.1.1.1, x, ::1"), None, "1.1.1.1 ::1 10.0.0.9"),
            (Some("1.1.1.1"), Some("1.1.1.1"), "1.1.1.1 10.0.0.9"),
            (None, Some("2.2.2.2"), "2.2.2.2 10.0.0.9"),
            (Some("10.0.0.9"), None, "10.0.0.9"),
        ] {
            assert_eq!(source_ips(forwarded, real, Some(peer)).join(" "), expected, "{forwarded:?} {real:?}");
        }
        assert!(source_ips(None, None, None).is_empty());
    }
}
