//! How lists and maps of the built-in kinds merge in a strategic merge patch, as a table.
//!
//! Origin: the `patchStrategy` and `patchMergeKey` tags of the Go types in k8s.io/api,
//! k8s.io/apimachinery, k8s.io/apiextensions-apiserver and k8s.io/kube-aggregator, v1.36. Only
//! what differs from the default stands here: an object merges field by field, a list is replaced.
//! (`retainKeys` tags are absent: they tell a client how to make a patch, and change nothing in how
//! one is applied.)
//!
//! ```text
//!  of_kind("apps", "Deployment") ─"spec"─▶ ─"template"─▶ ─"spec"─▶ POD_SPEC
//!                                                   ─"containers"─▶ by "name", CONTAINER
//!                                                                 ─"ports"─▶ by "containerPort"
//! ```

/// The fields of an object type that do not merge by default, or that lead to such fields.
#[derive(Debug)]
pub(super) struct Type(&'static [(&'static str, Field)]);

/// How one field merges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// How the value itself merges.
    pub(super) rule: Rule,
    /// The type of the value, of its items or of its members, where that matters.
    pub(super) inner: Option<&'static Type>,
    /// The value is a map whose every member has the type `inner`.
    map: bool,
}

/// How a value merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// An object merges field by field; a list is replaced.
    Default,
    /// The value is replaced as a whole.
    Replace,
    /// A list of objects merges item by item; items are the same when this member is equal.
    Key(&'static str),
    /// A list of scalars is a set: what is new is appended.
    Set,
}

impl Field {
    /// A field of which the table says nothing.
    pub(super) const UNKNOWN: Field = Field { rule: Rule::Default, inner: None, map: false };
}

impl Type {
    /// How a field of this type merges.
    pub(super) fn field(&self, name: &str) -> Field {
        self.0.iter().find(|(known, _)| *known == name).map_or(Field::UNKNOWN, |(_, field)| *field)
    }
}

