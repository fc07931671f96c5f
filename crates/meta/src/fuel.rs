//! Fuel: a limit on the cost and duration of a computation. Pure functions call [`charge`] for
//! their work; the caller runs them on a [`Tank`]. Without a tank, charging has no effect.
//!
//! ```text
//!  Tank::run ──▶ computation ──charge(units)──▶ true: go on
//!                                           └──▶ false: stop early, with whatever result
//! ```
//!
//! A computation without fuel may return any result. The caller checks [`is_exhausted`] before it uses a result, and
//! discards the result if the fuel is exhausted. So the computation needs no separate error for this case, and a
//! truncated result is never stored.
//!
//! A computation on a tank with [`Tank::discardable`] is discarded and starts again elsewhere if it runs out of fuel. It
//! calls [`commit`] before an effect outside of the process, such as the call of a webhook. The call takes the remaining
//! fuel, so that the computation starts again before the effect, and not after it.
//!
//! One unit is about 50 ns of an optimized build: one visited value, or 64 bytes read.
//!
//! The meter is thread-local, because many calls and crates lie between the code that sets the limit and the code that
//! charges.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time that one unit corresponds to.
pub const UNIT: Duration = Duration::from_nanos(50);

/// The number of units between two checks of the clock and of cancellation.
const SLICE_UNITS: u64 = 10_000;

thread_local! {
    /// Units that [`charge`] may take before the next check of clock and cancellation.
    static SLICE: Cell<u64> = const { Cell::new(u64::MAX) };
    static TANK: RefCell<Option<Tank>> = const { RefCell::new(None) };
}

/// The remaining fuel of a computation.
#[derive(Debug)]
pub struct Tank {
    left: u64,
    deadline: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
    exhausted: bool,
    discardable: bool,
    /// Whether [`commit`] ended the computation.
    ended_by_commit: bool,
}

impl Tank {
    /// Creates a tank with this number of units.
    pub fn new(units: u64) -> Self {
        Tank {
            left: units,
            deadline: None,
            cancelled: None,
            exhausted: false,
            discardable: false,
            ended_by_commit: false,
        }
    }

    /// Adds a deadline, at which the tank becomes empty.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Self {
        Tank { deadline: Some(deadline), ..self }
    }

    /// Adds a flag that empties the tank once it is set.
    #[must_use]
    pub fn unless(self, cancelled: Arc<AtomicBool>) -> Self {
        Tank { cancelled: Some(cancelled), ..self }
    }

    /// Makes the computation end at [`commit`], because it is discarded if it runs out of fuel.
    #[must_use]
    pub fn discardable(self) -> Self {
        Tank { discardable: true, ..self }
    }

    /// Whether the computation ran out of fuel.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Whether the computation ended before an effect, and not because it was too expensive.
    pub fn is_ended_by_commit(&self) -> bool {
        self.ended_by_commit
    }

    /// Runs a computation on this tank. The call may be repeated, as a future is polled.
    pub fn run<T>(&mut self, computation: impl FnOnce() -> T) -> T {
        /// Restores the tank and the outer meter, even if the computation panics.
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

/// Charges units. Returns false when none are left; the computation should then end at once.
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

/// Charges the units for reading `bytes` bytes, at `per_unit` bytes each; see [`charge`].
pub fn charge_bytes(bytes: usize, per_unit: usize) -> bool {
    charge((bytes / per_unit) as u64 + 1)
}

/// Charges the units that correspond to a duration; see [`charge`].
pub fn charge_time(spent: Duration) -> bool {
    charge(1 + u64::try_from(spent.as_nanos() / UNIT.as_nanos()).unwrap_or(u64::MAX))
}

/// Takes all remaining units, which ends the computation. Without a tank the call has no effect.
pub fn exhaust() {
    charge(u64::MAX);
}

/// Announces an effect outside of the process. Returns false if the computation must end before the effect: it has no
/// fuel, or is [discardable](Tank::discardable).
pub fn commit() -> bool {
    TANK.with_borrow_mut(|tank| {
        let Some(tank) = tank else { return true };
        if tank.discardable && !tank.exhausted {
            SLICE.set(0);
            (tank.left, tank.exhausted, tank.ended_by_commit) = (0, true, true);
        }
        !tank.exhausted
    })
}

/// Runs uninterruptible work and charges the units of its duration afterwards. Returns `None` if
/// they exceed the remaining units.
pub fn timed<T>(work: impl FnOnce() -> T) -> Option<T> {
    let begun = Instant::now();
    let done = work();
    charge_time(begun.elapsed()).then_some(done)
}

/// The remaining units; `None` without a tank.
pub fn left() -> Option<u64> {
    TANK.with_borrow(|tank| tank.as_ref().map(|tank| if tank.exhausted { 0 } else { tank.left + SLICE.get() }))
}

/// Whether the running computation ran out of fuel. The results of the computation must have no effect.
pub fn is_exhausted() -> bool {
    TANK.with_borrow(|tank| tank.as_ref().is_some_and(|tank| tank.exhausted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charge_without_a_tank_always_succeeds() {
        assert!((0..3).all(|_| charge(u64::MAX / 2)) && !is_exhausted());
        assert_eq!(left(), None);
    }

    #[test]
    fn fuel_tank_is_shared_by_several_runs() {
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
    fn fuel_tank_is_empty_after_deadline_or_cancellation() {
        let mut late = Tank::new(u64::MAX / 2).until(Instant::now());
        assert!(!late.run(|| charge(1)));
        let flag = Arc::new(AtomicBool::new(false));
        let mut cancelled = Tank::new(u64::MAX / 2).unless(Arc::clone(&flag));
        assert!(cancelled.run(|| charge(1)));
        flag.store(true, Ordering::Relaxed);
        assert!(!cancelled.run(|| (0..=SLICE_UNITS).all(|_| charge(1))), "it is noticed within a slice");
    }

    #[test]
    fn discardable_computation_ends_before_an_effect() {
        let mut tank = Tank::new(10).discardable();
        assert!(tank.run(|| charge(10) && !commit() && is_exhausted() && !charge(1)));
        assert!(tank.is_exhausted() && tank.is_ended_by_commit());
        let mut empty = Tank::new(10).discardable();
        assert!(empty.run(|| !charge(11) && !commit()) && !empty.is_ended_by_commit(), "it was too expensive");
        let mut other = Tank::new(1);
        assert!(other.run(|| commit() && charge(1) && !charge(1) && !commit()) && !other.is_ended_by_commit());
        assert!(commit(), "the thread has no tank");
    }

    #[test]
    fn fuel_tanks_nest_and_are_restored_after_panics() {
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
    fn timed_work_is_charged_for_its_duration() {
        let spin = |time: Duration| {
            let begun = Instant::now();
            while begun.elapsed() < time {}
        };
        let run = |time: Duration| Tank::new(1_000).run(|| timed(|| spin(time))).is_some();
        // A pause of the thread is charged as well, so one of 100 runs must suffice.
        assert!((0..100).any(|_| run(UNIT)));
        assert!(!run(UNIT * 2_000));
    }
}
