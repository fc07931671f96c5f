//! [`Converter`] converts the objects of one definition by its webhook, or by a function of this process.
//!
//! ```text
//!  objects ─▶ those of another version ─▶ batches ─▶ webhook (HTTPS) ─┬─▶ checks ─▶ objects in the order of the request
//!                                                 └▶ handler (a task) ┘
//! ```
//!
//! A call holds no lock and needs no thread of its own. A call ends after [`CALL_TIMEOUT`] or at the deadline of the
//! request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_apiextensions::{
    ConversionBatch, ConversionError, ConversionWebhook, Definition, from_invalid_version, to_invalid_version,
};
use listwatch_json::{Map, Value};
use listwatch_webhooks::{WebhookCall, is_success, response_error_text};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::callers::{ConversionCallers, ConversionHandler, ConversionRequest};
use crate::tree::{MANAGED_FIELDS, encode_tree};

/// Timeout of one call of a conversion webhook. After the timeout, the conversion fails. kube-apiserver has no such
/// limit.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of concurrent calls for one definition. Further calls wait until their deadline.
pub(super) const CALLS_MAX: usize = 32;

/// Maximum number of objects in one ConversionReview. More objects are sent in several reviews.
pub(super) const REVIEW_OBJECTS_MAX: usize = 500;

/// Maximum size of the objects in one ConversionReview, in bytes. More objects are sent in several reviews; a larger
/// object is sent alone.
const REVIEW_BYTES_MAX: usize = 1 << 20;

type Tree = Map;

/// Converts the objects of one generation of a definition.
#[derive(Debug)]
pub(crate) struct Converter {
    /// The name of the definition.
    definition: String,
    group: String,
    versions: Vec<String>,
    webhook: ConversionWebhook,
    callers: Arc<ConversionCallers>,
    calls: Semaphore,
}

