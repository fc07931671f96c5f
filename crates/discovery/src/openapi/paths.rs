//! The paths of a resource and their operations, for the documents of both OpenAPI versions.

use listwatch_registry::{ForeignKind, Resource, Subresource};

/// A path and its operations.
pub(super) struct Path {
    /// The path with the placeholders `{namespace}` and `{name}`.
    pub(super) path: String,
    pub(super) operations: Vec<Operation>,
}

impl Path {
    /// The names of the path's parameters, in order.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// An HTTP method on a path, with its parameters, bodies and codes.
pub(super) struct Operation {
    /// The HTTP method in lower case: `get`, `post`, `put`, `patch` or `delete`.
    pub(super) method: &'static str,
    /// The Kubernetes verb: `list`, `get`, `deletecollection`, …
    pub(super) action: &'static str,
    /// The operation id, which is unique in a document.
    pub(super) id: String,
    pub(super) description: String,
    /// The kind of the object.
    pub(super) kind: Kind,
    /// The query parameters in addition to `pretty`.
    pub(super) query: &'static [&'static str],
    /// The media types of the request body; empty for an operation without one.
    pub(super) consumes: &'static [&'static str],
    /// The type of the request body.
    pub(super) body: Body,
    /// The type of the response body.
    pub(super) answer: Model,
    /// The response codes of success.
    pub(super) codes: &'static [&'static str],
}

/// A group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

/// The type of a request body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    None,
    /// An object of the same type as the response.
    Object,
    Patch,
    DeleteOptions,
}

/// The type of a response body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    Object,
    List,
    Status,
}

/// A query parameter.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) type_: &'static str,
    pub(super) description: &'static str,
}

const fn parameter(name: &'static str, type_: &'static str, description: &'static str) -> Parameter {
    Parameter { name, type_, description }
}

/// All query parameters.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter("allowWatchBookmarks", "boolean", "Send BOOKMARK events on a watch."),
    parameter("continue", "string", "The token that a page of a list ended with: go on from there."),
    parameter("dryRun", "string", "`All`: do everything but store the result."),
    parameter("fieldManager", "string", "Who makes the change; recorded in metadata.managedFields."),
    parameter("fieldSelector", "string", "Only objects whose fields match."),
    parameter(
        "fieldValidation",
        "string",
        "What unknown and duplicate fields lead to: `Ignore`, `Warn` (a Warning header; the default) or `Strict` \
         (400).",
    ),
    parameter("force", "boolean", "Take over fields that others manage. Only for apply patches."),
    parameter("gracePeriodSeconds", "integer", "How long the object may take to end."),
    parameter("labelSelector", "string", "Only objects whose labels match."),
    parameter("limit", "integer", "At most so many objects; the answer says how to go on."),
    parameter("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    parameter("pretty", "string", "Indent the answer."),
    parameter("propagationPolicy", "string", "What becomes of dependents: `Orphan`, `Background` or `Foreground`."),
    parameter("resourceVersion", "string", "How fresh the answer must be, or where a watch begins."),
    parameter("resourceVersionMatch", "string", "How resourceVersion is meant: `Exact` or `NotOlderThan`."),
    parameter("sendInitialEvents", "boolean", "Begin a watch with the objects that there are."),
    parameter("timeoutSeconds", "integer", "How long a watch lasts."),
    parameter("watch", "boolean", "Stream changes instead of listing objects."),
];

const READING: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const WRITING: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCHING: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETING: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const DELETING_COLLECTIONS: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
];

const OBJECT_TYPES: &[&str] = &["application/json", "application/yaml"];
const PATCH_TYPES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];
/// The patch types of custom resources, which have no merge keys for strategic merge patches.
const CUSTOM_PATCH_TYPES: &[&str] = &["application/json-patch+json", "application/merge-patch+json"];

/// The part of an [`Operation`] that does not depend on the resource.
struct Verb {
    /// The beginning of the operation's id.
    name: &'static str,
    method: &'static str,
    action: &'static str,
    /// The beginning of the description.
    text: &'static str,
    query: &'static [&'static str],
    consumes: &'static [&'static str],
    body: Body,
    answer: Model,
    codes: &'static [&'static str],
}

const READ: Verb = Verb {
    name: "read",
    method: "get",
    action: "get",
    text: "read the",
    query: &[],
    consumes: &[],
    body: Body::None,
    answer: Model::Object,
    codes: &["200"],
};
const LIST: Verb = Verb {
    name: "list",
    action: "list",
    text: "list or watch objects of kind",
    query: READING,
    answer: Model::List,
    ..READ
};
const CREATE: Verb = Verb {
    name: "create",
    method: "post",
    action: "post",
    text: "create a",
    query: WRITING,
    consumes: OBJECT_TYPES,
    body: Body::Object,
    answer: Model::Object,
    codes: &["200", "201", "202"],
};
const REPLACE: Verb =
    Verb { name: "replace", method: "put", action: "put", text: "replace the", codes: &["200", "201"], ..CREATE };
