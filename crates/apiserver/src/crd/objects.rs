//! Which objects of a custom resource are valid: what its schema says, and what `/scale` needs.
//!
//! Rules and texts: `apiextensions-apiserver/pkg/registry/customresource/{strategy,validator}.go`.

use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use crate::registry::{Resource, Subresource};
use listwatch_meta::go;

/// What is wrong with a new object; nothing with one that is built in.
pub(crate) fn create(resource: &Resource, object: &mut Map<String, Value>) -> Vec<FieldError> {
    let Some(form) = &resource.form else { return Vec::new() };
    let mut errors = Vec::new();
    if let Some(schema) = form.schema() {
        errors.extend(schema.validate(object));
    }
    insert(&mut errors, scale(resource, object, &[Part::Spec, Part::Status]));
    errors
}

/// What a Scale lacks stands before the word that rules were not asked because of such errors.
fn insert(errors: &mut Vec<FieldError>, more: Vec<FieldError>) {
    let last = errors.last().is_some_and(|error| error.field == "<nil>");
    let at = errors.len() - usize::from(last);
    errors.splice(at..at, more);
}

/// What is wrong with a changed object; nothing with one that is built in. What was wrong before and
/// did not change is let through.
pub(crate) fn update(
    resource: &Resource,
    subresource: Option<&Subresource>,
    object: &mut Map<String, Value>,
    old: &Map<String, Value>,
) -> Vec<FieldError> {
    let Some(form) = &resource.form else { return Vec::new() };
    let mut errors = Vec::new();
    let of_status = matches!(subresource, Some(Subresource::Status));
    if let Some(schema) = form.schema() {
        errors.extend(match of_status {
            true => schema.validate_status(object, old),
            false => schema.validate_update(object, old),
        });
    }
    insert(&mut errors, scale(resource, object, if of_status { &[Part::Status] } else { &[Part::Spec, Part::Status] }));
    errors
}

/// A half of what a Scale shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Spec,
    Status,
}

fn scale(resource: &Resource, object: &Map<String, Value>, parts: &[Part]) -> Vec<FieldError> {
    let Some(Subresource::Scale { spec_replicas, status_replicas, selector }) = resource.subresource("scale") else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    for part in parts {
        match part {
            Part::Spec => errors.extend(replicas(object, spec_replicas)),
            Part::Status => {
                errors.extend(replicas(object, status_replicas));
                let path = selector.as_deref().unwrap_or_default();
                if !path.is_empty() {
                    let problem = nested(object, path, "string", Value::as_str).err();
                    errors.extend(problem.map(|why| FieldError::invalid(format!(".{path}"), "\"\"", why)));
                }
            }
        }
    }
    errors
}

fn replicas(object: &Map<String, Value>, path: &str) -> Option<FieldError> {
    let field = format!(".{path}");
    let replicas = match nested(object, path, "int64", Value::as_i64) {
        Ok(found) => found?,
        Err(why) => return Some(FieldError::invalid(field, 0, why)),
    };
    if replicas < 0 {
        Some(FieldError::invalid(field, replicas, "should be a non-negative integer"))
    } else if replicas > i64::from(i32::MAX) {
        Some(FieldError::invalid(field, replicas, format_args!("should be less than or equal to {}", i32::MAX)))
    } else {
        None
    }
}

/// The value at a dotted path, as `read` reads it; `None` when nothing is there.
///
/// # Errors
/// What Go's accessors of nested fields say when something on the way is no object, or when it is another type
/// than the `expected` one.
pub(crate) fn nested<'a, T>(
    object: &'a Map<String, Value>,
    path: &str,
    expected: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, String> {
    let mismatch = |steps: usize, found: &Value, expected: &str| {
        let path = path.split('.').take(steps).collect::<Vec<_>>().join(".");
        let (shown, of) = (go::print(found), go::type_name(found));
        format!(".{path} accessor error: {shown} is of the type {of}, expected {expected}")
    };
    let mut members = Some(object);
    let mut found: Option<&Value> = None;
    for (above, step) in path.split('.').enumerate() {
        found = match (members, found) {
            (Some(members), _) => members.get(step),
            (None, None | Some(Value::Null)) => return Ok(None),
            (None, Some(other)) => return Err(mismatch(above + 1, other, "map[string]interface{}")),
        };
        let Some(value) = found else { return Ok(None) };
        members = value.as_object();
    }
    let Some(value) = found else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| mismatch(usize::MAX, value, expected))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: Value, expected: &[&str]) {
        let mut resource = Resource::clone(crate::registry::Registry::builtin().find("", "v1", "pods").unwrap());
        resource.subresources = vec![Subresource::Scale {
            spec_replicas: "spec.replicas".into(),
            status_replicas: "status.replicas".into(),
            selector: Some("status.selector".into()),
        }];
        let Value::Object(object) = json!({"spec": spec, "status": {"selector": 7}}) else { unreachable!("an object") };
        let found: Vec<String> =
            scale(&resource, &object, &[Part::Spec, Part::Status]).iter().map(ToString::to_string).collect();
        assert_eq!(found[..found.len() - 1], *expected);
        assert_eq!(
            found[found.len() - 1],
            ".status.selector: Invalid value: \"\": .status.selector accessor error: 7 is of the type int64, expected string"
        );
    }

    #[test]
    fn a_scale_must_find_its_values() {
        check(json!({}), &[]);
        check(json!({"replicas": 3}), &[]);
        check(json!({"replicas": -1}), &[".spec.replicas: Invalid value: -1: should be a non-negative integer"]);
        check(
            json!({"replicas": 3_000_000_000_u64}),
            &[".spec.replicas: Invalid value: 3000000000: should be less than or equal to 2147483647"],
        );
        check(
            json!({"replicas": "x"}),
            &[
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
            ],
        );
        check(
            json!("all"),
            &[
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: all is of the type string, expected map[string]interface{}",
            ],
        );
    }
}
