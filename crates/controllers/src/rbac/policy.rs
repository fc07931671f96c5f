//! The default roles and bindings, read from `default_policy.txt`.

use listwatch_access::rbac::RbacKind;
use serde_json::{Value, json};

use super::feed::GROUP;

/// The policy as text. The file's head describes its form.
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
    /// The labels in addition to those of all default objects.
    labels: Vec<&'static str>,
    /// The role of which this role unites the parts.
    aggregates: Option<&'static str>,
    rules: Vec<Value>,
    /// The name of the role, and the subjects.
    role: String,
    subjects: Vec<Value>,
}

/// The default objects, in the order in which they are created: roles before the bindings that refer to them.
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

    /// The object in its JSON form.
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
    fn each_line_of_the_policy_becomes_an_object_or_a_rule() {
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
    fn lists_of_rules_are_sorted_as_upstream_writes_them() {
        for object in all() {
            for rule in object.rules {
                for list in rule.as_object().unwrap().values() {
                    let texts: Vec<&str> = list.as_array().unwrap().iter().filter_map(Value::as_str).collect();
                    assert!(texts.is_sorted(), "{}: {texts:?}", object.name);
                }
            }
        }
    }
}
