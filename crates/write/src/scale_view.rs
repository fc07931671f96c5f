//! Builds the `autoscaling/v1` Scale of an object, and writes a Scale back into the object. Performs no I/O.

use bytes::Bytes;
use listwatch_json::{Map, Value, json};
use listwatch_meta::go;
use listwatch_meta::{FieldError, GroupResource, Object, Status};
use listwatch_registry::{Resource, Subresource, nested};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{at, child_mut, metadata};

use super::expected::Expected;
use super::store;

/// The kind of the bodies of `/scale`.
pub(super) const SCALE: Expected<'static> = Expected::builtin("autoscaling", "v1", "Scale");

/// Builds the Scale of an object, as JSON, for a GET of `/scale`.
///
/// # Errors
/// 404 when the resource has no scale, 500 when the object cannot be read.
pub fn scale_of(resource: &Resource, object: &Object) -> Result<Bytes, Status> {
    let tree: Map = serde_json::from_slice(object.json_slice()).map_err(Status::internal)?;
    let scale = view(resource, &tree)?;
    if resource.custom && wanted(&scale) == Some(UNSET) {
        let path = paths(resource)?.spec_replicas;
        return Err(Status::internal(format_args!("the spec replicas field \".{path}\" does not exist")));
    }
    Ok(store::encode(&scale))
}

/// The replicas of a custom object if the field is absent, as in kube-apiserver.
const UNSET: i64 = i32::MIN as i64;

fn wanted(scale: &Map) -> Option<i64> {
    scale.get("spec")?.get("replicas")?.as_i64()
}

/// The dotted paths of the fields that a Scale shows.
struct Paths<'a> {
    spec_replicas: &'a str,
    status_replicas: &'a str,
    selector: Option<&'a str>,
}

/// Returns the dotted path of the object's field that `spec.replicas` of the Scale maps to.
///
/// # Errors
/// 404 when the resource has no scale.
pub(super) fn spec_replicas_path(resource: &Resource) -> Result<&str, Status> {
    paths(resource).map(|paths| paths.spec_replicas)
}

fn paths(resource: &Resource) -> Result<Paths<'_>, Status> {
    match resource.subresource("scale") {
        Some(Subresource::Scale { spec_replicas, status_replicas, selector }) => {
            Ok(Paths { spec_replicas, status_replicas, selector: selector.as_deref() })
        }
        _ => Err(Status::no_such_resource()),
    }
}

/// Builds the Scale of a tree. The Scale has a resource version if the tree has one.
pub(super) fn view(resource: &Resource, tree: &Map) -> Result<Map, Status> {
    let paths = paths(resource)?;
    let mut scale = Map::new();
    scale.insert("kind", json!(SCALE.kind));
    scale.insert("apiVersion", json!(SCALE.api_version()));
    let source = metadata(tree);
    let shown = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata: Map = shown.iter().filter_map(|name| Some(((*name).to_owned(), source.get(name)?.clone()))).collect();
    scale.insert("metadata", Value::Object(metadata));
    let replicas = |path: &str, unset: i64| match resource.custom {
        true => nested(tree, path, "int64", Value::as_i64).map(|found| found.unwrap_or(unset)).map_err(Status::unknown),
        false => Ok(at(tree, path).and_then(Value::as_i64).unwrap_or(0)),
    };
    let wanted = replicas(paths.spec_replicas, UNSET)?;
    scale.insert("spec", if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) });
    let mut status = json!({"replicas": replicas(paths.status_replicas, 0)?});
    let selector = match paths.selector {
        Some(path) if resource.custom => {
            nested(tree, path, "string", Value::as_str).map_err(Status::unknown)?.map(str::to_owned)
        }
        path => path.and_then(|path| at(tree, path)).map(selector_text),
    };
    if let Some(selector) = selector
        && !selector.is_empty()
    {
        status["selector"] = Value::from(selector);
    }
    scale.insert("status", status);
    Ok(scale)
}

