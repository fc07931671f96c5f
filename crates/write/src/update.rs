//! Carries out PUT and PATCH: computes the changed object. [`super::pipeline`] runs the change.

use listwatch_json::{Map, Value};
use listwatch_meta::go::{self, TypeErrorStyle};
use listwatch_meta::{FieldError, Status};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};
use listwatch_wire::media_type::{PatchType, negotiate_patch};

use super::action::{Action, ActionFuture};
use super::apply;
use super::decode::{self, FieldValidation, KindProblem, NormalizeError, check_name, decode_body, set_namespace};
use super::decode_error::{DecodeErrorStyle, not_decodable, not_decodable_from};
use super::expected::Expected;
use super::merge_keys::{self, At};
use super::options::Options;
use super::ownership;
use super::patch::ParsedPatch;
use super::pipeline::{Absent, Base, Write};
use super::request::{WriteRequest, WriteResponse};
use super::store::{self, MANAGED_FIELDS};
use listwatch_registry::{Registry, Resource};

/// The action for a PUT of an object, or of a subresource that has the object's kind.
pub(super) struct Update;

impl Action for Update {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(update(write, request))
    }
}

/// The action for a PATCH of an object, or of a subresource that has the object's kind.
pub(super) struct Patch;

impl Action for Patch {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(patch(write, request))
    }
}

/// Replaces an object, or the part of the object that a subresource holds.
///
/// # Errors
/// The [`Status`] for the client.
async fn update(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let options = Options::parse("UpdateOptions", request.query)?;
    let write = &Write { dry_run: options.dry_run, ..*write };
    let resource = write.resource;
    let first = decode_body(write.registry, resource, request, options.field_validation)?;
    check_name(metadata(&first.object), write.name)?;
    let warnings = first.warnings;
    let uid = Some(meta::text(metadata(&first.object), "uid").to_owned()).filter(|uid| !uid.is_empty());
    let creates = resource.rules.create_on_update && write.subresource.is_none();
    let absent = if creates { Absent::Create } else { Absent::NotFound };
    let key = resource.key(request.namespace, write.name)?;
    // The first attempt takes the decoded tree. The rare second attempt decodes the body again.
    let mut first = Some(first.object);
    let make = |_: Option<Base<'_>>| match first.take() {
        Some(object) => Ok(object),
        None => decode_body(write.registry, resource, request, options.field_validation).map(|decoded| decoded.object),
    };
    let done = write.run(&key, uid.as_deref(), absent, make).await?;
    done.response(write, warnings).await
}

/// Patches an object, or the part of the object that a subresource holds.
///
/// # Errors
/// The [`Status`] for the client.
async fn patch(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let PatchRequest { patch_type, options } = patch_request(resource, request)?;
    if patch_type == PatchType::Apply {
        return apply::apply(write, request, &options).await;
    }
    let decode_errors = match patch_type {
        PatchType::StrategicMerge => DecodeErrorStyle::StrategicPatch(&request.body),
        _ => DecodeErrorStyle::Patch,
    };
    let write = &Write { dry_run: options.dry_run, decode_errors, ..*write };
    let key = resource.key(request.namespace, write.name)?;
    let at = merge_keys::of_kind(&resource.group, &resource.version, &resource.kind);
    let patcher = Patcher::new(patch_type, request, options.field_validation);
    let mut warnings = Vec::new();
    let make = |base: Option<Base<'_>>| {
        let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
        let mut object = base.visible();
        let body = Body { registry: write.registry, expected: Expected::of(resource), at };
        warnings = patcher.apply(&mut object, body)?;
        let metadata = metadata_mut(&mut object);
        set_namespace(resource, request.namespace, metadata)?;
        check_name(metadata, write.name)?;
        Ok(object)
    };
    let done = write.run(&key, None, Absent::NotFound, make).await?;
    done.response(write, warnings).await
}

/// The type and the options of a PATCH.
pub(super) struct PatchRequest {
    pub(super) patch_type: PatchType,
    pub(super) options: Options,
}

/// Reads the type and the options of a PATCH.
///
/// # Errors
/// 415 for an unsupported patch type, 422 for invalid options.
pub(super) fn patch_request(resource: &Resource, request: &WriteRequest<'_>) -> Result<PatchRequest, Status> {
    let patch_type = negotiate_patch(request.content_type, &resource.served())?;
    Ok(PatchRequest { patch_type, options: Options::parse_patch(patch_type, request.query)? })
}

/// A patch that the retry loop can apply several times.
pub(super) struct Patcher<'a> {
    patch_type: PatchType,
    body: &'a [u8],
    validation: FieldValidation,
}

/// The context of the object that a patch changes.
pub(super) struct Body<'a> {
    pub(super) registry: &'a Registry,
    pub(super) expected: Expected<'a>,
    pub(super) at: At,
}

impl<'a> Patcher<'a> {
    /// Parses nothing yet: a patch of an absent object fails with a 404, also if the patch is malformed.
    pub(super) fn new(patch_type: PatchType, request: &'a WriteRequest<'_>, validation: FieldValidation) -> Self {
        Patcher { patch_type, body: &request.body, validation }
    }

    fn parse(&self) -> Result<ParsedPatch, Status> {
        ParsedPatch::parse(self.patch_type, self.body, self.validation)
    }

