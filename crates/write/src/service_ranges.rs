//! [`ServiceRanges`]: the ranges of the flags, from which services get cluster addresses and node ports; and
//! [`AddressRange`]: one range of cluster addresses.
//!
//! Each range starts with a static band; the rest is the dynamic band. Random allocation uses the dynamic band first.
//! The static band therefore stays free for users who choose a value (KEP-3070 for addresses, KEP-3668 for node ports).
//! When the dynamic band is full, values of the static band are also allocated (`allocateNextService` of
//! `ipallocator.go`). [`ServiceCidrs`](super::service_cidrs::ServiceCidrs) has the ranges of stored ServiceCIDRs.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// The default range of cluster addresses: 10.96.0.0/16, which most clusters use.
const DEFAULT_NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const DEFAULT_PREFIX_BITS: u32 = 16;
/// The default range of node ports (`--service-node-port-range` of kube-apiserver).
const DEFAULT_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// The longest prefix of the flag, in bits: a /29 has 6 usable addresses (`ServiceIPRange` of
/// `pkg/controlplane/apiserver/options`: 8 addresses).
const PREFIX_BITS_MAX: u32 = 29;
/// The shortest prefix of the flag, in bits: a /12 (`maxCIDRBits` of 20).
const PREFIX_BITS_MIN: u32 = 12;
/// The size limits of the static band of addresses, in addresses (`calculateRangeOffset`).
const ADDRESS_BAND: RangeInclusive<u32> = 16..=256;
/// The size limits of the static band of node ports, in ports (`calculateRangeOffset` of `portallocator`).
const PORT_BAND: RangeInclusive<u32> = 16..=128;

/// The maximum number of candidates for an address from one band. All addresses of a band of at most this size are
/// candidates; candidates from a larger band are random. If all candidates of both bands are taken, the client receives
/// a 500.
const CANDIDATES_MAX: u32 = 512;
/// The maximum number of candidates for an address from all ranges together. Each candidate is a request to the store.
/// Each range first gets an equal part. If all candidates are taken, the client receives a 500.
const ALL_CANDIDATES_MAX: usize = 2_048;

/// The ranges of cluster addresses (IPv4 only) and node ports that the flags set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    addresses: AddressRange,
    node_ports: RangeInclusive<u16>,
}

/// An IPv4 network from which services get addresses. The order is by network, then a network before its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressRange {
    network: u32,
    prefix_bits: u32,
}

/// A set of addresses: sorted ranges, none of which contains another.
#[derive(Debug)]
pub(crate) struct AddressSet(Vec<AddressRange>);

/// The error about a range that the allocator cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRange {
    /// The cluster addresses are not an IPv4 network in CIDR notation.
    #[error("{0:?} is not an IPv4 network such as 10.96.0.0/16; IPv6 and dual-stack ranges are not supported")]
    Addresses(String),
    /// The prefix of the network is not between 12 and 29 bits.
    #[error("the range {0:?} must have a prefix of {PREFIX_BITS_MIN} to {PREFIX_BITS_MAX} bits")]
    PrefixBits(String),
    /// The node ports are not a range between 1 and 65535.
    #[error("{0:?} is not a range of ports such as 30000-32767")]
    Ports(String),
}

impl Default for ServiceRanges {
    fn default() -> Self {
        let addresses = AddressRange { network: DEFAULT_NETWORK, prefix_bits: DEFAULT_PREFIX_BITS };
        ServiceRanges { addresses, node_ports: DEFAULT_NODE_PORTS }
    }
}

impl ServiceRanges {
    /// Replaces the range of cluster addresses (`--service-cluster-ip-range`), e.g. `10.0.0.0/24`. Bits after the
    /// prefix are ignored, as in kube-apiserver.
    ///
    /// # Errors
    /// [`InvalidRange`] for anything but an IPv4 network with a prefix of 12 to 29 bits.
    pub fn with_cluster_addresses(self, cidr: &str) -> Result<Self, InvalidRange> {
        let addresses = AddressRange::parse(cidr).ok_or_else(|| InvalidRange::Addresses(cidr.to_owned()))?;
        if !(PREFIX_BITS_MIN..=PREFIX_BITS_MAX).contains(&addresses.prefix_bits) {
            return Err(InvalidRange::PrefixBits(cidr.to_owned()));
        }
        Ok(ServiceRanges { addresses, ..self })
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
        self.addresses.to_string()
    }

