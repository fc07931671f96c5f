//! Converging: after the faults stop, every observer's copy equals the store.

use crate::observer::Trace;
use crate::truth::{History, Objects};

pub(super) fn check(trace: &Trace, truth: &History) -> Result<(), String> {
    let expected = super::view_at(truth, &trace.plan, trace.as_of);
    let content =
        |state: &Objects| state.iter().map(|(object, (_, state))| (object.clone(), state.clone())).collect::<Vec<_>>();
    if content(&trace.copy) != content(&expected) {
        return Err(format!(
            "converging: at {} an observer believed {:?}, the store held {expected:?}",
            trace.as_of, trace.copy
        ));
    }
    Ok(())
}
