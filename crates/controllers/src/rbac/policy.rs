//! The default roles and bindings, read from `default_policy.txt`.

use listwatch_access::rbac::{PolicyRule, RbacKind};
use listwatch_json::{Value, json};

use super::feed::GROUP;

/// The policy as text. A comment at the start of the file describes the format.
const TEXT: &str = include_str!("default_policy.txt");

const READ: &str = "get,list,watch";
const WRITE: &str = "create,delete,deletecollection,patch,update";
const READ_WRITE: &str = "create,delete,deletecollection,get,list,patch,update,watch";

/// A default role or binding.
#[derive(Clone, Debug)]
pub(super) struct DefaultObject {
    pub(super) kind: RbacKind,
    pub(super) namespace: Option<&'static str>,
    pub(super) name: String,
    /// The labels in addition to the labels that all default objects have.
    labels: Vec<&'static str>,
    /// The suffix of the aggregation label that this role selects (`aggregate-to-<name>`), if the role is aggregated.
    aggregates: Option<&'static str>,
    rules: Vec<Value>,
    /// For a binding: the name of the role.
    role: String,
    subjects: Vec<Value>,
}

/// Returns the default objects in the order of their creation: roles before the bindings that refer to them.
pub(super) fn all() -> Vec<DefaultObject> {
    let mut objects = Vec::new();
    let mut bindings = Vec::new();
    for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&'static str> = line.split_whitespace().collect();
        if line.starts_with(' ') {
            let last: Option<&mut DefaultObject> = objects.last_mut();
            if let (Some(object), Some(rule)) = (last, rule(&words)) {
                object.rules.push(rule);
            }
            continue;
        }
        match *words {
            ["clusterrole", name, ref options @ ..] => {
                let value = |key: &'static str| {
                    options.iter().filter_map(move |option| option.strip_prefix(key)?.strip_prefix('='))
                };
                objects.push(DefaultObject {
                    labels: value("label").collect(),
                    aggregates: value("aggregates").next(),
                    ..DefaultObject::of(RbacKind::ClusterRole, None, name)
                });
            }
            ["role", namespace, name] => objects.push(DefaultObject::of(RbacKind::Role, Some(namespace), name)),
            ["controller", name] => {
                let role = format!("system:controller:{name}");
                objects.push(DefaultObject::of(RbacKind::ClusterRole, None, &role));
                let account = json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"});
                bindings.push(DefaultObject {
                    role: role.clone(),
                    subjects: vec![account],
                    ..DefaultObject::of(RbacKind::ClusterRoleBinding, None, &role)
                });
            }
            ["clusterrolebinding", name, ref subjects @ ..] => bindings.push(DefaultObject {
                role: name.to_owned(),
                subjects: subjects.iter().filter_map(|text| subject(text)).collect(),
                ..DefaultObject::of(RbacKind::ClusterRoleBinding, None, name)
            }),
            ["rolebinding", namespace, name, role, ref subjects @ ..] => bindings.push(DefaultObject {
                role: role.to_owned(),
                subjects: subjects.iter().filter_map(|text| subject(text)).collect(),
                ..DefaultObject::of(RbacKind::RoleBinding, Some(namespace), name)
            }),
            // A test checks that no line is left out.
            _ => {}
        }
    }
    objects.extend(bindings);
    objects
}

/// Returns the rules of a default ClusterRole. Empty if there is no default ClusterRole with this name.
pub(crate) fn default_rules(role: &str) -> Vec<PolicyRule> {
    let is_role = |object: &DefaultObject| object.kind == RbacKind::ClusterRole && object.name == role;
    let rules = all().into_iter().filter(is_role).flat_map(|object| object.rules);
    // A test checks that each rule can be read.
    rules.filter_map(|rule| listwatch_json::from_value(rule).ok()).collect()
}

fn list(text: &str) -> Vec<&str> {
    match text {
        "READ" => READ,
        "WRITE" => WRITE,
        "RW" => READ_WRITE,
        text => text,
    }
    .split(',')
    .map(|one| if one == "core" { "" } else { one })
    .collect()
}

fn rule(words: &[&str]) -> Option<Value> {
    match *words {
        ["EVENTS"] => rule(&["create,patch,update", "core,events.k8s.io", "events"]),
        [verbs, "url", paths] => Some(json!({"verbs": list(verbs), "nonResourceURLs": list(paths)})),
        [verbs, groups, resources] => {
            Some(json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}))
        }
        [verbs, groups, resources, names] => {
            let mut rule = rule(&[verbs, groups, resources])?;
            rule["resourceNames"] = json!(list(names));
            Some(rule)
        }
        _ => None,
    }
}

fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "user" => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
        "group" => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
        "account" => {
            let (namespace, name) = name.split_once('/')?;
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        _ => return None,
    })
}

impl DefaultObject {
    fn of(kind: RbacKind, namespace: Option<&'static str>, name: &str) -> Self {
        DefaultObject {
            kind,
            namespace,
            name: name.to_owned(),
            labels: Vec::new(),
            aggregates: None,
            rules: Vec::new(),
            role: String::new(),
            subjects: Vec::new(),
        }
    }

    /// Returns the object as JSON.
    pub(super) fn body(&self) -> Value {
        let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        for label in &self.labels {
            labels[aggregation_label(label)] = json!("true");
        }
        let mut metadata = json!({
            "name": self.name,
            "labels": labels,
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        });
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        let mut object = json!({"metadata": metadata});
        match self.kind {
            RbacKind::ClusterRole | RbacKind::Role => {
                object["rules"] = if self.aggregates.is_some() { Value::Null } else { json!(self.rules) };
                if let Some(name) = self.aggregates {
                    let selector = json!({"matchLabels": {aggregation_label(name): "true"}});
                    object["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
                }
            }
            RbacKind::ClusterRoleBinding | RbacKind::RoleBinding => {
                let kind = if self.kind == RbacKind::RoleBinding { "Role" } else { "ClusterRole" };
                object["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": self.role});
                if !self.subjects.is_empty() {
                    object["subjects"] = json!(self.subjects);
                }
            }
        }
        object
    }
}

