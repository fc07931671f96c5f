//! A resource metrics API (`metrics.k8s.io/v1beta1`) with values that the scenario sets: an extension API server in
//! Python behind an APIService.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::process::{Background, Run};
use crate::tools;

use super::super::server::free_port;
use super::Cluster;

const SCRIPT: &str = include_str!("metrics.py");
/// The time limit until the script listens.
const START_LIMIT: Duration = Duration::from_secs(30);
const API_SERVICE: &str = "v1beta1.metrics.k8s.io";

/// The running extension server.
pub(crate) struct MetricsServer {
    values: PathBuf,
    _process: Background,
}

impl MetricsServer {
    /// Starts the server and registers its APIService.
    pub(crate) fn start(cluster: &mut Cluster, namespace: &str) -> Outcome<Self> {
        let python = tools::on_path("python3").ok_or("python3 is needed: install it, then try again")?;
        let (script, values) = (cluster.access.dir.join("metrics.py"), cluster.access.dir.join("metrics.json"));
        std::fs::write(&script, SCRIPT)?;
        let port = free_port()?;
        let settings = json!({
            "port": port,
            "values": values,
            "certificate": cluster.launcher.pki.file("metrics.crt"),
            "key": cluster.launcher.pki.file("metrics.key"),
            "front_proxy_ca": cluster.launcher.pki.file("front-proxy-ca.crt"),
            "namespace": namespace,
        });
        let server = Self { values, _process: Run::new(python).arg(&script).arg(settings.to_string()).start()? };
        server.feed(&[], "0")?;
        let process = &server._process;
        process
            .lines
            .wait(0, START_LIMIT, |line| line == "listening")
            .ok_or_else(|| Failure::from(format!("the metrics server does not listen:\n{}", process.tail())))?;
        let ca = std::fs::read(cluster.launcher.pki.file("ca.crt"))?;
        cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "kube-system"},
                "spec": {"type": "ExternalName", "externalName": "localhost"}},
            {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API_SERVICE},
                "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                    "caBundle": base64(&ca),
                    "service": {"name": "metrics", "namespace": "kube-system", "port": port}}},
        ]}))?;
        cluster.until(
            "the APIService is available",
            Duration::from_secs(60),
            &format!("apiservice {API_SERVICE}"),
            |service| super::condition(service, "Available", "True"),
        )?;
        Ok(server)
    }

    /// Sets the CPU usage that these pods report.
    pub(crate) fn feed(&self, pods: &[String], cpu: &str) -> Outcome<()> {
        // The file is renamed into place, so that the server never reads a partial file.
        let draft = self.values.with_extension("draft");
        std::fs::write(&draft, json!({"pods": pods, "cpu": cpu}).to_string())?;
        std::fs::rename(draft, &self.values)?;
        Ok(())
    }

    /// Removes the objects of the server. An unavailable APIService would block the deletion of namespaces.
    pub(crate) fn remove(self, cluster: &Cluster) -> Outcome<()> {
        cluster.access.kube(&format!("delete apiservice {API_SERVICE}"))?;
        cluster.access.kube("delete service metrics -n kube-system")?;
        Ok(())
    }
}

/// Encodes as standard base64.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = ALPHABET[((bits >> (18 - 6 * index)) & 63) as usize];
            text.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_pads_every_length() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
