//! [`Reinvocation`]: selects the mutating webhooks that run a second time (`mutating/reinvocationcontext.go`).
//!
//! ```text
//!  first round:  a webhook changes the object ─▶ each IfNeeded webhook before it runs again ─▶ a second round
//!  second round: plugins changed the object in between ─▶ each IfNeeded webhook of the first round runs again
//! ```
//! There is no third round. A webhook that the first round skipped is also skipped in the second round.

use std::collections::BTreeSet;

use listwatch_validation::Object;

/// The state of one request between its rounds.
#[derive(Clone, Debug, Default)]
pub struct Reinvocation {
    is_second_round: bool,
    /// Webhooks with the policy `IfNeeded` that ran since the last change.
    invoked: BTreeSet<String>,
    /// Webhooks that the second round calls.
    reinvoked: BTreeSet<String>,
    /// The object after the webhooks of the last round.
    last_output: Option<Object>,
    is_requested: bool,
}

impl Reinvocation {
    /// Whether a second round is needed. Always false in the second round.
    pub fn is_requested(&self) -> bool {
        self.is_requested && !self.is_second_round
    }

    /// The number of the round: 0 or 1, as in the names of audit annotations.
    pub fn round(&self) -> u8 {
        self.is_second_round.into()
    }

    /// Begins the second round. `object` is the object that the webhooks will receive. Call this after the other
    /// plugins of the second round.
    pub fn begin_second_round(&mut self, object: &Object) {
        self.is_second_round = true;
        if self.last_output.as_ref() != Some(object) {
            self.reinvoke_invoked();
        }
    }

    /// Whether a matching webhook is called in this round.
    pub fn allows(&self, id: &str) -> bool {
        !self.is_second_round || self.reinvoked.contains(id)
    }

    /// Records a call. `changed` states whether the patch changed the object.
    pub fn record_call(&mut self, id: &str, reinvoked_if_needed: bool, changed: bool) {
        if changed {
            self.reinvoke_all();
        }
        if reinvoked_if_needed {
            self.invoked.insert(id.to_owned());
        }
    }

    /// Calls each webhook that was called so far again in the second round, if its policy is `IfNeeded`.
    pub fn reinvoke_all(&mut self) {
        self.reinvoke_invoked();
        self.is_requested = true;
    }

    /// Ends the round. `object` is the object after the last webhook.
    pub fn end_round(&mut self, object: &Object) {
        self.last_output = Some(object.clone());
    }

    fn reinvoke_invoked(&mut self) {
        self.reinvoked.append(&mut self.invoked);
    }
}
