//! The core group's small kinds, and those of other groups that are much like them.

use super::text::{NONE, condition, or};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

pub(crate) static CONFIG_MAP: Printer = Printer {
    columns: &[NAME, Column::text("Data", "How many keys the map holds."), AGE],
    cells: |map| {
        let keys = map.get("data").len() + map.get("binaryData").len();
        vec![map.name().into(), keys.into(), map.age().into()]
    },
};

pub(crate) static COMPONENT_STATUS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the component is well."),
        Column::text("Message", "What the component says of itself."),
        Column::text("Error", "Why the component could not be asked."),
    ],
    cells: |component| {
        let conditions = component.get("conditions").items();
        let health = conditions.into_iter().find(|condition| condition.get("type").is("Healthy"));
        let status = match &health {
            Some(condition) if condition.get("status").is("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        let text = |member: &str| health.as_ref().map(|condition| condition.get(member).string()).unwrap_or_default();
        vec![component.name().into(), status.into(), text("message").into(), text("error").into()]
    },
};

pub(crate) static SECRET: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "What the secret is for."),
        Column::text("Data", "How many keys the secret holds."),
        AGE,
    ],
    cells: |secret| {
        let type_ = secret.get("type").string_or("Opaque");
        vec![secret.name().into(), type_.into(), secret.get("data").len().into(), secret.age().into()]
    },
};

pub(crate) static NAMESPACE: Printer = Printer {
    columns: &[NAME, Column::text("Status", "Whether the namespace is active or going away."), AGE],
    cells: |namespace| {
        let phase = namespace.at("status.phase").string_or("Active");
        vec![namespace.name().into(), phase.into(), namespace.age().into()]
    },
};

pub(crate) static NODE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the node is ready and takes pods."),
        Column::text("Roles", "The roles of the node, from its labels."),
        AGE,
        Column::text("Version", "The version of the kubelet."),
        Column::wide("Internal-IP", "The node's address inside the cluster."),
        Column::wide("External-IP", "The node's address outside the cluster."),
        Column::wide("OS-Image", "The operating system."),
        Column::wide("Kernel-Version", "The kernel and its architecture."),
        Column::wide("Container-Runtime", "What runs the containers."),
    ],
    cells: node,
};

fn node(node: Printed<'_>) -> Vec<Cell> {
    let status = node.status();
    let info = status.get("nodeInfo");
    let mut state = match status.get("conditions").items().into_iter().rfind(|c| c.get("type").is("Ready")) {
        None => "Unknown".to_owned(),
        Some(ready) if ready.get("status").is("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node.at("spec.unschedulable").bool() == Some(true) {
        state.push_str(",SchedulingDisabled");
    }
    let address = |type_: &str| {
        let address = status.get("addresses").items().into_iter().find(|address| address.get("type").is(type_));
        address.map_or_else(|| NONE.to_owned(), |address| address.get("address").string())
    };
    let known = |key: &str| info.get(key).string_or("<unknown>");
    let kernel = match info.get("architecture").string().as_str() {
        "" => known("kernelVersion"),
        architecture => format!("{} ({architecture})", known("kernelVersion")),
    };
    vec![
        node.name().into(),
        state.into(),
        or(roles(node.at("metadata.labels")), NONE).into(),
        node.age().into(),
        info.get("kubeletVersion").string().into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        known("osImage").into(),
        kernel.into(),
        known("containerRuntimeVersion").into(),
    ]
}

fn roles(labels: Json<'_>) -> String {
    let mut roles: Vec<String> = Vec::new();
    for (label, value) in labels.entries() {
        match label.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => roles.push(role.to_owned()),
            None if label == "kubernetes.io/role" => roles.push(value.string()),
            None => {}
        }
    }
    roles.retain(|role| !role.is_empty());
    roles.sort();
    roles.dedup();
    roles.join(",")
}

