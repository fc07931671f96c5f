//! etcd is restored from an older backup while the server runs. Watches of the lost history must end with `Expired`,
//! and reads must show the restored state.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Outcome, ensure, fail};
use crate::process::Output;

use super::{Kubectl, Stage, pause};

/// The number of writes that are lost with the newer history.
const LOST_WRITES: usize = 20;

/// The time limit until the server has detected the restored history.
const DETECTION_LIMIT: Duration = Duration::from_secs(60);

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(super) fn restore(stage: &mut Stage) -> Outcome<()> {
    let kubectl = stage.kubectl()?;
    create(&kubectl, "before-the-backup")?;
    let snapshot = stage.dir.join("snapshot.db");
    stage.etcd.ctl_of(0).args(["snapshot", "save"]).arg(&snapshot).text()?;
    for number in 0..LOST_WRITES {
        create(&kubectl, &format!("lost{number}"))?;
    }
    let list: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", CONFIG_MAPS]).text()?)?;
    let Some(version) = list["metadata"]["resourceVersion"].as_str() else { fail!("a list without version: {list}") };
    let watch = kubectl.run(&["get", "--raw", &format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}")]).start()?;
    pause(1);
    restart_from(stage, &snapshot)?;
    // The server notices the other history when it talks to etcd: at the latest with this read.
    let last = format!("lost{}", LOST_WRITES - 1);
    let begun = Instant::now();
    loop {
        let (kept, lost) = (get(&kubectl, "before-the-backup")?, get(&kubectl, &last)?);
        if kept.success() && lost.said().contains("NotFound") {
            break;
        }
        let seen = format!("{}; {}", kept.said(), lost.said());
        ensure!(begun.elapsed() < DETECTION_LIMIT, "the server does not show the restored state: {seen}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let told = watch.lines.wait(0, DETECTION_LIMIT, |line| line.contains("\"code\":410"));
    ensure!(told.is_some(), "a watch of the lost history is not told Expired: {}", watch.tail());
    Ok(())
}

fn restart_from(stage: &mut Stage, snapshot: &Path) -> Outcome<()> {
    stage.etcd.kill(0)?;
    stage.etcd.restore(snapshot)
}

fn create(kubectl: &Kubectl, name: &str) -> Outcome<()> {
    kubectl.run(&["create", "configmap", name]).text().map(drop)
}

fn get(kubectl: &Kubectl, name: &str) -> Outcome<Output> {
    kubectl.run(&["get", "configmap", name]).output()
}
