//! [`AdmissionRecorder`] collects warnings and audit annotations of plugins (`warning.AddWarning`,
//! `audit.AddAuditAnnotation`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use listwatch_meta::selector::qualified_name_problems;

/// The largest number of audit annotations of one request. Further annotations are dropped.
pub const ANNOTATIONS_MAX: usize = 256;
/// The largest value of an audit annotation, in bytes. Longer values are cut at a character boundary.
pub const ANNOTATION_BYTES_MAX: usize = 10 * 1024;

/// The largest number of distinct warnings of one request. The HTTP layer bounds their length.
const WARNINGS_MAX: usize = 256;

/// Collects warnings for the client and annotations for the audit event of one request. Equal warnings are stored once,
/// because plugins run again if a concurrent write changes the object.
#[derive(Debug, Default)]
pub struct AdmissionRecorder {
    records: Mutex<Records>,
    /// Whether annotations for the level `Request` are taken.
    has_request_annotations: bool,
}

#[derive(Debug, Default)]
struct Records {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
    /// The effects that the request has had.
    effects: Vec<&'static str>,
}

impl AdmissionRecorder {
    /// Sets whether the recorder takes annotations that audit events contain only from the level `Request` on. Default:
    /// false.
    #[must_use]
    pub fn with_request_annotations(mut self, has_request_annotations: bool) -> Self {
        self.has_request_annotations = has_request_annotations;
        self
    }

    /// Adds a warning for the client. Equal warnings are stored once. Further warnings after the first 256 are dropped.
    pub fn warn(&self, text: impl Into<String>) {
        let (text, mut records) = (text.into(), self.records());
        if records.warnings.len() < WARNINGS_MAX && !records.warnings.contains(&text) {
            records.warnings.push(text);
        }
    }

    /// Sets an annotation of the audit event. A later value of a key replaces an earlier one. [`ANNOTATIONS_MAX`] and
    /// [`ANNOTATION_BYTES_MAX`] limit the annotations. A key that is not `<DNS subdomain>/<name>` is dropped
    /// (`checkKeyFormat`).
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        let (key, mut value) = (key.into(), value.into());
        if !key.contains('/') || !qualified_name_problems(&key).is_empty() {
            tracing::warn!(%key, "the key of an audit annotation is not a qualified name with a prefix");
            return;
        }
        let mut records = self.records();
        if records.annotations.len() < ANNOTATIONS_MAX || records.annotations.contains_key(&key) {
            let fits = (0..=value.len().min(ANNOTATION_BYTES_MAX)).rev().find(|&at| value.is_char_boundary(at));
            value.truncate(fits.unwrap_or_default());
            records.annotations.insert(key, value);
        }
    }

    /// Sets an annotation that audit events contain only from the level `Request` on. Other recorders do not compute the
    /// value.
    pub fn annotate_request(&self, key: impl Into<String>, value: impl FnOnce() -> String) {
        if self.has_request_annotations {
            self.annotate(key, value());
        }
    }

    /// Whether [`AdmissionRecorder::annotate_request`] has an effect.
    pub fn has_request_annotations(&self) -> bool {
        self.has_request_annotations
    }

    /// Records an effect that a request must have once, although plugins can see the request several times.
    pub fn add_effect(&self, effect: &'static str) {
        let mut records = self.records();
        if !records.effects.contains(&effect) {
            records.effects.push(effect);
        }
    }

    /// Whether the request has had this effect.
    pub fn has_effect(&self, effect: &'static str) -> bool {
        self.records().effects.contains(&effect)
    }

    /// Removes and returns the warnings, in the order in which they were added.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.records().warnings)
    }

    /// Removes and returns the annotations of the audit event.
    pub fn take_annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.records().annotations)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_warnings_are_recorded_once_in_order() {
        let recorder = AdmissionRecorder::default();
        for text in ["b", "a", "b"] {
            recorder.warn(text);
        }
        assert_eq!(recorder.take_warnings(), ["b", "a"]);
        assert!(recorder.take_warnings().is_empty());
    }

    #[test]
    fn annotations_are_bounded_in_number_and_length() {
        let recorder = AdmissionRecorder::default();
        recorder.annotate("a/0", "x".repeat(ANNOTATION_BYTES_MAX - 1) + "\u{e9}");
        for number in 0..=ANNOTATIONS_MAX {
            recorder.annotate(format!("a/k{number}"), "");
        }
        recorder.annotate("a/k1", "again");
        let annotations = recorder.take_annotations();
        assert_eq!(annotations.len(), ANNOTATIONS_MAX);
        assert_eq!((annotations["a/0"].len(), &*annotations["a/k1"]), (ANNOTATION_BYTES_MAX - 1, "again"));
    }

    #[test]
    fn annotation_is_recorded_if_its_key_is_a_qualified_name_with_a_prefix() {
        for (key, expected) in [
            ("hook.example.com/decision", true),
            ("decision", false),
            ("hook.example.com/a/b", false),
            ("hook.example.com/", false),
            ("hook.example.com/with space", false),
            ("Hook.example.com/decision", false),
        ] {
            let recorder = AdmissionRecorder::default();
            recorder.annotate(key, "v");
            assert_eq!(recorder.take_annotations().contains_key(key), expected, "{key}");
        }
    }

    #[test]
    fn annotation_of_the_level_request_is_recorded_on_request() {
        for expected in [false, true] {
            let recorder = AdmissionRecorder::default().with_request_annotations(expected);
            recorder.annotate_request("a/patch", || "v".to_owned());
            assert_eq!(!recorder.take_annotations().is_empty(), expected);
        }
    }
}
