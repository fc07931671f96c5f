//! Runs expressions within the fuel of their request.

use std::time::Instant;

use listwatch_meta::Status;
use listwatch_meta::fuel::{self, Tank};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Maximum fuel of an evaluation on an I/O worker if the request has no fuel: about 1 ms, at 50 ns per unit.
const INLINE_UNITS_MAX: u64 = 20_000;

/// Maximum fuel of an evaluation if the request has no fuel: about 10 s, at 50 ns per unit. Beyond the limit, the
/// request ends with 504.
const UNITS_MAX: u64 = 200_000_000;

/// Runs an evaluation with the fuel of its request. Requests with several effects, such as deletions of collections,
/// and the server's own writes have no fuel. Such an evaluation first runs inline with little fuel. If that fuel is
/// used up, the evaluation runs again with `tokio::task::block_in_place` and more fuel.
///
/// # Errors
/// 504 if the fuel or the time is used up.
pub fn metered<T>(deadline: Option<Instant>, evaluation: impl Fn() -> T) -> Result<T, Status> {
    if fuel::left().is_some() {
        let result = evaluation();
        // A result without fuel is arbitrary.
        return if fuel::is_exhausted() { Err(Status::request_timed_out()) } else { Ok(result) };
    }
    let mut tank = Tank::new(INLINE_UNITS_MAX);
    let result = tank.run(&evaluation);
    if !tank.is_exhausted() {
        return Ok(result);
    }
    let tank = Tank::new(UNITS_MAX);
    let mut tank = match deadline {
        Some(deadline) => tank.until(deadline),
        None => tank,
    };
    let has_other_threads =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    let result = match has_other_threads {
        true => tokio::task::block_in_place(|| tank.run(&evaluation)),
        false => tank.run(&evaluation),
    };
    if tank.is_exhausted() { Err(Status::request_timed_out()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluation_uses_the_fuel_of_its_request() {
        let evaluate = |units: u64| metered(None, || fuel::charge(units));
        let mut tank = Tank::new(100);
        assert_eq!(tank.run(|| evaluate(60)), Ok(true));
        assert_eq!(tank.run(|| evaluate(60)).unwrap_err().code, 504);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn evaluation_for_a_request_without_fuel_is_bounded() {
        let evaluate = |units: u64, deadline: Option<Instant>| metered(deadline, || fuel::charge(units));
        assert_eq!(evaluate(1, None), Ok(true));
        assert_eq!(evaluate(INLINE_UNITS_MAX + 1, None), Ok(true), "it runs again with more fuel");
        assert_eq!(evaluate(UNITS_MAX + 1, None).unwrap_err().code, 504);
        assert_eq!(evaluate(INLINE_UNITS_MAX + 1, Some(Instant::now())).unwrap_err().code, 504);
    }
}