const PATCH: Verb = Verb {
    name: "patch",
    method: "patch",
    action: "patch",
    text: "change parts of the",
    query: PATCHING,
    consumes: PATCH_TYPES,
    body: Body::Patch,
    ..REPLACE
};
const DELETE: Verb = Verb {
    name: "delete",
    method: "delete",
    action: "delete",
    text: "delete a",
    query: DELETING,
    consumes: OBJECT_TYPES,
    body: Body::DeleteOptions,
    answer: Model::Status,
    codes: &["200", "202"],
};
const DELETE_COLLECTION: Verb = Verb {
    action: "deletecollection",
    text: "delete a collection of",
    query: DELETING_COLLECTIONS,
    codes: &["200"],
    ..DELETE
};

/// Returns all paths of a resource.
pub(super) fn of(resource: &Resource) -> Vec<Path> {
    let root = root(resource);
    let all = format!("{root}/{}", resource.plural);
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => all.clone(),
    };
    let item = format!("{collection}/{{name}}");
    let scope = if resource.namespaced { "Namespaced" } else { "" };
    let writer = Writer { resource, scope, suffix: String::new(), kind: own_kind(resource) };

    let mut operations = vec![writer.operation(&LIST), writer.operation(&CREATE)];
    if resource.serves_delete_collection() {
        operations.push(writer.operation(&DELETE_COLLECTION));
    }
    let mut paths = vec![Path { path: collection, operations }];
    if resource.namespaced {
        let everywhere = Writer { scope: "", suffix: EVERYWHERE.to_owned(), ..writer.clone() };
        paths.push(Path { path: all, operations: vec![everywhere.operation(&LIST)] });
    }
    let verbs = [&READ, &REPLACE, &PATCH, &DELETE];
    paths.push(Path { path: item.clone(), operations: verbs.map(|verb| writer.operation(verb)).into() });
    for subresource in &resource.subresources {
        let (kind, verbs) = of_subresource(resource, subresource);
        let writer = Writer { suffix: capitalized(subresource.name()), kind, ..writer.clone() };
        if verbs.is_empty() {
            continue;
        }
        let operations = verbs.into_iter().map(|verb| writer.operation(verb)).collect();
        paths.push(Path { path: format!("{item}/{}", subresource.name()), operations });
    }
    paths
}

fn own_kind(resource: &Resource) -> Kind {
    Kind { group: resource.group.clone(), version: resource.version.clone(), kind: resource.kind.clone() }
}

/// Returns the kind of a subresource and its operations. Requests that a kube-apiserver forwards have no kind, because
/// the kubelet or the service defines their bodies.
fn of_subresource(resource: &Resource, subresource: &Subresource) -> (Kind, Vec<&'static Verb>) {
    let kind = match subresource.kind() {
        Some(ForeignKind { group, version, kind }) => {
            Kind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
        }
        None => own_kind(resource),
    };
    if subresource.is_connect() {
        return (kind, Vec::new());
    }
    let with = |name: &str| subresource.verbs().contains(&name);
    let all = [("get", &READ), ("update", &REPLACE), ("patch", &PATCH), ("create", &CREATE)];
    (kind, all.into_iter().filter(|(name, _)| with(name)).map(|(_, verb)| verb).collect())
}

#[derive(Clone)]
struct Writer<'a> {
    resource: &'a Resource,
    scope: &'static str,
    suffix: String,
    kind: Kind,
}

impl Writer<'_> {
    fn operation(&self, verb: &Verb) -> Operation {
        let kind = &self.resource.kind;
        let group = match self.resource.group.trim_end_matches(".k8s.io") {
            "" => "Core".to_owned(),
            group => group.split(['.', '-']).map(capitalized).collect(),
        };
        let version = capitalized(&self.resource.version);
        let part = match self.suffix.as_str() {
            "" | EVERYWHERE => String::new(),
            subresource => format!("{} of the ", subresource.to_lowercase()),
        };
        let collection = if verb.action == DELETE_COLLECTION.action { "Collection" } else { "" };
        Operation {
            method: verb.method,
            action: verb.action,
            id: format!("{}{group}{version}{collection}{}{kind}{}", verb.name, self.scope, self.suffix),
            description: format!("{} {part}{kind}", verb.text),
            kind: self.kind.clone(),
            query: verb.query,
            consumes: match verb.body {
                Body::Patch if self.resource.custom => CUSTOM_PATCH_TYPES,
                _ => verb.consumes,
            },
            body: verb.body,
            answer: verb.answer,
            codes: verb.codes,
        }
    }
}

/// The suffix of the id of an operation on all namespaces.
const EVERYWHERE: &str = "ForAllNamespaces";

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

/// The path of a resource's group version: `/api/v1`, `/apis/apps/v1`.
pub(super) fn root(resource: &Resource) -> String {
    match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    }
}

/// The description of a success code.
pub(super) fn code_description(code: &str) -> &'static str {
    match code {
        "200" => "OK",
        "201" => "Created",
        _ => "Accepted",
    }
}

/// The tag of the operations of a group version, such as `apps_v1`.
pub(super) fn tag(resource: &Resource) -> String {
    let group = if resource.group.is_empty() { "core" } else { resource.group.trim_end_matches(".k8s.io") };
    format!("{}_{}", group.replace('.', "_"), resource.version)
}