    /// Returns the address of the service `default/kubernetes`, which is the first address of the range.
    pub fn kubernetes_service_address(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.addresses.network + 1)
    }

    /// Returns the range of cluster addresses.
    pub(crate) fn address_range(&self) -> AddressRange {
        self.addresses
    }

    /// Whether the allocator may use this node port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.node_ports.contains(&port)
    }

    /// Formats the range of node ports for error messages.
    pub(crate) fn node_ports(&self) -> impl fmt::Display {
        format!("{}-{}", self.node_ports.start(), self.node_ports.end())
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

impl AddressRange {
    /// Parses an IPv4 network in CIDR notation. Bits after the prefix are ignored.
    pub(crate) fn parse(cidr: &str) -> Option<Self> {
        let (address, bits) = cidr.split_once('/')?;
        let address: Ipv4Addr = address.parse().ok()?;
        let prefix_bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
        let range = AddressRange { network: u32::from(address), prefix_bits };
        Some(AddressRange { network: range.network & range.mask(), prefix_bits })
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - self.prefix_bits).unwrap_or_default()
    }

    /// Whether services can get an address from this range: any address of the network except the first and the last
    /// one (`PrefixContainsIP` of `pkg/api/servicecidr`).
    pub(crate) fn has_host(self, address: Ipv4Addr) -> bool {
        let (network, host) = (u32::from(address) & self.mask(), u32::from(address) & !self.mask());
        network == self.network && host != 0 && host != !self.mask()
    }

    /// Whether this range contains all addresses of another range.
    pub(crate) fn contains(self, other: AddressRange) -> bool {
        self.prefix_bits <= other.prefix_bits && other.network & self.mask() == self.network
    }

    /// Returns the candidates for a cluster address, in the order in which they are tried. `random` returns a number in
    /// a range.
    pub(crate) fn candidates<R>(self, random: R) -> impl Iterator<Item = Ipv4Addr> + Send + use<R>
    where
        R: Fn(RangeInclusive<u32>) -> u32 + Copy + Send,
    {
        let last = !self.mask();
        // The size of the range is a power of two, so for 16 and more addresses this is a sixteenth of the size.
        let band = (last / 16).saturating_add(1).clamp(*ADDRESS_BAND.start(), *ADDRESS_BAND.end());
        // A range that is no larger than its static band has no band.
        let first = if band + 1 < last { band } else { 1 };
        let network = self.network;
        let hosts = candidates(first..=last.saturating_sub(1), random).chain(candidates(1..=first - 1, random));
        hosts.map(move |host| Ipv4Addr::from(network + host))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.prefix_bits)
    }
}

impl AddressSet {
    /// Whether one range of the set contains a range.
    pub(crate) fn contains(&self, range: AddressRange) -> bool {
        let after = self.0.partition_point(|other| other.network <= range.network);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|other| other.contains(range))
    }

    /// Whether this range itself is in the set, so that no other range of the set contains it.
    pub(crate) fn has_range(&self, range: AddressRange) -> bool {
        self.0.binary_search(&range).is_ok()
    }

    /// Whether a range of the set has this address for services. Two networks are disjoint, or one contains the other,
    /// so only the last network that begins at or before the address can contain the address.
    pub(crate) fn has_host(&self, address: Ipv4Addr) -> bool {
        let after = self.0.partition_point(|range| range.network <= u32::from(address));
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|range| range.has_host(address))
    }
}

impl FromIterator<AddressRange> for AddressSet {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        let mut sorted: Vec<AddressRange> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut kept: Vec<AddressRange> = Vec::new();
        for range in sorted {
            if kept.last().is_none_or(|last| !last.contains(range)) {
                kept.push(range);
            }
        }
        AddressSet(kept)
    }
}

