//! The AdmissionReview that a webhook receives (`request/admissionreview.go`).

use listwatch_json::{Map, Value, json};
use serde::Serialize;

use listwatch_admission::{KindName, ResourceName};
use listwatch_meta::UserInfo;
use listwatch_validation::Object;

use crate::attributes::Attributes;
use crate::matching::Invocation;

/// A version of `admission.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`.
    V1,
    /// `v1beta1`, whose responses are checked less strictly.
    V1Beta1,
}

impl ReviewVersion {
    /// Returns the version of a name in `admissionReviewVersions`.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1Beta1),
            _ => None,
        }
    }

    /// The `apiVersion` of the review.
    pub fn api_version(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "admission.k8s.io/v1",
            ReviewVersion::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// The request of an AdmissionReview.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionReviewRequest<'a> {
    /// The version of the review.
    pub version: ReviewVersion,
    /// A fresh UUID, which the response repeats.
    pub uid: &'a str,
    /// The write, with objects in the version of `invocation`.
    pub attributes: &'a Attributes<'a>,
    /// The resource and kind of the request in the version of the webhook's rule.
    pub invocation: Invocation<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: &'static str,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: GroupVersionKind<'a>,
    resource: GroupVersionResource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: GroupVersionKind<'a>,
    request_resource: GroupVersionResource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'static str,
    user_info: &'a UserInfo,
    object: Option<&'a Object>,
    old_object: Option<&'a Object>,
    dry_run: bool,
    options: Option<&'a Object>,
}

#[derive(Serialize)]
struct GroupVersionKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct GroupVersionResource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

fn kind_of<'a>(name: &ResourceName<'a>) -> GroupVersionKind<'a> {
    let KindName { group, version, kind } = name.kind;
    GroupVersionKind { group, version, kind }
}

fn resource_of<'a>(name: &ResourceName<'a>) -> GroupVersionResource<'a> {
    GroupVersionResource { group: name.group, version: name.version, resource: name.resource }
}

impl AdmissionReviewRequest<'_> {
    /// Encodes the whole AdmissionReview as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let AdmissionReviewRequest { version, uid, attributes, invocation } = self;
        let review = Review {
            kind: "AdmissionReview",
            api_version: version.api_version(),
            request: Request {
                uid,
                kind: kind_of(&invocation.resource),
                resource: resource_of(&invocation.resource),
                sub_resource: attributes.subresource,
                request_kind: kind_of(&attributes.resource),
                request_resource: resource_of(&attributes.resource),
                request_sub_resource: attributes.subresource,
                name: attributes.name,
                namespace: attributes.namespace,
                operation: attributes.operation.as_str(),
                user_info: attributes.user,
                object: attributes.object,
                old_object: attributes.old_object,
                dry_run: attributes.dry_run,
                options: attributes.options,
            },
        };
        // JSON trees have text as keys, so they always encode.
        serde_json::to_vec(&review).unwrap_or_default()
    }
}

/// The variable `request` of expressions: the request without uid and objects (`CreateAdmissionRequest`).
pub fn request_without_objects(attributes: &Attributes<'_>, invocation: &Invocation<'_>) -> Map {
    let kind = |name: &ResourceName<'_>| {
        let KindName { group, version, kind } = name.kind;
        json!({"group": group, "version": version, "kind": kind})
    };
    let resource =
        |name: &ResourceName<'_>| json!({"group": name.group, "version": name.version, "resource": name.resource});
    let UserInfo { username, uid, groups, extra } = attributes.user;
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| {
        request.insert(name, value);
    };
    set("kind", kind(&invocation.resource));
    set("resource", resource(&invocation.resource));
    set("requestKind", kind(&attributes.resource));
    set("requestResource", resource(&attributes.resource));
    // The fields of the variable are declared, so an empty text is present.
    set("subResource", attributes.subresource.into());
    set("requestSubResource", attributes.subresource.into());
    set("name", attributes.name.into());
    set("namespace", attributes.namespace.into());
    set("operation", attributes.operation.as_str().into());
    set("userInfo", json!({"username": username, "uid": uid, "groups": groups, "extra": extra}));
    set("dryRun", attributes.dry_run.into());
    set("options", attributes.options.cloned().map_or(Value::Null, Value::Object));
    request
}
