//! Serves `/scale`: reads an object as an `autoscaling/v1` Scale, and writes a Scale back into the object.

use bytes::Bytes;
use listwatch_apply::Set;
use listwatch_meta::{FieldError, Object, Status};
use listwatch_wire::media_type::PatchType;
use serde_json::{Map, Value, json};

use super::action::{Action, ActionFuture};
use super::apply::Config;
use super::decode::decode;
use super::decode_error::DecodeErrorStyle;
use super::expected::Expected;
use super::merge_keys;
use super::options::Options;
use super::ownership::{self, ScaleManagedFields};
use super::path_match::{check_name, set_namespace};
use super::pipeline::{Absent, Base, ManagedFields, Write};
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::store;
use super::update::{Body, PatchRequest, Patcher, patch_request};
use listwatch_meta::go::{self, Words};
use listwatch_registry::nested;
use listwatch_registry::{Resource, Subresource};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{at, child_mut, metadata};

const SCALE: Expected<'static> =
    Expected { group: "autoscaling", version: "v1", kind: "Scale", custom: false, form: None, words: Words::Decoder };

/// Builds the Scale of an object, as JSON, for a GET of `/scale`.
///
/// # Errors
/// 404 when the resource has no scale, 500 when the object cannot be read.
pub fn scale_of(resource: &Resource, object: &Object) -> Result<Bytes, Status> {
    let tree: Map<String, Value> = serde_json::from_slice(object.json_slice()).map_err(Status::internal)?;
    let scale = view(resource, &tree)?;
    if resource.custom && wanted(&scale) == Some(UNSET) {
        let path = paths(resource)?.spec_replicas;
        return Err(Status::internal(format_args!("the spec replicas field \".{path}\" does not exist")));
    }
    Ok(store::encode(&scale))
}

/// Marks absent replicas of a custom object, as in kube-apiserver.
const UNSET: i64 = i32::MIN as i64;

fn wanted(scale: &Map<String, Value>) -> Option<i64> {
    scale.get("spec")?.get("replicas")?.as_i64()
}

/// The dotted paths of the fields that a Scale shows.
struct Paths<'a> {
    spec_replicas: &'a str,
    status_replicas: &'a str,
    selector: Option<&'a str>,
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
fn view(resource: &Resource, tree: &Map<String, Value>) -> Result<Map<String, Value>, Status> {
    let paths = paths(resource)?;
    let mut scale = Map::new();
    scale.insert("kind".to_owned(), json!(SCALE.kind));
    scale.insert("apiVersion".to_owned(), json!(SCALE.api_version()));
    let source = metadata(tree);
    let shown = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata: Map<String, Value> =
        shown.iter().filter_map(|name| Some(((*name).to_owned(), source.get(*name)?.clone()))).collect();
    scale.insert("metadata".to_owned(), Value::Object(metadata));
    let replicas = |path: &str, unset: i64| match resource.custom {
        true => nested(tree, path, "int64", Value::as_i64).map(|found| found.unwrap_or(unset)).map_err(Status::unknown),
        false => Ok(at(tree, path).and_then(Value::as_i64).unwrap_or(0)),
    };
    let wanted = replicas(paths.spec_replicas, UNSET)?;
    scale.insert("spec".to_owned(), if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) });
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
        status["selector"] = Value::String(selector);
    }
    scale.insert("status".to_owned(), status);
    Ok(scale)
}

/// Formats a selector as text. The selector is text (custom resources), a map of labels (replication controllers), or
/// a LabelSelector.
fn selector_text(selector: &Value) -> String {
    let fields = match selector {
        Value::String(text) => return text.clone(),
        Value::Object(fields) => fields,
        _ => return String::new(),
    };
    if fields.contains_key("matchLabels") || fields.contains_key("matchExpressions") {
        return LabelSelector::of(fields).text().unwrap_or_default();
    }
    let mut labels = LabelSelector::default();
    fields.iter().for_each(|(key, value)| labels.equal(key.clone(), value.as_str().unwrap_or_default().to_owned()));
    labels.text().unwrap_or_default()
}

/// The action for a PUT of a Scale.
pub(super) struct UpdateScale;

impl Action for UpdateScale {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(self::write(write, request, false))
    }
}

/// The action for a PATCH of a Scale.
pub(super) struct PatchScale;

impl Action for PatchScale {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(self::write(write, request, true))
    }
}

