//! Helpers for the tests of this crate.

use listwatch_json::{Value, json};
use listwatch_validation::{Errors, Object};
use time::OffsetDateTime;

use crate::{Kind, Subresource, UpdateContext, defaults};

/// Converts a JSON value to an object.
pub(crate) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// Checks the defaults of a kind, and that a second application of the defaults changes nothing.
pub(crate) fn check_defaults(kind: &Kind, object: Value, expected: Value) {
    let mut object = map(object);
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(Value::Object(object.clone()), expected, "{kind:?}");
    let once = object.clone();
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(object, once, "the second application changes {kind:?}");
}

/// Returns the errors of [`Kind::validate_transition`] as texts.
pub(crate) fn transition_errors(kind: &Kind, new: Value, old: Value, subresource: Option<&Subresource>) -> Vec<String> {
    let mut errors = Errors::default();
    let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
    (kind.validate_transition)(&map(new), &map(old), context, &mut errors);
    errors.iter().map(listwatch_meta::FieldError::to_string).collect()
}

/// A pod spec with one container after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_pod_spec(container: Value) -> Value {
    json!({"containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"})
}

/// A container after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_container(image: &str, pull: &str) -> Value {
    json!({"name": "c", "image": image, "resources": {}, "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File", "imagePullPolicy": pull})
}

/// A pod template with one container, as a client writes it.
pub(crate) fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "nginx"}]}})
}

/// [`pod_template`] after kube-apiserver v1.36.2 has applied its defaults.
pub(crate) fn defaulted_pod_template() -> Value {
    json!({"metadata": {}, "spec": defaulted_pod_spec(defaulted_container("nginx", "Always"))})
}