/// A type, or a map whose members have that type: what a patch is at while it descends.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// Nothing is known: all defaults.
    Unknown,
    /// An object of this type.
    Object(&'static Type),
    /// A map with members of this type.
    Members(&'static Type),
}

impl At {
    /// How a member merges.
    pub(super) fn field(self, name: &str) -> Field {
        match self {
            At::Unknown => Field::UNKNOWN,
            At::Object(object) => object.field(name),
            At::Members(inner) => one(inner),
        }
    }

    /// Where the value of a field, or an item of its list, is.
    pub(super) fn below(field: Field) -> At {
        match field.inner {
            None => At::Unknown,
            Some(inner) if field.map => At::Members(inner),
            Some(inner) => At::Object(inner),
        }
    }
}

/// The type of a built-in kind; of any other kind, its metadata.
pub(super) fn of_kind(group: &str, kind: &str) -> At {
    At::Object(match (group, kind) {
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => &MUTATING_POLICY,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => &VALIDATING_POLICY,
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            &WEBHOOK_CONFIGURATION
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => &CUSTOM_RESOURCE_DEFINITION,
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet") | ("", "ReplicationController") => &WORKLOAD,
        ("apps", "StatefulSet") => &STATEFUL_SET,
        ("batch", "CronJob") => &CRON_JOB,
        ("batch", "Job") => &WORKLOAD,
        ("", "ComponentStatus") => &COMPONENT_STATUS,
        ("", "Node") => &NODE,
        ("", "Pod") => &POD,
        ("", "PodTemplate") => &POD_TEMPLATE,
        ("", "Service") => &SERVICE,
        ("", "ServiceAccount") => &SERVICE_ACCOUNT,
        ("policy", "PodDisruptionBudget") => &POD_DISRUPTION_BUDGET,
        ("resource.k8s.io", "ResourceClaim") => &RESOURCE_CLAIM,
        ("resource.k8s.io", "ResourceClaimTemplate") => &RESOURCE_CLAIM_TEMPLATE,
        ("storage.k8s.io", "CSINode") => &CSI_NODE,
        ("", "Namespace" | "PersistentVolumeClaim")
        | ("apiregistration.k8s.io", "APIService")
        | ("autoscaling", "HorizontalPodAutoscaler")
        | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration")
        | ("networking.k8s.io", "ServiceCIDR") => &WITH_CONDITIONS,
        _ => &PLAIN,
    })
}

const fn one(inner: &'static Type) -> Field {
    Field { rule: Rule::Default, inner: Some(inner), map: false }
}

/// A list that is replaced as a whole; its items matter only as the place of deeper directives.
const fn items(inner: &'static Type) -> Field {
    one(inner)
}

const fn members(inner: &'static Type) -> Field {
    Field { rule: Rule::Default, inner: Some(inner), map: true }
}

const fn by(key: &'static str) -> Field {
    Field { rule: Rule::Key(key), inner: None, map: false }
}

const fn by_of(key: &'static str, inner: &'static Type) -> Field {
    Field { rule: Rule::Key(key), inner: Some(inner), map: false }
}

const SET: Field = Field { rule: Rule::Set, inner: None, map: false };
const REPLACE: Field = Field { rule: Rule::Replace, inner: None, map: false };

static OBJECT_META: Type = Type(&[("ownerReferences", by("uid")), ("finalizers", SET)]);

/// Any kind: only its metadata is special.
static PLAIN: Type = Type(&[("metadata", one(&OBJECT_META))]);

static COMPONENT_STATUS: Type = Type(&[("metadata", one(&OBJECT_META)), ("conditions", by("type"))]);
static CONDITIONS: Type = Type(&[("conditions", by("type"))]);
static WITH_CONDITIONS: Type = Type(&[("metadata", one(&OBJECT_META)), ("status", one(&CONDITIONS))]);

static CONTAINER: Type = Type(&[
    ("ports", by("containerPort")),
    ("env", by("name")),
    ("volumeMounts", by("mountPath")),
    ("volumeDevices", by("devicePath")),
]);
static CLAIM_TEMPLATE: Type = Type(&[("metadata", one(&OBJECT_META))]);
static EPHEMERAL_VOLUME: Type = Type(&[("volumeClaimTemplate", one(&CLAIM_TEMPLATE))]);
static VOLUME: Type = Type(&[("ephemeral", one(&EPHEMERAL_VOLUME))]);
static POD_SPEC: Type = Type(&[
    ("volumes", by_of("name", &VOLUME)),
    ("initContainers", by_of("name", &CONTAINER)),
    ("containers", by_of("name", &CONTAINER)),
    ("ephemeralContainers", by_of("name", &CONTAINER)),
    ("imagePullSecrets", by("name")),
    ("hostAliases", by("ip")),
    ("topologySpreadConstraints", by("topologyKey")),
    ("schedulingGates", by("name")),
    ("resourceClaims", by("name")),
]);
static CONTAINER_STATUS: Type = Type(&[("volumeMounts", by("mountPath")), ("allocatedResourcesStatus", by("name"))]);
static POD_STATUS: Type = Type(&[
    ("conditions", by("type")),
    ("hostIPs", by("ip")),
    ("podIPs", by("ip")),
    ("initContainerStatuses", items(&CONTAINER_STATUS)),
    ("containerStatuses", items(&CONTAINER_STATUS)),
    ("ephemeralContainerStatuses", items(&CONTAINER_STATUS)),
    ("resourceClaimStatuses", by("name")),
]);
static POD: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&POD_SPEC)), ("status", one(&POD_STATUS))]);
static POD_TEMPLATE_SPEC: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&POD_SPEC))]);
static POD_TEMPLATE: Type = Type(&[("metadata", one(&OBJECT_META)), ("template", one(&POD_TEMPLATE_SPEC))]);

