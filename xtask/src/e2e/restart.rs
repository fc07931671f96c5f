//! Scenarios with SIGKILL, a restart, a second server on the store, and a stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome, ensure, fail};
use crate::steps::seconds;

use super::World;
use super::access::Access;
use super::etcd::ctl;
use super::server::{Server, Store};
use super::watching::{LINE_LIMIT, fastest, next_event, open, our_watch, touch, version_of};

/// The time limit of our client's reconnect after a restart (its backoff starts at 0.8 s).
const RECONNECT_LIMIT: Duration = Duration::from_secs(90);

/// The number of restarts within which a watch must resume. A starting cache waits two seconds for its history. On a
/// slow host it may start without the history, and the watch then receives `410 Expired`.
const RESTARTS_MAX: u32 = 3;

/// Name, uid and resource version of every pod, config map and deployment.
fn identities(world: &World) -> Outcome<Vec<String>> {
    let list = world.access.get("get pods,configmaps,deployments -A")?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let identity =
        |item: &Value| format!("{} {} {}", item["kind"], item["metadata"]["uid"], item["metadata"]["resourceVersion"]);
    Ok(items.iter().map(identity).collect())
}

/// After SIGKILL and a restart, the state is complete, a watch resumes at its version, and our client reconnects.
pub(crate) fn kill_and_restart(world: &mut World) -> Outcome<String> {
    for restart in 0..RESTARTS_MAX {
        if let Some(note) = kill_and_resume(world, 300 + restart)? {
            return Ok(if restart == 0 { note } else { format!("{note}, after {} restarts", restart + 1) });
        }
    }
    fail!("a watch from the last seen version receives 410 after each of {RESTARTS_MAX} restarts")
}

/// Kills and restarts the server once, and touches a pod with `turn`. Returns `None` if the resumed watch receives
/// `410 Expired`.
fn kill_and_resume(world: &mut World, turn: u32) -> Outcome<Option<String>> {
    let before = identities(world)?;
    let ours = our_watch(world)?;
    let from = version_of(&world.access.fetch_json("/api/v1/namespaces/shop/pods?limit=1")?);
    world.server()?.kill();
    let since = ours.lines.count();
    let took = world.server()?.restart()?;
    let after = identities(world)?;
    let changed: Vec<_> = before.iter().filter(|identity| !after.contains(identity)).collect();
    ensure!(changed.is_empty() && before.len() == after.len(), "not the same after a restart: {changed:?}");

    // A watch from the last seen version: its first event is the next change.
    let resumed = open(world, "/api/v1/namespaces/shop/pods", &[], Some(&from))?;
    let touched = touch(world, "/api/v1/namespaces/shop/pods/toolbox", turn)?;
    let (_, event) = next_event(&resumed, 0)?;
    if event["type"] == "ERROR" && event["object"]["code"] == 410 {
        return Ok(None);
    }
    ensure!(event["type"] == "MODIFIED", "the resumed watch says {event}");
    ensure!(
        version_of(&event["object"]) == version_of(&touched),
        "the resumed watch says {event}, not the next change"
    );

    let written = Instant::now();
    let line = ours.lines.wait(since, RECONNECT_LIMIT, |line| line.contains("toolbox"));
    let line = line.ok_or_else(|| Failure::from(format!("`listwatch watch` has not come back:\n{}", ours.tail())))?;
    let back = line.at.saturating_duration_since(written);

    // kubectl's watch ends with the server; a new watch shows all objects.
    world.pods = Some(world.access.kubectl(["get", "pods", "-A", "-w"]).start()?);
    let shown =
        world.pods.as_ref().and_then(|pods| pods.lines.wait(0, RECONNECT_LIMIT, |line| line.contains("toolbox")));
    ensure!(shown.is_some(), "a new `kubectl get pods -A -w` shows no pods");
    Ok(Some(format!(
        "{} objects there after {}; our watch back {} after the next write",
        after.len(),
        seconds(took),
        seconds(back)
    )))
}

/// Every write that was acknowledged before SIGKILL exists after the restart.
pub(crate) fn kill_while_writing(world: &mut World) -> Outcome<String> {
    let manifest: String = (0..400)
        .map(|n| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("burst-{n:03}"), "namespace": "shop",
            "labels": {"burst": "yes"}}, "data": {"n": n.to_string()}}).to_string() + "\n")
        .collect();
    let file = world.access.dir.join("burst.json");
    std::fs::write(&file, manifest)?;
    let mut writer = world.access.kubectl(["create", "-f"]).arg(&file).start()?;
    let enough = writer.lines.wait(0, Duration::from_secs(60), |line| line.contains("burst-020 created"));
    ensure!(enough.is_some(), "the writer did not get going:\n{}", writer.tail());
    world.server()?.kill();
    writer.kill();
    let lines = writer.lines.all();
    let acked: Vec<_> =
        lines.iter().filter_map(|line| line.text.strip_prefix("configmap/")?.strip_suffix(" created")).collect();
    let took = world.server()?.restart()?;
    let listed = world.access.kube("get configmaps -n shop -l burst=yes -o name")?;
    let lost: Vec<_> =
        acked.iter().filter(|name| !listed.lines().any(|line| line == format!("configmap/{name}"))).collect();
    ensure!(lost.is_empty(), "acknowledged objects are missing after SIGKILL: {lost:?}");
    world.access.kube("delete configmaps -n shop -l burst=yes --wait=false")?;
    Ok(format!("{} acknowledged writes, none lost; back after {}", acked.len(), seconds(took)))
}

