//! Scenarios that watch with kubectl, with curl over both HTTP versions, and with our client. [`LINE_LIMIT`] is the
//! limit from the end of the write to the printed line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome, ensure};
use crate::process::{Background, Line};
use crate::steps::seconds;

use super::World;

/// The time limit from the response to the write until the line of the watcher. A server that holds an event back sends
/// the event with its next write: a PING frame of HTTP/2 (30 s after the last frame of the connection), or a bookmark
/// (every 60 s). On a watch that was just opened, this limit is below both.
pub(crate) const LINE_LIMIT: Duration = Duration::from_secs(20);

/// The time limit of the fastest of several lines. A busy host delays single lines, but not all of them.
pub(crate) const FASTEST_LINE_LIMIT: Duration = Duration::from_secs(1);

/// The number of writes of which the fastest must be seen within [`FASTEST_LINE_LIMIT`].
const WRITES: u32 = 3;

/// Writes [`WRITES`] times, and waits for the line of each write. `write_and_wait` receives the number of the write, and
/// returns the time from the response to the line.
///
/// # Errors
/// `write_and_wait` has failed, or no line has come within [`FASTEST_LINE_LIMIT`].
pub(crate) fn fastest(mut write_and_wait: impl FnMut(u32) -> Outcome<Duration>) -> Outcome<Duration> {
    let mut fastest = Duration::MAX;
    for number in 0..WRITES {
        fastest = fastest.min(write_and_wait(number)?);
    }
    ensure!(fastest < FASTEST_LINE_LIMIT, "the fastest of {WRITES} lines came {} after the write", seconds(fastest));
    Ok(fastest)
}

/// The time limit to open a watch, including kubectl's discovery.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Opens `kubectl get pods -A -w` on a server that has no pods yet.
pub(crate) fn open_pods_watch(world: &mut World) -> Outcome<String> {
    world.pods = Some(world.access.kubectl(["get", "pods", "-A", "-w"]).start()?);
    Ok(String::new())
}

/// The watch has printed the pods that were applied meanwhile.
pub(crate) fn pods_were_seen(world: &mut World) -> Outcome<String> {
    let watch = pods_watch(world)?;
    for pod in ["toolbox", "canary", "load-generator", "psql"] {
        let line = watch.lines.wait(0, LINE_LIMIT, |line| line.split_whitespace().nth(1) == Some(pod));
        ensure!(line.is_some(), "`get pods -A -w` has not shown {pod}:\n{}", watch.tail());
    }
    Ok(format!("{} lines", watch.lines.count()))
}

/// `kubectl get pods -A -w` prints each of five changes, and the fastest line comes within a second.
pub(crate) fn prints_at_once(world: &mut World) -> Outcome<String> {
    let (mut fastest, mut slowest) = (Duration::MAX, Duration::ZERO);
    for turn in 0..5 {
        let since = pods_watch(world)?.lines.count();
        touch(world, "/api/v1/namespaces/shop/pods/toolbox", turn)?;
        let written = Instant::now();
        let watch = pods_watch(world)?;
        let line = watch.lines.wait(since, LINE_LIMIT, |line| line.split_whitespace().nth(1) == Some("toolbox"));
        let line = line
            .ok_or_else(|| Failure::from(format!("no line within {LINE_LIMIT:?} of the write:\n{}", watch.tail())))?;
        let took = line.at.saturating_duration_since(written);
        (fastest, slowest) = (fastest.min(took), slowest.max(took));
    }
    ensure!(fastest < FASTEST_LINE_LIMIT, "the fastest of 5 lines came {} after the write", seconds(fastest));
    Ok(format!("5 lines {} to {} after the write", seconds(fastest), seconds(slowest)))
}

/// Over HTTP/1.1, the response has chunks, and no event is held back.
pub(crate) fn over_http1(world: &mut World) -> Outcome<String> {
    over(world, "--http1.1", 100, |line| line.eq_ignore_ascii_case("< transfer-encoding: chunked"))
}

