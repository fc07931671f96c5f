//! [`Defaults`]: the default values of a built-in kind as a table.
//!
//! ```text
//!  Deployment ─ spec ─┬ replicas                          1
//!                     ├ strategy ─ type                   RollingUpdate
//!                     └ template ─ spec ─ containers[*] ─ imagePullPolicy, …
//! ```
//!
//! Upstream's defaulting runs on every decode. [`apply`] runs on every create and update, on the object that an update
//! replaces, and on read objects that may lack defaults.
//!
//! Source: `pkg/apis/*/v*/defaults.go` of Kubernetes v1.36.

pub(crate) mod pod_spec;
pub(crate) mod volume;

use listwatch_json::{Map, Value};

/// The members of an object that have defaults, in the order of application.
#[derive(Debug)]
pub struct Defaults(pub(crate) &'static [(&'static str, Default)]);

impl Defaults {
    /// No defaults.
    pub const NONE: Defaults = Defaults(&[]);
}

/// The default of one member. A member is absent if it is missing, `null` or `""`, as in a Go struct.
#[derive(Debug)]
pub(crate) enum Default {
    /// A string for an absent member.
    Text(&'static str),
    /// A number for an absent member.
    Number(i64),
    /// A number for a member that is absent or 0.
    Positive(i64),
    /// A boolean for an absent member.
    Flag(bool),
    /// `{}` for an absent member.
    Empty,
    /// The result of the function, if any, for an absent member. The argument is the object that contains the member.
    From(fn(&Map) -> Option<Value>),
    /// `{}` for an absent member, and defaults of its members.
    In(&'static Defaults),
    /// Defaults of the members of a present member.
    If(&'static Defaults),
    /// Defaults of the members of each object in a list or map.
    Each(&'static Defaults),
    /// Calls the function with the object that contains the member.
    Do(fn(&mut Map)),
}

/// A member that Go prints as `null` if it is absent.
pub(crate) const NULL: Default = Default::From(|_| Some(Value::Null));
/// A member that Go prints as `""` if it is absent.
pub(crate) const BLANK: Default = Default::From(|_| Some(Value::from("")));

/// Applies defaults to an object.
pub fn apply(defaults: &Defaults, object: &mut Map) {
    for (name, default) in defaults.0 {
        match default {
            Default::Text(text) => fill(object, name, || Some(Value::from(*text))),
            Default::Number(number) => fill(object, name, || Some(Value::Number((*number).into()))),
            Default::Positive(number) => {
                if object.get(name).is_some_and(|value| value.as_i64() == Some(0)) {
                    object.shift_remove(name);
                }
                fill(object, name, || Some(Value::Number((*number).into())));
            }
            Default::Flag(flag) => fill(object, name, || Some(Value::Bool(*flag))),
            Default::Empty => fill(object, name, || Some(Value::Object(Map::new()))),
            Default::From(make) => {
                if missing(object, name)
                    && let Some(value) = make(object)
                {
                    object.insert(*name, value);
                }
            }
            Default::In(inner) => {
                fill(object, name, || Some(Value::Object(Map::new())));
                apply_below(inner, object, name);
            }
            Default::If(inner) => apply_below(inner, object, name),
            Default::Each(inner) => {
                let items: &mut dyn Iterator<Item = &mut Value> = match object.get_mut(name) {
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

fn apply_below(inner: &Defaults, object: &mut Map, name: &str) {
    if let Some(Value::Object(inner_object)) = object.get_mut(name) {
        apply(inner, inner_object);
    }
}

fn fill(object: &mut Map, name: &str, make: impl FnOnce() -> Option<Value>) {
    if missing(object, name)
        && let Some(value) = make()
    {
        object.insert(name, value);
    }
}

/// Whether a member is absent, `null` or `""`.
pub(crate) fn missing(object: &Map, name: &str) -> bool {
    match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}
