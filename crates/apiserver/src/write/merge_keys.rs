//! How the built-in kinds merge in a strategic merge patch: a projection of [`listwatch_k8s_types`].
//!
//! By default an object merges field by field and a list is replaced. `patchStrategy` and `patchMergeKey`
//! of the Go types say otherwise. (`retainKeys` tells a client how to make a patch, and does not change how
//! a server applies one.)
//!
//! ```text
//!  of_kind("apps", "v1", "Deployment") ─"spec"─▶ ─"template"─▶ ─"spec"─▶ PodSpec
//!                                                        ─"containers"─▶ by "name", Container
//!                                                                      ─"ports"─▶ by "containerPort"
//! ```

use listwatch_k8s_types::{self as types, Id, Shape, Type};

/// How one field merges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// How the value itself merges.
    pub(super) rule: Rule,
    /// Where the patch is in the value or in an item of its list.
    below: At,
}

/// How a value merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// An object merges field by field; a list is replaced.
    Default,
    /// The value is replaced as a whole.
    Replace,
    /// A list of objects merges item by item; items are the same if this member is equal.
    Key(&'static str),
    /// A list of scalars is a set: new items are appended.
    Set,
}

impl Field {
    /// A field that no type has.
    pub(super) const UNKNOWN: Field = Field { rule: Rule::Default, below: At::Unknown };
}

/// A type, or a map whose members have that type: where a patch is while it descends.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// Nothing is known: all defaults.
    Unknown,
    /// An object of this type.
    Object(Id),
    /// A map with members of this type.
    Members(Id),
}

impl At {
    /// How a member merges.
    pub(super) fn field(self, name: &str) -> Field {
        match self {
            At::Unknown => Field::UNKNOWN,
            At::Object(object) => object.message().field(name).map_or(Field::UNKNOWN, field),
            At::Members(inner) => Field { rule: Rule::Default, below: At::Object(inner) },
        }
    }

    /// Where the value of a field, or an item of its list, is.
    pub(super) fn below(field: Field) -> At {
        field.below
    }
}

/// The type of a built-in kind. Of any other kind only the metadata is known.
pub(super) fn of_kind(group: &str, version: &str, kind: &str) -> At {
    let id = match group {
        "" => types::message_of(version, kind),
        group => types::message_of(&format!("{group}/{version}"), kind),
    };
    At::Object(id.unwrap_or(Id::MetaPartialObjectMetadata))
}

fn field(field: &'static types::Field) -> Field {
    let strategy = field.patch_strategy();
    let rule = match field.merge_key() {
        Some(key) if strategy.merge => Rule::Key(key),
        None if strategy.merge => Rule::Set,
        _ if strategy.replace => Rule::Replace,
        _ => Rule::Default,
    };
    let below = match (field.shape(), field.of()) {
        // A schema in place of a boolean or of a list merges as a schema.
        (Shape::Map, Type::Message(of)) => At::Members(of),
        (_, Type::Message(of) | Type::PropsOrArray(of) | Type::PropsOrBool(of)) => At::Object(of),
        _ => At::Unknown,
    };
    Field { rule, below }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(group: &str, version: &str, kind: &str, path: &[&str], expected: Rule) {
        let mut at = of_kind(group, version, kind);
        let mut rule = Rule::Default;
        for step in path {
            let field = at.field(step);
            rule = field.rule;
            at = At::below(field);
        }
        assert_eq!(rule, expected, "{kind} {path:?}");
    }

    #[test]
    fn same_name_merges_by_another_key_in_another_place() {
        let template = ["spec", "template", "spec"];
        check("", "v1", "Pod", &["spec", "containers", "ports"], Rule::Key("containerPort"));
        check("", "v1", "Service", &["spec", "ports"], Rule::Key("port"));
        check("", "v1", "Endpoints", &["subsets", "ports"], Rule::Default);
        check("apps", "v1", "Deployment", &[&template[..], &["containers", "env"]].concat(), Rule::Key("name"));
        let job = [&["spec", "jobTemplate"], &template[..], &["volumes"]].concat();
        check("batch", "v1", "CronJob", &job, Rule::Key("name"));
        check("", "v1", "Pod", &["spec", "tolerations"], Rule::Default);
        check("", "v1", "Node", &["spec", "taints"], Rule::Default);
        check("", "v1", "ConfigMap", &["metadata", "finalizers"], Rule::Set);
        check("example.com", "v1", "Thing", &["metadata", "ownerReferences"], Rule::Key("uid"));
        check("", "v1", "ServiceAccount", &["secrets"], Rule::Key("name"));
        check("", "v1", "ServiceAccount", &["imagePullSecrets"], Rule::Default);
        check("policy", "v1", "PodDisruptionBudget", &["spec", "selector"], Rule::Replace);
        check("autoscaling", "v2", "HorizontalPodAutoscaler", &["status", "conditions"], Rule::Key("type"));
    }

    #[test]
    fn schemas_nest_without_end() {
        let path = ["spec", "versions", "schema", "openAPIV3Schema", "properties", "a", "properties", "b", "items"];
        let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
        check(group, "v1", kind, &[&path[..], &["x-kubernetes-validations"]].concat(), Rule::Key("rule"));
        check(group, "v1", kind, &path, Rule::Default);
    }
}
