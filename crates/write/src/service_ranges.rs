//! [`ServiceRanges`]: the ranges from which services get cluster addresses and node ports.
//!
//! Each range starts with a static band. Random allocation uses other values first, so that the band stays free for
//! users who choose a value (KEP-3070 for addresses, KEP-3668 for node ports).

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// The default range of cluster addresses: 10.96.0.0/16, which most clusters use.
const DEFAULT_NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const DEFAULT_PREFIX_BITS: u32 = 16;
/// The default range of node ports (`--service-node-port-range` of kube-apiserver).
const DEFAULT_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// The longest prefix, in bits: a /28 has 14 usable addresses.
const PREFIX_BITS_MAX: u32 = 28;
/// The shortest prefix, in bits: a /12, as in kube-apiserver (`maxCIDRBits` of 20).
const PREFIX_BITS_MIN: u32 = 12;
/// The size limits of the static band of addresses, in addresses (`calculateRangeOffset`).
const ADDRESS_BAND: RangeInclusive<u32> = 16..=256;
/// The size limits of the static band of node ports, in ports (`calculateRange` of the port allocator).
const PORT_BAND: RangeInclusive<u32> = 16..=128;

/// The ranges of cluster addresses (IPv4 only) and node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    network: u32,
    prefix_bits: u32,
    node_ports: RangeInclusive<u16>,
}

/// The error about a range that the allocator cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRange {
    /// The cluster addresses are not an IPv4 network in CIDR notation.
    #[error("{0:?} is not an IPv4 network such as 10.96.0.0/16; IPv6 and dual-stack ranges are not supported")]
    Addresses(String),
    /// The prefix of the network is not between 12 and 28 bits.
    #[error("the range {0:?} must have a prefix of {PREFIX_BITS_MIN} to {PREFIX_BITS_MAX} bits")]
    PrefixBits(String),
    /// The node ports are not a range between 1 and 65535.
    #[error("{0:?} is not a range of ports such as 30000-32767")]
    Ports(String),
}

impl Default for ServiceRanges {
    fn default() -> Self {
        ServiceRanges { network: DEFAULT_NETWORK, prefix_bits: DEFAULT_PREFIX_BITS, node_ports: DEFAULT_NODE_PORTS }
    }
}

impl ServiceRanges {
    /// Replaces the range of cluster addresses (`--service-cluster-ip-range`), e.g. `10.0.0.0/24`. Bits behind the
    /// prefix are ignored, as kube-apiserver ignores them.
    ///
    /// # Errors
    /// [`InvalidRange`] for anything but an IPv4 network with a prefix of 12 to 28 bits.
    pub fn with_cluster_addresses(self, cidr: &str) -> Result<Self, InvalidRange> {
        let invalid = || InvalidRange::Addresses(cidr.to_owned());
        let (address, bits) = cidr.split_once('/').ok_or_else(invalid)?;
        let address: Ipv4Addr = address.parse().map_err(|_| invalid())?;
        let prefix_bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(invalid)?;
        if !(PREFIX_BITS_MIN..=PREFIX_BITS_MAX).contains(&prefix_bits) {
            return Err(InvalidRange::PrefixBits(cidr.to_owned()));
        }
        Ok(ServiceRanges { network: u32::from(address) & (u32::MAX << (32 - prefix_bits)), prefix_bits, ..self })
    }

    /// Replaces the range of node ports (`--service-node-port-range`): `30000-32767`, or `30000+2767` for a start and
    /// the number of ports behind it.
    ///
    /// # Errors
    /// [`InvalidRange::Ports`] for anything else, an empty range, or port 0.
    pub fn with_node_ports(self, range: &str) -> Result<Self, InvalidRange> {
        let parsed = match (range.split_once('-'), range.split_once('+')) {
            (Some((first, last)), _) => first.trim().parse().ok().zip(last.trim().parse().ok()),
            (None, Some((first, more))) => {
                let (first, more) = (first.trim().parse::<u16>().ok(), more.trim().parse::<u16>().ok());
                first.zip(more).and_then(|(first, more)| Some((first, first.checked_add(more)?)))
            }
            (None, None) => range.trim().parse().ok().map(|port| (port, port)),
        };
        match parsed {
            Some((first, last)) if 0 < first && first <= last => Ok(ServiceRanges { node_ports: first..=last, ..self }),
            _ => Err(InvalidRange::Ports(range.to_owned())),
        }
    }

    /// Formats the range of cluster addresses in CIDR notation.
    pub fn cluster_addresses(&self) -> String {
        format!("{}/{}", Ipv4Addr::from(self.network), self.prefix_bits)
    }