/// Updates or patches a Scale.
///
/// # Errors
/// The [`Status`] for the client.
async fn write(write: &Write<'_>, request: &WriteRequest<'_>, patch: bool) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let replicas_path = paths(resource)?.spec_replicas.to_owned();
    let key = resource.key(request.namespace, write.name)?;
    let mut warnings = Vec::new();
    let decode_errors = if patch { DecodeErrorStyle::Patch } else { DecodeErrorStyle::Body };
    let write = &Write { managed_fields: ManagedFields::Tracked, decode_errors, ..*write };
    let done = if patch {
        let PatchRequest { patch_type, options } = patch_request(resource, request)?;
        let write = &Write { dry_run: options.dry_run, ..*write };
        if patch_type == PatchType::Apply {
            return apply(write, request, &options, &replicas_path).await;
        }
        let mut patcher = Patcher::new(patch_type, request, options.field_validation)?;
        let make = |base: Option<Base<'_>>| {
            let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
            let mut tree = base.visible();
            let managed_fields = ScaleManagedFields::of(resource, &tree, &replicas_path);
            let mut live = view(resource, &tree)?;
            let mut scale = live.clone();
            let at = merge_keys::of_kind(SCALE.group, SCALE.version, SCALE.kind);
            warnings = patcher.apply(&mut scale, Body { registry: write.registry, expected: SCALE, at })?;
            check_name(metadata(&scale), write.name)?;
            managed_fields.show(&mut live);
            managed_fields.update(&write.field_writer(), live, &mut scale);
            write_back(&mut tree, &scale, &replicas_path, resource.custom)?;
            managed_fields.copy_to_parent(&scale, &mut tree);
            Ok(tree)
        };
        write.run(&key, None, Absent::NotFound, make).await?
    } else {
        let options = Options::parse("UpdateOptions", request.query)?;
        let write = &Write { dry_run: options.dry_run, ..*write };
        let decoded = decode(write.registry, SCALE, request.content_type, &request.body, options.field_validation)?;
        let mut scale = decoded.object;
        warnings = decoded.warnings;
        set_namespace(resource, request.namespace, listwatch_validation::metadata_mut(&mut scale))?;
        check_name(metadata(&scale), write.name)?;
        let make = |base: Option<Base<'_>>| {
            let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
            let mut tree = base.visible();
            let managed_fields = ScaleManagedFields::of(resource, &tree, &replicas_path);
            let mut live = view(resource, &tree)?;
            managed_fields.show(&mut live);
            let mut scale = scale.clone();
            managed_fields.update(&write.field_writer(), live, &mut scale);
            write_back(&mut tree, &scale, &replicas_path, resource.custom)?;
            managed_fields.copy_to_parent(&scale, &mut tree);
            Ok(tree)
        };
        let uid = Some(meta::text(metadata(&scale), "uid")).filter(|uid| !uid.is_empty());
        write.run(&key, uid, Absent::NotFound, make).await?
    };
    answer(resource, done.response(resource, &key, warnings)?)
}

/// Converts the response for a written object into the response for its Scale.
fn answer(resource: &Resource, response: WriteResponse) -> Result<WriteResponse, Status> {
    let body = match response.body {
        WriteBody::Object(object) => WriteBody::Json(scale_of(resource, &object)?),
        other => other,
    };
    Ok(WriteResponse { body, ..response })
}

/// Applies a configuration to a Scale.
async fn apply(
    write: &Write<'_>,
    request: &WriteRequest<'_>,
    options: &Options,
    replicas_path: &str,
) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let key = resource.key(request.namespace, write.name)?;
    let config = Config::parse(&request.body, options.field_validation)?;
    let nothing = Set::new();
    let make = |base: Option<Base<'_>>| {
        let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
        let mut tree = base.visible();
        let managed_fields = ScaleManagedFields::of(resource, &tree, replicas_path);
        let mut live = view(resource, &tree)?;
        managed_fields.show(&mut live);
        let writer = write.field_writer();
        let by = writer.of_scale(&nothing);
        let scale = config.apply(ownership::scale_kind(), Some(&Value::Object(live)), by, options.force)?;
        check_name(metadata(&scale), write.name)?;
        write_back(&mut tree, &scale, replicas_path, resource.custom)?;
        managed_fields.copy_to_parent(&scale, &mut tree);
        Ok(tree)
    };
    let done = write.run(&key, None, Absent::NotFound, make).await?;
    answer(resource, done.response(resource, &key, config.warnings())?)
}

/// Writes the replicas and the resource version of a Scale into the object. For a `custom` object, validation of the
/// object checks the sign of the replicas.
fn write_back(
    tree: &mut Map<String, Value>,
    scale: &Map<String, Value>,
    path: &str,
    custom: bool,
) -> Result<(), Status> {
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
        let claimed = Value::String(claimed.to_owned());
        listwatch_validation::metadata_mut(tree).insert("resourceVersion".to_owned(), claimed);
    }
    let mut steps: Vec<&str> = path.split('.').collect();
    let Some(last) = steps.pop() else { return Ok(()) };
    let mut parent = tree;
    for step in steps {
        parent = child_mut(parent, step);
    }
    parent.insert(last.to_owned(), Value::Number(replicas.into()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selector: Value, expected: &str) {
        assert_eq!(selector_text(&selector), expected);
    }

    #[test]
    fn selector_of_each_form_is_formatted_as_text() {
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
