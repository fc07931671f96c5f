//! The flags `--audit-*`: computes their settings ([`settings`]), and reads their files ([`read`])
//! (`apiserver/pkg/server/options/audit.go`).

use std::path::PathBuf;
use std::time::Duration;

use listwatch_apiserver::Builder;
use listwatch_apiserver::audit_log::{
    AuditBackend, AuditMode, AuditOptions, AuditTarget, BatchOptions, Client, Policy, RotationOptions, Throttle,
    Truncation,
};

use super::Failure;
use super::command_line::FlagValues;

/// The version of events.
const VERSION: &str = "audit.k8s.io/v1";

/// The audit log that the flags describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AuditSettings {
    /// The policy file. Without a policy, no event is recorded.
    pub(super) policy_file: Option<PathBuf>,
    pub(super) log: Option<LogSettings>,
    pub(super) webhook: Option<WebhookSettings>,
}

/// The log backend.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LogSettings {
    pub(super) path: String,
    pub(super) rotation: RotationOptions,
    pub(super) legacy: bool,
    pub(super) backend: BackendSettings,
}

/// The webhook backend.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WebhookSettings {
    pub(super) config_file: PathBuf,
    pub(super) initial_backoff: Duration,
    pub(super) backend: BackendSettings,
}

/// The settings that the log and webhook backends share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BackendSettings {
    pub(super) mode: AuditMode,
    pub(super) batch: BatchOptions,
    pub(super) truncation: Option<Truncation>,
}

/// Computes the settings. Flags of a backend that is off are not checked.
///
/// # Errors
/// The flag with its error.
pub(super) fn settings(given: &FlagValues) -> Result<AuditSettings, (String, String)> {
    let mut settings = AuditSettings { policy_file: given.path("audit-policy-file"), ..AuditSettings::default() };
    if let Some(path) = given.text("audit-log-path") {
        let legacy = match given.text("audit-log-format") {
            Some("json") => false,
            Some("legacy") => true,
            format => {
                let text = format!(
                    "invalid audit log format {}, allowed formats are \"legacy,json\"",
                    format.unwrap_or_default()
                );
                return Err(("audit-log-format".to_owned(), text));
            }
        };
        let number = |name: &str| {
            u64::try_from(given.int(name))
                .map_err(|_| (name.to_owned(), format!("--{name} {} can't be a negative number", given.int(name))))
        };
        let rotation = RotationOptions {
            age_max: Duration::from_secs(number("audit-log-maxage")?.saturating_mul(24 * 3600)),
            backups_max: usize::try_from(number("audit-log-maxbackup")?).unwrap_or(usize::MAX),
            file_bytes_max: number("audit-log-maxsize")?.saturating_mul(1 << 20),
            compress: given.bool("audit-log-compress"),
        };
        settings.log = Some(LogSettings { path: path.to_owned(), rotation, legacy, backend: backend(given, "log")? });
    }
    if let Some(config_file) = given.path("audit-webhook-config-file") {
        let initial_backoff = given.duration("audit-webhook-initial-backoff");
        settings.webhook = Some(WebhookSettings { config_file, initial_backoff, backend: backend(given, "webhook")? });
    }
    Ok(settings)
}

fn backend(given: &FlagValues, plugin: &str) -> Result<BackendSettings, (String, String)> {
    let name = |end: &str| format!("audit-{plugin}-{end}");
    let mode = match given.text(&name("mode")) {
        Some("batch") => AuditMode::Batch,
        Some("blocking") => AuditMode::Blocking,
        Some("blocking-strict") => AuditMode::BlockingStrict,
        mode => {
            let mode = mode.unwrap_or_default();
            let text =
                format!("invalid audit {plugin} mode {mode}, allowed modes are \"batch,blocking,blocking-strict\"");
            return Err((name("mode"), text));
        }
    };
    let positive = |end: &str, what: &str| {
        let value = given.int(&name(end));
        let wrong = || (name(end), format!("invalid audit {what} {value}, must be a positive number"));
        usize::try_from(value).ok().filter(|value| *value > 0).ok_or_else(wrong)
    };
    let mut batch = BatchOptions { batch_wait_max: given.duration(&name("batch-max-wait")), ..BatchOptions::of_log() };
    if mode == AuditMode::Batch {
        batch.queue_events_max = positive("batch-buffer-size", &format!("batch {plugin} buffer size"))?;
        batch.batch_events_max = positive("batch-max-size", &format!("batch {plugin} max batch size"))?;
        if given.bool(&name("batch-throttle-enable")) {
            let per_second = given.text(&name("batch-throttle-qps")).and_then(|text| text.parse::<f64>().ok());
            let per_second = per_second.filter(|rate| rate.is_finite() && *rate > 0.0).ok_or_else(|| {
                (
                    name("batch-throttle-qps"),
                    format!("invalid audit batch {plugin} throttle QPS, must be a positive number"),
                )
            })?;
            let burst = positive("batch-throttle-burst", &format!("batch {plugin} throttle burst"))?;
            batch.throttle = Some(Throttle { per_second, burst: u32::try_from(burst).unwrap_or(u32::MAX) });
        }
    }
    let event_bytes_max = positive("truncate-max-event-size", &format!("truncate {plugin} max event size"))?;
    let batch_bytes_max = positive("truncate-max-batch-size", &format!("truncate {plugin} max batch size"))?;
    if batch_bytes_max < event_bytes_max {
        let text = format!(
            "invalid audit truncate {plugin} max batch size {batch_bytes_max}, must be greater than max event size ({event_bytes_max})"
        );
        return Err((name("truncate-max-batch-size"), text));
    }
    let version = given.text(&name("version")).unwrap_or_default();
    if version != VERSION {
        return Err((
            name("version"),
            format!("invalid group version {version}, allowed versions are [\"{VERSION}\"]"),
        ));
    }
    let truncation = given.bool(&name("truncate-enabled")).then_some(Truncation { event_bytes_max, batch_bytes_max });
    Ok(BackendSettings { mode, batch, truncation })
}

/// Reads the policy and the kubeconfig, and passes them to the builder of the server.
///
/// # Errors
/// The flag and the file that cannot be used.
pub(super) fn read(builder: Builder, settings: &AuditSettings) -> Result<Builder, Failure> {
    let Some(file) = &settings.policy_file else { return Ok(builder) };
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("--audit-policy-file {}: {error}", file.display()))?;
    let policy = Policy::parse(&text)
        .map_err(|error| format!("loading audit policy file: {error}: from file {}", file.display()))?;
    for warning in policy.warnings() {
        tracing::warn!("--audit-policy-file {}: {warning}", file.display());
    }
    let mut backends = Vec::new();
    if let Some(LogSettings { path, rotation, legacy, backend }) = &settings.log {
        let target = AuditTarget::Log { path: path.clone(), rotation: *rotation, legacy: *legacy };
        backends.push(of_target(target, backend));
    }
    if let Some(WebhookSettings { config_file, initial_backoff, backend }) = &settings.webhook {
        let client = Client::try_from(config_file.as_path())
            .map_err(|error| format!("--audit-webhook-config-file {}: {error}", config_file.display()))?;
        backends.push(of_target(
            AuditTarget::Webhook { client: Box::new(client), initial_backoff: *initial_backoff },
            backend,
        ));
    }
    // A policy without a backend records nothing.
    Ok(if backends.is_empty() { builder } else { builder.audit_log(AuditOptions { policy, backends }) })
}

fn of_target(target: AuditTarget, settings: &BackendSettings) -> AuditBackend {
    AuditBackend { target, mode: settings.mode, batch: settings.batch, truncation: settings.truncation }
}
