//! Scenarios of `listwatch watch` on a server with objects of real clients: the printed changes,
//! and the exit code.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome, ensure};
use crate::process::Run;
use crate::steps::seconds;

use super::World;
use super::watching::{FASTEST_LINE_LIMIT, LINE_LIMIT};

/// The time limit of the initial state.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

fn watch(world: &mut World, arguments: &[&str]) -> Outcome<Run> {
    let kubeconfig = world.access.kubeconfig.clone();
    Ok(Run::new(&world.server()?.bin).arg("watch").args(arguments).arg("--kubeconfig").arg(kubeconfig))
}

/// A change is printed as the fields that changed.
pub(crate) fn prints_diffs(world: &mut World) -> Outcome<String> {
    let diffs = watch(world, &["po", "-n", "shop", "--initial", "hide"])?.start()?;
    let loaded = diffs.lines.wait(0, LOAD_LIMIT, |line| line.contains("loaded in"));
    ensure!(loaded.is_some(), "the state was not loaded:\n{}", diffs.tail());
    let since = diffs.lines.count();
    let label = json!({"metadata": {"labels": {"shop.example/diff": "yes"}}});
    world.access.merge_patch("/api/v1/namespaces/shop/pods/toolbox", &label)?;
    let written = Instant::now();
    let head = diffs.lines.wait(since, LINE_LIMIT, |line| line.starts_with("~ shop/toolbox  rv "));
    let head = head.ok_or_else(|| Failure::from(format!("no change within {LINE_LIMIT:?}:\n{}", diffs.tail())))?;
    let wanted = r#"+ metadata.labels["shop.example/diff"]: "yes""#;
    let field = diffs.lines.wait(since, LINE_LIMIT, |line| line.trim() == wanted);
    ensure!(field.is_some(), "no line {wanted}:\n{}", diffs.tail());
    let since = diffs.lines.count();
    let gone = json!({"metadata": {"labels": {"shop.example/diff": Value::Null}}});
    world.access.merge_patch("/api/v1/namespaces/shop/pods/toolbox", &gone)?;
    let written_again = Instant::now();
    let wanted = r#"- metadata.labels["shop.example/diff"]: "yes""#;
    let field = diffs.lines.wait(since, LINE_LIMIT, |line| line.trim() == wanted);
    let field = field.ok_or_else(|| Failure::from(format!("no line {wanted}:\n{}", diffs.tail())))?;
    let (first, second) =
        (head.at.saturating_duration_since(written), field.at.saturating_duration_since(written_again));
    let fastest = first.min(second);
    ensure!(fastest < FASTEST_LINE_LIMIT, "the fastest of 2 lines came {} after the write", seconds(fastest));
    Ok(format!("line {} after the write", seconds(fastest)))
}

/// `--once` prints the same objects as kubectl and ends. An unknown resource ends with code 3.
pub(crate) fn once(world: &mut World) -> Outcome<String> {
    let ours = watch(world, &["pods", "-A", "--once", "-o", "name", "--quiet"])?.limit(LOAD_LIMIT).text()?;
    let mut ours: Vec<&str> = ours.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let columns = "custom-columns=ns:.metadata.namespace,name:.metadata.name";
    let theirs = world.access.kubectl(["get", "pods", "-A", "--no-headers", "-o", columns]).text()?;
    let mut theirs: Vec<String> =
        theirs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join("/")).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    ensure!(ours == theirs, "ours {ours:?}, kubectl's {theirs:?}");
    let refused = watch(world, &["crontabs"])?.limit(LOAD_LIMIT).output()?;
    ensure!(
        refused.said().contains("doesn't have a resource type \"crontabs\""),
        "what is not there is said: {}",
        refused.said()
    );
    Ok(format!("{} pods", ours.len()))
}
