//! [`WorkEstimate`]: the number of seats of a request, and the time for which they stay occupied after its end
//! (`flowcontrol/request/{width,list_work_estimator,mutating_work_estimator}.go`).

use std::time::Duration;

/// The fewest seats of a request (`MinimumSeats`).
const SEATS_MIN: u64 = 1;
/// The most seats of a list, and of a watch until its initial events are sent (`MaximumListSeatsLimit`).
pub(crate) const LIST_SEATS_MAX: u64 = 100;
/// The most seats of a write (`MaximumMutatingSeatsLimit`).
pub(crate) const WRITE_SEATS_MAX: u64 = 10;
/// The memory of a list that costs one seat, in bytes (`bytesPerSeat`).
const BYTES_PER_SEAT: u64 = 100_000;
/// The largest memory that is charged for a list from the watch cache, in bytes (`cacheWithStreamingMaxMemoryUsage`).
const CACHED_LIST_BYTES_MAX: u64 = 1_000_000;
/// The number of watches that cost a write one seat (`watchesPerSeat`).
const WATCHES_PER_SEAT: u64 = 10;
/// The duration for which an event occupies the seats of its watches (`eventAdditionalDuration`).
const EVENT_DURATION: Duration = Duration::from_millis(5);

/// The work that a request is expected to cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkEstimate {
    /// Seats while the request executes.
    pub initial_seats: u64,
    /// Seats during `additional_latency`.
    pub final_seats: u64,
    /// The time for which seats stay occupied after the end of the request. The client does not wait for this time.
    pub additional_latency: Duration,
}

impl WorkEstimate {
    /// One seat without additional latency, the estimate for most requests.
    pub const ONE_SEAT: WorkEstimate = WorkEstimate::of(SEATS_MIN);

    const fn of(seats: u64) -> Self {
        WorkEstimate { initial_seats: seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    /// The seats that the request occupies from its start to the end of its additional latency.
    pub fn seats(&self) -> u64 {
        self.initial_seats.max(self.final_seats)
    }
}

/// The size of a list, or of the initial events of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListWork {
    /// The number of objects of the resource.
    pub objects: u64,
    /// The total size of the objects, in bytes.
    pub objects_bytes: u64,
    /// The `limit` of the request, or 0.
    pub limit: u64,
    /// Whether the request names one object.
    pub names_one_object: bool,
    /// Whether the request has a label or field selector.
    pub has_selector: bool,
    /// Whether the watch cache serves the request.
    pub is_from_cache: bool,
}

impl ListWork {
    /// The estimate within a level that allows `level_seats_max` seats for one request.
    pub fn estimate(&self, level_seats_max: u64) -> WorkEstimate {
        let size = self.objects_bytes.checked_div(self.objects).unwrap_or(0);
        let limited = if self.limit > 0 { self.limit.min(self.objects) } else { self.objects };
        let loaded = match self {
            ListWork { names_one_object: true, .. } => 1,
            ListWork { is_from_cache: false, has_selector: true, .. } => limited.max(self.objects / 2),
            _ => limited,
        };
        let mut bytes = loaded.saturating_mul(size);
        if self.is_from_cache {
            bytes = bytes.min(CACHED_LIST_BYTES_MAX);
        }
        WorkEstimate::of(bytes.div_ceil(BYTES_PER_SEAT).clamp(SEATS_MIN, seats_max(level_seats_max, LIST_SEATS_MAX)))
    }
}

/// The estimate of a create, update, patch or delete whose event `watches` watches receive, within a level that allows
/// `level_seats_max` seats for one request. All watches are served directly after the write. Their seats are therefore
/// charged after the end of the request.
pub fn write_estimate(watches: u64, level_seats_max: u64) -> WorkEstimate {
    if watches < WATCHES_PER_SEAT {
        return WorkEstimate::ONE_SEAT;
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let final_seats = seats.min(seats_max(level_seats_max, WRITE_SEATS_MAX));
    // Fewer seats are occupied for longer.
    let nanos = u128::from(seats) * EVENT_DURATION.as_nanos() / u128::from(final_seats);
    let additional_latency = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    WorkEstimate { initial_seats: SEATS_MIN, final_seats, additional_latency }
}

/// The most seats of a request: those of its level if the level has such a limit, and at most `limit`.
fn seats_max(level_seats_max: u64, limit: u64) -> u64 {
    if level_seats_max == 0 { limit } else { level_seats_max.min(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_seats_grow_with_the_memory_of_the_list() {
        // 1,000 objects of 2,000 bytes.
        let list = ListWork { objects: 1_000, objects_bytes: 2_000_000, ..ListWork::default() };
        let check = |list: ListWork, level: u64, seats: u64| {
            assert_eq!(list.estimate(level).seats(), seats, "{list:?}, level {level}");
        };
        check(list, 0, 20);
        check(list, 4, 4);
        check(ListWork { limit: 100, ..list }, 0, 2);
        check(ListWork { limit: 100, has_selector: true, ..list }, 0, 10);
        check(ListWork { limit: 5_000, ..list }, 0, 20);
        check(ListWork { is_from_cache: true, ..list }, 0, 10);
        check(ListWork { is_from_cache: true, limit: 100, has_selector: true, ..list }, 0, 2);
        check(ListWork { names_one_object: true, ..list }, 0, 1);
        check(ListWork { objects_bytes: 1 << 40, ..list }, 0, 100);
        check(ListWork { objects_bytes: u64::MAX, objects: 2, ..list }, 0, 100);
        check(ListWork::default(), 0, 1);
    }

    #[test]
    fn write_seats_grow_with_the_number_of_notified_watches() {
        let check = |watches: u64, level: u64, seats: u64, micros: u64| {
            let found = write_estimate(watches, level);
            assert_eq!((found.initial_seats, found.final_seats), (1, seats), "{watches} watches, level {level}");
            assert_eq!(found.additional_latency, Duration::from_micros(micros), "{watches} watches, level {level}");
        };
        check(0, 0, 0, 0);
        check(9, 0, 0, 0);
        check(10, 0, 1, 5_000);
        check(95, 0, 10, 5_000);
        check(1_000, 0, 10, 50_000);
        check(1_000, 5, 5, 100_000);
        check(1_000, 1, 1, 500_000);
    }
}
