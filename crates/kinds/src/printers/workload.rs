//! What makes pods: sets, deployments, jobs, and what scales and protects them.

use super::text::{NONE, UNSET, containers, holds, labels, selector, selector_cell, with_more};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::human_duration;
use crate::table::{AGE, Column, NAME};

const CONTAINERS: Column = Column::wide("Containers", "The names of the template's containers.");
const IMAGES: Column = Column::wide("Images", "The images of the template's containers.");
const SELECTOR: Column = Column::wide("Selector", "The labels of the pods that belong to this.");
const DESIRED: Column = Column::integer("Desired", "How many pods there should be.");
const CURRENT: Column = Column::integer("Current", "How many pods there are.");
const READY: Column = Column::integer("Ready", "How many pods are ready.");
const READY_OF: Column = Column::text("Ready", "Ready pods of the pods that there should be.");

/// `spec.replicas`, which is 1 where nobody said otherwise.
fn replicas(object: Printed<'_>) -> i64 {
    object.at("spec.replicas").int().unwrap_or(1)
}

fn count(status: Json<'_>, key: &str) -> i64 {
    status.get(key).int().unwrap_or(0)
}

pub(crate) static DEPLOYMENT: Printer = Printer {
    columns: &[
        NAME,
        READY_OF,
        Column::integer("Up-to-date", "How many pods have the wanted template."),
        Column::integer("Available", "How many pods have been ready for long enough."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |deployment| {
        let (spec, status) = (deployment.spec(), deployment.status());
        let (names, images) = containers(spec.get("template"));
        vec![
            deployment.name().into(),
            format!("{}/{}", count(status, "readyReplicas"), replicas(deployment)).into(),
            count(status, "updatedReplicas").into(),
            count(status, "availableReplicas").into(),
            deployment.age().into(),
            names.into(),
            images.into(),
            selector(spec.get("selector")).unwrap_or_else(|| "<invalid>".to_owned()).into(),
        ]
    },
};

const REPLICA_COLUMNS: &[Column] = &[NAME, DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR];

fn replica_cells(set: Printed<'_>, selector: String) -> Vec<Cell> {
    let status = set.status();
    let (names, images) = containers(set.at("spec.template"));
    vec![
        set.name().into(),
        replicas(set).into(),
        count(status, "replicas").into(),
        count(status, "readyReplicas").into(),
        set.age().into(),
        names.into(),
        images.into(),
        selector.into(),
    ]
}

pub(crate) static REPLICA_SET: Printer =
    Printer { columns: REPLICA_COLUMNS, cells: |set| replica_cells(set, selector_cell(set.at("spec.selector"))) };

/// Its selector is a plain map of labels.
pub(crate) static REPLICATION_CONTROLLER: Printer = Printer {
    columns: REPLICA_COLUMNS,
    cells: |controller| replica_cells(controller, labels(controller.at("spec.selector"))),
};

pub(crate) static STATEFUL_SET: Printer = Printer {
    columns: &[NAME, READY_OF, AGE, CONTAINERS, IMAGES],
    cells: |set| {
        let (names, images) = containers(set.at("spec.template"));
        vec![
            set.name().into(),
            format!("{}/{}", count(set.status(), "readyReplicas"), replicas(set)).into(),
            set.age().into(),
            names.into(),
            images.into(),
        ]
    },
};

pub(crate) static DAEMON_SET: Printer = Printer {
    columns: &[
        NAME,
        Column::integer("Desired", "How many nodes should run a pod."),
        Column::integer("Current", "How many of them do."),
        READY,
        Column::integer("Up-to-date", "How many pods have the wanted template."),
        Column::integer("Available", "How many pods have been ready for long enough."),
        Column::text("Node Selector", "The labels of the nodes that run a pod."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |set| {
        let (spec, status) = (set.spec(), set.status());
        let (names, images) = containers(spec.get("template"));
        vec![
            set.name().into(),
            count(status, "desiredNumberScheduled").into(),
            count(status, "currentNumberScheduled").into(),
            count(status, "numberReady").into(),
            count(status, "updatedNumberScheduled").into(),
            count(status, "numberAvailable").into(),
            labels(spec.at("template.spec.nodeSelector")).into(),
            set.age().into(),
            names.into(),
            images.into(),
            selector_cell(spec.get("selector")).into(),
        ]
    },
};

pub(crate) static JOB: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "The state of the job in one word."),
        Column::text("Completions", "Pods that succeeded of pods that should."),
        Column::text("Duration", "How long the job ran, or has run so far."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: job,
};

fn job(job: Printed<'_>) -> Vec<Cell> {
    let (spec, status) = (job.spec(), job.status());
    let succeeded = count(status, "succeeded");
    let completions = match (spec.get("completions").int(), spec.get("parallelism").int()) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, Some(parallelism @ 2..)) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = status
        .get("startTime")
        .time()
        .map_or(String::new(), |start| human_duration(status.get("completionTime").time().unwrap_or(job.now) - start));
    let conditions = status.get("conditions");
    let state = if holds(conditions, "Complete") {
        "Complete"
    } else if holds(conditions, "Failed") {
        "Failed"
    } else if job.is_being_deleted() {
        "Terminating"
    } else {
        let states = [("Suspended", "Suspended"), ("FailureTarget", "FailureTarget")];
        let last = ("SuccessCriteriaMet", "SuccessCriteriaMet");
        states
            .into_iter()
            .chain([last])
            .find(|(type_, _)| holds(conditions, type_))
            .map_or("Running", |(_, state)| state)
    };
    let (names, images) = containers(spec.get("template"));
    vec![
        job.name().into(),
        state.into(),
        completions.into(),
        duration.into(),
        job.age().into(),
        names.into(),
        images.into(),
        selector_cell(spec.get("selector")).into(),
    ]
}

pub(crate) static CRON_JOB: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Schedule", "When jobs are made, in cron's words."),
        Column::text("Timezone", "The zone that the schedule is in."),
        Column::boolean("Suspend", "Whether no jobs are made for now."),
        Column::integer("Active", "How many of its jobs run."),
        Column::text("Last Schedule", "When the last job was made."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |cron| {
        let (spec, status) = (cron.spec(), cron.status());
        let last = status.get("lastScheduleTime");
        let template = spec.at("jobTemplate.spec.template");
        let (names, images) = containers(template);
        vec![
            cron.name().into(),
            spec.get("schedule").string().into(),
            spec.get("timeZone").string_or(NONE).into(),
            if spec.get("suspend").bool() == Some(true) { "True" } else { "False" }.into(),
            status.get("active").len().into(),
            if last.exists() { cron.since(last) } else { NONE.to_owned() }.into(),
            cron.age().into(),
            names.into(),
            images.into(),
            selector_cell(spec.at("jobTemplate.spec.selector")).into(),
        ]
    },
};

pub(crate) static POD_TEMPLATE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Containers", "The names of the template's containers."),
        Column::text("Images", "The images of the template's containers."),
        Column::text("Pod Labels", "The labels that pods of this template get."),
    ],
    cells: |template| {
        let (names, images) = containers(template.get("template"));
        let labels = labels(template.at("template.metadata.labels"));
        vec![template.name().into(), names.into(), images.into(), labels.into()]
    },
};

