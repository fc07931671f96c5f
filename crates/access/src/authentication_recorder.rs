//! [`AuthenticationRecorder`]: collects the audit annotations and the warnings of authenticators
//! (`audit.AddAuditAnnotation`, `warning.AddWarning`), and whether the server itself sent the request.

use parking_lot::Mutex;

/// Collects audit annotations, warnings and the origin while one request is authenticated.
#[derive(Debug, Default)]
pub struct AuthenticationRecorder(Mutex<AuthenticationRecords>);

/// The collected annotations, warnings and origin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuthenticationRecords {
    /// The annotations of the audit event, each key once.
    pub annotations: Vec<(&'static str, String)>,
    /// The warnings for the client, each text once.
    pub warnings: Vec<&'static str>,
    /// Whether [`LoopbackToken`](crate::LoopbackToken) authenticated the request: the server sent it to itself.
    pub is_loopback: bool,
}

impl AuthenticationRecorder {
    /// Adds an annotation of the audit event. As upstream, the first value of a key stays.
    pub fn annotate(&self, key: &'static str, value: String) {
        let annotations = &mut self.0.lock().annotations;
        if annotations.iter().all(|(known, _)| *known != key) {
            annotations.push((key, value));
        }
    }

    /// Adds a warning for the client.
    pub fn warn(&self, text: &'static str) {
        let warnings = &mut self.0.lock().warnings;
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Records that the server itself sent the request. Only [`LoopbackToken`](crate::LoopbackToken) may call this.
    pub(crate) fn set_loopback(&self) {
        self.0.lock().is_loopback = true;
    }

    /// Removes and returns the records.
    pub fn take(&self) -> AuthenticationRecords {
        std::mem::take(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_value_of_a_key_and_each_warning_are_recorded_once() {
        let recorder = AuthenticationRecorder::default();
        for value in ["a", "b"] {
            recorder.annotate("k", value.to_owned());
            recorder.warn("w");
        }
        let annotations = vec![("k", "a".to_owned())];
        let expected = AuthenticationRecords { annotations, warnings: vec!["w"], is_loopback: false };
        assert_eq!(recorder.take(), expected);
        assert_eq!(recorder.take(), AuthenticationRecords::default());
    }
}