/// Returns the candidates for a cluster address from all ranges: an equal part of [`ALL_CANDIDATES_MAX`] from each
/// range, then the remaining candidates in the order of the ranges. `random` returns a number in a range.
pub(crate) fn candidates_of_all<R>(ranges: &[AddressRange], random: R) -> impl Iterator<Item = Ipv4Addr> + Send + use<R>
where
    R: Fn(RangeInclusive<u32>) -> u32 + Copy + Send,
{
    let part = ALL_CANDIDATES_MAX / ranges.len().max(1);
    let mut sources: Vec<_> = ranges.iter().map(|range| range.candidates(random)).collect();
    let count = sources.len();
    // Each range is visited twice. The first visit takes its part.
    let (mut visit, mut taken) = (0, 0);
    let next = move || {
        while visit < 2 * count {
            if visit >= count || taken < part {
                taken += 1;
                if let Some(address) = sources[visit % count].next() {
                    return Some(address);
                }
            }
            (visit, taken) = (visit + 1, 0);
        }
        None
    };
    std::iter::from_fn(next).take(ALL_CANDIDATES_MAX)
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
    fn only_ipv4_networks_of_12_to_29_bits_are_parsed_as_cluster_ranges() {
        assert_eq!(ranges("10.0.0.0/24").as_deref(), Ok("10.0.0.0/24"));
        assert_eq!(ranges("192.168.0.0/29").as_deref(), Ok("192.168.0.0/29"));
        assert_eq!(ranges("172.16.5.9/16").as_deref(), Ok("172.16.0.0/16"));
        for invalid in ["", "10.0.0.0", "fd00::/108", "10.96.0.0/16,fd00::/108", "10.0.0.0/33", "10.0.0/24"] {
            assert_eq!(ranges(invalid), Err(InvalidRange::Addresses(invalid.to_owned())), "{invalid}");
        }
        for invalid in ["10.0.0.0/8", "10.0.0.0/30"] {
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
        let addresses: Vec<_> = ranges.addresses.candidates(|range| *range.start()).collect();
        assert_eq!((addresses[0], addresses[dynamic - 1]), (Ipv4Addr::new(10, 96, 1, 0), Ipv4Addr::new(10, 96, 1, 0)));
        assert_eq!(ranges.addresses.candidates(|range| *range.end()).next(), Some(Ipv4Addr::new(10, 96, 255, 254)));
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
        let check = |cidr: &str, hosts: u32, seed: u32| {
            let random = move |range: RangeInclusive<u32>| range.start() + seed % (range.end() - range.start() + 1);
            let range = AddressRange::parse(cidr).unwrap();
            let mut addresses: Vec<_> = range.candidates(random).collect();
            addresses.sort();
            let all: Vec<_> = (1..=hosts).map(|host| Ipv4Addr::from(range.network + host)).collect();
            assert_eq!(addresses, all, "{cidr}");
        };
        for seed in [0, 1, 77, u32::MAX] {
            for (cidr, hosts) in [
                ("10.0.0.8/32", 0),
                ("10.0.0.8/31", 0),
                ("10.0.0.8/30", 2),
                ("10.0.0.0/29", 6),
                ("10.0.0.0/28", 14),
                ("10.0.0.0/27", 30),
                ("10.0.0.0/24", 254),
                ("10.0.0.0/23", 510),
            ] {
                check(cidr, hosts, seed);
            }
        }
    }

    #[test]
    fn candidates_of_all_ranges_are_bounded_and_come_from_each_range() {
        let check = |cidrs: &[&str], expected: &[usize]| {
            let ranges: Vec<_> = cidrs.iter().map(|cidr| AddressRange::parse(cidr).unwrap()).collect();
            let found: Vec<_> = candidates_of_all(&ranges, |range| *range.start()).collect();
            let counts: Vec<_> =
                ranges.iter().map(|range| found.iter().filter(|address| range.has_host(**address)).count()).collect();
            assert_eq!(counts, expected, "{cidrs:?}");
        };
        check(&[], &[]);
        check(&["10.1.0.0/16"], &[767]);
        check(&["10.1.0.0/16", "10.2.0.0/29"], &[767, 6]);
        // Parts of 512, then the rest of the first range: 255 addresses of its static band.
        check(&["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/24"], &[767, 515, 512, 254]);
        let many: Vec<String> = (0..65).map(|number| format!("10.{number}.0.0/16")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let expected: Vec<usize> = (0..65).map(|number| if number == 0 { 31 + 33 } else { 31 }).collect();
        check(&many, &expected);
    }

    #[test]
    fn first_and_last_address_of_a_network_are_no_hosts() {
        let check = |cidr: &str, address: [u8; 4], expected: bool| {
            let found = AddressRange::parse(cidr).unwrap().has_host(Ipv4Addr::from(address));
            assert_eq!(found, expected, "{cidr} {address:?}");
        };
        check("10.0.0.0/24", [10, 0, 0, 0], false);
        check("10.0.0.0/24", [10, 0, 0, 1], true);
        check("10.0.0.0/24", [10, 0, 0, 254], true);
        check("10.0.0.0/24", [10, 0, 0, 255], false);
        check("10.0.0.0/24", [10, 0, 1, 1], false);
        check("10.0.0.8/31", [10, 0, 0, 8], false);
        check("10.0.0.8/31", [10, 0, 0, 9], false);
        check("10.0.0.8/32", [10, 0, 0, 8], false);
        check("0.0.0.0/0", [0, 0, 0, 0], false);
        check("0.0.0.0/0", [10, 0, 0, 0], true);
        check("0.0.0.0/0", [255, 255, 255, 255], false);
    }

    proptest! {
        /// Every candidate is in the range, and is neither the network address nor the broadcast address.
        #[test]
        fn address_candidates_are_hosts_of_their_range(network: u32, bits in 0..=32_u32, seed: u32) {
            let cidr = format!("{}/{bits}", Ipv4Addr::from(network));
            let range = AddressRange::parse(&cidr).unwrap();
            let random = move |range: RangeInclusive<u32>| range.start() + seed % (range.end() - range.start() + 1);
            for address in range.candidates(random) {
                prop_assert!(range.has_host(address), "{address} is no host of {cidr}");
            }
        }

        #[test]
        fn address_set_has_the_hosts_of_each_of_its_ranges(
            ranges in prop::collection::vec((0..64_u32, 26..=32_u32), 0..8), address in 0..64_u32,
        ) {
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(network, bits)| AddressRange::parse(&format!("10.0.0.{network}/{bits}")).unwrap())
                .collect();
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + address);
            let expected = ranges.iter().any(|range| range.has_host(address));
            let set: AddressSet = ranges.iter().copied().collect();
            prop_assert_eq!(set.has_host(address), expected, "{:?}", ranges);
        }
    }
}
