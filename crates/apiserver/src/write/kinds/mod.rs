//! What single built-in kinds do when they are written, beyond what all do: [`Steps`], a table by kind
//! (`pkg/registry/*/*/strategy.go`). Which fields never change is in [`super::validate`], and what a write
//! reaches at all is in [`super::scope`].
//!
//! ```text
//!  decode ─▶ defaults ─▶ create │ update ─▶ … ─▶ judge
//! ```

mod certificates;
mod counts;
mod data;
pub(super) mod namespaces;
mod pods;
mod resize;
mod workloads;

use serde_json::{Map, Value};

use super::Clock;
use super::validate::{devices, endpoints, nodes, volumes};
use crate::auth::User;
use crate::registry::Subresource;
use crate::versions::autoscaling;
use listwatch_validation::Errors;
use listwatch_validation::{child_mut, metadata};

type Object = Map<String, Value>;

/// What a new object is made with.
#[derive(Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) uid: &'a str,
    pub(super) now: &'a str,
    /// Who makes it.
    pub(super) user: &'a User,
}

/// The part of an object that a write is about, and when it is made.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// `None` for the object itself.
    pub(super) subresource: Option<&'a Subresource>,
    pub(super) clock: &'a Clock,
}

/// What one kind does.
pub(super) struct Steps {
    group: &'static str,
    kind: &'static str,
    /// Changes a body before anything is defaulted; the error is what a decoder says.
    pub(super) decode: fn(&mut Object) -> Result<(), String>,
    /// Makes a new object whole, behind the defaults.
    pub(super) create: fn(&mut Object, Making<'_>),
    /// Makes a successor whole. What the write does not reach is as in the old object already.
    pub(super) update: fn(&mut Object, &Object, Part<'_>),
    /// Finds what is wrong with a successor besides what would be wrong with any object of the kind.
    pub(super) judge: fn(&Object, &Object, Part<'_>, &mut Errors),
}

/// A kind that does nothing of its own.
const PLAIN: Steps =
    Steps { group: "", kind: "", decode: |_| Ok(()), create: |_, _| {}, update: |_, _, _| {}, judge: |_, _, _, _| {} };

static TABLE: [Steps; 18] = [
    Steps { group: "", kind: "ConfigMap", decode: data::decode_config_map, judge: data::judge, ..PLAIN },
    Steps {
        group: "",
        kind: "Namespace",
        create: namespaces::create,
        update: namespaces::update,
        judge: namespaces::judge,
        ..PLAIN
    },
    Steps {
        group: "",
        kind: "Node",
        create: |node, _| nodes::prepare_node(node, None),
        update: |node, old, _| nodes::prepare_node(node, Some(old)),
        ..PLAIN
    },
    Steps { group: "", kind: "PersistentVolume", create: begin_phase, update: enter_phase, ..PLAIN },
    Steps {
        group: "",
        kind: "PersistentVolumeClaim",
        create: |claim, _| volumes::prepare_claim(claim, None),
        update: |claim, old, _| volumes::prepare_claim(claim, Some(old)),
        ..PLAIN
    },
    Steps { group: "", kind: "Pod", create: pods::create, update: pods::update, judge: pods::judge, ..PLAIN },
    Steps {
        group: "",
        kind: "ReplicationController",
        judge: |new, old, part, errors| counts::REPLICATION_CONTROLLER.judge(new, old, part, errors),
        ..PLAIN
    },
    Steps { group: "", kind: "Secret", decode: data::decode_secret, judge: data::judge, ..PLAIN },
    Steps {
        group: "apps",
        kind: "DaemonSet",
        create: workloads::create_daemon_set,
        update: workloads::update_daemon_set,
        judge: |new, old, part, errors| counts::DAEMON_SET.judge(new, old, part, errors),
        ..PLAIN
    },
    Steps {
        group: "apps",
        kind: "Deployment",
        judge: |new, old, part, errors| counts::DEPLOYMENT.judge(new, old, part, errors),
        ..PLAIN
    },
    Steps {
        group: "apps",
        kind: "ReplicaSet",
        judge: |new, old, part, errors| counts::REPLICA_SET.judge(new, old, part, errors),
        ..PLAIN
    },
    Steps {
        group: "apps",
        kind: "StatefulSet",
        judge: |new, old, part, errors| counts::STATEFUL_SET.judge(new, old, part, errors),
        ..PLAIN
    },
    Steps { group: "autoscaling", kind: "HorizontalPodAutoscaler", decode: drop_carriers, ..PLAIN },
    Steps { group: "batch", kind: "Job", create: workloads::create_job, ..PLAIN },
    Steps {
        group: "certificates.k8s.io",
        kind: "CertificateSigningRequest",
        decode: certificates::decode,
        create: certificates::create,
        update: certificates::update,
        judge: certificates::judge,
    },
    Steps {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        create: |slice, _| endpoints::drop_topology(slice, None),
        update: |slice, old, _| endpoints::drop_topology(slice, Some(old)),
        ..PLAIN
    },
    Steps {
        group: "resource.k8s.io",
        kind: "ResourceClaim",
        update: |claim, old, part| {
            if part.subresource == Some(&Subresource::Status) {
                devices::drop_deallocated(claim, old);
            }
        },
        ..PLAIN
    },
    Steps {
        group: "resource.k8s.io",
        kind: "ResourceSlice",
        create: |slice, making| devices::prepare_slice(slice, making.now),
        update: |slice, _, part| devices::prepare_slice(slice, &part.clock.now()),
        ..PLAIN
    },
];

/// What a kind does.
pub(super) fn of(group: &str, kind: &str) -> &'static Steps {
    static NONE: Steps = PLAIN;
    TABLE.iter().find(|steps| steps.kind == kind && steps.group == group).unwrap_or(&NONE)
}

fn drop_carriers(autoscaler: &mut Object) -> Result<(), String> {
    autoscaling::drop_carriers(autoscaler);
    Ok(())
}

/// A volume is in its first phase since it is there.
fn begin_phase(volume: &mut Object, _: Making<'_>) {
    let since = metadata(volume).get("creationTimestamp").cloned().unwrap_or_default();
    child_mut(volume, "status").insert("lastPhaseTransitionTime".to_owned(), since);
}

/// A volume that enters another phase has done so now, unless the client says when.
fn enter_phase(volume: &mut Object, old: &Object, part: Part<'_>) {
    const SINCE: &str = "lastPhaseTransitionTime";
    if part.subresource != Some(&Subresource::Status) {
        return;
    }
    let read = |volume: &Object, name: &str| volume.get("status").and_then(|status| status.get(name)).cloned();
    let (phase, since) = (read(volume, "phase"), read(volume, SINCE));
    let (phase_before, since_before) = (read(old, "phase"), read(old, SINCE));
    let since = match (phase == phase_before, since) {
        (true, None) => since_before,
        (false, since) if since.is_none() || since == since_before => Some(Value::String(part.clock.now())),
        (_, since) => since,
    };
    if let Some(since) = since {
        child_mut(volume, "status").insert(SINCE.to_owned(), since);
    }
}

#[cfg(test)]
pub(super) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// The errors of an update, as texts.
#[cfg(test)]
pub(super) fn judged(
    group: &str,
    kind: &str,
    new: Value,
    old: Value,
    subresource: Option<&Subresource>,
) -> Vec<String> {
    let mut errors = Errors::default();
    let clock = Clock::default();
    (of(group, kind).judge)(&map(new), &map(old), Part { subresource, clock: &clock }, &mut errors);
    errors.iter().map(listwatch_meta::FieldError::to_string).collect()
}