/// Aborts the task when the value is dropped, e.g. because the call was canceled.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Converter {
    /// Creates the converter of a definition; `None` if its versions differ only in `apiVersion`.
    pub(crate) fn new(definition: &Definition, callers: &Arc<ConversionCallers>) -> Option<Self> {
        let webhook = definition.conversion_webhook()?;
        let spec = &definition.spec;
        Some(Converter {
            definition: format!("{}.{}", spec.names.plural, spec.group),
            group: spec.group.clone(),
            versions: spec.versions.iter().map(|version| version.name.clone()).collect(),
            webhook,
            callers: Arc::clone(callers),
            calls: Semaphore::new(CALLS_MAX),
        })
    }

    /// Whether the definition has the version `api_version`.
    fn has_version(&self, api_version: &str) -> bool {
        let version = api_version.strip_prefix(self.group.as_str()).and_then(|rest| rest.strip_prefix('/'));
        version.is_some_and(|version| self.versions.iter().any(|name| name == version))
    }

    /// Converts objects of any version to the `apiVersion` `desired`. Objects in this version stay unchanged. The
    /// result has the order of `objects`.
    ///
    /// # Errors
    /// The first failure. No objects are returned then.
    pub(crate) async fn convert(
        &self,
        mut objects: Vec<Tree>,
        desired: &str,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tree>, ConversionError> {
        if !self.has_version(desired) {
            return Err(to_invalid_version(desired));
        }
        let mut waiting = Vec::new();
        for (position, object) in objects.iter_mut().enumerate() {
            let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
            if api_version == desired {
                continue;
            }
            if !self.has_version(api_version) {
                return Err(from_invalid_version(api_version));
            }
            // An object without content has nothing to convert.
            if object.len() == 2 && object.contains_key("kind") {
                object.insert("apiVersion", desired.into());
                continue;
            }
            waiting.push(position);
        }
        let handler = if waiting.is_empty() { None } else { self.callers.handler(&self.definition) };
        let mut waiting = &waiting[..];
        while !waiting.is_empty() {
            // Bodies are encoded here, because the size of a batch depends on them.
            let mut bodies = Vec::new();
            let mut bytes = 0;
            let mut count = 0;
            for position in waiting.iter().take(REVIEW_OBJECTS_MAX) {
                if handler.is_none() {
                    let body = encode_tree(&objects[*position]);
                    if count > 0 && bytes + body.len() > REVIEW_BYTES_MAX {
                        break;
                    }
                    bytes += body.len();
                    bodies.push(body);
                }
                count += 1;
            }
            let (now, later) = waiting.split_at(count);
            waiting = later;
            let first = &objects[now[0]];
            let from = first.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
            let batch = ConversionBatch::new(desired, now.iter().map(|position| &objects[*position]));
            let begun = Instant::now();
            let called = match &handler {
                Some(handler) => {
                    let mut sent = Vec::with_capacity(now.len());
                    for position in now {
                        sent.push(std::mem::take(&mut objects[*position]));
                    }
                    self.call_handler(handler, &batch, sent, desired, deadline).await
                }
                None => self.call_webhook(&batch, &bodies, deadline).await,
            };
            let accepted = called.and_then(|converted| batch.accept(converted));
            let failure = accepted.as_ref().err().map(ConversionError::failure_type);
            let version = |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
            let versions = (&*version(&from), &*version(desired));
            self.callers.metrics.observe(&self.definition, versions, failure, begun.elapsed());
            for (position, converted) in now.iter().zip(accepted?) {
                objects[*position] = converted;
            }
        }
        Ok(objects)
    }

    /// Waits for one of [`CALLS_MAX`] slots, then runs the call. The timeout includes the wait.
    async fn within_time<T>(
        &self,
        batch: &ConversionBatch,
        deadline: Option<Instant>,
        call: impl Future<Output = Result<T, ConversionError>>,
    ) -> Result<T, ConversionError> {
        let call = async {
            let _slot = self.calls.acquire().await.map_err(|closed| batch.call_failed(closed))?;
            call.await
        };
        match tokio::time::timeout(time_left(deadline), call).await {
            Ok(called) => called,
            Err(_) => Err(batch.call_failed("context deadline exceeded")),
        }
    }

    async fn call_handler(
        &self,
        handler: &Arc<dyn ConversionHandler>,
        batch: &ConversionBatch,
        mut objects: Vec<Tree>,
        desired: &str,
        deadline: Option<Instant>,
    ) -> Result<Vec<Value>, ConversionError> {
        for object in &mut objects {
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.shift_remove(MANAGED_FIELDS);
            }
        }
        let objects = objects.into_iter().map(Value::Object).collect();
        let request = ConversionRequest { desired_api_version: desired.to_owned(), objects };
        let handler = Arc::clone(handler);
        self.within_time(batch, deadline, async move {
            // Neither the computation of the handler nor its panic concerns the task that waits.
            let mut task = AbortOnDrop(tokio::spawn(async move { handler.convert(request).await }));
            match (&mut task.0).await {
                Ok(converted) => converted.map_err(|why| batch.call_failed(why)),
                Err(_) => Err(batch.call_failed("the converter panicked")),
            }
        })
        .await
    }

    async fn call_webhook(
        &self,
        batch: &ConversionBatch,
        objects: &[bytes::Bytes],
        deadline: Option<Instant>,
    ) -> Result<Vec<Value>, ConversionError> {
        let version = self.webhook.review_version.ok_or_else(|| batch.no_review_version())?;
        let caller = self.callers.caller().ok_or_else(|| batch.call_failed("the server is starting"))?;
        let client = &self.webhook.client_config;
        let target = client
            .target_without_timeout()
            .map_err(|why| batch.call_failed(format_args!("could not get REST client: {why}")))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let body = batch.request(version, &uid, objects.iter().map(|object| &object[..])).into();
        self.within_time(batch, deadline, async {
            let call =
                WebhookCall { target: &target, ca_bundle: client.ca_bundle(), body, timeout: time_left(deadline) };
            let answer = caller.call(call).await;
            let answer = answer.map_err(|cause| batch.call_failed(target.transport_error(cause)))?;
            if !is_success(answer.code) {
                return Err(batch.call_failed(response_error_text(answer.code, &answer.content_type, &answer.body)));
            }
            batch.parse_response(version, &uid, answer.code, &answer.body)
        })
        .await
    }
}

fn time_left(deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    left.map_or(CALL_TIMEOUT, |left| left.min(CALL_TIMEOUT))
}
