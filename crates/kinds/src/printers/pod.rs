//! Pods: how many containers are ready, and one word for the state of all of them.

use time::OffsetDateTime;

use super::text::{NONE, holds};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::since;
use crate::table::{AGE, Column, NAME};

pub(crate) static POD: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Ready", "Ready containers of all containers."),
        Column::text("Status", "The state of the pod's containers in one word."),
        Column::text("Restarts", "How often containers were restarted, and when the last time was."),
        AGE,
        Column::wide("IP", "The pod's address."),
        Column::wide("Node", "The node that the pod is bound to."),
        Column::wide("Nominated Node", "The node that is being cleared for the pod."),
        Column::wide("Readiness Gates", "Fulfilled readiness gates of all readiness gates."),
    ],
    cells,
};

/// Restarts, and the last one.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<OffsetDateTime>,
}

impl Restarts {
    fn add(&mut self, container: Json<'_>) {
        self.count += container.get("restartCount").int().unwrap_or(0);
        self.last = self.last.max(container.at("lastState.terminated.finishedAt").time());
    }
}

fn cells(pod: Printed<'_>) -> Vec<Cell> {
    let (spec, status) = (pod.spec(), pod.status());
    let summary = Summary::of(pod);
    let restarts = match summary.restarts {
        Restarts { count: count @ 1.., last: Some(last) } => format!("{count} ({} ago)", since(Some(last), pod.now)),
        Restarts { count, .. } => count.to_string(),
    };
    let ip = status.get("podIPs").items().first().map_or_else(|| status.get("podIP"), |first| first.get("ip"));
    vec![
        pod.name().into(),
        format!("{}/{}", summary.ready, summary.containers).into(),
        summary.reason.into(),
        restarts.into(),
        pod.age().into(),
        ip.string_or(NONE).into(),
        spec.get("nodeName").string_or(NONE).into(),
        status.get("nominatedNodeName").string_or(NONE).into(),
        readiness_gates(spec, status).into(),
    ]
}

fn readiness_gates(spec: Json<'_>, status: Json<'_>) -> String {
    let gates = spec.get("readinessGates").items();
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let conditions = status.get("conditions");
    let open = gates.iter().filter(|gate| holds(conditions, &gate.get("conditionType").string())).count();
    format!("{open}/{}", gates.len())
}

struct Summary {
    ready: usize,
    containers: usize,
    reason: String,
    restarts: Restarts,
}

impl Summary {
    fn of(pod: Printed<'_>) -> Self {
        let (spec, status) = (pod.spec(), pod.status());
        let conditions = status.get("conditions");
        let phase = status.get("phase").string_or("Pending");
        let status_reason = status.get("reason").string();
        let mut reason = if status_reason.is_empty() { phase.clone() } else { status_reason.clone() };
        let gated = |condition: &Json<'_>| {
            condition.get("type").is("PodScheduled") && condition.get("reason").is("SchedulingGated")
        };
        if conditions.items().iter().any(gated) {
            reason = "SchedulingGated".to_owned();
        }

        let init_containers = spec.get("initContainers").items();
        // Init containers that keep running beside the others ("sidecars").
        let sidecars: Vec<String> = init_containers
            .iter()
            .filter(|container| container.get("restartPolicy").is("Always"))
            .map(|container| container.get("name").string())
            .collect();
        let mut summary = Summary {
            ready: 0,
            containers: spec.get("containers").len() + sidecars.len(),
            reason,
            restarts: Restarts::default(),
        };
        let (initializing, sidecar_restarts) = summary.initialization(status, &sidecars, init_containers.len());
        if !initializing || holds(conditions, "Initialized") {
            // The restarts of init containers that are through count no more.
            summary.restarts = sidecar_restarts;
            summary.running(status);
        }
        if pod.is_being_deleted() {
            if status_reason == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(phase.as_str(), "Succeeded" | "Failed") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Goes through the init containers up to the first that is not through. Says whether there is
    /// one, and how often sidecars were restarted.
    fn initialization(&mut self, status: Json<'_>, sidecars: &[String], of: usize) -> (bool, Restarts) {
        let mut sidecar_restarts = Restarts::default();
        for (position, container) in status.get("initContainerStatuses").items().into_iter().enumerate() {
            let state = container.get("state");
            let (terminated, waiting) = (state.get("terminated"), state.at("waiting.reason").string());
            let sidecar = sidecars.contains(&container.get("name").string());
            self.restarts.add(container);
            if sidecar {
                sidecar_restarts.add(container);
            }
            if terminated.exists() && terminated.get("exitCode").int().unwrap_or(0) == 0 {
                continue;
            }
            if sidecar && container.get("started").bool() == Some(true) {
                self.ready += usize::from(container.get("ready").bool() == Some(true));
                continue;
            }
            self.reason = if terminated.exists() {
                format!("Init:{}", termination(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{position}/{of}")
            };
            return (true, sidecar_restarts);
        }
        (false, sidecar_restarts)
    }

    /// Goes through the containers, last to first; the first that has something to say gives the
    /// reason.
    fn running(&mut self, status: Json<'_>) {
        let (mut any_running, mut error) = (false, None);
        for container in status.get("containerStatuses").items().into_iter().rev() {
            let state = container.get("state");
            let (waiting, terminated) = (state.at("waiting.reason").string(), state.get("terminated"));
            self.restarts.add(container);
            if !waiting.is_empty() {
                self.reason = waiting;
            } else if terminated.exists() {
                self.reason = termination(terminated);
                if terminated.get("exitCode").int().unwrap_or(0) != 0 {
                    error = Some(self.reason.clone());
                }
            } else if container.get("ready").bool() == Some(true) && state.get("running").exists() {
                any_running = true;
                self.ready += 1;
            }
        }
        // A pod of which something still runs is not completed.
        if self.reason == "Completed" {
            match error {
                _ if any_running && holds(status.get("conditions"), "Ready") => self.reason = "Running".to_owned(),
                Some(error) => self.reason = error,
                None if any_running => self.reason = "NotReady".to_owned(),
                None => {}
            }
        }
    }
}

/// Why a container ended.
fn termination(terminated: Json<'_>) -> String {
    let number = |key| terminated.get(key).int().unwrap_or(0);
    match (terminated.get("reason").string(), number("signal")) {
        (reason, _) if !reason.is_empty() => reason,
        (_, 0) => format!("ExitCode:{}", number("exitCode")),
        (_, signal) => format!("Signal:{signal}"),
    }
}
