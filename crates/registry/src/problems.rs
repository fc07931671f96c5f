//! [`Problems`]: the current error of each controller, for readiness checks and the log.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The current problem of each controller, by the controller's name. `/readyz` and the log report the problems.
#[derive(Debug, Default)]
pub struct Problems(Mutex<BTreeMap<&'static str, String>>);

impl Problems {
    /// Sets the problem of a controller, or clears the problem if `problem` is `None`. Each change is logged.
    pub fn set(&self, controller: &'static str, problem: Option<String>) {
        let mut problems = self.0.lock();
        if problems.get(controller) == problem.as_ref() {
            return;
        }
        match problem {
            Some(problem) => {
                // The text changes with each unreadable value; only the first text is logged.
                if problems.contains_key(controller) {
                    tracing::debug!(controller, problem, "a built-in loop still cannot do its work");
                } else {
                    tracing::error!(controller, problem, "a controller cannot do its work");
                }
                problems.insert(controller, problem);
            }
            None => {
                tracing::info!(controller, "a controller works again");
                problems.remove(controller);
            }
        }
    }

    /// Returns the problem of one controller, or `None` if the controller works.
    pub fn get(&self, controller: &str) -> Option<String> {
        self.0.lock().get(controller).cloned()
    }

    /// Joins all problems into one line. Returns `None` if there are none.
    pub fn text(&self) -> Option<String> {
        let problems = self.0.lock();
        let lines: Vec<String> =
            problems.iter().map(|(controller, problem)| format!("{controller}: {problem}")).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}
