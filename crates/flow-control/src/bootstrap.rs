//! [`BootstrapObject`]: the flow schemas and levels that every cluster has, and how their stored objects are maintained
//! (`apiserver/pkg/apis/flowcontrol/bootstrap/default.go`, `pkg/registry/flowcontrol/ensurer`).
//!
//! | stored object | action |
//! |---|---|
//! | missing | created |
//! | mandatory, with another spec | the spec is reset |
//! | suggested, annotation `true`, or generation 1 without a valid annotation | the spec is reset |
//! | suggested, annotation `false`, or changed by a user | kept; the annotation becomes `false` |
//! | not a bootstrap object, annotation `true` | deleted |

use std::sync::LazyLock;

use listwatch_json::{Map, Value, json};
use listwatch_meta::go;

use crate::objects::{CATCH_ALL, EXEMPT};

/// The annotation that lets the server maintain the spec of an object.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";

/// The two kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapKind {
    /// PriorityLevelConfiguration.
    PriorityLevel,
    /// FlowSchema.
    FlowSchema,
}

impl BootstrapKind {
    fn kind(self) -> &'static str {
        match self {
            BootstrapKind::PriorityLevel => "PriorityLevelConfiguration",
            BootstrapKind::FlowSchema => "FlowSchema",
        }
    }
}

/// An object that every cluster has.
#[derive(Clone, Debug)]
pub struct BootstrapObject {
    kind: BootstrapKind,
    name: &'static str,
    spec: Value,
}

impl BootstrapObject {
    /// All objects. Levels come first, so that no schema dangles.
    pub fn all() -> Vec<BootstrapObject> {
        let mut objects = levels();
        objects.extend(schemas());
        objects
    }

    /// The kind.
    pub fn kind(&self) -> BootstrapKind {
        self.kind
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether users cannot change the object.
    pub fn is_mandatory(&self) -> bool {
        matches!(self.name, EXEMPT | CATCH_ALL)
    }

    /// The object to create.
    pub fn manifest(&self) -> Value {
        json!({"apiVersion": API_VERSION, "kind": self.kind.kind(),
            "metadata": {"name": self.name, "annotations": {AUTO_UPDATE: "true"}}, "spec": self.spec})
    }

    /// Resets a stored object by the rules of the module's table. Returns whether the object changed.
    pub fn revise(&self, stored: &mut Map) -> bool {
        let annotation = annotation(stored);
        let generation = stored.get("metadata").and_then(|metadata| metadata["generation"].as_i64());
        let updates = self.is_mandatory() || annotation.unwrap_or(generation == Some(1));
        let mut changed = false;
        if updates && !self.has_spec(stored.get("spec").unwrap_or(&Value::Null)) {
            stored.insert("spec", self.spec.clone());
            changed = true;
        }
        if annotation != Some(updates) {
            set_annotation(stored, updates);
            changed = true;
        }
        changed
    }

    /// Whether a spec equals that of the object. For the level `exempt`, the numbers are ignored, because users may
    /// change them (`plcSpecEqualish`).
    fn has_spec(&self, stored: &Value) -> bool {
        let mut expected = self.spec.clone();
        if self.kind == BootstrapKind::PriorityLevel && self.name == EXEMPT {
            if !stored["exempt"].is_object() {
                return false;
            }
            expected["exempt"] = stored["exempt"].clone();
        }
        normalized(&expected) == normalized(stored)
    }
}

/// Whether a stored object is a bootstrap object of another release, which must be deleted (`RemoveUnwantedObjects`).
pub fn is_obsolete(kind: BootstrapKind, name: &str, stored: &Map) -> bool {
    /// The names are computed once, because a server calls this function for each stored object.
    static KNOWN: LazyLock<Vec<(BootstrapKind, &'static str)>> =
        LazyLock::new(|| BootstrapObject::all().iter().map(|object| (object.kind, object.name)).collect());
    annotation(stored) == Some(true) && !KNOWN.contains(&(kind, name))
}

/// The value of the annotation.
fn annotation(object: &Map) -> Option<bool> {
    go::parse_bool(object.get("metadata")?["annotations"][AUTO_UPDATE].as_str()?)
}

fn set_annotation(object: &mut Map, value: bool) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[AUTO_UPDATE] = Value::from(value.to_string());
}

/// Returns a value without the fields that are null, `false`, `""` or `[]`. Such a field equals an absent field.
fn normalized(value: &Value) -> Value {
    let is_absent = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !is_absent(value));
            Value::Object(fields.map(|(name, value)| (name.clone(), normalized(value))).collect())
        }
        Value::Array(items) => items.iter().map(normalized).collect(),
        other => other.clone(),
    }
}