pub(crate) static CONTROLLER_REVISION: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Controller", "The object whose history this is."),
        Column::text("Revision", "The number of this state."),
        AGE,
    ],
    cells: |revision| {
        let owners = revision.at("metadata.ownerReferences").items();
        let controller = owners.iter().find(|owner| owner.get("controller").bool() == Some(true));
        let controller = controller.map_or_else(
            || NONE.to_owned(),
            |owner| {
                let version = owner.get("apiVersion").string();
                let group = version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
                format!("{}{group}", owner.get("kind").string()).to_lowercase() + "/" + &owner.get("name").string()
            },
        );
        let number = revision.get("revision").int().unwrap_or(0);
        vec![revision.name().into(), controller.into(), number.into(), revision.age().into()]
    },
};

pub(crate) static POD_DISRUPTION_BUDGET: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Min Available", "How many pods must stay available."),
        Column::text("Max Unavailable", "How many pods may be unavailable."),
        Column::integer("Allowed Disruptions", "How many pods may be disrupted now."),
        AGE,
    ],
    cells: |budget| {
        let bound = |path: &str| budget.at(path).scalar().unwrap_or_else(|| "N/A".to_owned());
        vec![
            budget.name().into(),
            bound("spec.minAvailable").into(),
            bound("spec.maxUnavailable").into(),
            count(budget.status(), "disruptionsAllowed").into(),
            budget.age().into(),
        ]
    },
};

pub(crate) static HORIZONTAL_POD_AUTOSCALER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Reference", "What is scaled."),
        Column::text("Targets", "The metrics: where they are and where they should be."),
        Column::text("MinPods", "The fewest pods."),
        Column::text("MaxPods", "The most pods."),
        Column::text("Replicas", "How many pods there are."),
        AGE,
    ],
    cells: |scaler| {
        let spec = scaler.spec();
        let target = spec.get("scaleTargetRef");
        vec![
            scaler.name().into(),
            format!("{}/{}", target.get("kind").string(), target.get("name").string()).into(),
            metrics(spec.get("metrics"), scaler.at("status.currentMetrics")).into(),
            spec.get("minReplicas").scalar().unwrap_or_else(|| "1".to_owned()).into(),
            spec.get("maxReplicas").int().unwrap_or(0).into(),
            count(scaler.status(), "currentReplicas").into(),
            scaler.age().into(),
        ]
    },
};

/// How many metrics a cell shows.
const METRICS_SHOWN_MAX: usize = 2;

fn metrics(specs: Json<'_>, statuses: Json<'_>) -> String {
    let statuses = statuses.items();
    let metric = |(position, spec): (usize, Json<'_>)| {
        let status = statuses.get(position).copied().unwrap_or(Json::new(b""));
        metric(spec, status)
    };
    let list = specs.items().into_iter().enumerate().map(metric).collect();
    with_more(list, METRICS_SHOWN_MAX, ", ", NONE)
}

fn metric(spec: Json<'_>, status: Json<'_>) -> String {
    let type_ = spec.get("type").string();
    let (member, named) = match type_.as_str() {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let (target, current) = (spec.get(member).get("target"), status.get(member).get("current"));
    let unknown = || "<unknown>".to_owned();
    let average = target.get("averageValue").scalar();
    let text = match (average, named) {
        // What pods and resources are measured by is an average anyway.
        (Some(average), _) => {
            let suffix = if matches!(member, "external" | "object") { " (avg)" } else { "" };
            format!("{}/{average}{suffix}", current.get("averageValue").scalar().unwrap_or_else(unknown))
        }
        (None, false) => {
            let value = target.get("value").scalar().unwrap_or_else(|| UNSET.to_owned());
            format!("{}/{value}", current.get("value").scalar().unwrap_or_else(unknown))
        }
        (None, true) => {
            let percent = |json: Json<'_>| json.get("averageUtilization").int().map(|number| format!("{number}%"));
            let wanted = percent(target).unwrap_or_else(|| "<auto>".to_owned());
            format!("{}/{wanted}", percent(current).unwrap_or_else(unknown))
        }
    };
    if named { format!("{}: {text}", spec.get(member).get("name").string()) } else { text }
}
