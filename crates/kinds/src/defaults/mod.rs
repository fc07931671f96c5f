//! What kube-apiserver fills in when a client leaves it out, for built-in kinds, as a table.
//!
//! ```text
//!  of("apps", "Deployment") ─▶ object ─ spec ─ replicas      1
//!                                            ├ strategy ─ type   RollingUpdate
//!                                            └ template ─ spec ─ containers, each ─ imagePullPolicy ...
//! ```
//!
//! Origin: `pkg/apis/*/v*/defaults.go` of Kubernetes v1.36, and for pods the admission plugins that
//! are on by default (Priority, DefaultTolerationSeconds). The table holds what a controller or a
//! client would miss; it runs on every create and update, as the original does on every decode.

pub(crate) mod pod_spec;
pub(crate) mod volume;

use serde_json::{Map, Value};

/// The members of an object that have defaults.
#[derive(Debug)]
pub struct Defaults(pub(crate) &'static [(&'static str, Default)]);

impl Defaults {
    /// No defaults.
    pub const NONE: Defaults = Defaults(&[]);
}

/// What to do about one member.
#[derive(Debug)]
pub(crate) enum Default {
    /// When absent: this text.
    Text(&'static str),
    /// When absent: this number.
    Number(i64),
    /// When absent or zero: this number.
    Positive(i64),
    /// When absent: this boolean.
    Flag(bool),
    /// When absent: `{}`.
    Empty,
    /// When absent: what the function makes of the whole object, if anything.
    From(fn(&Map<String, Value>) -> Option<Value>),
    /// An object that is there even when the client leaves it out; its members have defaults.
    In(&'static Defaults),
    /// When present, its members have defaults.
    If(&'static Defaults),
    /// When present, a list (or a map) of objects whose members have defaults.
    Each(&'static Defaults),
    /// Whatever the function does to the whole object; the name says what it is about.
    Do(fn(&mut Map<String, Value>)),
}

/// A member that is always shown.
pub(crate) const NULL: Default = Default::From(|_| Some(Value::Null));
/// A text that is always shown.
pub(crate) const BLANK: Default = Default::From(|_| Some(Value::String(String::new())));

/// Fills in what is missing. `null` and `""` are as good as missing, as in a Go struct.
pub fn apply(defaults: &Defaults, object: &mut Map<String, Value>) {
    for (name, default) in defaults.0 {
        match default {
            Default::Text(text) => fill(object, name, || Some(Value::String((*text).to_owned()))),
            Default::Number(number) => fill(object, name, || Some(Value::Number((*number).into()))),
            Default::Positive(number) => {
                if object.get(*name).is_some_and(|value| value.as_i64() == Some(0)) {
                    object.shift_remove(*name);
                }
                fill(object, name, || Some(Value::Number((*number).into())));
            }
            Default::Flag(flag) => fill(object, name, || Some(Value::Bool(*flag))),
            Default::Empty => fill(object, name, || Some(Value::Object(Map::new()))),
            Default::From(make) => {
                if missing(object, name)
                    && let Some(value) = make(object)
                {
                    object.insert((*name).to_owned(), value);
                }
            }
            Default::In(inner) => {
                fill(object, name, || Some(Value::Object(Map::new())));
                apply_below(inner, object, name);
            }
            Default::If(inner) => apply_below(inner, object, name),
            Default::Each(inner) => {
                let items: &mut dyn Iterator<Item = &mut Value> = match object.get_mut(*name) {
                    Some(Value::Array(items)) => &mut items.iter_mut(),
                    Some(Value::Object(members)) => &mut members.values_mut(),
                    _ => continue,
                };
                for item in items {
                    if let Value::Object(item) = item {
                        apply(inner, item);
                    }
                }
            }
            Default::Do(change) => change(object),
        }
    }
}

fn apply_below(inner: &Defaults, object: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Object(inner_object)) = object.get_mut(name) {
        apply(inner, inner_object);
    }
}

fn fill(object: &mut Map<String, Value>, name: &str, make: impl FnOnce() -> Option<Value>) {
    if missing(object, name)
        && let Some(value) = make()
    {
        object.insert(name.to_owned(), value);
    }
}

/// Whether a member is absent, `null` or `""`.
pub(crate) fn missing(object: &Map<String, Value>, name: &str) -> bool {
    match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}

/// Takes out members that are `null`: in a built-in kind that is the same as leaving them out.
/// Objects of free form (a controller revision's data) are not for this.
pub fn drop_nulls(object: &mut Map<String, Value>) {
    object.retain(|_, value| {
        match value {
            Value::Null => return false,
            Value::Object(inner) => drop_nulls(inner),
            Value::Array(items) => drop_nulls_in(items),
            _ => {}
        }
        true
    });
}

fn drop_nulls_in(items: &mut [Value]) {
    for item in items {
        match item {
            Value::Object(inner) => drop_nulls(inner),
            Value::Array(items) => drop_nulls_in(items),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(group: &str, kind: &str, object: Value, expected: Value) {
        crate::testing::check_defaults(crate::find(group, kind).unwrap(), object, expected);
    }

    #[test]
    fn the_rest() {
        check(
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
            json!({"roleRef": {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount", "name": "s"}]}),
        );
        check(
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"spec": {"maxReplicas": 3}}),
            json!({"spec": {"maxReplicas": 3, "minReplicas": 1, "metrics": [{"type": "Resource", "resource":
                {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}}),
        );
    }

    #[test]
    fn nulls_are_nothing() {
        let Value::Object(mut object) = json!({"a": null, "b": {"c": null, "d": [null, {"e": null}]}}) else {
            panic!()
        };
        drop_nulls(&mut object);
        assert_eq!(Value::Object(object), json!({"b": {"d": [null, {}]}}));
    }
}