/// The objects are in etcd below Kubernetes' keys, as JSON.
pub(crate) fn etcdctl_reads(world: &mut World) -> Outcome<String> {
    let Store::Etcd { url, etcdctl, .. } = world.server()?.store.clone() else { fail!("not on etcd") };
    let keys = ctl(&etcdctl, &url).args(["get", "--prefix", "/registry/", "--keys-only"]).text()?;
    let keys: Vec<_> = keys.lines().filter(|line| !line.is_empty()).collect();
    for wanted in [
        "/registry/pods/shop/toolbox",
        "/registry/deployments/shop/web",
        "/registry/services/specs/shop/web",
        "/registry/configmaps/shop-data/price-list",
        "/registry/ingress/shop/storefront",
        "/registry/leases/shop-batch/report-leader",
        "/registry/namespaces/shop",
        "/registry/clusterroles/shop-reporter",
    ] {
        ensure!(keys.contains(&wanted), "etcd has no key {wanted}; it has\n{}", keys.join("\n"));
    }
    let stored = ctl(&etcdctl, &url).args(["get", "/registry/configmaps/shop/web", "--print-value-only"]).text()?;
    let stored: Value = serde_json::from_str(stored.trim())?;
    let served = world.access.get("get configmap -n shop web")?;
    ensure!(
        stored["data"] == served["data"] && stored["kind"] == "ConfigMap",
        "etcd has {stored}; the server says {served}"
    );
    ensure!(stored["metadata"].get("resourceVersion").is_none(), "the stored value has a resource version");
    Ok(format!("{} keys", keys.len()))
}

/// Each of two servers sees the writes of the other.
pub(crate) fn two_servers(world: &mut World) -> Outcome<String> {
    let dir = world.access.dir.join("second");
    let (bin, store) = (world.server()?.bin.clone(), world.server()?.store.clone());
    let (second, _) = Server::start(&bin, store, &dir)?;
    let there =
        Access::from_kubeconfig(&second.kubeconfig(), &world.access.kubectl_file(), &world.access.curl_file(), &dir)?;
    ensure!(there.url != world.access.url, "both servers say {}", there.url);

    let from = version_of(&there.fetch_json("/api/v1/namespaces/shop/configmaps?limit=1")?);
    let watch = there
        .curl(&format!("/api/v1/namespaces/shop/configmaps?watch=true&resourceVersion={from}"))
        .arg("--verbose")
        .start()?;
    ensure!(
        watch.lines.wait(0, LINE_LIMIT, |line| line.starts_with("< HTTP/")).is_some(),
        "no watch:\n{}",
        watch.tail()
    );
    let fastest = fastest(|number| {
        let since = watch.lines.count();
        let written = touch(world, "/api/v1/namespaces/shop/configmaps/web", 400 + number)?;
        let at = Instant::now();
        let (line, event) = next_event(&watch, since)?;
        ensure!(version_of(&event["object"]) == version_of(&written), "the second server's watch says {event}");
        Ok(line.at.saturating_duration_since(at))
    })?;

    // The other direction without a wait: a list reads etcd's revision first.
    let touched = there.merge_patch("/api/v1/namespaces/shop/configmaps/web", &json!({"data": {"second": "yes"}}))?;
    let list = world.access.fetch_json("/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%3Dweb")?;
    ensure!(
        version_of(&list["items"][0]) == version_of(&touched),
        "the first server lists {} after the second wrote {touched}",
        list["items"][0]
    );
    world.model.edit("ConfigMap", "shop", "web", |object| object["data"]["second"] = json!("yes"))?;
    drop(second);
    Ok(format!("event {} after the other server's write", seconds(fastest)))
}

/// SIGTERM ends the server within its time limit, even with open watches, and ends the watches cleanly.
pub(crate) fn stop(world: &mut World) -> Outcome<String> {
    let mut watch = open(world, "/api/v1/pods", &[], None)?;
    ensure!(
        watch.lines.wait(0, LINE_LIMIT, |line| line.starts_with("< HTTP/")).is_some(),
        "no watch:\n{}",
        watch.tail()
    );
    let start = Instant::now();
    let limit = Duration::from_secs(10);
    let port = world.server()?.port();
    let code = world.server()?.terminate(limit)?;
    let took = start.elapsed();
    ensure!(code == Some(0), "SIGTERM made it end with {code:?}");
    // A server that does not end its watches cuts their connections after ten seconds. curl then ends with an error.
    let status = watch.wait(limit)?;
    ensure!(status.success(), "the open watch was cut, curl ended with {status}:\n{}", watch.tail());
    Ok(format!("port {port} closed, exit code 0 after {}", seconds(took)))
}
