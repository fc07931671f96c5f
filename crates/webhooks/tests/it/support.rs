//! Webhooks and attributes for the tests.

use std::sync::LazyLock;

use listwatch_admission::{KindName, Operation, ResourceName};
use listwatch_json::{Map, Value, json};
use listwatch_meta::UserInfo;
use listwatch_webhooks::{Attributes, Webhook};

pub(crate) const PODS: ResourceName<'static> = resource("", "v1", "pods", "Pod");

/// A resource whose kind has the same group and version.
pub(crate) const fn resource<'a>(
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    kind: &'a str,
) -> ResourceName<'a> {
    ResourceName { group, version, resource, kind: KindName { group, version, kind } }
}

/// The webhook `a.b.c` of the configuration `conf`, with these fields.
pub(crate) fn webhook(fields: Value) -> Webhook {
    let mut hook = json!({
        "name": "a.b.c", "clientConfig": {"url": "https://h/p"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
    });
    let Value::Object(fields) = fields else { panic!("not an object") };
    hook.as_object_mut().unwrap().extend(fields);
    let configuration = json!({"metadata": {"name": "conf"}, "webhooks": [hook]});
    Webhook::parse(configuration.as_object().unwrap()).remove(0)
}

/// The creation of the pod `p` in the namespace `ns`.
pub(crate) fn attributes(object: Option<&Map>) -> Attributes<'_> {
    static USER: LazyLock<UserInfo> =
        LazyLock::new(|| UserInfo { username: "u".to_owned(), groups: vec!["g".to_owned()], ..UserInfo::default() });
    Attributes {
        operation: Operation::Create,
        resource: PODS,
        subresource: "",
        namespace: "ns",
        name: "p",
        user: &USER,
        dry_run: false,
        object,
        old_object: None,
        options: None,
    }
}