/// Over HTTP/2, no event is held back.
pub(crate) fn over_http2(world: &mut World) -> Outcome<String> {
    over(world, "--http2", 110, |line| line.starts_with("< HTTP/2 200"))
}

fn over(world: &mut World, version: &str, turn: u32, header: impl Fn(&str) -> bool) -> Outcome<String> {
    let watch = open(world, "/api/v1/namespaces/shop/configmaps", &[version], None)?;
    ensure!(
        watch.lines.wait(0, LINE_LIMIT, &header).is_some(),
        "no such header line with {version}:\n{}",
        watch.tail()
    );
    let fastest = fastest(|number| {
        let since = watch.lines.count();
        touch(world, "/api/v1/namespaces/shop/configmaps/web", turn + number)?;
        let written = Instant::now();
        let (line, event) = next_event(&watch, since)?;
        ensure!(event["type"] == "MODIFIED" && event["object"]["metadata"]["name"] == "web", "not the event: {event}");
        Ok(line.at.saturating_duration_since(written))
    })?;
    Ok(format!("event {} after the write", seconds(fastest)))
}

/// Our client prints changes. The restart scenarios continue with its watch.
pub(crate) fn our_client(world: &mut World) -> Outcome<String> {
    let watch = our_watch(world)?;
    let fastest = fastest(|number| {
        let since = watch.lines.count();
        touch(world, "/api/v1/namespaces/shop/pods/toolbox", 200 + number)?;
        let written = Instant::now();
        let line = watch.lines.wait(since, LINE_LIMIT, |line| line.contains("toolbox"));
        let late = || Failure::from(format!("no line within {LINE_LIMIT:?} of the write:\n{}", watch.tail()));
        Ok(line.ok_or_else(late)?.at.saturating_duration_since(written))
    })?;
    Ok(format!("line {} after the write", seconds(fastest)))
}

/// Starts `listwatch watch pods -A`, and waits for the initial objects.
pub(crate) fn our_watch(world: &mut World) -> Outcome<Background> {
    let kubeconfig = world.access.kubeconfig.clone();
    let run =
        crate::process::Run::new(&world.server()?.bin).args(["watch", "pods", "-A", "--kubeconfig"]).arg(kubeconfig);
    let watch = run.start()?;
    let shown = watch.lines.wait(0, OPEN_LIMIT, |line| line.contains("toolbox"));
    ensure!(shown.is_some(), "`listwatch watch pods -A` has not shown the pods:\n{}", watch.tail());
    Ok(watch)
}

/// Opens a watch by curl, which prints the headers (`< Name: value`). The watch begins at a resource version, or at the
/// latest state.
pub(crate) fn open(world: &World, path: &str, flags: &[&str], from: Option<&str>) -> Outcome<Background> {
    let now = || -> Outcome<String> { Ok(version_of(&world.access.fetch_json(&format!("{path}?limit=1"))?)) };
    let from = from.map_or_else(now, |from| Ok(from.to_owned()))?;
    world.access.curl(&format!("{path}?watch=true&resourceVersion={from}")).arg("--verbose").args(flags).start()
}

/// The next event line at or after mark `since`.
pub(crate) fn next_event(watch: &Background, since: usize) -> Outcome<(Line, Value)> {
    let line = watch.lines.wait(since, LINE_LIMIT, |line| line.starts_with("{\""));
    let line = line.ok_or_else(|| Failure::from(format!("no event within {LINE_LIMIT:?}: {}", watch.tail())))?;
    let event = serde_json::from_str(&line.text)?;
    Ok((line, event))
}

/// The resource version of an object or list.
pub(crate) fn version_of(value: &Value) -> String {
    value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Changes an annotation. Each caller passes another `turn`, because a patch without a change causes no event.
pub(crate) fn touch(world: &World, path: &str, turn: u32) -> Outcome<Value> {
    world.access.merge_patch(path, &json!({"metadata": {"annotations": {"shop.example/touched": turn.to_string()}}}))
}

fn pods_watch(world: &World) -> Outcome<&Background> {
    world.pods.as_ref().ok_or_else(|| Failure::from("no watch is open"))
}
