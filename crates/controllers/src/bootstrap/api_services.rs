//! The APIServices of the group versions that this server serves itself
//! (`kube-aggregator/pkg/controllers/autoregister`).
//!
//! | group version | label `kube-aggregator.kubernetes.io/automanaged` | updates |
//! |---|---|---|
//! | built-in | `onstart` | created and corrected at the start of a server, then not changed |
//! | custom resources | `true` | always corrected; deleted when no definition serves the group version |
//!
//! An APIService without the label belongs to a user and is never changed. This server serves every APIService without
//! a service, and sets its condition `Available`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use listwatch_cacher::{Scope, UndecodableValue};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldSelector, LabelSelector, ListRequest, ReadAt, Status};
use listwatch_storage::ListQuery;

use super::ensure::create;
use listwatch_kinds::conditions::{self, NewCondition};
use listwatch_registry::{DEFINITIONS_GROUP, DEFINITIONS_PLURAL, DEFINITIONS_VERSION};
use listwatch_registry::{Registry, Resource};
use listwatch_validation::clock::Clock;
use listwatch_write::Amendment;
use listwatch_write::Writer;

pub(super) const RESOURCE: (&str, &str, &str) = ("apiregistration.k8s.io", "v1", "apiservices");
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Priorities of custom resource group versions.
const CUSTOM: Priority = Priority { group: 1_000, version: 100 };

/// Priority of a group version. Discovery lists the highest number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Priority {
    group: i64,
    version: i64,
}

