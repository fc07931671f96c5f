//! [`AdmissionRecorder`] collects warnings and audit annotations of plugins (`warning.AddWarning`,
//! `audit.AddAuditAnnotation`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest number of audit annotations of one request. Further annotations are dropped.
pub const ANNOTATIONS_MAX: usize = 256;
/// The largest value of an audit annotation, in bytes. Longer values are cut at a character boundary.
pub const ANNOTATION_BYTES_MAX: usize = 10 * 1024;

/// The largest number of distinct warnings of one request. The HTTP layer bounds their length.
const WARNINGS_MAX: usize = 256;

/// Collects warnings for the client and annotations for the audit event of one request. Equal warnings are stored once,
/// because plugins run again if a concurrent write changes the object.
#[derive(Debug, Default)]
pub struct AdmissionRecorder(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
}

impl AdmissionRecorder {
    /// Adds a warning for the client. Equal warnings are stored once. Further warnings after the first 256 are dropped.
    pub fn warn(&self, text: impl Into<String>) {
        let (text, mut records) = (text.into(), self.records());
        if records.warnings.len() < WARNINGS_MAX && !records.warnings.contains(&text) {
            records.warnings.push(text);
        }
    }

    /// Sets an annotation of the audit event. A later value of a key replaces an earlier one. [`ANNOTATIONS_MAX`] and
    /// [`ANNOTATION_BYTES_MAX`] limit the annotations.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        let (key, mut value, mut records) = (key.into(), value.into(), self.records());
        if records.annotations.len() < ANNOTATIONS_MAX || records.annotations.contains_key(&key) {
            let fits = (0..=value.len().min(ANNOTATION_BYTES_MAX)).rev().find(|&at| value.is_char_boundary(at));
            value.truncate(fits.unwrap_or_default());
            records.annotations.insert(key, value);
        }
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        recorder.annotate("0", "x".repeat(ANNOTATION_BYTES_MAX - 1) + "\u{e9}");
        for number in 0..=ANNOTATIONS_MAX {
            recorder.annotate(format!("k{number}"), "");
        }
        recorder.annotate("k1", "again");
        let annotations = recorder.take_annotations();
        assert_eq!(annotations.len(), ANNOTATIONS_MAX);
        assert_eq!((annotations["0"].len(), &*annotations["k1"]), (ANNOTATION_BYTES_MAX - 1, "again"));
    }
}
