//! [`PortBitmap`]: the set of allocated node ports, in the form of kube-apiserver's allocator.
//!
//! Bit `n` of the bitmap is the port `first + n`. The stored form is the big-endian number of these bits without
//! leading zero bytes (`AllocationBitmap.Snapshot` in `pkg/registry/core/service/allocator/bitmap.go`).

use std::ops::RangeInclusive;

/// The allocated ports of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortBitmap {
    ports: RangeInclusive<u16>,
    /// One bit for each port of the range.
    words: Vec<u64>,
}

const WORD_BITS: usize = 64;

impl PortBitmap {
    /// Returns a bitmap without allocated ports.
    pub(super) fn new(ports: RangeInclusive<u16>) -> Self {
        let size = usize::from(*ports.end()).saturating_sub(usize::from(*ports.start())) + 1;
        PortBitmap { ports, words: vec![0; size.div_ceil(WORD_BITS)] }
    }

    /// Parses the stored form. Bits above the range are ignored.
    pub(super) fn from_data(ports: RangeInclusive<u16>, data: &[u8]) -> Self {
        let mut bitmap = PortBitmap::new(ports);
        for (index, byte) in data.iter().rev().enumerate() {
            for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
                if let Some(port) = bitmap.port_at(index * 8 + bit) {
                    bitmap.take(port);
                }
            }
        }
        bitmap
    }

    /// Returns the stored form.
    pub(super) fn to_data(&self) -> Vec<u8> {
        let bytes = self.words.iter().rev().flat_map(|word| word.to_be_bytes());
        bytes.skip_while(|byte| *byte == 0).collect()
    }

    fn port_at(&self, bit: usize) -> Option<u16> {
        let port = usize::from(*self.ports.start()) + bit;
        u16::try_from(port).ok().filter(|port| self.ports.contains(port))
    }

    /// Returns the index of the word and the bit mask of a port. `None` if the port is outside the range.
    fn place_of(&self, port: u16) -> Option<(usize, u64)> {
        let bit = self.ports.contains(&port).then(|| usize::from(port - self.ports.start()))?;
        Some((bit / WORD_BITS, 1 << (bit % WORD_BITS)))
    }

    /// Whether a port is allocated. Ports outside the range are never allocated.
    pub(super) fn has(&self, port: u16) -> bool {
        self.place_of(port).is_some_and(|(word, bit)| self.words[word] & bit != 0)
    }

    /// Allocates a port. Returns false if the port is allocated already or lies outside the range.
    pub(super) fn take(&mut self, port: u16) -> bool {
        let Some((word, bit)) = self.place_of(port) else { return false };
        let is_free = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_free
    }

    /// Releases a port. Returns whether the port was allocated.
    pub(super) fn release(&mut self, port: u16) -> bool {
        let was_taken = self.has(port);
        if let Some((word, bit)) = self.place_of(port) {
            self.words[word] &= !bit;
        }
        was_taken
    }

    /// Returns the first free port of a band for which `accepts` returns true. The search begins at `start` and wraps
    /// around at the end of the band (`randomScanStrategyWithOffset.AllocateBit`).
    pub(super) fn free_port(
        &self,
        band: &RangeInclusive<u16>,
        start: u16,
        accepts: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let behind = (start..=*band.end()).chain(*band.start()..start);
        behind.into_iter().find(|port| self.ports.contains(port) && !self.has(*port) && accepts(*port))
    }

    /// Returns the allocated ports in ascending order.
    pub(super) fn taken(&self) -> impl Iterator<Item = u16> + '_ {
        self.ports.clone().filter(|port| self.has(*port))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(first: u16, last: u16, ports: &[u16], data: &[u8]) {
        let mut bitmap = PortBitmap::new(first..=last);
        for port in ports {
            assert!(bitmap.take(*port), "{port}");
        }
        assert_eq!(bitmap.to_data(), data, "{ports:?}");
        assert_eq!(PortBitmap::from_data(first..=last, data), bitmap, "{ports:?}");
        assert_eq!(bitmap.taken().collect::<Vec<_>>(), ports);
    }

    #[test]
    fn port_bitmap_data_is_a_big_endian_number_without_leading_zeros() {
        check(30_000, 32_767, &[], &[]);
        check(30_000, 32_767, &[30_000], &[1]);
        check(30_000, 32_767, &[30_007, 30_008], &[1, 0x80]);
        check(30_000, 32_767, &[30_080], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        check(1, u16::MAX, &[1, u16::MAX], &[&[0x40][..], &[0; 8190], &[1]].concat());
        check(80, 80, &[80], &[1]);
    }

    #[test]
    fn port_bitmap_ignores_ports_outside_its_range() {
        let mut bitmap = PortBitmap::from_data(100..=109, &[0xff, 0xff, 0xff]);
        assert_eq!(bitmap.to_data(), [0x03, 0xff]);
        assert!(!bitmap.take(110) && !bitmap.take(99) && !bitmap.release(110) && !bitmap.has(110));
    }

    #[test]
    fn free_port_search_wraps_around_at_the_end_of_the_band() {
        let mut bitmap = PortBitmap::new(10..=19);
        for port in [17, 18, 19] {
            bitmap.take(port);
        }
        assert_eq!(bitmap.free_port(&(12..=19), 17, |_| true), Some(12));
        assert_eq!(bitmap.free_port(&(12..=19), 17, |port| port > 13), Some(14));
        assert_eq!(bitmap.free_port(&(17..=19), 18, |_| true), None);
    }

    proptest! {
        #[test]
        fn random_port_bitmap_operations_match_a_set(first in 1..=u16::MAX, more in 0..300_u16, steps: Vec<(u16, bool)>) {
            let last = first.saturating_add(more);
            let (mut bitmap, mut set) = (PortBitmap::new(first..=last), std::collections::BTreeSet::new());
            for (step, takes) in steps {
                let port = first + step % (last - first + 1);
                let (changed, expected) =
                    if takes { (bitmap.take(port), set.insert(port)) } else { (bitmap.release(port), set.remove(&port)) };
                prop_assert_eq!(changed, expected);
            }
            prop_assert_eq!(bitmap.taken().collect::<Vec<_>>(), set.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(PortBitmap::from_data(first..=last, &bitmap.to_data()), bitmap);
        }
    }
}