pub(crate) static EVENT: Printer = Printer {
    columns: &[
        Column::text("Last Seen", "When this was last seen."),
        Column::text("Type", "Normal or Warning."),
        Column::text("Reason", "Why this happened, in one word."),
        Column::text("Object", "The object that this is about."),
        Column::wide("Subobject", "The part of the object that this is about."),
        Column::wide("Source", "Who reports this."),
        Column::text("Message", "What happened."),
        Column::wide("First Seen", "When this was first seen."),
        Column::wide("Count", "How often this was seen."),
        Column::naming("Name", "The name of the event.", 1),
    ],
    cells: event,
};

fn event(event: Printed<'_>) -> Vec<Cell> {
    let timestamps = ["firstTimestamp", "eventTime"].map(|key| event.get(key));
    let first = event.since(if timestamps[0].time().is_some() { timestamps[0] } else { timestamps[1] });
    let series = event.get("series");
    let last = event.get("lastTimestamp");
    let last = match (series.exists(), last.time()) {
        (true, _) => event.since(series.get("lastObservedTime")),
        (false, Some(_)) => event.since(last),
        (false, None) => first.clone(),
    };
    let count = match series.exists() {
        true => series.get("count").int().unwrap_or(0),
        // An event that was seen once need not say so.
        false => event.get("count").int().filter(|count| *count != 0).unwrap_or(1),
    };
    let about = event.get("involvedObject");
    let mut target = about.get("kind").string().to_lowercase();
    if let Some(name) = about.get("name").text().filter(|name| !name.is_empty()) {
        target = format!("{target}/{name}");
    }
    let either = |path: &str, fallback: &str| or(event.at(path).string(), &event.get(fallback).string());
    let source = match either("source.host", "reportingInstance").as_str() {
        "" => either("source.component", "reportingComponent"),
        host => format!("{}, {host}", either("source.component", "reportingComponent")),
    };
    vec![
        last.into(),
        event.get("type").string().into(),
        event.get("reason").string().into(),
        target.into(),
        about.get("fieldPath").string().into(),
        source.into(),
        event.get("message").string().trim().into(),
        first.into(),
        count.into(),
        event.name().into(),
    ]
}

pub(crate) static RESOURCE_QUOTA: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Request", "What is used of what may be requested."),
        Column::text("Limit", "What is used of what limits may add up to."),
        AGE,
    ],
    cells: |quota| {
        let (hard, used) = (quota.at("status.hard"), quota.at("status.used"));
        let mut resources = hard.entries();
        resources.sort_by(|a, b| a.0.cmp(&b.0));
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in resources {
            let quantity = |json: Json<'_>| json.scalar().unwrap_or_else(|| "0".to_owned());
            let text = format!("{resource}: {}/{}", quantity(used.get(&resource)), quantity(hard));
            if resource.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
        }
        vec![quota.name().into(), requests.join(", ").into(), limits.join(", ").into(), quota.age().into()]
    },
};

pub(crate) static LEASE: Printer = Printer {
    columns: &[NAME, Column::text("Holder", "Who holds the lease."), AGE],
    cells: |lease| vec![lease.name().into(), lease.at("spec.holderIdentity").string().into(), lease.age().into()],
};

pub(crate) static PRIORITY_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::integer("Value", "The priority that pods of this class get."),
        Column::boolean("Global-Default", "Whether pods without a class get this one."),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of this class may displace others."),
    ],
    cells: |class| {
        vec![
            class.name().into(),
            class.get("value").int().unwrap_or(0).into(),
            class.get("globalDefault").bool().unwrap_or(false).into(),
            class.age().into(),
            class.get("preemptionPolicy").string_or("PreemptLowerPriority").into(),
        ]
    },
};

pub(crate) static RUNTIME_CLASS: Printer = Printer {
    columns: &[NAME, Column::text("Handler", "The runtime's handler for pods of this class."), AGE],
    cells: |class| vec![class.name().into(), class.get("handler").string().into(), class.age().into()],
};

/// The status of a condition in a cell: its value, with the reason when it does not hold.
pub(crate) fn condition_cell(conditions: Json<'_>, type_: &str) -> String {
    let Some(condition) = condition(conditions, type_) else {
        return "Unknown".to_owned();
    };
    let status = condition.get("status").string();
    match condition.get("reason").string().as_str() {
        reason if status != "True" && !reason.is_empty() => format!("{status} ({reason})"),
        _ => status,
    }
}