    /// Applies the patch and checks that the result is of the same kind. Returns the warnings.
    ///
    /// # Errors
    /// 400 for a malformed patch or directive, 413 for too many operations, 422 for a patch that cannot be applied or a
    /// result that is not an object of the kind.
    pub(super) fn apply(&self, object: &mut Map, body: Body<'_>) -> Result<Vec<String>, Status> {
        let parsed = self.parse()?;
        let kind_counts = parsed.patch.may_change_kind();
        let looks_at_owners = parsed.patch.may_touch_owners();
        if looks_at_owners {
            ownership::expand_managed_fields(object);
        }
        let body = Body { expected: Expected { error_style: parsed.patch.error_style(), ..body.expected }, ..body };
        parsed.patch.apply(object, body.at)?;
        if body.expected.is_custom() {
            check_custom_kind(body.expected, object)?;
        }
        // Managed fields that the patch did not touch are a text, which the decoder must not see.
        let owners = match object.get_mut("metadata") {
            Some(Value::Object(metadata)) if !looks_at_owners => metadata.shift_remove(MANAGED_FIELDS),
            _ => None,
        };
        let found = self.check(object, &body, kind_counts, parsed.strict_errors);
        let with_owners = |object: &mut Map| {
            if let Some(owners) = owners {
                metadata_mut(object).insert(MANAGED_FIELDS, owners);
            }
        };
        match found {
            Ok(strict_errors) => {
                *object = decode::ordered(std::mem::take(object), body.expected)?;
                with_owners(object);
                Ok(strict_errors)
            }
            Err(Undecodable::TooLarge) => Err(store::too_large()),
            Err(Undecodable::Text { why, .. }) if self.patch_type == PatchType::StrategicMerge => {
                Err(not_decodable_from(&self.parse()?.patch.shown(), &why))
            }
            Err(Undecodable::Text { shown, why }) => {
                let mut shown = shown.unwrap_or_else(|| std::mem::take(object));
                with_owners(&mut shown);
                if !looks_at_owners {
                    ownership::expand_managed_fields(&mut shown);
                }
                Err(not_decodable(&shown, &why))
            }
        }
    }

    /// Checks the kind of a patched object, and normalizes the object. Returns the warnings.
    fn check(
        &self,
        object: &mut Map,
        body: &Body<'_>,
        kind_counts: bool,
        mut strict_errors: Vec<String>,
    ) -> Result<Vec<String>, Undecodable> {
        let undecodable = |why: String| Undecodable::Text { shown: None, why };
        let sorted_from = strict_errors.len();
        if kind_counts {
            match decode::kind_problem(body.registry, body.expected, object) {
                None => {}
                Some(KindProblem::Kind(why) | KindProblem::Version(why)) => return Err(undecodable(why)),
            }
        }
        if let Some(metadata) = object.get_mut("metadata") {
            if body.expected.is_custom() {
                go::round_trip_numbers(metadata);
            }
            meta::check_shape(body.expected.kind, body.expected.error_style, metadata).map_err(undecodable)?;
        }
        if let Some(Value::Object(metadata)) = object.get("metadata") {
            strict_errors.extend(meta::unknown_fields(metadata).map(|path| format!("unknown field {path:?}")));
        }
        let patched = (self.validation == FieldValidation::Strict && decode::may_change(body.expected, object))
            .then(|| object.clone());
        strict_errors.extend(decode::normalize(object, body.expected).map_err(|error| match error {
            NormalizeError::Text(why) => undecodable(why),
            NormalizeError::TooLarge => Undecodable::TooLarge,
        })?);
        if let (TypeErrorStyle::Converter, Some(unknown)) =
            (body.expected.error_style, strict_errors.get_mut(sorted_from..))
        {
            unknown.sort_unstable();
        }
        match self.validation {
            FieldValidation::Ignore => strict_errors.clear(),
            FieldValidation::Strict if !strict_errors.is_empty() => {
                let why = format!("strict decoding error: {}", strict_errors.join(", "));
                return Err(Undecodable::Text { shown: patched, why });
            }
            FieldValidation::Warn | FieldValidation::Strict => {}
        }
        Ok(strict_errors)
    }
}

/// Checks the kind of a patched custom object. The decoder of custom resources requires a kind, but accepts any kind.
///
/// # Errors
/// 422 for a different or missing kind.
fn check_custom_kind(expected: Expected<'_>, object: &Map) -> Result<(), Status> {
    match object.get("kind") {
        Some(Value::String(kind)) if kind == expected.kind => Ok(()),
        Some(Value::String(kind)) if !kind.is_empty() => {
            let error = FieldError::invalid("kind", go::quote(kind), format_args!("must be {}", expected.kind));
            Err(Status::invalid(expected.group, kind, meta::text(metadata(object), "name"), &[error]))
        }
        None | Some(Value::Null | Value::String(_)) => {
            let mut object = object.clone();
            ownership::expand_managed_fields(&mut object);
            let shown = Value::Object(object).to_string();
            Err(not_decodable_from(&shown, &format!("Object 'Kind' is missing in '{shown}'")))
        }
        // The decoder rejects a kind that is not a string.
        Some(_) => Ok(()),
    }
}

/// The reason why a patched object cannot be decoded as its kind.
enum Undecodable {
    /// The error text and the object to show; `None` for the patched object itself.
    Text { shown: Option<Map>, why: String },
    /// The object with its defaults is too large.
    TooLarge,
}