/// The spec of everything that makes pods from a template.
static WORKLOAD_SPEC: Type = Type(&[("template", one(&POD_TEMPLATE_SPEC))]);
static WORKLOAD: Type =
    Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&WORKLOAD_SPEC)), ("status", one(&CONDITIONS))]);
static STATEFUL_SET_SPEC: Type =
    Type(&[("template", one(&POD_TEMPLATE_SPEC)), ("volumeClaimTemplates", items(&WITH_CONDITIONS))]);
static STATEFUL_SET: Type =
    Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&STATEFUL_SET_SPEC)), ("status", one(&CONDITIONS))]);
static JOB_TEMPLATE: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&WORKLOAD_SPEC))]);
static CRON_JOB_SPEC: Type = Type(&[("jobTemplate", one(&JOB_TEMPLATE))]);
static CRON_JOB: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&CRON_JOB_SPEC))]);

static NODE_SPEC: Type = Type(&[("podCIDRs", SET)]);
static NODE_STATUS: Type = Type(&[("conditions", by("type")), ("addresses", by("type"))]);
static NODE: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&NODE_SPEC)), ("status", one(&NODE_STATUS))]);

static SERVICE_SPEC: Type = Type(&[("ports", by("port"))]);
static SERVICE: Type =
    Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&SERVICE_SPEC)), ("status", one(&CONDITIONS))]);
static SERVICE_ACCOUNT: Type = Type(&[("metadata", one(&OBJECT_META)), ("secrets", by("name"))]);

static POD_DISRUPTION_BUDGET_SPEC: Type = Type(&[("selector", REPLACE)]);
static POD_DISRUPTION_BUDGET: Type =
    Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&POD_DISRUPTION_BUDGET_SPEC)), ("status", one(&CONDITIONS))]);

static RESOURCE_CLAIM_STATUS: Type = Type(&[("reservedFor", by("uid"))]);
static RESOURCE_CLAIM: Type = Type(&[("metadata", one(&OBJECT_META)), ("status", one(&RESOURCE_CLAIM_STATUS))]);
static RESOURCE_CLAIM_TEMPLATE_SPEC: Type = Type(&[("metadata", one(&OBJECT_META))]);
static RESOURCE_CLAIM_TEMPLATE: Type =
    Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&RESOURCE_CLAIM_TEMPLATE_SPEC))]);

static CSI_NODE_SPEC: Type = Type(&[("drivers", by("name"))]);
static CSI_NODE: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&CSI_NODE_SPEC))]);

static WEBHOOK: Type = Type(&[("matchConditions", by("name"))]);
static WEBHOOK_CONFIGURATION: Type = Type(&[("metadata", one(&OBJECT_META)), ("webhooks", by_of("name", &WEBHOOK))]);
static MUTATING_POLICY: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&WEBHOOK))]);
static VALIDATING_POLICY_SPEC: Type = Type(&[("matchConditions", by("name")), ("variables", by("name"))]);
static VALIDATING_POLICY: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&VALIDATING_POLICY_SPEC))]);

static JSON_SCHEMA: Type = Type(&[
    ("items", one(&JSON_SCHEMA)),
    ("allOf", items(&JSON_SCHEMA)),
    ("oneOf", items(&JSON_SCHEMA)),
    ("anyOf", items(&JSON_SCHEMA)),
    ("not", one(&JSON_SCHEMA)),
    ("properties", members(&JSON_SCHEMA)),
    ("additionalProperties", one(&JSON_SCHEMA)),
    ("patternProperties", members(&JSON_SCHEMA)),
    ("definitions", members(&JSON_SCHEMA)),
    ("additionalItems", one(&JSON_SCHEMA)),
    ("x-kubernetes-validations", by("rule")),
]);
static SCHEMA_HOLDER: Type = Type(&[("openAPIV3Schema", one(&JSON_SCHEMA))]);
static CRD_VERSION: Type = Type(&[("schema", one(&SCHEMA_HOLDER))]);
static CRD_SPEC: Type = Type(&[("versions", items(&CRD_VERSION))]);
static CUSTOM_RESOURCE_DEFINITION: Type = Type(&[("metadata", one(&OBJECT_META)), ("spec", one(&CRD_SPEC))]);

