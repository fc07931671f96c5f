//! The merge rules of built-in kinds for strategic merge patches, derived from [`listwatch_k8s_types`].
//!
//! By default, objects merge field by field and lists are replaced. The Go struct tags `patchStrategy` and
//! `patchMergeKey` override this default. (`retainKeys` affects only how a client creates a patch.)
//!
//! ```text
//!  of_kind("apps", "v1", "Deployment") ─"spec"─▶ ─"template"─▶ ─"spec"─▶ PodSpec
//!                                                        ─"containers"─▶ by "name", Container
//!                                                                      ─"ports"─▶ by "containerPort"
//! ```

use listwatch_k8s_types::{self as types, Id, Shape, Type};

/// The merge rule of one field, and the type below the field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// The merge rule of the value.
    pub(super) rule: Rule,
    /// The type of the value, or of the items of a list.
    below: At,
}

/// The rule by which a value merges with a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// An object merges field by field; a list is replaced.
    Default,
    /// The value is replaced as a whole.
    Replace,
    /// A list of objects merges item by item. Items with equal values of this member are the same item.
    Key(&'static str),
    /// A list of scalars merges as a set: new items are appended.
    Set,
}

impl Field {
    /// The rule of a field that no type declares.
    pub(super) const UNKNOWN: Field = Field { rule: Rule::Default, below: At::Unknown };
}

/// The type at the current position of a patch.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The type is unknown, so every field has the default rule.
    Unknown,
    /// An object of this type.
    Object(Id),
    /// A map with members of this type.
    Members(Id),
}

impl At {
    /// Returns the merge rule of the field with this name.
    pub(super) fn field(self, name: &str) -> Field {
        match self {
            At::Unknown => Field::UNKNOWN,
            At::Object(object) => object.message().field(name).map_or(Field::UNKNOWN, field),
            At::Members(inner) => Field { rule: Rule::Default, below: At::Object(inner) },
        }
    }

    /// Returns the type of the value of a field, or of the items of a list.
    pub(super) fn below(field: Field) -> At {
        field.below
    }
}

/// Returns the type of a built-in kind. For any other kind, only `metadata` has a known type.
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
        // `JSONSchemaPropsOrBool` and `JSONSchemaPropsOrArray` merge as a schema.
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
    fn merge_rule_of_a_field_depends_on_the_type_that_contains_the_field() {
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
    fn fields_of_nested_crd_schemas_keep_their_merge_rules() {
        let path = ["spec", "versions", "schema", "openAPIV3Schema", "properties", "a", "properties", "b", "items"];
        let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
        check(group, "v1", kind, &[&path[..], &["x-kubernetes-validations"]].concat(), Rule::Key("rule"));
        check(group, "v1", kind, &path, Rule::Default);
    }
}
