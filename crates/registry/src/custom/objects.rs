//! Validation of custom resource objects by their schema and by the `/scale` subresource.
//!
//! Source of rules and error texts: `apiextensions-apiserver/pkg/registry/customresource/{strategy,validator}.go`.

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;

use listwatch_kinds::{CreateContext, ResourceWrites, Strategy, Subresource, UpdateContext, WriteRules, WriteScope};
use listwatch_schema::UpdateReport;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{Errors, metadata};

use super::kind::Form;
use listwatch_meta::go;

/// Inserts the errors of the scale subresource before the final error, which reports skipped CEL rules.
fn insert(errors: &mut Vec<FieldError>, more: Vec<FieldError>) {
    let last = errors.last().is_some_and(|error| error.field == "<nil>");
    let at = errors.len() - usize::from(last);
    errors.splice(at..at, more);
}

/// The strategy of one version of a custom resource (`customResourceStrategy`).
#[derive(Debug)]
pub(super) struct CustomResourceStrategy {
    pub rules: WriteRules,
    pub form: Form,
    pub has_status: bool,
    /// The scale subresource, if it is served.
    pub scale: Option<Subresource>,
}

impl CustomResourceStrategy {
    fn scale_errors(&self, object: &Map, parts: &[Part]) -> Vec<FieldError> {
        self.scale.as_ref().map(|scale| self::scale(scale, object, parts)).unwrap_or_default()
    }
}

impl Strategy for CustomResourceStrategy {
    fn rules(&self) -> WriteRules {
        self.rules
    }

    fn writes(&self) -> ResourceWrites {
        ResourceWrites { has_status: self.has_status, keeps_spec: false, status: WriteScope::STATUS_ONLY }
    }

    fn warnings(&self, new: &Map, old: Option<&Map>, subresource: Option<&Subresource>) -> Vec<String> {
        if subresource.is_some() {
            return Vec::new();
        }
        let known = old.map(|old| meta::finalizers(metadata(old))).unwrap_or_default();
        let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
        meta::finalizer_warnings(metadata(new), &known)
    }

    fn prepare_for_create(&self, object: &mut Map, _context: CreateContext<'_>) {
        if self.has_status {
            object.shift_remove("status");
        }
    }

    fn validate(&self, object: &mut Map, errors: &mut Errors) {
        let mut found = match self.form.schema() {
            Some(schema) => schema.validate(object),
            None => Vec::new(),
        };
        insert(&mut found, self.scale_errors(object, &[Part::Spec, Part::Status]));
        errors.extend(found);
    }

    fn validate_update(
        &self,
        new: &mut Map,
        old: &Map,
        context: UpdateContext<'_>,
        _is_unchanged: bool,
        errors: &mut Errors,
    ) {
        let of_status = context.subresource == Some(&Subresource::Status);
        let UpdateReport { errors: mut found, tolerated } = match self.form.schema() {
            Some(schema) if of_status => schema.check_status_update(new, old),
            Some(schema) => schema.check_update(new, old),
            None => UpdateReport::default(),
        };
        errors.tolerate(tolerated);
        let parts: &[Part] = if of_status { &[Part::Status] } else { &[Part::Spec, Part::Status] };
        insert(&mut found, self.scale_errors(new, parts));
        errors.extend(found);
    }
}

/// The part of a Scale whose paths are validated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Spec,
    Status,
}

fn scale(scale: &Subresource, object: &Map, parts: &[Part]) -> Vec<FieldError> {
    let Subresource::Scale { spec_replicas, status_replicas, selector } = scale else {
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

fn replicas(object: &Map, path: &str) -> Option<FieldError> {
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

/// Returns the value at a dotted path, converted by `read`. Returns `None` if there is no value at the path.
///
/// # Errors
/// The error text of Go's `unstructured` field accessors, in two cases:
///
/// - A parent on the path is not an object.
/// - The value does not have the `expected` type.
pub fn nested<'a, T>(
    object: &'a Map,
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
    use listwatch_json::json;

    use super::*;

    fn check(spec: Value, expected: &[&str]) {
        let subresource = Subresource::Scale {
            spec_replicas: "spec.replicas".into(),
            status_replicas: "status.replicas".into(),
            selector: Some("status.selector".into()),
        };
        let Value::Object(object) = json!({"spec": spec, "status": {"selector": 7}}) else { unreachable!("an object") };
        let found: Vec<String> =
            scale(&subresource, &object, &[Part::Spec, Part::Status]).iter().map(ToString::to_string).collect();
        assert_eq!(found[..found.len() - 1], *expected);
        assert_eq!(
            found[found.len() - 1],
            ".status.selector: Invalid value: \"\": .status.selector accessor error: 7 is of the type int64, expected string"
        );
    }

    #[test]
    fn scale_paths_accept_missing_replicas_and_reject_invalid_values() {
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