#[cfg(test)]
mod tests {
    use listwatch_wire::protobuf::schema::{self, Shape, Type};

    use super::*;
    use crate::facts;

    fn check(group: &str, kind: &str, path: &[&str], expected: Rule) {
        let mut at = of_kind(group, kind);
        let mut rule = Rule::Default;
        for step in path {
            let field = at.field(step);
            rule = field.rule;
            at = At::below(field);
        }
        assert_eq!(rule, expected, "{kind} {path:?}");
    }

    #[test]
    fn the_same_name_merges_by_another_key_in_another_place() {
        check("", "Pod", &["spec", "containers", "ports"], Rule::Key("containerPort"));
        check("", "Service", &["spec", "ports"], Rule::Key("port"));
        check("", "Endpoints", &["subsets", "ports"], Rule::Default);
        check("apps", "Deployment", &["spec", "template", "spec", "containers", "env"], Rule::Key("name"));
        check("batch", "CronJob", &["spec", "jobTemplate", "spec", "template", "spec", "volumes"], Rule::Key("name"));
        check("", "Pod", &["spec", "tolerations"], Rule::Default);
        check("", "Node", &["spec", "taints"], Rule::Default);
        check("", "ConfigMap", &["metadata", "finalizers"], Rule::Set);
        check("example.com", "Thing", &["metadata", "ownerReferences"], Rule::Key("uid"));
        check("", "ServiceAccount", &["secrets"], Rule::Key("name"));
        check("", "ServiceAccount", &["imagePullSecrets"], Rule::Default);
        check("policy", "PodDisruptionBudget", &["spec", "selector"], Rule::Replace);
    }

    /// Compares the two tables below one place; `path` is for the failure's text.
    fn compare(at: At, id: schema::Id, path: &str) {
        for field in facts::members(id) {
            let path = format!("{path}.{}", field.name());
            let known = facts::of(id).field(field.name());
            let expected = match (known.strategy().unwrap_or_default(), known.merge_key) {
                (strategy, Some(key)) if strategy.contains("merge") => Rule::Key(key),
                (strategy, None) if strategy.contains("merge") => Rule::Set,
                (strategy, _) if strategy.contains("replace") => Rule::Replace,
                _ => Rule::Default,
            };
            let found = at.field(field.name());
            assert_eq!(found.rule, expected, "{path} merges otherwise than OpenAPI says");
            // Schemas contain themselves; the next test looks into them.
            if let (Type::Message(of), true) = (field.of(), field.of() != Type::Message(id)) {
                let below = match (field.shape(), At::below(found)) {
                    (Shape::Map, members) => At::below(members.field("any")),
                    (_, below) => below,
                };
                compare(below, of, &path);
            }
        }
    }

    #[test]
    fn what_openapi_says_is_what_is_done() {
        for (api_version, kind, id) in schema::kinds() {
            let (group, _) = api_version.split_once('/').unwrap_or_default();
            let stored = facts::of(id).is_object() && !kind.ends_with("List") && !api_version.is_empty();
            if stored && kind != "Status" && kind != "PartialObjectMetadata" {
                compare(of_kind(group, kind), id, kind);
            }
        }
    }

    #[test]
    fn schemas_nest_without_end() {
        let path = ["spec", "versions", "schema", "openAPIV3Schema", "properties", "a", "properties", "b", "items"];
        let kind = "CustomResourceDefinition";
        check("apiextensions.k8s.io", kind, &[&path[..], &["x-kubernetes-validations"]].concat(), Rule::Key("rule"));
        check("apiextensions.k8s.io", kind, &path, Rule::Default);
    }
}
