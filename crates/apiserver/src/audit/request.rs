//! [`AuditedRequest`]: the audit record of one request. When the last reference is dropped, the record ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use listwatch_admission::AdmissionRecorder;
use listwatch_audit::{Level, Payload, Record, Stage};
use listwatch_meta::{Status, UserInfo};
use parking_lot::Mutex;

use super::Auditor;

/// A request that the policy records. The filters, the views and the response body share the value. If the value is
/// dropped before [`AuditedRequest::complete`], the drop records the last event. This happens at the end of a watch, or
/// after the client disconnects.
#[derive(Debug)]
pub(crate) struct AuditedRequest {
    auditor: Arc<Auditor>,
    record: Mutex<Record>,
    is_complete: AtomicBool,
}

/// Creates the recorder for the admission plugins of a request.
pub(crate) fn admission_recorder(audited: Option<&Arc<AuditedRequest>>) -> AdmissionRecorder {
    let has_requests = audited.is_some_and(|audited| audited.level() >= Level::Request);
    AdmissionRecorder::default().with_request_annotations(has_requests)
}

impl AuditedRequest {
    pub(crate) fn new(auditor: Arc<Auditor>, record: Record) -> Arc<Self> {
        Arc::new(AuditedRequest { auditor, record: Mutex::new(record), is_complete: AtomicBool::new(false) })
    }

    /// The level of detail that is recorded.
    pub(crate) fn level(&self) -> Level {
        self.record.lock().level()
    }

    /// Adds an annotation. A key keeps its first value.
    pub(crate) fn annotate(&self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        let key = key.into();
        if !self.record.lock().annotate(key.clone(), value) {
            tracing::warn!(%key, "an audit annotation has another value already");
        }
    }

    /// Adds the annotations of admission plugins.
    pub(crate) fn annotate_admission(&self, recorder: &AdmissionRecorder) {
        recorder.take_annotations().into_iter().for_each(|(key, value)| self.annotate(key, value));
    }

    pub(crate) fn set_impersonated_user(&self, user: &Arc<UserInfo>, constraint: &'static str) {
        self.record.lock().set_impersonated_user(Arc::clone(user), constraint);
    }

    /// Sets the object, the patch or the options of the request.
    pub(crate) fn set_request_object(&self, payload: Payload, completes_reference: bool) {
        self.record.lock().set_request_object(payload, completes_reference);
    }

    /// Sets the object of the response.
    pub(crate) fn set_response_object(&self, payload: Payload) {
        self.record.lock().set_response_object(payload);
    }

    /// Sets the Status of the response.
    pub(crate) fn set_status(&self, status: &Status) {
        self.record.lock().set_status(status);
    }

    /// Changes the record.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock());
    }

    /// Records a stage before the last. Returns false if the event is required and could not be written.
    pub(crate) async fn record(&self, stage: Stage) -> bool {
        let event = self.record.lock().event(stage, SystemTime::now());
        match event {
            Some(event) => self.auditor.process(event).await,
            None => true,
        }
    }

    /// Records the last stage.
    pub(crate) async fn complete(&self, stage: Stage) {
        self.is_complete.store(true, Ordering::Relaxed);
        self.record(stage).await;
    }

    /// Ends the record without a further event.
    pub(crate) fn abandon(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        if *self.is_complete.get_mut() {
            return;
        }
        let record = self.record.get_mut();
        record.set_closed_early();
        if let Some(event) = record.event(Stage::ResponseComplete, SystemTime::now()) {
            self.auditor.submit(&event);
        }
    }
}
