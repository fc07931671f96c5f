//! Serves `/scale`: updates, patches and applies the Scale of an object.

use listwatch_apply::Set;
use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_registry::Resource;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;
use listwatch_wire::media_type::PatchType;

use super::action::{Action, ActionFuture};
use super::apply::Config;
use super::decode::{check_name, decode, set_namespace};
use super::decode_error::DecodeErrorStyle;
use super::merge_keys;
use super::options::Options;
use super::ownership::{self, ScaleManagedFields};
use super::pipeline::{Absent, Base, ManagedFields, Write};
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::scale_view::{SCALE, check_uid, scale_of, spec_replicas_path, view, write_back};
use super::update::{Body, PatchRequest, Patcher, patch_request};

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
    let replicas_path = spec_replicas_path(resource)?.to_owned();
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
        let patcher = Patcher::new(patch_type, request, options.field_validation);
        let make = |base: Option<Base<'_>>| {
            let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
            let mut tree = base.visible();
            let managed_fields = ScaleManagedFields::of(resource, &tree, &replicas_path);
            let mut live = view(resource, &tree)?;
            let mut scale = live.clone();
            let at = merge_keys::of_kind(SCALE.group, SCALE.version, SCALE.kind);
            warnings = patcher.apply(&mut scale, Body { registry: write.registry, expected: SCALE, at })?;
            set_namespace(resource, request.namespace, listwatch_validation::metadata_mut(&mut scale))?;
            check_name(metadata(&scale), write.name)?;
            managed_fields.show(&mut live);
            managed_fields.update(&write.field_writer(), live, &mut scale);
            write_back(&mut tree, &scale, &replicas_path, resource.custom)?;
            check_uid(resource, &tree, &scale)?;
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
    answer(resource, done.response(write, warnings).await?)
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
        let mut scale = config.apply(ownership::scale_kind(), Some(&Value::Object(live)), by, options.force)?;
        set_namespace(resource, request.namespace, listwatch_validation::metadata_mut(&mut scale))?;
        check_name(metadata(&scale), write.name)?;
        write_back(&mut tree, &scale, replicas_path, resource.custom)?;
        check_uid(resource, &tree, &scale)?;
        managed_fields.copy_to_parent(&scale, &mut tree);
        Ok(tree)
    };
    let done = write.run(&key, None, Absent::NotFound, make).await?;
    answer(resource, done.response(write, config.warnings()).await?)
}
