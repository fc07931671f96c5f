//! Credentials from a program: kubeconfig's `exec`, as `client.authentication.k8s.io` `v1` and
//! `v1beta1` define it. [`ExecPlugin`] describes the program, [`ExecPlugin::run`] runs it.
//!
//! The program's resources are bounded: its output by [`OUTPUT_LIMIT_BYTES`], its time by
//! [`RUN_LIMIT`] (or [`INTERACTIVE_LIMIT`] if it may interact with the user). A failure's message
//! contains the program's error output, and the install hint if the program is missing.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::Identity;
use crate::problem::Cause;

/// The longest output of a plugin in bytes; a longer output is an error.
pub const OUTPUT_LIMIT_BYTES: usize = 1024 * 1024;

/// Time for a plugin that cannot interact with the user, after which it is killed.
pub const RUN_LIMIT: Duration = Duration::from_secs(60);

/// Time for a plugin that can interact with the user, e.g. for a login in a browser, after which it
/// is killed.
pub const INTERACTIVE_LIMIT: Duration = Duration::from_secs(600);

/// The longest part of a plugin's standard error in an error message, in bytes, counted from the
/// end.
const STDERR_LIMIT_BYTES: usize = 2 * 1024;

/// Whether a plugin may interact with the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum InteractiveMode {
    /// The plugin never interacts and gets no standard input.
    Never,
    /// The plugin interacts if there is a terminal.
    IfAvailable,
    /// The plugin requires interaction; without a terminal it fails before it is run.
    Always,
}

/// The protocol version of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecVersion {
    /// `client.authentication.k8s.io/v1`.
    V1,
    /// `client.authentication.k8s.io/v1beta1`.
    V1Beta1,
}

impl ExecVersion {
    /// The version as in `apiVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            ExecVersion::V1 => "client.authentication.k8s.io/v1",
            ExecVersion::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }

    #[cfg(feature = "kubeconfig")]
    pub(super) fn parse(text: &str) -> Option<Self> {
        [ExecVersion::V1, ExecVersion::V1Beta1].into_iter().find(|version| version.as_str() == text)
    }
}

/// A credential plugin: a program that prints credentials.
#[derive(Clone)]
pub struct ExecPlugin {
    /// The program: a path, or a name that is searched in PATH.
    pub command: PathBuf,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Variables added to this process's environment.
    pub env: Vec<(String, String)>,
    /// The version of the plugin's protocol.
    pub version: ExecVersion,
    /// Whether the plugin may interact with the user.
    pub interactive: InteractiveMode,
    /// The `installHint` of the kubeconfig, shown if the program is missing.
    pub install_hint: String,
    /// The cluster information for the program, as JSON; `None` without `provideClusterInfo`.
    pub cluster: Option<serde_json::Value>,
}

impl fmt::Debug for ExecPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables may be secrets.
        write!(f, "ExecPlugin({:?}, {})", self.command, self.version.as_str())
    }
}

/// The credentials of a plugin: a token, a client certificate, or both.
#[derive(Debug)]
pub struct ExecCredentials {
    /// The token for `Authorization: Bearer`.
    pub token: Option<Secret>,
    /// The client certificate.
    pub identity: Option<Identity>,
    /// The remaining validity. `None`: the credentials are valid until the server rejects them.
    pub lasts: Option<Duration>,
}

/// Text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The error of a plugin. The plugin or its installation is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// There is no such program.
    #[error("the credential plugin {} is not installed{}", command.display(), after(hint))]
    NotInstalled {
        /// The program.
        command: PathBuf,
        /// The kubeconfig's hint.
        hint: String,
    },
    /// The program cannot be run.
    #[error("the credential plugin {} cannot be run: {why}", command.display())]
    NotRunnable {
        /// The program.
        command: PathBuf,
        /// The system's error as text.
        why: String,
        /// The system's error.
        source: Cause,
    },
    /// The plugin requires interaction, and there is no terminal.
    #[error("the credential plugin {} has to ask the user something, and standard input is no terminal", command.display())]
    NoTerminal {
        /// The program.
        command: PathBuf,
    },
    /// The program exceeded its time limit and was killed.
    #[error("the credential plugin {} took longer than {} s", command.display(), limit.as_secs())]
    TooSlow {
        /// The program.
        command: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The program ended with an error.
    #[error("the credential plugin {} failed ({code}){}", command.display(), after(said))]
    Failed {
        /// The program.
        command: PathBuf,
        /// The program's exit code or signal.
        code: String,
        /// The end of the program's standard error, unless the program wrote to the user's
        /// terminal.
        said: String,
    },
    /// The plugin's output is not a credential.
    #[error("the credential plugin {} printed no usable credentials: {why}", command.display())]
    Unusable {
        /// The program.
        command: PathBuf,
        /// The problem.
        why: String,
    },
}

