//! Returns free memory to the system after a peak, and code after the start: [`start`].
//!
//! glibc keeps freed memory for later allocations, and returns only the end of a heap on its own. `malloc_trim` returns
//! all free pages, but walks the free chunks of each heap under the heap's lock. Therefore the server calls
//! `malloc_trim` only once after the start, after memory has grown, and a few times later, never with steady memory.
//! Figures are in `docs/decisions/0009-memory-after-a-peak.md`.

/// Starts a thread that monitors the memory of this process. Does nothing if the allocator is not glibc's.
pub(crate) fn start() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::start();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::time::{Duration, Instant};

    /// Interval between readings of resident memory.
    const CHECK_INTERVAL: Duration = Duration::from_secs(15);
    /// The growth of resident memory, in bytes, that starts a trim.
    const GROWTH_BYTES: u64 = 32 * 1024 * 1024;
    /// The longest delay before a repeated trim. A trim during a peak returns little memory, so it is repeated after
    /// [`CHECK_INTERVAL`], and then each time after twice the previous delay. Responses end after 60 s, and histories
    /// expire after 75 s.
    const LAST_REPEAT: Duration = Duration::from_secs(240);

    /// Decides when to trim, from readings of resident memory.
    pub(super) struct Schedule {
        /// The lowest number of resident bytes since the last trim.
        floor: u64,
        repeat: Option<(Instant, Duration)>,
    }

    impl Schedule {
        /// A schedule with one trim after the start, which leaves free memory behind.
        pub(super) fn new(now: Instant, resident: u64) -> Self {
            Schedule { floor: resident, repeat: Some((now + CHECK_INTERVAL, LAST_REPEAT)) }
        }

        /// Whether a trim is due at this reading.
        pub(super) fn handle_resident(&mut self, now: Instant, resident: u64) -> bool {
            self.floor = self.floor.min(resident);
            if resident >= self.floor + GROWTH_BYTES {
                self.repeat = Some((now + CHECK_INTERVAL, CHECK_INTERVAL));
                return true;
            }
            let Some((due, gap)) = self.repeat.filter(|(due, _)| *due <= now) else { return false };
            self.repeat = (gap < LAST_REPEAT).then_some((due + 2 * gap, 2 * gap));
            true
        }

        /// Records the resident bytes after a trim.
        pub(super) fn handle_trimmed(&mut self, resident: u64) {
            self.floor = resident;
        }
    }

    pub(super) fn start() {
        let thread = std::thread::Builder::new().name("trim".to_owned());
        if let Err(error) = thread.spawn(watch) {
            tracing::warn!(%error, "memory is not returned to the system after a peak");
        }
    }

    fn watch() {
        let Some(resident) = resident() else { return };
        let mut schedule = Schedule::new(Instant::now(), resident);
        let mut has_start_code = true;
        loop {
            std::thread::sleep(CHECK_INTERVAL);
            if std::mem::take(&mut has_start_code) {
                let unmapped = crate::start_code::unmap();
                tracing::debug!(unmapped, "the code of the start was unmapped");
            }
            let Some(before) = self::resident() else { return };
            let now = Instant::now();
            if schedule.handle_resident(now, before) {
                trim();
                let after = self::resident().unwrap_or(before);
                schedule.handle_trimmed(after);
                tracing::debug!(before, after, took = ?now.elapsed(), "free memory was given back");
            }
        }
    }

    /// The resident bytes of this process; `None` if they are unknown.
    fn resident() -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    }

    #[allow(unsafe_code)] // the only way to glibc's heap; docs/decisions/0009-memory-after-a-peak.md measures it
    fn trim() {
        // SAFETY: `malloc_trim` takes no pointer and has no precondition. It is thread-safe (`MT-Safe` in
        // malloc_trim(3)): it takes the lock of each heap, and touches only free chunks. The global
        // allocator of this binary is glibc's, as `cfg` says; with another one the call would return nothing.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn memory_trim_is_due_after_growth_and_repeats_until_the_peak_ends() {
            let start = Instant::now();
            let at = |seconds: u64| start + Duration::from_secs(seconds);
            let mut schedule = Schedule::new(start, 20 << 20);
            assert!(schedule.handle_resident(at(15), (52 << 20) - 1), "once after the start");
            assert!(!schedule.handle_resident(at(20), (52 << 20) - 1), "too little growth");
            assert!(schedule.handle_resident(at(30), 400 << 20));
            schedule.handle_trimmed(390 << 20);
            let mut trims = Vec::new();
            for seconds in (45..3_600).step_by(15) {
                // The memory is freed one minute later. Freeing alone returns no pages to the system.
                let resident = if trims.last().is_some_and(|last| *last > 90) { 30 << 20 } else { 390 << 20 };
                if schedule.handle_resident(at(seconds), resident) {
                    trims.push(seconds);
                    schedule.handle_trimmed(if seconds > 90 { 30 << 20 } else { 390 << 20 });
                }
            }
            assert_eq!(trims, [45, 75, 135, 255, 495]);
        }

        #[test]
        fn steady_resident_memory_is_never_trimmed() {
            let start = Instant::now();
            let mut schedule = Schedule::new(start, 500 << 20);
            for minutes in 0..600 {
                let resident = (500 + minutes % 30) << 20;
                let is_due = schedule.handle_resident(start + Duration::from_secs(60 * minutes), resident);
                assert_eq!(is_due, minutes == 1, "only after the start");
            }
        }

        #[test]
        fn trim_returns_freed_memory_to_the_system() {
            // Surviving blocks among the freed ones keep the end of the heap in use.
            let blocks: Vec<Vec<u8>> = (0..6_400).map(|_| vec![1; 16 * 1024]).collect();
            let peak = resident().expect("a figure");
            let survivors: Vec<Vec<u8>> = blocks.into_iter().step_by(64).collect();
            trim();
            let after = resident().expect("a figure");
            assert!(after + (64 << 20) < peak, "{peak} bytes before, {after} after");
            drop(survivors);
        }
    }
}
