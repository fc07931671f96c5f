//! Scenarios with third-party CustomResourceDefinitions and sample objects. The definitions are those of the Prometheus
//! operator, cert-manager, Argo CD, Istio, Linkerd, the Gateway API and OpenShift's installer. The run fetches them
//! from the tests of the `kopium` package on crates.io.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::failure::{Outcome, ensure};
use crate::process::Run;
use crate::tools;

use super::World;
use super::watching::version_of;

/// The package, pinned, so that another release is used only after a commit.
const PACKAGE: &str = "kopium";
const VERSION: &str = "0.24.1";

/// File of a definition, the definition, file of an object.
const SAMPLES: &[(&str, &str, &str)] = &[
    ("servicemonitors.monitoring.coreos.com.yaml", "servicemonitors.monitoring.coreos.com", "servicemon.yaml"),
    ("podmonitors.monitoring.coreos.com.yaml", "podmonitors.monitoring.coreos.com", "podmon.yaml"),
    ("prometheusrules.monitoring.coreos.com.yaml", "prometheusrules.monitoring.coreos.com", "pr.yaml"),
    ("certificates.cert-manager.io.yaml", "certificates.cert-manager.io", "cert.yaml"),
    ("applications.argoproj.io.yaml", "applications.argoproj.io", "app.yaml"),
    ("agent-crd.yaml", "agents.agent-install.openshift.io", "agent.yaml"),
    ("destinationrule-crd.yaml", "destinationrules.networking.istio.io", "destinationrule.yaml"),
    ("httproute-crd.yaml", "httproutes.gateway.networking.k8s.io", "httproute.yaml"),
    ("server-crd.yaml", "servers.policy.linkerd.io", "server.yaml"),
    ("serverauth-crd.yaml", "serverauthorizations.policy.linkerd.io", "serverauth.yaml"),
];

/// A definition of 900 KiB whose schema is not structural, and Kubernetes' error text.
const REFUSED: (&str, &str) = (
    "argoproj.io_clusterworkflowtemplates.yaml",
    "properties[templateDefaults].properties[steps].items.items: Required value: must be specified",
);

const NAMESPACE: &str = "operators";

/// Returns the folder of the unpacked package. `cargo info` fetches a package without its dependencies.
fn package() -> Outcome<PathBuf> {
    let home = tools::target().join("xtask/tools/cargo");
    let found = || -> Option<PathBuf> {
        let sources = std::fs::read_dir(home.join("registry/src")).ok()?;
        sources
            .flatten()
            .map(|source| source.path().join(format!("{PACKAGE}-{VERSION}/tests")))
            .find(|dir| dir.is_dir())
    };
    if let Some(dir) = found() {
        return Ok(dir);
    }
    std::fs::create_dir_all(&home)?;
    let wanted = format!("{PACKAGE}@{VERSION}");
    Run::cargo()
        .args(["info", wanted.as_str(), "--registry", "crates-io"])
        .env("CARGO_HOME", &home)
        .dir(&home)
        .limit(Duration::from_secs(180))
        .text()?;
    found().ok_or_else(|| format!("{wanted} has no tests").into())
}

/// The plural and the group in the name of a definition.
fn split_name(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

/// Creates definitions of known operators, creates, changes and deletes one object of each, and deletes all
/// definitions.
pub(crate) fn operators(world: &mut World) -> Outcome<String> {
    let dir = package()?;
    let access = &world.access;
    let file = |name: &str| dir.join(name).display().to_string();
    access.kube(&format!("create namespace {NAMESPACE}"))?;
    for (definition, name, _) in SAMPLES {
        access.kube(&format!("create -f {}", file(definition)))?;
        access.kube(&format!("wait --for=condition=Established --timeout=100s crd/{name}"))?;
    }
    let refused = access.kubectl(["create", "--validate=false", "-f", &file(REFUSED.0)]).output()?;
    ensure!(!refused.success() && refused.said().contains(REFUSED.1), "{}: {}", REFUSED.0, refused.said());

    for (_, name, object) in SAMPLES {
        let (plural, _) = split_name(name);
        let on = format!("-n {NAMESPACE}");
        access.kube(&format!("{on} apply -f {}", file(object)))?;
        let found = access.get(&format!("get {on} {plural}"))?;
        let first = &found["items"][0];
        // kubectl does not know the server's defaults, and may send a patch without effect.
        access.kube(&format!("{on} apply -f {}", file(object)))?;
        let again = access.get(&format!("get {on} {plural}"))?;
        ensure!(
            version_of(&again["items"][0]) == version_of(first),
            "{plural}: a repeated apply changed the object: {again}"
        );
        ensure!(first["metadata"]["generation"] == 1, "{plural}: a new object has generation 1, not {first}");
        let object = first["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        access.kube(&format!("{on} label {plural} {object} e2e=yes"))?;
        let chosen = access.kube(&format!("{on} get {plural} -l e2e=yes -o name"))?;
        ensure!(chosen.trim().ends_with(&object), "{plural}: the label selects {chosen:?}");
        let patch =
            |spec: &str| access.kubectl(["-n", NAMESPACE, "patch", plural, &object, "--type=merge", "-p", spec]);
        let refused = patch("{\"spec\":5}").output()?;
        let why = "spec in body must be of type object";
        ensure!(!refused.success() && refused.said().contains(why), "{name}: a number as spec: {}", refused.said());
        let patched = patch("{\"spec\":{\"e2eUnknown\":true}}").output()?;
        let kept = access.get(&format!("get {on} {plural} {object}"))?;
        ensure!(kept["spec"].get("e2eUnknown").is_none(), "{name}: an unknown field stays: {}", patched.said());
        let explained = access.kube(&format!("explain {plural}.spec"))?;
        ensure!(explained.contains("FIELDS"), "{plural}: explain says {explained:?}");
    }

    let names: Vec<&str> = SAMPLES.iter().map(|(_, name, _)| *name).collect();
    access.kube(&format!("delete crd {} --timeout=100s", names.join(" ")))?;
    access.kube(&format!("delete namespace {NAMESPACE} --timeout=100s"))?;
    let groups = access.fetch_json("/apis")?;
    let left: Vec<&Value> = groups["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|group| names.iter().any(|name| group["name"] == split_name(name).1))
        .collect();
    ensure!(left.is_empty(), "groups of deleted definitions are still served: {left:?}");
    Ok(format!("{} definitions and an object of each, of {PACKAGE} {VERSION}", SAMPLES.len()))
}
