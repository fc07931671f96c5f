//! [`ServiceRanges`]: the ranges from which services get cluster addresses and node ports.
//!
//! Each range starts with a static band; the rest is the dynamic band. Random allocation uses the dynamic band first.
//! The static band therefore stays free for users who choose a value (KEP-3070 for addresses, KEP-3668 for node ports).
//! When the dynamic band is full, values of the static band are also allocated (`allocateNextService` of
//! `ipallocator.go`).

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
/// The size limits of the static band of node ports, in ports (`calculateRangeOffset` of `portallocator`).
const PORT_BAND: RangeInclusive<u32> = 16..=128;

/// The maximum number of candidates for an address from one band. All addresses of a band of at most this size are
/// candidates; candidates from a larger band are random. If all candidates of both bands are taken, the client receives
/// a 500.
const CANDIDATES_MAX: u32 = 512;

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
    /// Replaces the range of cluster addresses (`--service-cluster-ip-range`), e.g. `10.0.0.0/24`. Bits after the
    /// prefix are ignored, as in kube-apiserver.
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

    /// Replaces the range of node ports (`--service-node-port-range`): `30000-32767`, or `30000+2767` for the first
    /// port and the number of further ports.
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

    /// Returns the address of the service `default/kubernetes`, which is the first address of the range.
    pub fn kubernetes_service_address(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.network + 1)
    }

    /// Whether an address lies in the network of the cluster addresses.
    pub(crate) fn has_address(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & (u32::MAX << (32 - self.prefix_bits)) == self.network
    }

    /// Whether an address may be allocated: any address of the network except the first and the last one.
    pub(crate) fn is_allocatable(&self, address: Ipv4Addr) -> bool {
        let host = u32::from(address) & !(u32::MAX << (32 - self.prefix_bits));
        host != 0 && host != (1 << (32 - self.prefix_bits)) - 1
    }

    /// Whether the allocator may use this node port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.node_ports.contains(&port)
    }

    /// Formats the range of node ports for error messages.
    pub(crate) fn node_ports(&self) -> impl fmt::Display {
        format!("{}-{}", self.node_ports.start(), self.node_ports.end())
    }

    /// Returns the candidates for a cluster address, in the order in which they are tried. `random` returns a number in
    /// a range.
    pub(crate) fn address_candidates<R>(&self, random: R) -> impl Iterator<Item = Ipv4Addr> + Send + use<R>
    where
        R: Fn(RangeInclusive<u32>) -> u32 + Copy + Send,
    {
        let size = 1_u32 << (32 - self.prefix_bits);
        let band = (size / 16).clamp(*ADDRESS_BAND.start(), *ADDRESS_BAND.end());
        // A range that is no larger than its static band has no band.
        let first = if band + 2 < size { band } else { 1 };
        let network = self.network;
        let hosts = candidates(first..=size - 2, random).chain(candidates(1..=first - 1, random));
        hosts.map(move |host| Ipv4Addr::from(network + host))
    }

    /// Returns the range of node ports.
    pub(crate) fn node_port_range(&self) -> RangeInclusive<u16> {
        self.node_ports.clone()
    }

    /// Returns the bands from which a node port is drawn, in the order in which they are tried: the dynamic and the
    /// static band. A range that is no larger than its static band has no static band.
    pub(crate) fn node_port_bands(&self) -> [Option<RangeInclusive<u16>>; 2] {
        let (start, last) = (u32::from(*self.node_ports.start()), u32::from(*self.node_ports.end()));
        let size = last - start + 1;
        let band = (size / 32).clamp(*PORT_BAND.start(), *PORT_BAND.end());
        match u16::try_from(start + band) {
            Ok(first) if band < size => {
                [Some(first..=*self.node_ports.end()), Some(*self.node_ports.start()..=first - 1)]
            }
            _ => [Some(self.node_ports.clone()), None],
        }
    }
}