fn aggregation_label(name: &str) -> String {
    format!("{GROUP}/aggregate-to-{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_line_becomes_an_object_or_a_rule() {
        let objects = all();
        let lines = |start: &str| TEXT.lines().filter(|line| line.starts_with(start)).count();
        let count = |kind| objects.iter().filter(|object| object.kind == kind).count();
        assert_eq!(count(RbacKind::ClusterRole), lines("clusterrole ") + lines("controller "));
        assert_eq!(count(RbacKind::ClusterRoleBinding), lines("clusterrolebinding ") + lines("controller "));
        assert_eq!((count(RbacKind::Role), count(RbacKind::RoleBinding)), (lines("role "), lines("rolebinding ")));
        assert_eq!(objects.iter().map(|object| object.rules.len()).sum::<usize>(), lines("  "));
        let subjects = TEXT.lines().filter(|line| line.contains("binding ")).flat_map(|line| line.split(' '));
        let subjects =
            subjects.filter(|word| ["user:", "group:", "account:"].iter().any(|kind| word.starts_with(kind)));
        let found: usize = objects.iter().map(|object| object.subjects.len()).sum();
        assert_eq!(found, subjects.count() + lines("controller "));
        for object in &objects {
            let is_role = matches!(object.kind, RbacKind::ClusterRole | RbacKind::Role);
            assert_eq!(is_role && object.aggregates.is_none(), !object.rules.is_empty(), "{}", object.name);
        }
    }

    #[test]
    fn default_bindings_refer_to_default_roles() {
        let objects = all();
        for binding in objects.iter().filter(|object| !object.role.is_empty()) {
            let role = match binding.kind {
                RbacKind::RoleBinding => RbacKind::Role,
                _ => RbacKind::ClusterRole,
            };
            let refers = |role_object: &&DefaultObject| {
                (role_object.kind, role_object.namespace, &role_object.name) == (role, binding.namespace, &binding.role)
            };
            assert!(objects.iter().any(|object| refers(&object)), "{}", binding.name);
        }
    }

    #[test]
    fn rule_lists_of_default_roles_are_sorted_as_in_upstream() {
        for object in all() {
            for rule in object.rules {
                for list in rule.as_object().unwrap().values() {
                    let texts: Vec<&str> = list.as_array().unwrap().iter().filter_map(Value::as_str).collect();
                    assert!(texts.is_sorted(), "{}: {texts:?}", object.name);
                }
            }
        }
    }

    /// Returns one line per object, role reference, subject, and combination of verb, group, resource and name.
    fn atoms(object: &DefaultObject) -> Vec<String> {
        let body = object.body();
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let labels = body["metadata"]["labels"].as_object().into_iter().flatten();
        let mut atoms: Vec<String> = labels.map(|(key, value)| format!("label {key}={value}")).collect();
        for rule in body["rules"].as_array().into_iter().flatten() {
            for verb in texts(&rule["verbs"]) {
                atoms.extend(texts(&rule["nonResourceURLs"]).iter().map(|url| format!("{verb} {url}")));
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        let names = texts(&rule["resourceNames"]);
                        let names = if names.is_empty() { vec!["*".to_owned()] } else { names };
                        atoms.extend(names.iter().map(|name| format!("{verb} {group}/{resource} {name}")));
                    }
                }
            }
        }
        let fields = |value: &Value| ["kind", "namespace", "name"].map(|field| value[field].to_string()).join(" ");
        let subjects = body["subjects"].as_array().into_iter().flatten();
        atoms.extend(subjects.map(|subject| format!("subject {}", fields(subject))));
        atoms.push(format!("role {} aggregation {}", fields(&body["roleRef"]), body["aggregationRule"]));
        atoms
    }

    /// The expected numbers were recorded when the policy was equal to upstream's `bootstrappolicy/testdata` of 1.36.
    /// After a change of the policy, repeat the comparison with upstream.
    #[test]
    fn default_policy_grants_exactly_what_kubernetes_1_36_grants() {
        let objects = all();
        let count = |kind| objects.iter().filter(|object| object.kind == kind).count();
        let kinds = [RbacKind::ClusterRole, RbacKind::ClusterRoleBinding, RbacKind::Role, RbacKind::RoleBinding];
        let mut atoms: Vec<String> = Vec::new();
        for object in &objects {
            let namespace = object.namespace.unwrap_or_default();
            let prefix = format!("{:?} {namespace}/{}", object.kind, object.name);
            atoms.extend(self::atoms(object).iter().map(|atom| format!("{prefix}: {atom}")));
        }
        atoms.sort();
        let hash = atoms.iter().flat_map(|atom| atom.bytes().chain([0]));
        let hash =
            hash.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!((kinds.map(count), atoms.len(), hash), ([69, 50, 7, 7], 1784, 6_956_125_392_099_114_620));
    }

    #[test]
    fn rules_of_each_default_role_can_be_parsed() {
        for object in all().iter().filter(|object| object.kind == RbacKind::ClusterRole) {
            assert_eq!(default_rules(&object.name).len(), object.rules.len(), "{}", object.name);
        }
        assert!(default_rules("system:node").len() > 20);
    }

    #[test]
    fn default_roles_have_the_permission_changes_of_1_36() {
        let objects = all();
        for (role, atom, expected) in [
            ("system:aggregate-to-edit", "create events.k8s.io/events *", true),
            ("system:node", "patch events.k8s.io/events *", true),
            ("system:monitoring", "get /flagz", true),
            ("system:monitoring", "get /statusz", true),
            ("system:kube-scheduler", "create resource.k8s.io/resourceclaims *", true),
            ("system:kube-scheduler", "update resource.k8s.io/resourceclaims/binding *", true),
            ("system:kube-scheduler", "update /pods/finalizers *", true),
            ("system:kube-scheduler", "patch /pods/finalizers *", false),
            ("system:controller:resource-claim-controller", "patch resource.k8s.io/resourceclaims/binding *", true),
            ("system:controller:device-taint-eviction-controller", "delete /pods *", true),
            ("system:controller:pvc-protection-controller", "update /persistentvolumeclaims/status *", true),
            ("system:controller:expand-controller", "get /services *", false),
            ("system:controller:persistent-volume-binder", "get /services *", false),
            ("system::leader-locking-kube-scheduler", "create coordination.k8s.io/leases *", true),
            ("system::leader-locking-kube-scheduler", "create coordination.k8s.io/leasecandidates *", true),
            ("system::leader-locking-kube-scheduler", "watch /configmaps *", false),
            ("system::leader-locking-kube-controller-manager", "get coordination.k8s.io/leasecandidates *", true),
            ("system::leader-locking-kube-controller-manager", "get /configmaps kube-controller-manager", false),
        ] {
            let is_role = |object: &&DefaultObject| object.name == role && object.role.is_empty();
            let object = objects.iter().find(is_role).unwrap();
            assert_eq!(atoms(object).iter().any(|one| one == atom), expected, "{role}: {atom}");
        }
    }
}