    /// Returns the address of the service `default/kubernetes`: the first of the range.
    pub fn kubernetes_service_address(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.network + 1)
    }

    /// Whether an address lies in the network of the cluster addresses.
    pub(crate) fn has_address(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & (u32::MAX << (32 - self.prefix_bits)) == self.network
    }

    /// Whether an address of the network may be allocated: the first and the last one may not.
    pub(crate) fn is_allocatable(&self, address: Ipv4Addr) -> bool {
        let host = u32::from(address) & !(u32::MAX << (32 - self.prefix_bits));
        host != 0 && host != (1 << (32 - self.prefix_bits)) - 1
    }

    /// Whether the allocator may use this node port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.node_ports.contains(&port)
    }

    /// Formats the range of node ports for error texts.
    pub(crate) fn node_ports(&self) -> impl fmt::Display {
        format!("{}-{}", self.node_ports.start(), self.node_ports.end())
    }

    /// Returns a random candidate for a cluster address. `random` returns a number in a range.
    pub(crate) fn address_candidate(&self, random: impl FnOnce(RangeInclusive<u32>) -> u32) -> Ipv4Addr {
        let size = 1_u32 << (32 - self.prefix_bits);
        let band = (size / 16).clamp(*ADDRESS_BAND.start(), *ADDRESS_BAND.end());
        // A range that is no larger than its static band has no band.
        let first = if band + 2 < size { band } else { 1 };
        Ipv4Addr::from(self.network + random(first..=size - 2))
    }

    /// Returns a random candidate for a node port, from the dynamic band or, with `anywhere`, from the whole range.
    /// `random` returns a number in a range.
    pub(crate) fn port_candidate(&self, anywhere: bool, random: impl FnOnce(RangeInclusive<u16>) -> u16) -> u16 {
        let (first, last) = (*self.node_ports.start(), *self.node_ports.end());
        let size = u32::from(last - first) + 1;
        let band = (size / 32).clamp(*PORT_BAND.start(), *PORT_BAND.end());
        if anywhere || band >= size {
            return random(first..=last);
        }
        random(first + band as u16..=last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(cidr: &str) -> Result<String, InvalidRange> {
        ServiceRanges::default().with_cluster_addresses(cidr).map(|ranges| ranges.cluster_addresses())
    }

    #[test]
    fn only_ipv4_networks_of_12_to_28_bits_are_parsed_as_cluster_ranges() {
        assert_eq!(ranges("10.0.0.0/24").as_deref(), Ok("10.0.0.0/24"));
        assert_eq!(ranges("172.16.5.9/16").as_deref(), Ok("172.16.0.0/16"));
        for invalid in ["", "10.0.0.0", "fd00::/108", "10.96.0.0/16,fd00::/108", "10.0.0.0/33", "10.0.0/24"] {
            assert_eq!(ranges(invalid), Err(InvalidRange::Addresses(invalid.to_owned())), "{invalid}");
        }
        for invalid in ["10.0.0.0/8", "10.0.0.0/29"] {
            assert_eq!(ranges(invalid), Err(InvalidRange::PrefixBits(invalid.to_owned())), "{invalid}");
        }
        let ranges = ServiceRanges::default().with_cluster_addresses("10.43.0.0/16").unwrap();
        assert_eq!(ranges.kubernetes_service_address(), Ipv4Addr::new(10, 43, 0, 1));
    }

    #[test]
    fn node_port_range_is_parsed_as_bounds_or_as_start_and_count() {
        let parse = |text: &str| ServiceRanges::default().with_node_ports(text).map(|ranges| ranges.node_ports);
        assert_eq!(parse("30000-32767"), Ok(30_000..=32_767));
        assert_eq!(parse("30000+100"), Ok(30_000..=30_100));
        assert_eq!(parse("8080"), Ok(8080..=8080));
        for invalid in ["", "0-10", "20-10", "1-70000", "65535+1", "a-b"] {
            assert_eq!(parse(invalid), Err(InvalidRange::Ports(invalid.to_owned())), "{invalid}");
        }
    }

    #[test]
    fn random_allocation_leaves_the_static_band_of_the_default_ranges_free() {
        let ranges = ServiceRanges::default();
        assert_eq!(ranges.address_candidate(|range| *range.start()), Ipv4Addr::new(10, 96, 1, 0));
        assert_eq!(ranges.address_candidate(|range| *range.end()), Ipv4Addr::new(10, 96, 255, 254));
        assert_eq!(ranges.port_candidate(false, |range| *range.start()), 30_086);
        assert_eq!(ranges.port_candidate(true, |range| *range.start()), 30_000);
    }

    proptest! {
        /// Every candidate lies within its range, and is neither the network address nor the broadcast address.
        #[test]
        fn candidates_lie_within_their_ranges(
            network: u32, bits in PREFIX_BITS_MIN..=PREFIX_BITS_MAX, first in 1..=u16::MAX, more: u16, seed: u32, anywhere: bool,
        ) {
            let cidr = format!("{}/{bits}", Ipv4Addr::from(network));
            let ports = format!("{first}-{}", first.saturating_add(more));
            let ranges = ServiceRanges::default().with_cluster_addresses(&cidr).unwrap().with_node_ports(&ports).unwrap();
            let address = ranges.address_candidate(|range| range.start() + seed % (range.end() - range.start() + 1));
            prop_assert!(ranges.has_address(address), "{address} is not in {cidr}");
            prop_assert!(ranges.is_allocatable(address), "{address} is no host of {cidr}");
            let port = ranges.port_candidate(anywhere, |range| {
                (u32::from(*range.start()) + seed % (u32::from(range.end() - range.start()) + 1)) as u16
            });
            prop_assert!(ranges.has_port(port), "{port} is not in {ports}");
        }
    }
}
