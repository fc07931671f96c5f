//! What single built-in kinds do when they are written, beyond what all do: [`Steps`], a table by kind
//! (`pkg/registry/*/*/strategy.go`). Which fields never change is a table of its own, in
//! [`super::immutable`], and what a write reaches at all is in [`super::scope`].
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
use super::store::{child_mut, metadata};
use super::validate::Errors;
use crate::auth::User;
use crate::registry::Subresource;
use crate::versions::autoscaling;

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

static TABLE: [Steps; 14] = [
    Steps { group: "", kind: "ConfigMap", decode: data::decode_config_map, judge: data::judge, ..PLAIN },
    Steps {
        group: "",
        kind: "Namespace",
        create: namespaces::create,
        update: namespaces::update,
        judge: namespaces::judge,
        ..PLAIN
    },
    Steps { group: "", kind: "PersistentVolume", create: begin_phase, ..PLAIN },
    Steps { group: "", kind: "Pod", create: pods::create, update: pods::update, judge: pods::judge, ..PLAIN },
    Steps {
        group: "",
        kind: "ReplicationController",
        judge: |new, old, part, errors| counts::REPLICA_SET.judge(new, old, part, errors),
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
        group: "policy",
        kind: "PodDisruptionBudget",
        judge: |new, old, part, errors| counts::BUDGET.judge(new, old, part, errors),
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
