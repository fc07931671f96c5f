//! Repairs the bitmap of node ports from the stored services, as kube-apiserver does at the start and every three
//! minutes (`pkg/registry/core/service/portallocator/controller/repair.go`).
//!
//! A port of a service becomes allocated. A port without a service may belong to a service that is being created or
//! deleted. Such a port stays allocated until [`REPAIRS_BEFORE_RELEASE`] repairs in a row have found it without a
//! service.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::bitmap::PortBitmap;

/// An allocated port without a service is released by this repair in a row that finds the port
/// (`numRepairsBeforeLeakCleanup`).
pub(super) const REPAIRS_BEFORE_RELEASE: u8 = 3;

/// The ports that recent repairs found allocated and without a service, each with the number of repairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaks(HashMap<u16, u8>);

/// A problem that a repair found, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A service has a port that was not allocated.
    Unallocated(u16),
    /// A service has a port outside the range.
    OutOfRange(u16),
    /// Two services have the same port.
    Duplicate(u16),
    /// A port without a service was released.
    Released(u16),
}

/// Computes the bitmap for the range `ports`. `stored` has the allocated ports, and `services` has the node ports of
/// each service. If some services are unreadable (`is_complete` is false), no port is released.
pub(super) fn repair(
    ports: RangeInclusive<u16>,
    stored: &PortBitmap,
    services: &[BTreeSet<u16>],
    is_complete: bool,
    leaks: &Leaks,
) -> (PortBitmap, Leaks, Vec<Problem>) {
    let mut rebuilt = PortBitmap::new(ports.clone());
    let mut problems = Vec::new();
    for port in services.iter().flatten().copied() {
        if !ports.contains(&port) {
            problems.push(Problem::OutOfRange(port));
        } else if !rebuilt.take(port) {
            problems.push(Problem::Duplicate(port));
        } else if !stored.has(port) {
            problems.push(Problem::Unallocated(port));
        }
    }
    let mut next = HashMap::new();
    let without_service: Vec<u16> = stored.taken().filter(|port| ports.contains(port) && !rebuilt.has(*port)).collect();
    for port in without_service {
        let found = leaks.0.get(&port).copied().unwrap_or_default() + 1;
        if is_complete && found >= REPAIRS_BEFORE_RELEASE {
            problems.push(Problem::Released(port));
            continue;
        }
        rebuilt.take(port);
        next.insert(port, found.min(REPAIRS_BEFORE_RELEASE - 1));
    }
    (rebuilt, Leaks(next), problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: RangeInclusive<u16> = 30_000..=30_099;

    fn bitmap(ports: &[u16]) -> PortBitmap {
        let mut bitmap = PortBitmap::new(PORTS);
        for port in ports {
            bitmap.take(*port);
        }
        bitmap
    }

    fn services(ports: &[&[u16]]) -> Vec<BTreeSet<u16>> {
        ports.iter().map(|ports| ports.iter().copied().collect()).collect()
    }

    #[test]
    fn repair_allocates_service_ports_and_reports_each_problem() {
        let services = services(&[&[30_001, 30_002], &[30_002, 30_003], &[80]]);
        let (rebuilt, leaks, problems) = repair(PORTS, &bitmap(&[30_001]), &services, true, &Leaks::default());
        assert_eq!(rebuilt, bitmap(&[30_001, 30_002, 30_003]));
        let expected = [
            Problem::Unallocated(30_002),
            Problem::Duplicate(30_002),
            Problem::Unallocated(30_003),
            Problem::OutOfRange(80),
        ];
        assert_eq!((problems.as_slice(), leaks), (expected.as_slice(), Leaks::default()));
    }

    #[test]
    fn node_port_without_a_service_is_released_by_the_third_repair_in_a_row() {
        let (held, one) = (services(&[&[30_007]]), bitmap(&[30_007]));
        let run = |leaks: &Leaks, has_service: bool, is_complete: bool| {
            let services = if has_service { held.as_slice() } else { &[] };
            let (rebuilt, leaks, problems) = repair(PORTS, &one, services, is_complete, leaks);
            assert_eq!(problems.contains(&Problem::Released(30_007)), !rebuilt.has(30_007));
            (rebuilt.has(30_007), leaks)
        };
        let mut leaks = Leaks::default();
        // (has a service, all services are readable, stays allocated)
        for (step, (has_service, is_complete, stays)) in [
            (false, true, true),
            (false, true, true),
            (true, true, true),
            (false, true, true),
            (false, true, true),
            (false, false, true),
            (false, false, true),
            (false, true, false),
        ]
        .into_iter()
        .enumerate()
        {
            let (has, next) = run(&leaks, has_service, is_complete);
            assert_eq!(has, stays, "step {step}");
            leaks = next;
        }
    }

    #[test]
    fn repair_moves_the_node_port_bitmap_to_a_new_range() {
        let (rebuilt, _, problems) = repair(
            30_050..=30_149,
            &bitmap(&[30_001, 30_060]),
            &services(&[&[30_060], &[30_001]]),
            true,
            &Leaks::default(),
        );
        assert_eq!(rebuilt.taken().collect::<Vec<_>>(), [30_060]);
        assert_eq!(problems, [Problem::OutOfRange(30_001)]);
    }
}