fn after(text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialRequest<'a> {
    kind: &'a str,
    api_version: &'a str,
    spec: ExecCredentialSpec<'a>,
}

#[derive(Serialize)]
struct ExecCredentialSpec<'a> {
    interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialResponse {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl ExecPlugin {
    /// Runs the program and reads its credentials. Cancel-safe: dropping the future kills it.
    ///
    /// # Errors
    /// [`ExecError`].
    pub async fn run(&self) -> Result<ExecCredentials, ExecError> {
        self.run_with_terminal(std::io::stdin().is_terminal()).await
    }

    pub(super) async fn run_with_terminal(&self, terminal: bool) -> Result<ExecCredentials, ExecError> {
        let command = || self.command.clone();
        let interactive = match self.interactive {
            InteractiveMode::Never => false,
            InteractiveMode::IfAvailable => terminal,
            InteractiveMode::Always if terminal => true,
            InteractiveMode::Always => return Err(ExecError::NoTerminal { command: command() }),
        };
        let limit = if interactive { INTERACTIVE_LIMIT } else { RUN_LIMIT };
        let mut child = self.spawn(interactive)?;
        let (out, complaints) = (child.stdout.take(), child.stderr.take());
        let running = async {
            let (out, said, exit) = tokio::join!(read_bounded(out), read_end(complaints), async { child.wait().await });
            (out, said, exit)
        };
        let Ok((out, said, exit)) = tokio::time::timeout(limit, running).await else {
            return Err(ExecError::TooSlow { command: command(), limit });
        };
        let exit = exit.map_err(|error| ExecError::NotRunnable {
            command: command(),
            why: error.to_string(),
            source: Cause::new(error),
        })?;
        if !exit.success() {
            return Err(ExecError::Failed { command: command(), code: exit.to_string(), said });
        }
        let unusable = |why: String| ExecError::Unusable { command: command(), why };
        let out = out.map_err(unusable)?;
        self.read(&out, SystemTime::now()).map_err(unusable)
    }

    fn spawn(&self, interactive: bool) -> Result<tokio::process::Child, ExecError> {
        let asked = ExecCredentialRequest {
            kind: "ExecCredential",
            api_version: self.version.as_str(),
            spec: ExecCredentialSpec { interactive, cluster: self.cluster.as_ref() },
        };
        let asked = serde_json::to_string(&asked).expect("text and flags are JSON");
        let mut command = Command::new(&self.command);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", asked).stdout(Stdio::piped()).kill_on_drop(true);
        if interactive {
            command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        } else {
            command.stdin(Stdio::null()).stderr(Stdio::piped());
        }
        command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                ExecError::NotInstalled { command: self.command.clone(), hint: self.install_hint.clone() }
            }
            _ => ExecError::NotRunnable {
                command: self.command.clone(),
                why: error.to_string(),
                source: Cause::new(error),
            },
        })
    }

    /// Reads an `ExecCredential`.
    fn read(&self, out: &[u8], now: SystemTime) -> Result<ExecCredentials, String> {
        let answered: ExecCredentialResponse =
            serde_json::from_slice(out).map_err(|error| format!("no ExecCredential in JSON: {error}"))?;
        if answered.kind != "ExecCredential" {
            return Err(format!("its kind is {:?} and not ExecCredential", answered.kind));
        }
        if answered.api_version != self.version.as_str() {
            let (found, wanted) = (&answered.api_version, self.version.as_str());
            return Err(format!("its version is {found:?}, and the kubeconfig says {wanted:?}"));
        }
        let status = answered.status.ok_or("it has no status")?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let token = given(status.token);
        let identity = match (given(status.client_certificate_data), given(status.client_key_data)) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(
                Identity::parse((certificate.as_bytes(), "its certificate"), (key.as_bytes(), "its key"))
                    .map_err(|error| error.to_string())?,
            ),
            (Some(_), None) => return Err("it has a certificate without a key".to_owned()),
            (None, Some(_)) => return Err("it has a key without a certificate".to_owned()),
        };
        if token.is_none() && identity.is_none() {
            return Err("it has neither a token nor a certificate".to_owned());
        }
        let lasts = match given(status.expiration_timestamp) {
            None => None,
            Some(text) => {
                let until = OffsetDateTime::parse(&text, &Rfc3339)
                    .map_err(|error| format!("its expiry {text:?} is no RFC 3339 time: {error}"))?;
                Some(SystemTime::from(until).duration_since(now).unwrap_or(Duration::ZERO))
            }
        };
        Ok(ExecCredentials { token: token.map(Secret), identity, lasts })
    }
}

