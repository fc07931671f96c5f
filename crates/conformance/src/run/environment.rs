//! [`Environment`]: actions on the server that are not requests of its API.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The time limit of one action.
const ACTION_LIMIT: Duration = Duration::from_secs(60);

/// The result of an action.
pub type ActionFuture<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Actions on the server that no request of its API can perform. Cases that need an action which is not available are
/// skipped.
pub trait Environment: Send + Sync {
    /// Compacts the history of the store up to this resource version.
    fn compact<'a>(&'a self, resource_version: &'a str) -> Option<ActionFuture<'a>> {
        let _ = resource_version;
        None
    }

    /// Stops the server and starts it again with the same data. Returns when the new process has started.
    fn restart(&self) -> Option<ActionFuture<'_>> {
        None
    }
}

/// The actions of a command line: etcd's address, and a command that restarts the server.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// The URL of an etcd member without TLS, which receives requests of its JSON gateway.
    pub etcd: Option<String>,
    /// A command that restarts the server, for `sh -c`.
    pub restart_command: Option<String>,
    /// The working directory of `restart_command`.
    pub directory: Option<PathBuf>,
}

impl Environment for Actions {
    fn compact<'a>(&'a self, resource_version: &'a str) -> Option<ActionFuture<'a>> {
        let etcd = self.etcd.as_deref()?;
        Some(Box::pin(async move {
            let compacted = tokio::time::timeout(ACTION_LIMIT, compact_etcd(etcd, resource_version)).await;
            compacted.unwrap_or_else(|_| Err(format!("{etcd} did not answer")))
        }))
    }

    fn restart(&self) -> Option<ActionFuture<'_>> {
        let command = self.restart_command.as_deref()?;
        Some(Box::pin(async move {
            let mut process = tokio::process::Command::new("sh");
            process.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
            if let Some(directory) = &self.directory {
                process.current_dir(directory);
            }
            let status = match tokio::time::timeout(ACTION_LIMIT, process.status()).await {
                Ok(status) => status.map_err(|error| format!("the restart command cannot run: {error}"))?,
                Err(_) => return Err("the restart command did not end".to_owned()),
            };
            if status.success() { Ok(()) } else { Err(format!("the restart command ended with {status}")) }
        }))
    }
}

/// Compacts by etcd's JSON gateway (`/v3/kv/compaction`).
async fn compact_etcd(url: &str, revision: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|_| format!("{url} is no URL"))?;
    if uri.scheme_str() != Some("http") {
        return Err(format!("{url}: only http:// is supported for etcd"));
    }
    let authority = uri.authority().ok_or_else(|| format!("{url} has no host"))?.to_string();
    let address = if uri.port().is_some() { authority.clone() } else { format!("{authority}:2379") };
    let failed = |error: &dyn std::fmt::Display| format!("compaction by {url}: {error}");
    let stream = TcpStream::connect(&address).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    let body = serde_json::json!({ "revision": revision, "physical": true }).to_string();
    let request =
        Request::post("/v3/kv/compaction").header("Host", authority).header("Content-Type", "application/json");
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| failed(&error))?;
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
    // Another compaction may have been quicker.
    if status.is_success() || String::from_utf8_lossy(&body).contains("has been compacted") {
        return Ok(());
    }
    Err(failed(&format!("{status}: {}", String::from_utf8_lossy(&body))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_unavailable_without_their_settings() {
        let none = Actions::default();
        assert!(none.compact("1").is_none() && none.restart().is_none());
    }

    #[tokio::test]
    async fn failure_of_the_restart_command_is_an_error() {
        let with = |command: &str| Actions { restart_command: Some(command.to_owned()), ..Actions::default() };
        assert_eq!(with("true").restart().expect("an action").await, Ok(()));
        assert!(with("exit 3").restart().expect("an action").await.unwrap_err().contains("3"));
    }

    #[tokio::test]
    async fn etcd_that_does_not_answer_is_an_error() {
        let actions = Actions { etcd: Some("http://127.0.0.1:1".to_owned()), ..Actions::default() };
        let error = actions.compact("5").expect("an action").await.unwrap_err();
        assert!(error.starts_with("compaction by http://127.0.0.1:1: "), "{error}");
        let actions = Actions { etcd: Some("ftp://x".to_owned()), ..Actions::default() };
        assert!(actions.compact("5").expect("an action").await.is_err());
    }
}
