//! Defaults of pod specs and pod templates, which pods and workloads share.
//!
//! Source: `pkg/apis/core/v1/defaults.go` of Kubernetes v1.36.

use listwatch_json::{Map, Value, json};
use listwatch_validation::image_reference::is_latest;

use super::Default::{Do, Each, Empty, From, If, In, Number, Text};
use super::Defaults;
use super::volume::VOLUME;

static HTTP_GET: Defaults = Defaults(&[("path", Text("/")), ("scheme", Text("HTTP"))]);

static GRPC: Defaults = Defaults(&[("service", From(|action| (!action.contains_key("service")).then(|| json!(""))))]);

static PROBE: Defaults = Defaults(&[
    ("httpGet", If(&HTTP_GET)),
    ("grpc", If(&GRPC)),
    ("timeoutSeconds", Number(1)),
    ("periodSeconds", Number(10)),
    ("successThreshold", Number(1)),
    ("failureThreshold", Number(3)),
]);

static HANDLER: Defaults = Defaults(&[("httpGet", If(&HTTP_GET))]);

static LIFECYCLE: Defaults = Defaults(&[("postStart", If(&HANDLER)), ("preStop", If(&HANDLER))]);

pub(crate) static PORT: Defaults = Defaults(&[("protocol", Text("TCP"))]);

static FIELD_REF: Defaults = Defaults(&[("apiVersion", Text("v1"))]);

static RESOURCE_REF: Defaults = Defaults(&[("divisor", Text("0"))]);

pub(crate) static WITH_FIELD_REF: Defaults =
    Defaults(&[("fieldRef", If(&FIELD_REF)), ("resourceFieldRef", If(&RESOURCE_REF))]);

static ENV: Defaults = Defaults(&[("valueFrom", If(&WITH_FIELD_REF))]);

pub(crate) static CONTAINER: Defaults = Defaults(&[
    ("ports", Each(&PORT)),
    ("env", Each(&ENV)),
    ("resources", Empty),
    ("livenessProbe", If(&PROBE)),
    ("readinessProbe", If(&PROBE)),
    ("startupProbe", If(&PROBE)),
    ("lifecycle", If(&LIFECYCLE)),
    ("terminationMessagePath", Text("/dev/termination-log")),
    ("terminationMessagePolicy", Text("File")),
    ("imagePullPolicy", From(|container| Some(pull_policy(container.get("image"))))),
]);

pub(crate) static POD_SPEC: Defaults = Defaults(&[
    ("volumes", Each(&VOLUME)),
    ("initContainers", Each(&CONTAINER)),
    ("containers", Each(&CONTAINER)),
    ("ephemeralContainers", Each(&CONTAINER)),
    ("restartPolicy", Text("Always")),
    ("terminationGracePeriodSeconds", Number(30)),
    ("dnsPolicy", Text("ClusterFirst")),
    ("securityContext", Empty),
    ("schedulerName", Text("default-scheduler")),
    ("serviceAccount", Do(service_account)),
]);

pub(crate) static TEMPLATE: Defaults = Defaults(&[("metadata", Empty), ("spec", In(&POD_SPEC))]);

/// The pull policy of an image: `Always` for the tag `latest`, else `IfNotPresent`.
pub(super) fn pull_policy(image: Option<&Value>) -> Value {
    let image = image.and_then(Value::as_str).unwrap_or_default();
    json!(if is_latest(image) { "Always" } else { "IfNotPresent" })
}

/// Copies the service account between its two fields.
fn service_account(spec: &mut Map) {
    for (from, to) in [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")] {
        if let Some(Value::String(name)) = spec.get(from)
            && !name.is_empty()
        {
            let name = name.clone();
            spec.insert(to, Value::String(name));
            return;
        }
    }
}

/// Copies the labels of the pod template to an object without labels.
pub(crate) fn labels_of_template(object: &mut Map) {
    let labels = object.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    let Some(labels @ Value::Object(_)) = labels else { return };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let none = metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty);
        if none {
            metadata.insert("labels", labels);
        }
    }
}