/// Reads a pipe to its end. Above the limit the rest is read and dropped, so that the writer does
/// not block, and the result is an error.
async fn read_bounded(reader: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, String> {
    let Some(mut reader) = reader else { return Ok(Vec::new()) };
    let (mut read, mut chunk, mut excess) = (Vec::new(), vec![0; 8 * 1024], false);
    loop {
        match reader.read(&mut chunk).await {
            Ok(0) if excess => return Err(format!("more than {OUTPUT_LIMIT_BYTES} bytes")),
            Ok(0) => return Ok(read),
            Ok(n) if excess || read.len() + n > OUTPUT_LIMIT_BYTES => excess = true,
            Ok(n) => read.extend_from_slice(&chunk[..n]),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Reads a pipe to its end and keeps the last [`STDERR_LIMIT_BYTES`].
async fn read_end(reader: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut reader) = reader else { return String::new() };
    let (mut end, mut chunk) = (Vec::new(), vec![0; 8 * 1024]);
    while let Ok(n @ 1..) = reader.read(&mut chunk).await {
        end.extend_from_slice(&chunk[..n]);
        let surplus = end.len().saturating_sub(STDERR_LIMIT_BYTES);
        end.drain(..surplus);
    }
    String::from_utf8_lossy(&end).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn plugin(folder: &Path, script: &str) -> ExecPlugin {
        let command = folder.join("plugin");
        std::fs::write(&command, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o755)).unwrap();
        ExecPlugin {
            command,
            args: vec!["login".to_owned()],
            env: vec![("REGION".to_owned(), "north".to_owned())],
            version: ExecVersion::V1,
            interactive: InteractiveMode::Never,
            install_hint: String::new(),
            cluster: None,
        }
    }

    fn answer(status: &str) -> String {
        format!(
            r#"echo '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}'"#
        )
    }

    async fn check(script: &str, expected: Result<&str, &str>) {
        let folder = tempfile::tempdir().unwrap();
        // A file that another test's child still holds open for writing cannot be run, so the run
        // is repeated.
        let mut found = plugin(folder.path(), script).run_with_terminal(false).await;
        for _ in 0..20 {
            if !matches!(&found, Err(ExecError::NotRunnable { .. })) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            found = plugin(folder.path(), script).run_with_terminal(false).await;
        }
        let found = found.map(|credentials| {
            let token = credentials.token.map(|token| token.0).unwrap_or_default();
            let identity = if credentials.identity.is_some() { "+certificate" } else { "" };
            let lasts = credentials.lasts.map(|lasts| format!("+{}h", lasts.as_secs() / 3_600)).unwrap_or_default();
            format!("{token}{identity}{lasts}")
        });
        let found = found.map_err(|error| error.to_string().replace(&*folder.path().to_string_lossy(), ""));
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{script}");
    }

    #[tokio::test]
    async fn exec_plugin_returns_tokens_and_certificates() {
        check(&answer(r#"{"token":"abc"}"#), Ok("abc")).await;
        check(&answer(r#"{"token":"abc","expirationTimestamp":"2000-01-01T00:00:00Z"}"#), Ok("abc+0h")).await;
        check(&answer(r#"{"token":"'$REGION-$1'"}"#), Ok("north-login")).await;
        let pem = |kind: &str| format!("-----BEGIN {kind}-----\\nAAEC\\n-----END {kind}-----\\n");
        let certificate = format!(
            r#"printf '%s' '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"clientCertificateData":"{}","clientKeyData":"{}"}}}}'"#,
            pem("CERTIFICATE"),
            pem("PRIVATE KEY")
        );
        check(&certificate, Ok("+certificate")).await;
    }

    #[tokio::test]
    async fn exec_plugin_receives_interactivity_and_cluster_info() {
        let told = "echo \"$KUBERNETES_EXEC_INFO\" >&2; exit 3";
        check(
            told,
            Err(
                r#"the credential plugin /plugin failed (exit status: 3): {"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}"#,
            ),
        )
        .await;
        let folder = tempfile::tempdir().unwrap();
        let mut plugin = plugin(folder.path(), told);
        plugin.interactive = InteractiveMode::Always;
        let error = plugin.run_with_terminal(false).await.unwrap_err();
        assert!(matches!(error, ExecError::NoTerminal { .. }), "{error}");
        plugin.interactive = InteractiveMode::IfAvailable;
        plugin.cluster = Some(serde_json::json!({"server": "https://x"}));
        let error = plugin.run_with_terminal(false).await.unwrap_err().to_string();
        assert!(error.ends_with(r#""spec":{"interactive":false,"cluster":{"server":"https://x"}}}"#), "{error}");
    }

    #[tokio::test]
    async fn exec_plugin_may_interact_only_at_a_terminal() {
        use InteractiveMode::{Always, IfAvailable, Never};
        let script = format!(
            r#"case "$KUBERNETES_EXEC_INFO" in *'"interactive":true'*) T=asks ;; *) T=silent ;; esac; {}"#,
            answer(r#"{"token":"'$T'"}"#)
        );
        let folder = tempfile::tempdir().unwrap();
        let mut plugin = plugin(folder.path(), "");
        (plugin.command, plugin.args) = ("sh".into(), vec!["-c".to_owned(), script]);
        for (interactive, terminal, expected) in [
            (Always, true, Some("asks")),
            (Always, false, None),
            (IfAvailable, true, Some("asks")),
            (IfAvailable, false, Some("silent")),
            (Never, true, Some("silent")),
        ] {
            plugin.interactive = interactive;
            let found = plugin.run_with_terminal(terminal).await.ok().and_then(|credentials| credentials.token);
            assert_eq!(found.map(|token| token.0).as_deref(), expected, "{interactive:?}, terminal: {terminal}");
        }
    }

    #[tokio::test]
    async fn output_of_a_plugin_is_read_up_to_its_limit() {
        let output = vec![b' '; OUTPUT_LIMIT_BYTES + 1];
        let read = read_bounded(Some(&output[..OUTPUT_LIMIT_BYTES])).await;
        assert_eq!(read.map(|read| read.len()), Ok(OUTPUT_LIMIT_BYTES));
        assert_eq!(read_bounded(Some(&output[..])).await, Err("more than 1048576 bytes".to_owned()));
    }

    #[tokio::test]
    async fn exec_plugin_failure_names_its_reason() {
        let begin = "the credential plugin /plugin printed no usable credentials: ";
        let unusable = |why: &str| format!("{begin}{why}");
        check("echo oops >&2; exit 1", Err("the credential plugin /plugin failed (exit status: 1): oops")).await;
        check(&answer("{}"), Err(&unusable("it has neither a token nor a certificate"))).await;
        check(&answer(r#"{"clientKeyData":"x"}"#), Err(&unusable("it has a key without a certificate"))).await;
        check(
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{"token":"x"}}'"#,
            Err(&unusable(
                "its version is \"client.authentication.k8s.io/v1beta1\", and the kubeconfig says \"client.authentication.k8s.io/v1\"",
            )),
        )
        .await;
        check("echo '{\"kind\":\"Pod\"}'", Err(&unusable("its kind is \"Pod\" and not ExecCredential"))).await;
        check("head -c 3000000 /dev/zero", Err(&unusable("more than 1048576 bytes"))).await;
    }

    #[tokio::test]
    async fn missing_exec_plugin_error_contains_the_install_hint() {
        let folder = tempfile::tempdir().unwrap();
        let mut plugin = plugin(folder.path(), "");
        plugin.command = PathBuf::from("no-such-plugin-anywhere");
        plugin.install_hint = "get it at https://example.com".to_owned();
        assert_eq!(
            plugin.run_with_terminal(false).await.unwrap_err().to_string(),
            "the credential plugin no-such-plugin-anywhere is not installed: get it at https://example.com"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_exec_plugin_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut plugin = plugin(folder.path(), "exec sleep 1000");
        plugin.command = PathBuf::from("sleep");
        plugin.args = vec!["1000".to_owned()];
        let error = plugin.run_with_terminal(false).await.unwrap_err();
        assert_eq!(error, ExecError::TooSlow { command: "sleep".into(), limit: RUN_LIMIT });
    }

    #[test]
    fn debug_output_hides_secrets() {
        let credentials = ExecCredentials { token: Some(Secret("hush".to_owned())), identity: None, lasts: None };
        assert!(!format!("{credentials:?}").contains("hush"));
    }
}
