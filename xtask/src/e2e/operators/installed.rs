//! An operator that is installed from its manifests, with its programs as processes of this machine.
//!
//! No kubelet runs its pods. Instead, this module does a kubelet's part: it passes a program the arguments of its
//! Deployment, a token of its service account, and the files of its Secret.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cleanup::{self, Guard, Resource};
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::process::{Background, Output, Run};

use super::super::access::Access;
use super::super::server::free_port;

/// The time limit of states that an operator reaches by itself.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a program's end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// An installed operator.
pub(super) struct Operator {
    pub(super) access: Access,
    /// The directory for files of this run.
    pub(super) dir: PathBuf,
    pub(super) namespace: &'static str,
    bin: PathBuf,
    manifests: Vec<PathBuf>,
    programs: Vec<(String, Background)>,
    /// Names and output of the programs that were stopped.
    ended: Vec<(String, Vec<String>)>,
    /// Directories outside of the run's own.
    removed: Vec<Guard>,
}

impl Operator {
    pub(super) fn new(
        access: Access,
        dir: PathBuf,
        namespace: &'static str,
        bin: PathBuf,
        manifests: Vec<PathBuf>,
    ) -> Self {
        Self { access, dir, namespace, bin, manifests, programs: Vec::new(), ended: Vec::new(), removed: Vec::new() }
    }

    /// Applies the manifests with server-side apply, as the guides of most operators recommend.
    pub(super) fn install(&self) -> Outcome<String> {
        let mut count = 0;
        for path in &self.manifests {
            let kind = if path.is_dir() { "-k" } else { "-f" };
            let applied = self.access.kubectl(["apply", "--server-side", kind]).arg(path).limit(LIMIT).text()?;
            count += applied.lines().count();
        }
        self.access.kube("wait --for=condition=Established --timeout=20s crd --all")?;
        Ok(format!("{count} objects applied"))
    }

    /// Routes the webhook service to a port of this machine, and returns the port. The service becomes an
    /// `ExternalName`, because endpoints cannot have loopback addresses. The webhook configurations and conversions are
    /// changed to this port.
    pub(super) fn route_webhooks(&self, service: &str) -> Outcome<u16> {
        let port = free_port()?;
        let spec = json!({"spec": {"type": "ExternalName", "externalName": "localhost", "clusterIP": null,
            "clusterIPs": null, "selector": null, "ports": null}});
        let patch = ["-n", self.namespace, "patch", "service", service, "--type=merge", "-p"];
        self.access.kubectl(patch).arg(spec.to_string()).text()?;
        for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
            for configuration in items(&self.access.get(&format!("get {plural}"))?) {
                let webhooks = configuration["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
                let ours = |webhook: &Value| {
                    let reference = &webhook["clientConfig"]["service"];
                    reference["name"] == service && reference["namespace"] == self.namespace
                };
                let changes: Vec<Value> = (0..webhooks.len())
                    .filter(|index| ours(&webhooks[*index]))
                    .map(|index| {
                        let path = format!("/webhooks/{index}/clientConfig/service/port");
                        json!({"op": "add", "path": path, "value": port})
                    })
                    .collect();
                if !changes.is_empty() {
                    let patch = ["patch", plural, name(configuration), "--type=json", "-p"];
                    self.access.kubectl(patch).arg(Value::from(changes).to_string()).text()?;
                }
            }
        }
        for definition in items(&self.access.get("get crd")?) {
            let reference = &definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"];
            if reference["name"] == service && reference["namespace"] == self.namespace {
                let path = "/spec/conversion/webhook/clientConfig/service/port";
                let change = json!([{"op": "add", "path": path, "value": port}]);
                let patch = ["patch", "crd", name(definition), "--type=json", "-p"];
                self.access.kubectl(patch).arg(change.to_string()).text()?;
            }
        }
        Ok(port)
    }

    /// The arguments of a Deployment's first container.
    pub(super) fn deployment_args(&self, deployment: &str) -> Outcome<Vec<String>> {
        let object = self.access.get(&format!("get deployment {deployment} -n {}", self.namespace))?;
        let args = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
        let filled = |arg: &Value| arg.as_str().unwrap_or_default().replace("$(POD_NAMESPACE)", self.namespace);
        Ok(args.iter().map(filled).collect())
    }

