//! The audit log of a server: [`AuditOptions`] are the settings, [`Auditor`] runs the log, [`AuditedRequest`] records
//! one request.
//!
//! ```text
//!  filter ─▶ AuditedRequest ─event─▶ Auditor ─┬▶ Queue ─▶ task ─encode, write──▶ file
//!                                             └▶ Queue ─▶ task ─encode, POST───▶ webhook
//! ```
//!
//! The tasks of the backends encode and write events. In the mode `batch`, no request waits for these tasks. In the
//! blocking modes, a request waits until its event is written.

mod payload;
mod queue;
mod request;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use listwatch_audit::{BatchOptions, Event, EventForm, Level, LogFile, Policy, RotationOptions, Truncation};
use listwatch_outbound::Client;

pub(crate) use self::payload::{json_payload, list_payload, request_payload};
use self::queue::{Queue, Target};
pub(crate) use self::request::AuditedRequest;

/// Whether requests wait for the audit log (`--audit-log-mode`, `--audit-webhook-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// Events are written in batches, and no request waits. If the queue is full, events are dropped and counted.
    Batch,
    /// A request waits until its event is written. Failed writes are only logged and counted.
    Blocking,
    /// Like `Blocking`. In addition, a request fails with 500 if its first event cannot be written.
    BlockingStrict,
}

/// The destination of events.
#[derive(Clone, Debug)]
pub enum AuditTarget {
    /// A file, or standard output for the path `-`.
    Log {
        /// The path (`--audit-log-path`).
        path: String,
        /// The limits at which the file is rotated.
        rotation: RotationOptions,
        /// Whether events are lines of text instead of JSON (`--audit-log-format=legacy`).
        legacy: bool,
    },
    /// A webhook, which receives EventLists (`--audit-webhook-config-file`).
    Webhook {
        /// The client that sends to the webhook.
        client: Box<Client>,
        /// The delay before the first retry (`--audit-webhook-initial-backoff`).
        initial_backoff: Duration,
    },
}

/// One backend of the audit log.
#[derive(Clone, Debug)]
pub struct AuditBackend {
    /// The destination of events.
    pub target: AuditTarget,
    /// Whether requests wait until events are written.
    pub mode: AuditMode,
    /// The limits of batches, in the mode `Batch`.
    pub batch: BatchOptions,
    /// The sizes above which events are truncated. `None`: events are never truncated.
    pub truncation: Option<Truncation>,
}

impl AuditBackend {
    /// Creates a log file backend with the defaults of kube-apiserver: blocking, rotated at 100 MiB.
    pub fn log(path: &str) -> Self {
        let target = AuditTarget::Log { path: path.to_owned(), rotation: RotationOptions::default(), legacy: false };
        AuditBackend { target, mode: AuditMode::Blocking, batch: BatchOptions::of_log(), truncation: None }
    }

    /// Creates a webhook backend with the defaults of kube-apiserver: batches of at most 400 events in 30 s.
    pub fn webhook(client: Client) -> Self {
        let target = AuditTarget::Webhook { client: Box::new(client), initial_backoff: Duration::from_secs(10) };
        AuditBackend { target, mode: AuditMode::Batch, batch: BatchOptions::of_webhook(), truncation: None }
    }
}

/// The settings of an audit log.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The policy that selects the recorded requests (`--audit-policy-file`).
    pub policy: Policy,
    /// The backends that receive events.
    pub backends: Vec<AuditBackend>,
}

/// The audit log of one server.
#[derive(Debug)]
pub(crate) struct Auditor {
    pub(crate) policy: Policy,
    backends: Vec<Backend>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Backend {
    mode: AuditMode,
    queue: Arc<Queue>,
}

/// The counters of `/metrics` (`audit/metrics.go`).
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) events: AtomicU64,
    /// Requests by [`Level`].
    pub(crate) levels: [AtomicU64; 4],
    pub(crate) rejected: AtomicU64,
    /// The number of lost events, by [`Plugin`].
    pub(crate) errors: [AtomicU64; 4],
}

/// The names of [`Counters::errors`].
pub(crate) const PLUGINS: [&str; 4] = ["log", "webhook", "buffered", "truncate"];

/// The part of the audit log that lost an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugin {
    Log,
    Webhook,
    Buffered,
    Truncate,
}

impl Counters {
    /// Counts lost events, and logs the cause. The events are not logged, because they may contain secrets.
    fn lost(&self, plugin: Plugin, count: usize, why: &dyn std::fmt::Display) {
        let before = self.errors[plugin as usize].fetch_add(count as u64, Ordering::Relaxed);
        // A full queue loses many events. The log has the first one and every thousandth.
        if before == 0 || before / 1_000 != (before + count as u64) / 1_000 {
            let plugin = PLUGINS[plugin as usize];
            tracing::error!(plugin, lost = before + count as u64, error = %why, "audit events are lost");
        }
    }

    pub(crate) fn count_level(&self, level: Level) {
        self.levels[level as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Auditor {
    /// Opens the files and starts the tasks of the backends, on the current runtime.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub(crate) fn start(options: AuditOptions) -> Result<Arc<Auditor>, String> {
        let counters = Arc::<Counters>::default();
        let mut backends = Vec::new();
        for AuditBackend { target, mode, batch, truncation } in options.backends {
            let (target, form) = match target {
                AuditTarget::Log { path, rotation, legacy } => {
                    let file = LogFile::open(&path, rotation).map_err(|error| format!("{path}: {error}"))?;
                    (Target::Log(Some(file)), if legacy { EventForm::Legacy } else { EventForm::Object })
                }
                AuditTarget::Webhook { client, initial_backoff } => {
                    (Target::Webhook { client, initial_backoff }, EventForm::Item)
                }
            };
            let batch = match mode {
                AuditMode::Batch => batch,
                // All events that wait are written together.
                AuditMode::Blocking | AuditMode::BlockingStrict => BatchOptions {
                    batch_wait_max: Duration::ZERO,
                    batch_events_max: BatchOptions::of_webhook().batch_events_max,
                    throttle: None,
                    ..batch
                },
            };
            let queue = Queue::start(target, form, batch, truncation, Arc::clone(&counters));
            backends.push(Backend { mode, queue });
        }
        Ok(Arc::new(Auditor { policy: options.policy, backends, counters }))
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Passes an event to all backends, and waits for the blocking backends. Returns false if a strict backend failed.
    async fn process(&self, event: Event) -> bool {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        let mut is_written = true;
        for Backend { mode, queue } in &self.backends {
            match mode {
                AuditMode::Batch => queue.submit(event.clone()),
                AuditMode::Blocking => drop(queue.write(event.clone()).await),
                AuditMode::BlockingStrict => is_written &= queue.write(event.clone()).await,
            }
        }
        is_written
    }

    /// Passes an event to all backends without waiting. In the blocking modes a task waits for room in the queue.
    fn process_detached(&self, event: &Event) {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        for Backend { mode, queue } in &self.backends {
            let (queue, event) = (Arc::clone(queue), event.clone());
            match (mode, tokio::runtime::Handle::try_current()) {
                (AuditMode::Blocking | AuditMode::BlockingStrict, Ok(runtime)) => {
                    runtime.spawn(async move { queue.write(event).await });
                }
                _ => queue.submit(event),
            }
        }
    }

    /// Writes the waiting events, and accepts no further events.
    pub(crate) async fn close(&self) {
        for backend in &self.backends {
            backend.queue.close().await;
        }
    }
}