fn levels() -> Vec<BootstrapObject> {
    let level = |name, spec| BootstrapObject { kind: BootstrapKind::PriorityLevel, name, spec };
    let limited = |shares: u64, lendable: u64, response: Value| {
        json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": response}})
    };
    let queue = |name, shares, lendable, queues: u64, hand: u64| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        level(name, limited(shares, lendable, json!({"type": "Queue", "queuing": queuing})))
    };
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    vec![
        level(EXEMPT, exempt),
        level(CATCH_ALL, limited(5, 0, json!({"type": "Reject"}))),
        queue("system", 30, 33, 64, 6),
        queue("node-high", 40, 25, 64, 6),
        queue("leader-election", 10, 0, 16, 4),
        queue("workload-high", 40, 50, 128, 6),
        queue("workload-low", 100, 90, 128, 6),
        queue("global-default", 20, 50, 128, 6),
    ]
}

fn schemas() -> Vec<BootstrapObject> {
    let schema = |name, level: &str, precedence: u64, method: &str, rule: Value| {
        let mut spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence,
            "rules": [rule]});
        if !method.is_empty() {
            spec["distinguisherMethod"] = json!({"type": method});
        }
        BootstrapObject { kind: BootstrapKind::FlowSchema, name, spec }
    };
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let accounts = json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}});
    let everybody = json!([group("system:unauthenticated"), group("system:authenticated")]);
    let resources = |verbs: &[&str], group: &str, resources: &[&str], cluster: bool| {
        let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
        if cluster {
            rule["clusterScope"] = json!(true);
        }
        rule
    };
    let everything = |subjects: Value| {
        json!({"subjects": subjects, "resourceRules": [resources(&["*"], "*", &["*"], true)],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]})
    };
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let nodes = json!([group("system:nodes")]);
    let leases = "coordination.k8s.io";
    let probes = json!({"subjects": everybody,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    let elections = json!({"subjects": [manager, scheduler, accounts],
        "resourceRules": [resources(&["get", "create", "update"], leases, &["leases"], false)]});
    let heartbeats = json!({"subjects": nodes, "resourceRules": [
        resources(&["*"], "", &["nodes", "nodes/status"], true), resources(&["*"], leases, &["leases"], false)]});
    let account_group = json!([group("system:serviceaccounts")]);
    vec![
        schema(EXEMPT, EXEMPT, 1, "", everything(json!([group("system:masters")]))),
        schema(CATCH_ALL, CATCH_ALL, 10_000, "ByUser", everything(everybody.clone())),
        schema("probes", EXEMPT, 2, "", probes),
        schema("system-leader-election", "leader-election", 100, "ByUser", elections),
        schema("system-node-high", "node-high", 400, "ByUser", heartbeats),
        schema("system-nodes", "system", 500, "ByUser", everything(nodes)),
        schema("kube-controller-manager", "workload-high", 800, "ByNamespace", everything(json!([manager]))),
        schema("kube-scheduler", "workload-high", 800, "ByNamespace", everything(json!([scheduler]))),
        schema("kube-system-service-accounts", "workload-high", 900, "ByNamespace", everything(json!([accounts]))),
        schema("service-accounts", "workload-low", 9_000, "ByUser", everything(account_group)),
        schema("global-default", "global-default", 9_900, "ByUser", everything(everybody)),
    ]
}
