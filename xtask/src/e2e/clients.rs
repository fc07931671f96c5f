//! Scenarios of third-party clients: Python's `kubernetes` package, kube-rs, a WebSocket client, and curl. Each lists,
//! pages, watches and resumes, and prints its result. The checks are in the file of the client.

use std::time::Duration;

use serde_json::json;

use crate::failure::{Outcome, ensure};
use crate::process::Run;
use crate::tools;

use super::World;
use super::watching::{LINE_LIMIT, next_event, open, touch, version_of};

/// The time limit of a client's scenario.
const STORY_LIMIT: Duration = Duration::from_secs(300);

/// The Python packages, pinned, so that a new release is used only after a commit.
const PYTHON_PACKAGES: &[&str] = &["kubernetes==37.0.2", "protobuf==7.36.2", "websocket-client==1.9.2"];

const PYTHON_CLIENT: &str = include_str!("clients/client.py");

/// Lists page by page with curl, at one version.
pub(crate) fn curl_pages(world: &mut World) -> Outcome<String> {
    let whole = world.access.fetch_json("/api/v1/pods")?;
    let names = |list: &serde_json::Value| -> Vec<String> {
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (mut found, mut token, mut pages) = (Vec::new(), String::new(), 0);
    let mut version = None;
    loop {
        let page = world.access.fetch_json(&format!("/api/v1/pods?limit=2&continue={token}"))?;
        pages += 1;
        found.extend(names(&page));
        let of_page = version_of(&page);
        ensure!(version.get_or_insert(of_page.clone()) == &of_page, "page {pages} is of another version");
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            _ => break,
        }
    }
    ensure!(found == names(&whole), "pages show {found:?}, the whole list {:?}", names(&whole));
    Ok(format!("{} pods in {pages} pages", found.len()))
}

/// Resumes a closed watch with curl.
pub(crate) fn curl_resumes(world: &mut World) -> Outcome<String> {
    const PATH: &str = "/api/v1/namespaces/shop/configmaps";
    let first = open(world, PATH, &[], None)?;
    let since = first.lines.count();
    touch(world, &format!("{PATH}/web"), 300)?;
    let (_, event) = next_event(&first, since)?;
    let at = version_of(&event["object"]);
    drop(first);
    for turn in [301, 302] {
        touch(world, &format!("{PATH}/web"), turn)?;
    }
    let second = open(world, PATH, &[], Some(&at))?;
    let mut mark = 0;
    for turn in [301, 302] {
        let line = second.lines.wait(mark, LINE_LIMIT, |line| line.starts_with("{\""));
        let line = line.ok_or_else(|| format!("no event of turn {turn}: {}", second.tail()))?;
        let event: serde_json::Value = serde_json::from_str(&line.text)?;
        let seen = &event["object"]["metadata"]["annotations"]["shop.example/touched"];
        ensure!(*seen == json!(turn.to_string()), "turn {turn} was to come, not {seen}");
        mark = second.lines.all().iter().position(|other| other.text == line.text).unwrap_or_default() + 1;
    }
    Ok(format!("2 events that happened after {at}, while nobody watched"))
}

/// Runs the kube-rs example of this workspace over TLS.
pub(crate) fn kube_rs(world: &mut World) -> Outcome<String> {
    // Built as a part of the workspace, so that dependencies are not built again.
    let flags = ["build", "--workspace", "--example", "kube_rs_client"];
    Run::cargo().args(flags).dir(&tools::root()).show()?;
    let file = tools::target().join("debug/examples").join(format!("kube_rs_client{}", std::env::consts::EXE_SUFFIX));
    let said = Run::new(file).env("KUBECONFIG", &world.access.kubeconfig).limit(STORY_LIMIT).text()?;
    Ok(said.trim().to_owned())
}

macro_rules! python_scenarios {
    ($($function:ident $name:literal)*) => {$(
        pub(crate) fn $function(world: &mut World) -> Outcome<String> {
            python(world, $name)
        }
    )*};
}

python_scenarios! {
    python_lists "list"
    python_pages "page"
    python_watches "watch"
    python_resumes "resume"
    python_writes "write"
    python_patches "patch"
    python_creates_from_yaml "yaml"
    websocket_watches "websocket"
    python_decodes_protobuf "protobuf"
}

fn python(world: &World, scenario: &str) -> Outcome<String> {
    let python = tools::python("python", PYTHON_PACKAGES)?;
    let script = world.access.dir.join("client.py");
    std::fs::write(&script, PYTHON_CLIENT)?;
    let run = Run::new(python).arg(script).arg(&world.access.kubeconfig).arg(scenario).limit(STORY_LIMIT);
    Ok(run.text()?.trim().to_owned())
}