/// Formats a selector as text. The selector is text (custom resources), a map of labels (replication controllers), or
/// a LabelSelector.
fn selector_text(selector: &Value) -> String {
    let fields = match selector {
        Value::String(text) => return String::from(text),
        Value::Object(fields) => fields,
        _ => return String::new(),
    };
    if fields.contains_key("matchLabels") || fields.contains_key("matchExpressions") {
        return LabelSelector::of(fields).text().unwrap_or_default();
    }
    let mut labels = LabelSelector::default();
    fields
        .iter()
        .for_each(|(key, value)| labels.equal(key.as_str().to_owned(), value.as_str().unwrap_or_default().to_owned()));
    labels.text().unwrap_or_default()
}

/// Writes the replicas and the resource version of a Scale into the object. For a `custom` object, validation of the
/// object checks the sign of the replicas.
pub(super) fn write_back(tree: &mut Map, scale: &Map, path: &str, custom: bool) -> Result<(), Status> {
    let replicas = match scale.get("spec").and_then(|spec| spec.get("replicas")) {
        None | Some(Value::Null) => 0,
        Some(value) => value.as_i64().filter(|replicas| i32::try_from(*replicas).is_ok()).ok_or_else(|| {
            let found = go::json_kind(value);
            Status::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal {found} into Go struct field ScaleSpec.spec.replicas of type int32"
            ))
        })?,
    };
    let source = metadata(scale);
    if replicas == UNSET && custom {
        return Err(Status::bad_request(format!("the spec replicas field \".{path}\" cannot be empty")));
    }
    if replicas < 0 && !custom {
        let error = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(Status::invalid(SCALE.group, SCALE.kind, meta::text(source, "name"), &[error]));
    }
    // Without a resource version, the write is unconditional.
    let claimed = meta::text(source, "resourceVersion");
    if !claimed.is_empty() {
        let claimed = Value::from(claimed);
        listwatch_validation::metadata_mut(tree).insert("resourceVersion", claimed);
    }
    let mut steps: Vec<&str> = path.split('.').collect();
    let Some(last) = steps.pop() else { return Ok(()) };
    let mut parent = tree;
    for step in steps {
        parent = child_mut(parent, step);
    }
    parent.insert(last, Value::Number(replicas.into()));
    Ok(())
}

/// Checks the UID of a patched Scale. kube-apiserver does not check it for custom resources.
///
/// # Errors
/// 409 if the Scale has a UID and the object has another one (`UpdatedObject` of `scaleUpdatedObjectInfo`).
pub(super) fn check_uid(resource: &Resource, tree: &Map, scale: &Map) -> Result<(), Status> {
    let source = metadata(scale);
    let (wanted, found) = (meta::text(source, "uid"), meta::text(metadata(tree), "uid"));
    if resource.custom || wanted.is_empty() || wanted == found {
        return Ok(());
    }
    let resource_and_scale = format!("{}/scale", resource.plural);
    let gr = GroupResource { group: &resource.group, resource: &resource_and_scale };
    let why = format_args!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    Err(Status::conflict(gr, meta::text(metadata(tree), "name"), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selector: Value, expected: &str) {
        assert_eq!(selector_text(&selector), expected);
    }

    #[test]
    fn scale_selector_of_each_type_is_formatted_as_text() {
        check(json!("a=b"), "a=b");
        check(json!({"b": "2", "a": "1"}), "a=1,b=2");
        check(json!({"matchLabels": {"b": "2", "a": "1"}}), "a=1,b=2");
        check(
            json!({"matchLabels": {"z": "1"}, "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["y", "x"]}, {"key": "d", "operator": "NotIn", "values": ["x"]},
                {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]}),
            "a,!b,c in (x,y),d notin (x),z=1",
        );
        check(json!({}), "");
        check(json!(7), "");
    }
}
