//! Runs work that must not end early, although the request has little fuel left.

use std::future::poll_fn;

use listwatch_meta::fuel::Tank;

/// Maximum fuel of the work, enough for several reads of the largest object that a store accepts.
const UNITS_MAX: u64 = 10_000_000;

/// Runs a future on a tank of its own. The request pays for none of it. For the cleanup after a write that has taken
/// effect: nobody repeats such a write, so a cleanup that ends early never happens.
pub(super) async fn unmetered<T>(work: impl Future<Output = T> + Send) -> T {
    // On the heap, because the callers are the futures of all writes.
    let mut work = Box::pin(work);
    let mut tank = Tank::new(UNITS_MAX);
    poll_fn(|context| tank.run(|| work.as_mut().poll(context))).await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use listwatch_meta::fuel;

    use super::*;

    #[test]
    fn unmetered_work_uses_no_fuel_of_the_request_and_is_bounded() {
        let spend = |units: u64| unmetered(async move { fuel::charge(units) }).now_or_never();
        let mut request = Tank::new(100);
        assert_eq!(request.run(|| (spend(UNITS_MAX), spend(UNITS_MAX + 1))), (Some(true), Some(false)));
        assert_eq!(request.run(fuel::left), Some(100));
        assert_eq!(request.run(|| (fuel::charge(101), spend(1))), (false, Some(true)), "an empty tank");
    }
}
