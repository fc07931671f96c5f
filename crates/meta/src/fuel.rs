//! Fuel: what a computation may cost, and until when. Pure functions [`charge`] for what they do; who runs them
//! gives them a [`Tank`]. Without a tank charging is free.
//!
//! ```text
//!  Tank::run ──▶ computation ──charge(units)──▶ true: go on
//!                                           └──▶ false: stop early, with whatever result
//! ```
//!
//! A computation whose fuel is used up may return anything. Who takes results asks [`is_exhausted`] before a
//! result has an effect, and throws it away when the answer is yes. So what computes needs no error of its own
//! for it, and a result that was cut short is never stored.
//!
//! One unit is about 50 ns of an optimized build: one value that is visited, or 64 bytes that are read.
//!
//! The meter belongs to the thread, because what charges is many calls below what limits, in other crates.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time that one unit stands for.
pub const UNIT: Duration = Duration::from_nanos(50);

/// The clock is read, and cancellation noticed, once in so many units.
const SLICE_UNITS: u64 = 10_000;

thread_local! {
    /// Units that may be taken without looking further.
    static SLICE: Cell<u64> = const { Cell::new(u64::MAX) };
    static TANK: RefCell<Option<Tank>> = const { RefCell::new(None) };
}

/// What a computation may still take.
#[derive(Debug)]
pub struct Tank {
    left: u64,
    deadline: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
    exhausted: bool,
}

impl Tank {
    /// A tank of so many units.
    pub fn new(units: u64) -> Self {
        Tank { left: units, deadline: None, cancelled: None, exhausted: false }
    }

    /// The same, empty from a time on.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Self {
        Tank { deadline: Some(deadline), ..self }
    }

    /// The same, empty as soon as the flag is set.
    #[must_use]
    pub fn unless(self, cancelled: Arc<AtomicBool>) -> Self {
        Tank { cancelled: Some(cancelled), ..self }
    }

    /// Whether a computation was cut short.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Runs a computation on this tank. May be called several times, as a future is polled.
    pub fn run<T>(&mut self, computation: impl FnOnce() -> T) -> T {
        /// Puts the tank and the outer meter back, also when the computation panics.
        struct Installed<'a> {
            tank: &'a mut Tank,
            outer_slice: u64,
            outer: Option<Tank>,
        }
        impl Drop for Installed<'_> {
            fn drop(&mut self) {
                let slice = SLICE.replace(self.outer_slice);
                if let Some(mut tank) = TANK.replace(self.outer.take()) {
                    tank.left += slice;
                    *self.tank = tank;
                }
            }
        }
        let moved = std::mem::replace(self, Tank::new(0));
        let installed = Installed { outer: TANK.replace(Some(moved)), outer_slice: SLICE.replace(0), tank: self };
        let result = computation();
        drop(installed);
        result
    }

    fn spend(&mut self, units: u64) -> bool {
        self.exhausted = self.exhausted
            || units > self.left
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || self.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(Ordering::Relaxed));
        if self.exhausted {
            self.left = 0;
        } else {
            self.left -= units;
        }
        !self.exhausted
    }
}

/// Takes units. False when there are none left: then the computation ends as early as it can.
pub fn charge(units: u64) -> bool {
    match SLICE.get().checked_sub(units) {
        Some(left) => {
            SLICE.set(left);
            true
        }
        None => refill(units),
    }
}

#[cold]
fn refill(units: u64) -> bool {
    TANK.with_borrow_mut(|tank| {
        let Some(tank) = tank else {
            SLICE.set(u64::MAX);
            return true;
        };
        tank.left += SLICE.replace(0);
        let goes_on = tank.spend(units);
        let slice = tank.left.min(SLICE_UNITS);
        tank.left -= slice;
        SLICE.set(slice);
        goes_on
    })
}

/// Takes the units of reading so many bytes, at `per_unit` bytes each.
pub fn charge_bytes(bytes: usize, per_unit: usize) -> bool {
    charge((bytes / per_unit) as u64 + 1)
}

/// Takes the units of a time that was spent.
pub fn charge_time(spent: Duration) -> bool {
    charge(1 + u64::try_from(spent.as_nanos() / UNIT.as_nanos()).unwrap_or(u64::MAX))
}

/// Ends the computation: takes all units that are left. Without a tank it does nothing.
pub fn exhaust() {
    charge(u64::MAX);
}

/// Runs what cannot be interrupted, and takes the units of the time that it took. `None` when they are not
/// left, also when that shows only afterwards.
pub fn timed<T>(work: impl FnOnce() -> T) -> Option<T> {
    let begun = Instant::now();
    let done = work();
    charge_time(begun.elapsed()).then_some(done)
}

/// Units that are left; `None` where there is no tank.
pub fn left() -> Option<u64> {
    TANK.with_borrow(|tank| tank.as_ref().map(|tank| if tank.exhausted { 0 } else { tank.left + SLICE.get() }))
}

/// Whether the computation that runs was cut short. Its results must have no effect.
pub fn is_exhausted() -> bool {
    TANK.with_borrow(|tank| tank.as_ref().is_some_and(|tank| tank.exhausted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charging_without_a_tank_is_free() {
        assert!((0..3).all(|_| charge(u64::MAX / 2)) && !is_exhausted());
        assert_eq!(left(), None);
    }

    #[test]
    fn tank_is_used_up_across_several_runs() {
        let mut tank = Tank::new(25_000);
        for _ in 0..5 {
            assert!(tank.run(|| charge(5_000) && !is_exhausted()));
        }
        assert!(!tank.is_exhausted() && tank.run(|| charge(0)));
        assert!(!tank.run(|| charge(1)) && tank.is_exhausted());
        assert!(tank.run(is_exhausted) && !tank.run(|| charge(1)), "an empty tank stays empty");
        assert!(!is_exhausted() && charge(1), "the thread has no tank afterwards");
    }

    #[test]
    fn deadline_and_cancellation_empty_the_tank() {
        let mut late = Tank::new(u64::MAX / 2).until(Instant::now());
        assert!(!late.run(|| charge(1)));
        let flag = Arc::new(AtomicBool::new(false));
        let mut cancelled = Tank::new(u64::MAX / 2).unless(Arc::clone(&flag));
        assert!(cancelled.run(|| charge(1)));
        flag.store(true, Ordering::Relaxed);
        assert!(!cancelled.run(|| (0..=SLICE_UNITS).all(|_| charge(1))), "it is noticed within a slice");
    }

    #[test]
    fn tanks_nest_and_survive_panics() {
        let mut outer = Tank::new(100);
        outer.run(|| {
            let mut inner = Tank::new(1);
            assert!(!inner.run(|| charge(2)));
            assert!(charge(60) && left() == Some(40));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Tank::new(1).run(|| panic!("x"))));
            assert!(caught.is_err() && left() == Some(40));
        });
        assert!(!outer.run(|| charge(41)));
    }

    #[test]
    fn timed_work_takes_its_time() {
        let mut tank = Tank::new(1_000);
        let spin = |time: Duration| {
            let begun = Instant::now();
            while begun.elapsed() < time {}
        };
        assert!(tank.run(|| timed(|| spin(UNIT))).is_some());
        assert!(tank.run(|| timed(|| spin(UNIT * 2_000))).is_none());
    }
}
