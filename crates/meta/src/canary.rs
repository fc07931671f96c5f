//! Planted bugs, which show that the simulator finds them.
//!
//! [`canary!`](crate::canary!) is `false` in every build without `--cfg listwatch_canary`, so the bugs are not in any
//! program that users run. In a build with it, [`plant`] chooses one bug for the current thread.

/// Whether the planted bug of this name is active on this thread. `false` without `--cfg listwatch_canary`.
#[cfg(not(listwatch_canary))]
#[macro_export]
macro_rules! canary {
    ($name:literal) => {
        false
    };
}

/// Whether the planted bug of this name is active on this thread. `false` without `--cfg listwatch_canary`.
#[cfg(listwatch_canary)]
#[macro_export]
macro_rules! canary {
    ($name:literal) => {
        $crate::canary::is_planted($name)
    };
}

#[cfg(listwatch_canary)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Chooses the planted bug of this thread. Has no effect without `--cfg listwatch_canary`.
pub fn plant(bug: Option<&'static str>) {
    #[cfg(listwatch_canary)]
    PLANTED.with(|planted| planted.set(bug));
    #[cfg(not(listwatch_canary))]
    let _ = bug;
}

/// Whether a bug is active on this thread.
#[cfg(listwatch_canary)]
pub fn is_planted(name: &str) -> bool {
    PLANTED.with(|planted| planted.get() == Some(name))
}