/// A group, its priority, and the priorities of its versions.
type GroupPriority = (&'static str, i64, &'static [(&'static str, i64)]);

/// Priorities of the built-in groups and of their versions (`cmd/kube-apiserver/app/aggregator.go`,
/// `pkg/controlplane/apiserver/aggregator.go`).
const BUILT_IN: [GroupPriority; 22] = [
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[("v1", 15)]),
    ("events.k8s.io", 17_750, &[("v1", 15)]),
    ("authentication.k8s.io", 17_700, &[("v1", 15)]),
    ("authorization.k8s.io", 17_600, &[("v1", 15)]),
    ("autoscaling", 17_500, &[("v1", 15), ("v2", 30)]),
    ("batch", 17_400, &[("v1", 15)]),
    ("certificates.k8s.io", 17_300, &[("v1", 15)]),
    ("networking.k8s.io", 17_200, &[("v1", 15)]),
    ("policy", 17_100, &[("v1", 15)]),
    ("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    ("storage.k8s.io", 16_800, &[("v1", 15)]),
    ("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    ("admissionregistration.k8s.io", 16_700, &[("v1", 15)]),
    ("scheduling.k8s.io", 16_600, &[("v1", 15)]),
    ("coordination.k8s.io", 16_500, &[("v1", 15)]),
    ("node.k8s.io", 16_300, &[("v1", 15)]),
    ("discovery.k8s.io", 16_200, &[("v1", 15)]),
    ("resource.k8s.io", 16_200, &[("v1", 21)]),
    ("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21)]),
    ("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15_800, &[("v1beta1", 9)]),
];

fn built_in(group: &str, version: &str) -> Option<Priority> {
    let (_, priority, versions) = BUILT_IN.iter().find(|(name, ..)| *name == group)?;
    let (_, version) = versions.iter().find(|(name, _)| *name == version)?;
    Some(Priority { group: *priority, version: *version })
}

/// Value of the label `automanaged`, which selects how an APIService is maintained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    /// No label: the APIService belongs to a user.
    Not,
    /// Label `onstart`: corrected at the start of a server.
    AtStart,
    /// Label `true`: always corrected.
    Always,
}

impl Managed {
    fn of(service: &Map) -> Self {
        let labels = service.get("metadata").and_then(|metadata| metadata.get("labels"));
        match labels.and_then(|labels| labels.get(LABEL)?.as_str()) {
            Some("onstart") => Managed::AtStart,
            Some("true") => Managed::Always,
            _ => Managed::Not,
        }
    }

    fn label(self) -> Option<&'static str> {
        match self {
            Managed::Not => None,
            Managed::AtStart => Some("onstart"),
            Managed::Always => Some("true"),
        }
    }
}

/// The desired state of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Desired {
    group: String,
    version: String,
    priority: Priority,
    managed: Managed,
}

impl Desired {
    fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    fn spec(&self) -> Value {
        let mut spec = json!({
            "version": self.version,
            "groupPriorityMinimum": self.priority.group,
            "versionPriority": self.priority.version,
        });
        if !self.group.is_empty() {
            spec["group"] = json!(self.group);
        }
        spec
    }

    /// Reports whether a stored spec equals the desired spec. Absent fields and zero values are equal.
    fn fits(&self, service: &Map) -> bool {
        let Some(spec) = service.get("spec").and_then(Value::as_object) else { return false };
        let says = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "";
        let said: Map =
            spec.iter().filter(|(_, value)| says(value)).map(|(name, value)| (name.clone(), value.clone())).collect();
        Value::Object(said) == self.spec()
    }

    fn body(&self) -> Value {
        json!({"metadata": {"name": self.name(), "labels": {LABEL: self.managed.label()}}, "spec": self.spec()})
    }
}

/// Returns the desired APIServices by name.
fn desired(registry: &Registry) -> BTreeMap<String, Desired> {
    let served = registry.resources().iter().chain(registry.unstored());
    let mut desired = BTreeMap::new();
    let mut seen = HashSet::new();
    for resource in served {
        let (group, version) = (resource.group.as_str(), resource.version.as_str());
        // Many kinds share a group version.
        if !seen.insert((group, version)) {
            continue;
        }
        let (priority, managed) = match built_in(group, version) {
            Some(priority) => (priority, Managed::AtStart),
            None if resource.custom => (CUSTOM, Managed::Always),
            // The group `apiregistration.k8s.io` has no APIService of its own.
            None => continue,
        };
        let wanted = Desired { group: group.to_owned(), version: version.to_owned(), priority, managed };
        desired.insert(wanted.name(), wanted);
    }
    desired
}

/// The stored APIService of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    managed: Managed,
    /// True if the APIService existed when this server started.
    at_start: bool,
    /// True if the stored spec equals the desired one.
    fits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Create,
    Update,
    Delete,
}

/// Returns the action for one name. `synced` is true if the APIService has matched the desired state at least once
/// since this server started.
fn decide(desired: Option<Managed>, current: Option<Current>, synced: bool) -> Action {
    let Some(current) = current else {
        return match desired {
            None => Action::Nothing,
            Some(Managed::AtStart) if synced => Action::Nothing,
            Some(_) => Action::Create,
        };
    };
    if desired == Some(Managed::AtStart) && synced {
        return Action::Nothing;
    }
    match current.managed {
        Managed::Not => Action::Nothing,
        Managed::AtStart if !current.at_start || synced => Action::Nothing,
        _ if desired.is_none() => Action::Delete,
        _ if current.fits => Action::Nothing,
        _ => Action::Update,
    }
}

/// The state of the APIService controller.
#[derive(Debug, Default)]
pub(super) struct ApiServices {
    /// The names that existed at the first sync.
    at_start: Option<BTreeSet<String>>,
    /// The names that have matched the desired state since this server started.
    synced: BTreeSet<String>,
}

/// A stored APIService; `None` if the value is unreadable.
type Stored = Option<Map>;

impl ApiServices {
    pub(super) async fn sync(&mut self, writer: &Arc<Writer>) -> Result<(), Status> {
        let registry = writer.backend().registry();
        let (group, version, plural) = RESOURCE;
        let Some(resource) = registry.find(group, version, plural) else { return Ok(()) };
        let query = ListQuery { range: resource.range(None), at: None, limit: 0 };
        let page = writer.backend().storage().list(query).await.map_err(Status::internal)?;
        let stored: BTreeMap<String, Stored> = page
            .items
            .iter()
            .map(|item| (item.key.name().to_owned(), serde_json::from_slice(&item.value).ok()))
            .collect();
        let at_start = self.at_start.get_or_insert_with(|| stored.keys().cloned().collect());
        let desired = desired(&registry);
        let names: BTreeSet<&String> = desired.keys().chain(stored.keys()).collect();
        let work = names.into_iter().map(|name| {
            let (wanted, found) = (desired.get(name), stored.get(name));
            let current = match found {
                // An unreadable APIService exists, and its owner is unknown.
                Some(None) => Some(Current { managed: Managed::Not, at_start: true, fits: false }),
                Some(Some(service)) => Some(Current {
                    managed: Managed::of(service),
                    at_start: at_start.contains(name),
                    fits: wanted.is_some_and(|wanted| wanted.fits(service)),
                }),
                None => None,
            };
            let action = decide(wanted.map(|wanted| wanted.managed), current, self.synced.contains(name));
            async move { (name, carry_out(writer, resource, name, action, wanted, found).await) }
        });
        let done = join_all(work).await;
        let mut failed = None;
        for (name, done) in done {
            match done {
                Ok(()) => {
                    self.synced.insert(name.clone());
                }
                Err(status) => failed = Some(status),
            }
        }
        // Names that are neither desired nor stored are removed, so clients cannot make this set grow without
        // bound.
        self.synced.retain(|name| desired.contains_key(name) || stored.contains_key(name));
        failed.map_or(Ok(()), Err)
    }
}

async fn carry_out(
    writer: &Arc<Writer>,
    resource: &Arc<Resource>,
    name: &str,
    action: Action,
    wanted: Option<&Desired>,
    found: Option<&Stored>,
) -> Result<(), Status> {
    let key = resource.key(None, name)?;
    match (action, wanted) {
        (Action::Create, Some(wanted)) => {
            match create(writer, resource, None, &wanted.body()).await {
                Ok(()) => {}
                Err(status) if status.code == 409 => {}
                Err(status) => return Err(status),
            }
            writer.amend(resource, &key, is_available).await
        }
        (Action::Update, Some(wanted)) => {
            let corrected = |service: &mut Map| {
                if Managed::of(service) == Managed::Not {
                    return Amendment::Leave;
                }
                service.insert("spec", wanted.spec());
                is_available(service);
                Amendment::Write
            };
            writer.amend(resource, &key, corrected).await
        }
        (Action::Delete, None) => {
            // Another server may already have seen a new definition.
            if is_defined(writer, name).await? {
                return Ok(());
            }
            let uid = found.and_then(Option::as_ref).and_then(uid_of).unwrap_or_default().to_owned();
            let same = |service: &mut Map| match uid_of(service) == Some(uid.as_str()) {
                true => Amendment::Remove,
                false => Amendment::Leave,
            };
            writer.amend(resource, &key, same).await
        }
        _ => match found {
            Some(Some(service)) if is_available(&mut service.clone()) == Amendment::Write => {
                writer.amend(resource, &key, is_available).await
            }
            _ => Ok(()),
        },
    }
}

fn uid_of(service: &Map) -> Option<&str> {
    service.get("metadata")?.get("uid")?.as_str()
}

/// Sets the condition `Available` of an APIService without a service.
fn is_available(service: &mut Map) -> Amendment {
    let now = Clock::default().now();
    if service.get("spec").and_then(|spec| spec.get("service")).is_some_and(|service| !service.is_null()) {
        return Amendment::Leave;
    }
    let before = service.get("status").cloned();
    let status = service.entry("status").or_insert_with(|| json!({}));
    if let Some(conditions) =
        status.as_object_mut().and_then(|status| status.entry("conditions").or_insert_with(|| json!([])).as_array_mut())
    {
        let message = "Local APIServices are always available";
        conditions::set(conditions, NewCondition { kind: "Available", status: "True", reason: "Local", message }, &now);
    }
    if service.get("status") == before.as_ref() { Amendment::Leave } else { Amendment::Write }
}

/// Reports whether a stored definition serves the group version of this name.
///
/// # Errors
/// The error of the store if a definition cannot be read.
async fn is_defined(writer: &Writer, name: &str) -> Result<bool, Status> {
    let Some((version, group)) = name.split_once('.') else { return Ok(false) };
    let registry = writer.backend().registry();
    let Some(definitions) = registry.find(DEFINITIONS_GROUP, DEFINITIONS_VERSION, DEFINITIONS_PLURAL) else {
        return Ok(false);
    };
    let request = ListRequest {
        at: ReadAt::MostRecent,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let list = writer.backend().cacher(definitions).list(&Scope::All, &request).await;
    let list = list.map_err(|error| error.status(definitions.gr()))?;
    if let Some(UndecodableValue { key, .. }) = list.undecodable.first() {
        return Err(Status::internal(format_args!("the definition at {key} cannot be read")));
    }
    let serves = |definition: &listwatch_meta::Object| {
        let definition: Value = serde_json::from_slice(definition.json_slice()).unwrap_or_default();
        let versions = definition["spec"]["versions"].as_array();
        // A definition that is being deleted does not keep its APIService.
        definition["spec"]["group"] == group
            && definition["metadata"]["deletionTimestamp"].is_null()
            && versions.into_iter().flatten().any(|listed| listed["name"] == version && listed["served"] == true)
    };
    // A definition's name is `<plural>.<group>`, so definitions of other groups are skipped without parsing.
    let of_group =
        |definition: &listwatch_meta::Object| definition.name().split_once('.').is_some_and(|(_, of)| of == group);
    let mut items = list.items;
    Ok(items.any(|definition| of_group(&definition) && serves(&definition)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_group_version_has_a_priority() {
        let registry = Registry::builtin();
        let desired = desired(&registry);
        for resource in registry.resources().iter().chain(registry.unstored()) {
            let name = format!("{}.{}", resource.version, resource.group);
            let is_registry = resource.group == RESOURCE.0;
            assert_eq!(desired.contains_key(&name), !is_registry, "{name}");
        }
        let core = &desired["v1."];
        assert_eq!(
            core.body(),
            json!({
                "metadata": {"name": "v1.", "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
                "spec": {"version": "v1", "groupPriorityMinimum": 18_000, "versionPriority": 1},
            })
        );
        let fits = |spec: Value| core.fits(json!({"spec": spec}).as_object().unwrap());
        assert!(fits(json!({"group": "", "version": "v1", "groupPriorityMinimum": 18_000, "versionPriority": 1})));
        assert!(!fits(json!({"version": "v1", "groupPriorityMinimum": 18_000, "versionPriority": 2})));
        assert!(!fits(json!({"version": "v1", "groupPriorityMinimum": 18_000, "versionPriority": 1, "service": {}})));
    }

    #[test]
    fn decide_chooses_the_same_action_as_the_upstream_autoregister_controller() {
        use Managed::{Always, AtStart, Not};
        let current = |managed, at_start, fits| Some(Current { managed, at_start, fits });
        for (desired, found, synced, expected) in [
            (None, None, false, Action::Nothing),
            (Some(AtStart), None, false, Action::Create),
            (Some(AtStart), None, true, Action::Nothing),
            (Some(Always), None, true, Action::Create),
            (None, current(Not, true, false), false, Action::Nothing),
            (Some(AtStart), current(Not, true, false), false, Action::Nothing),
            (Some(Always), current(Not, false, false), true, Action::Nothing),
            (None, current(AtStart, false, false), false, Action::Nothing),
            (Some(Always), current(AtStart, false, false), false, Action::Nothing),
            (None, current(AtStart, true, false), false, Action::Delete),
            (None, current(AtStart, true, false), true, Action::Nothing),
            (Some(AtStart), current(AtStart, true, false), false, Action::Update),
            (Some(AtStart), current(AtStart, true, true), false, Action::Nothing),
            (Some(AtStart), current(AtStart, true, false), true, Action::Nothing),
            (None, current(Always, false, false), true, Action::Delete),
            (Some(AtStart), current(Always, true, false), false, Action::Update),
            (Some(Always), current(Always, false, false), true, Action::Update),
            (Some(Always), current(Always, false, true), true, Action::Nothing),
        ] {
            assert_eq!(decide(desired, found, synced), expected, "{desired:?} {found:?} synced: {synced}");
        }
    }
}
