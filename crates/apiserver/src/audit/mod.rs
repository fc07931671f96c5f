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
use std::sync::atomic::Ordering;
use std::time::Duration;

use listwatch_audit::{AuditCounters, BatchOptions, Event, EventForm, LogFile, Policy, RotationOptions, Truncation};
use listwatch_outbound::Client;

pub(crate) use self::payload::{json_payload, list_payload, request_payload};
use self::queue::{Queue, Submission, Target};
pub(crate) use self::request::{AuditedRequest, admission_recorder};

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
    counters: Arc<AuditCounters>,
}

#[derive(Debug)]
struct Backend {
    mode: AuditMode,
    queue: Arc<Queue>,
}

impl Auditor {
    /// Opens the files and starts the tasks of the backends, on the current runtime.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub(crate) fn start(options: AuditOptions) -> Result<Arc<Auditor>, String> {
        let counters = Arc::<AuditCounters>::default();
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

    pub(crate) fn counters(&self) -> &AuditCounters {
        &self.counters
    }

    /// Passes an event to all backends, and waits for the blocking backends. Returns false if a strict backend failed.
    /// All backends receive the event even if the future is dropped after its first poll.
    async fn process(&self, event: Event) -> bool {
        let mut is_written = true;
        for (mode, submission) in self.submit(&event) {
            is_written &= submission.written().await || mode != AuditMode::BlockingStrict;
        }
        is_written
    }

    /// Passes an event to all backends without waiting. Returns the submissions to the blocking backends.
    fn submit(&self, event: &Event) -> Vec<(AuditMode, Submission)> {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        let mut submissions = Vec::new();
        for Backend { mode, queue } in &self.backends {
            match mode {
                AuditMode::Batch => queue.submit(event.clone()),
                _ => submissions.push((*mode, queue.submit_and_wait(event.clone()))),
            }
        }
        submissions
    }

    /// Writes the waiting events, and accepts no further events.
    pub(crate) async fn close(&self) {
        for backend in &self.backends {
            backend.queue.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake, Waker};

    use futures_util::FutureExt as _;
    use listwatch_access::Attributes;
    use listwatch_audit::{Record, RequestFacts, Stage};
    use listwatch_meta::UserInfo;

    use super::*;

    fn event(auditor: &Auditor) -> Event {
        let user = Arc::new(UserInfo::default());
        let facts = RequestFacts {
            audit_id: "1".to_owned(),
            request_uri: "/version".to_owned(),
            verb: "get".to_owned(),
            user: Arc::clone(&user),
            source_ips: Vec::new(),
            user_agent: String::new(),
            object_ref: None,
            received: std::time::SystemTime::UNIX_EPOCH,
        };
        let settings = auditor.policy.settings(&Attributes::path(&user, "get", "/version"));
        Record::new(settings, facts).event(Stage::ResponseComplete, std::time::SystemTime::UNIX_EPOCH).unwrap()
    }

    fn auditor(directory: &Path, backends: &[(&str, AuditMode, usize)]) -> Arc<Auditor> {
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n";
        let backends = backends.iter().map(|(name, mode, queue_events_max)| {
            let backend = AuditBackend::log(directory.join(name).to_str().unwrap());
            let batch = BatchOptions { queue_events_max: *queue_events_max, ..backend.batch };
            AuditBackend { mode: *mode, batch, ..backend }
        });
        let options = AuditOptions { policy: Policy::parse(policy).unwrap(), backends: backends.collect() };
        Auditor::start(options).unwrap()
    }

    fn lines(directory: &Path, name: &str) -> usize {
        std::fs::read_to_string(directory.join(name)).unwrap().lines().count()
    }

    #[tokio::test]
    async fn request_that_ends_during_a_blocking_write_reaches_every_backend() {
        let directory = tempfile::tempdir().unwrap();
        let backends = [("blocking", AuditMode::Blocking, 10), ("batch", AuditMode::Batch, 10)];
        let auditor = auditor(directory.path(), &backends);
        let answer = auditor.process(event(&auditor)).now_or_never();
        assert_eq!(answer, None, "the request waits for the write");
        auditor.close().await;
        for (name, ..) in backends {
            assert_eq!(lines(directory.path(), name), 1, "{name}: the event is lost");
        }
    }

    /// Counts its wake-ups.
    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn taken_batch_wakes_one_waiting_request_for_each_free_place() {
        const REQUESTS: usize = 300;
        let directory = tempfile::tempdir().unwrap();
        let auditor = auditor(directory.path(), &[("log", AuditMode::Blocking, 3)]);
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut requests: Vec<_> = (0..REQUESTS).map(|_| Box::pin(auditor.process(event(&auditor)))).collect();
        let written = async {
            while !requests.is_empty() {
                requests.retain_mut(|request| request.as_mut().poll(&mut context).is_pending());
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), written).await.expect("a request waits for ever");
        assert_eq!(lines(directory.path(), "log"), REQUESTS);
        // Each request is woken for a free place, and after the write of its event.
        let wakes = wakes.0.load(Ordering::Relaxed);
        assert!(wakes <= 2 * REQUESTS, "{wakes} wake-ups of {REQUESTS} requests");
        auditor.close().await;
    }

    #[tokio::test]
    async fn requests_that_end_before_a_full_queue_has_room_are_written() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [AuditMode::Blocking, AuditMode::BlockingStrict] {
            let name = format!("{mode:?}");
            let auditor = auditor(directory.path(), &[(&name, mode, 1)]);
            for _ in 0..500 {
                let answer = auditor.process(event(&auditor)).now_or_never();
                assert_eq!(answer, None, "the request waits for the write");
            }
            auditor.close().await;
            assert_eq!(lines(directory.path(), &name), 500, "{name}: an event is lost");
        }
    }
}
