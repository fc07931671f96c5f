//! The managers of JobSet and LeaderWorkerSet: both make the certificates of their webhooks themselves and write the
//! CA into their webhook configurations.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure};

use super::super::server::free_port;
use super::installed::{Operator, items};

/// The name of the manager's program.
pub(super) const PROGRAM: &str = "manager";

/// A project with such a manager.
pub(super) struct Project {
    /// The prefix of the names of the project's objects.
    pub(super) name: &'static str,
    pub(super) namespace: &'static str,
    /// The API version of the manager's configuration.
    pub(super) config: &'static str,
    /// The directory of the webhook's certificates, if the manager has a fixed one.
    pub(super) certificates: Option<&'static str>,
}

impl Project {
    /// Installs the project and starts its manager. Returns once the manager serves its webhooks.
    pub(super) fn install(&self, operator: &mut Operator) -> Outcome<String> {
        let note = operator.install()?;
        let port = operator.route_webhooks(&format!("{}-webhook-service", self.name))?;
        let certificates = match self.certificates {
            Some(fixed) => {
                let dir = PathBuf::from(fixed);
                ensure!(!dir.exists(), "{fixed} exists: another run uses it, or has left it behind");
                operator.remove_at_the_end(dir.clone());
                dir
            }
            None => operator.dir.join("webhook-certificates"),
        };
        std::fs::create_dir_all(&certificates)?;
        let config = json!({
            "apiVersion": self.config, "kind": "Configuration",
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": format!("127.0.0.1:{}", free_port()?)},
            "leaderElection": {"leaderElect": true, "resourceNamespace": self.namespace},
            "internalCertManagement": {"enable": true},
        });
        std::fs::write(operator.dir.join("manager.yaml"), config.to_string())?;
        self.start(operator)?;
        let secret = format!("{}-webhook-server-cert", self.name);
        operator.mount_secret(&secret, "tls.crt", &certificates)?;
        let webhooks = self.wait_for_ca(operator)?;
        operator.wait_for_port(port)?;
        operator.access.kube("create namespace use")?;
        Ok(format!("{note}; the manager wrote its CA into {webhooks} webhooks"))
    }

    /// Starts the manager.
    pub(super) fn start(&self, operator: &mut Operator) -> Outcome<()> {
        let deployment = format!("{}-controller-manager", self.name);
        let config = format!("--config={}", operator.dir.join("manager.yaml").display());
        let args = operator.deployment_args(&deployment)?.into_iter();
        let args = args.map(|arg| if arg.starts_with("--config=") { config.clone() } else { arg }).collect();
        operator.start(PROGRAM, &deployment, args)
    }

    /// Waits until the manager has written its CA into all of its webhooks. Returns their count.
    fn wait_for_ca(&self, operator: &Operator) -> Outcome<usize> {
        let mut count = 0;
        for kind in ["mutating", "validating"] {
            let words = format!("{kind}webhookconfiguration {}-{kind}-webhook-configuration", self.name);
            count += operator.until("the CA is written", &words, |object| {
                let webhooks = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
                let without = webhooks.iter().filter(|webhook| !has_ca(webhook)).count();
                if without == 0 { Ok(webhooks.len()) } else { Err(format!("{without} webhooks have no CA")) }
            })?;
        }
        Ok(count)
    }

    /// Stops the manager, creates the object, which must fail since the webhook cannot be called, starts the manager
    /// again and creates the object.
    pub(super) fn survives_an_outage(&self, operator: &mut Operator, object: &Value, webhook: &str) -> Outcome<String> {
        operator.stop(PROGRAM)?;
        let text = format!("failed calling webhook \"{webhook}\": failed to call webhook: Post \"https://");
        operator.create_is_denied(object, &text)?;
        operator.create_is_denied(object, "connection refused")?;
        self.start(operator)?;
        let start = std::time::Instant::now();
        while !operator.send(&["create"], object)?.success() {
            ensure!(start.elapsed() < super::installed::LIMIT, "no create succeeds again{}", operator.tails());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        Ok(format!("created {} after the manager's start", crate::steps::seconds(start.elapsed())))
    }
}

fn has_ca(webhook: &Value) -> bool {
    webhook["clientConfig"]["caBundle"].as_str().is_some_and(|ca| ca.len() > 100)
}

/// Creates an object as a dry run, with the check of the answer, and requires that the server does not store it.
pub(super) fn dry_run(
    operator: &Operator,
    object: &Value,
    plural: &str,
    check: impl Fn(&Value) -> Outcome<()>,
) -> Outcome<()> {
    let answer = operator.send(&["create", "--dry-run=server", "-o", "json"], object)?;
    ensure!(answer.success(), "the dry run failed: {}", answer.said());
    check(&serde_json::from_slice(&answer.stdout)?)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let list = operator.access.get(&format!("get {plural} -A"))?;
    let stored = items(&list).iter().any(|item| item["metadata"]["name"] == name);
    ensure!(!stored, "the dry run stored {name}");
    Ok(())
}