    /// A kubeconfig with a token of the service account that a Deployment's pods run as.
    pub(super) fn kubeconfig_of(&self, deployment: &str) -> Outcome<PathBuf> {
        let object = self.access.get(&format!("get deployment {deployment} -n {}", self.namespace))?;
        let account = object["spec"]["template"]["spec"]["serviceAccountName"].as_str();
        let account = account.ok_or_else(|| format!("{deployment} has no service account"))?;
        let token = self.access.kube(&format!("create token {account} -n {} --duration=2h", self.namespace))?;
        let view = ["config", "view", "--raw", "--minify", "--flatten", "-o", "json"];
        let mut config: Value = serde_json::from_str(&self.access.kubectl(view).text()?)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        let file = self.dir.join(format!("{deployment}.kubeconfig"));
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// Starts a program of the operator with the identity of a Deployment.
    pub(super) fn start(&mut self, program: &str, deployment: &str, args: Vec<String>) -> Outcome<()> {
        let file = self.bin.join(program);
        ensure!(file.is_file(), "there is no {}", file.display());
        let kubeconfig = self.kubeconfig_of(deployment)?;
        let flag = format!("--kubeconfig={}", kubeconfig.display());
        // Some programs read the flag, others only the variable.
        let run =
            Run::new(file).args(args).arg(flag).env("KUBECONFIG", &kubeconfig).env("POD_NAMESPACE", self.namespace);
        let run = run.env("TMPDIR", &self.dir).env("HOME", &self.dir).dir(&self.dir);
        self.programs.push((program.to_owned(), run.start()?));
        Ok(())
    }

    /// Writes the files of a Secret into a directory once the Secret has this key.
    pub(super) fn mount_secret(&self, secret: &str, key: &str, dir: &Path) -> Outcome<()> {
        std::fs::create_dir_all(dir)?;
        let words = format!("get secret {secret} -n {}", self.namespace);
        let data = self.access.until(&format!("Secret {secret}"), LIMIT, &words, |object| {
            let data = object["data"].as_object().filter(|data| data.contains_key(key));
            data.cloned().ok_or_else(|| format!("it has no {key}"))
        })?;
        for (file, value) in data {
            std::fs::write(dir.join(file), super::super::access::base64(value.as_str().unwrap_or_default())?)?;
        }
        Ok(())
    }

    /// Waits until a program listens on this port of the loopback.
    pub(super) fn wait_for_port(&self, port: u16) -> Outcome<()> {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(start.elapsed() < LIMIT, "nothing listens on port {port}{}", self.tails());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Removes a directory at the end of the run.
    pub(super) fn remove_at_the_end(&mut self, dir: PathBuf) {
        self.removed.push(cleanup::guard(Resource::Directory(dir)));
    }

    /// Sends SIGTERM to a program and waits for its end.
    pub(super) fn stop(&mut self, program: &str) -> Outcome<()> {
        let at = self.programs.iter().position(|(name, _)| name == program);
        let (name, mut process) = self.programs.remove(at.ok_or_else(|| format!("{program} does not run"))?);
        process.terminate(STOP_LIMIT)?;
        self.ended.push((name, lines(&process)));
        Ok(())
    }

    /// An error if a program has ended.
    pub(super) fn check(&mut self) -> Outcome<()> {
        for (name, process) in &mut self.programs {
            if !process.running() {
                fail!("{name} has ended:\n{}", process.tail());
            }
        }
        Ok(())
    }

    /// The last lines of each program, for the text of a failure.
    pub(super) fn tails(&self) -> String {
        self.programs.iter().map(|(name, process)| format!("\n-- {name}:\n{}", process.tail())).collect()
    }

    /// Writes the output of each program into a file.
    pub(super) fn write_logs(&self, dir: &Path) {
        let running = self.programs.iter().map(|(name, process)| (name.clone(), lines(process)));
        for (number, (name, lines)) in self.ended.iter().cloned().chain(running).enumerate() {
            let file = dir.join(format!("{name}-{number}.log"));
            if let Err(error) = std::fs::write(&file, lines.join("\n")) {
                println!("     {} is not kept: {error}", file.display());
            }
        }
    }

    /// Reads `kubectl get <words>` until `check` accepts it. A failure shows the last output lines of the programs.
    pub(super) fn until<T>(
        &self,
        what: &str,
        words: &str,
        check: impl FnMut(&Value) -> Result<T, String>,
    ) -> Outcome<T> {
        let found = self.access.until(what, LIMIT, &format!("get {words}"), check);
        found.map_err(|failure| Failure::from(format!("{failure}{}", self.tails())))
    }

    /// Creates an object and returns the object in the response.
    pub(super) fn create(&self, object: &Value) -> Outcome<Value> {
        let created = self.send(&["create", "-o", "json"], object)?;
        ensure!(created.success(), "not created: {}{}", created.said(), self.tails());
        Ok(serde_json::from_slice(&created.stdout)?)
    }

    /// Runs kubectl with an object as its input.
    pub(super) fn send(&self, words: &[&str], object: &Value) -> Outcome<Output> {
        self.access.kubectl(words).args(["-f", "-"]).input(object.to_string()).output()
    }

    /// Requires that creating an object fails with this text.
    pub(super) fn create_is_denied(&self, object: &Value, text: &str) -> Outcome<()> {
        denied(&self.send(&["create"], object)?, text)
    }

    /// Requires that a patch fails with this text.
    pub(super) fn patch_is_denied(&self, words: &str, patch: &Value, text: &str) -> Outcome<()> {
        let words = words.split_whitespace();
        denied(&self.access.kubectl(["patch"]).args(words).arg("-p").arg(patch.to_string()).output()?, text)
    }
}

fn denied(output: &Output, text: &str) -> Outcome<()> {
    ensure!(!output.success(), "it was accepted: {}", output.said());
    ensure!(output.said().contains(text), "it was refused without `{text}`: {}", output.said());
    Ok(())
}

fn lines(process: &Background) -> Vec<String> {
    process.lines.all().into_iter().map(|line| line.text).collect()
}

/// The items of a list.
pub(super) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Requires that the object has this value at this pointer.
pub(super) fn has(object: &Value, pointer: &str, wanted: &Value) -> Outcome<()> {
    let found = object.pointer(pointer).unwrap_or(&Value::Null);
    ensure!(found == wanted, "{pointer} is {found}, not {wanted}");
    Ok(())
}
