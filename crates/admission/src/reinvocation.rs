//! [`ReinvocationContext`]: the second round of the mutating plugins of one request (`admission/reinvocation.go`).
//!
//! ```text
//!  first round ── a webhook or policy changed the object: request ──▶ second round of all plugins ──▶ end
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state that both rounds of one mutating pass share.
#[derive(Debug, Default)]
pub struct ReinvocationContext(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_second_round: bool,
    is_requested: bool,
    /// The state of each plugin, by the name of the plugin.
    values: BTreeMap<&'static str, Box<dyn Any + Send>>,
}

impl ReinvocationContext {
    /// Whether the plugins run a second time.
    pub fn is_second_round(&self) -> bool {
        self.state().is_second_round
    }

    /// Requests a second round. There is no third round.
    pub fn request(&self) {
        self.state().is_requested = true;
    }

    /// Removes and returns the state that a plugin has stored under its name.
    pub fn take<T: Any + Send>(&self, plugin: &'static str) -> Option<T> {
        let value = self.state().values.remove(plugin)?;
        value.downcast().ok().map(|value| *value)
    }

    /// Stores the state of a plugin for its next round.
    pub fn put<T: Any + Send>(&self, plugin: &'static str, value: T) {
        self.state().values.insert(plugin, Box::new(value));
    }

    /// Begins the second round if a plugin has requested one. Returns whether the round begins.
    pub(crate) fn begin_second_round(&self) -> bool {
        let mut state = self.state();
        let begins = state.is_requested && !state.is_second_round;
        state.is_second_round |= begins;
        begins
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_admission_round_begins_once_and_keeps_plugin_state() {
        let context = ReinvocationContext::default();
        assert!(!context.begin_second_round(), "no plugin has requested it");
        context.request();
        context.put("A", 7_u32);
        assert!(context.begin_second_round() && context.is_second_round());
        assert_eq!((context.take::<u32>("A"), context.take::<u32>("A")), (Some(7), None));
        context.request();
        assert!(!context.begin_second_round(), "there is no third round");
    }
}