/// Returns the candidates of one band: all values of a small band, from a random start, or random values of a large
/// band.
fn candidates<R: Fn(RangeInclusive<u32>) -> u32>(
    band: RangeInclusive<u32>,
    random: R,
) -> impl Iterator<Item = u32> + use<R> {
    let (first, last) = (*band.start(), *band.end());
    let size = (last + 1).saturating_sub(first);
    let offset = if size == 0 { 0 } else { random(first..=last) - first };
    (0..size.min(CANDIDATES_MAX)).map(move |tried| match tried {
        0 => first + offset,
        tried if size <= CANDIDATES_MAX => first + (offset + tried) % size,
        _ => random(first..=last),
    })
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
        let dynamic = CANDIDATES_MAX as usize;
        let addresses: Vec<_> = ranges.address_candidates(|range| *range.start()).collect();
        assert_eq!((addresses[0], addresses[dynamic - 1]), (Ipv4Addr::new(10, 96, 1, 0), Ipv4Addr::new(10, 96, 1, 0)));
        assert_eq!(ranges.address_candidates(|range| *range.end()).next(), Some(Ipv4Addr::new(10, 96, 255, 254)));
        assert_eq!(addresses[dynamic..], (1..=255).map(|host| Ipv4Addr::new(10, 96, 0, host)).collect::<Vec<_>>());
        assert_eq!(ranges.node_port_bands(), [Some(30_086..=32_767), Some(30_000..=30_085)]);
    }

    #[test]
    fn static_band_of_node_ports_has_16_to_128_ports_of_a_larger_range() {
        let check = |ports: &str, bands: [Option<RangeInclusive<u16>>; 2]| {
            let ranges = ServiceRanges::default().with_node_ports(ports).unwrap();
            assert_eq!(ranges.node_port_bands(), bands, "{ports}");
        };
        check("1-1", [Some(1..=1), None]);
        check("65535", [Some(u16::MAX..=u16::MAX), None]);
        check("1-16", [Some(1..=16), None]);
        check("1-17", [Some(17..=17), Some(1..=16)]);
        check("65519-65535", [Some(u16::MAX..=u16::MAX), Some(65_519..=65_534)]);
        check("1-65535", [Some(129..=u16::MAX), Some(1..=128)]);
    }

    #[test]
    fn address_candidates_of_a_small_range_are_all_its_values_once() {
        let check = |cidr: &str, seed: u32| {
            let random = move |range: RangeInclusive<u32>| range.start() + seed % (range.end() - range.start() + 1);
            let ranges = ServiceRanges::default().with_cluster_addresses(cidr).unwrap();
            let mut addresses: Vec<_> = ranges.address_candidates(random).collect();
            addresses.sort();
            let hosts = (1_u32 << (32 - ranges.prefix_bits)) - 2;
            let all: Vec<_> = (1..=hosts).map(|host| Ipv4Addr::from(ranges.network + host)).collect();
            assert_eq!(addresses, all, "{cidr}");
        };
        for seed in [0, 1, 77, u32::MAX] {
            check("10.0.0.0/28", seed);
            check("10.0.0.0/27", seed);
            check("10.0.0.0/24", seed);
            check("10.0.0.0/23", seed);
        }
    }

    proptest! {
        /// Every candidate is in the range, and is neither the network address nor the broadcast address.
        #[test]
        fn address_and_port_candidates_are_within_their_ranges(
            network: u32, bits in PREFIX_BITS_MIN..=PREFIX_BITS_MAX, seed: u32,
        ) {
            let cidr = format!("{}/{bits}", Ipv4Addr::from(network));
            let ranges = ServiceRanges::default().with_cluster_addresses(&cidr).unwrap();
            let random = move |range: RangeInclusive<u32>| range.start() + seed % (range.end() - range.start() + 1);
            for address in ranges.address_candidates(random) {
                prop_assert!(ranges.has_address(address), "{address} is not in {cidr}");
                prop_assert!(ranges.is_allocatable(address), "{address} is no host of {cidr}");
            }
        }
    }
}
