//! PUT and PATCH: the change that each makes of an object; [`super::pipeline`] does the rest.

use listwatch_meta::go::{self, Words};
use listwatch_meta::{FieldError, Status};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};
use listwatch_wire::media_type::{PatchType, Served, negotiate_patch};
use serde_json::{Map, Value};

use super::decode::{self, Expected, KindProblem, Unfit, decode};
use super::merge_keys::{self, At};
use super::options::{FieldValidation, Options};
use super::ownership;
use super::patch::ParsedPatch;
use super::pipeline::{Absent, Base, DecodeErrorStyle, Write};
use super::store;
use super::{WriteRequest, WriteResponse, create};
use crate::registry::{Registry, Resource};

/// PUT of an object or of a subresource that has the object's kind.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn update(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let options = Options::parse("UpdateOptions", request.query)?;
    let write = &Write { dry_run: options.dry_run, ..*write };
    let resource = write.resource;
    let decode_again = || -> Result<decode::Decoded, Status> {
        let expected = Expected::of(resource);
        let mut decoded =
            decode(write.registry, expected, request.content_type, &request.body, options.field_validation)?;
        let metadata = metadata_mut(&mut decoded.object);
        create::place(resource, request.namespace, metadata)?;
        check_name(metadata, write.name)?;
        decoded.warnings.extend(meta::dedup_owners(metadata));
        Ok(decoded)
    };
    let first = decode_again()?;
    let mut warnings = first.warnings;
    let mut of_strategy = Vec::new();
    let uid = Some(meta::text(metadata(&first.object), "uid").to_owned()).filter(|uid| !uid.is_empty());
    let creates = resource.rules.create_on_update && write.subresource.is_none();
    let absent = if creates { Absent::Create } else { Absent::NotFound };
    let key = resource.key(request.namespace, write.name)?;
    // The first attempt takes the tree; another one, which is rare, decodes again.
    let mut first = Some(first.object);
    let make = |base: Option<Base<'_>>| {
        let object = match first.take() {
            Some(object) => object,
            None => decode_again()?.object,
        };
        of_strategy = write.warnings(&object, base.map(|base| base.object));
        Ok(object)
    };
    let done = write.run(&key, uid.as_deref(), absent, make).await?;
    warnings.extend(of_strategy);
    done.response(resource, &key, warnings)
}

/// PATCH of an object or of a subresource that has the object's kind.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn patch(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let PatchRequest { patch_type, options } = patch_request(resource, request)?;
    if patch_type == PatchType::Apply {
        return ownership::apply(write, request, &options).await;
    }
    let decode_errors = match patch_type {
        PatchType::StrategicMerge => DecodeErrorStyle::StrategicPatch(&request.body),
        _ => DecodeErrorStyle::Patch,
    };
    let write = &Write { dry_run: options.dry_run, decode_errors, ..*write };
    let key = resource.key(request.namespace, write.name)?;
    let at = merge_keys::of_kind(&resource.group, &resource.version, &resource.kind);
    let mut patcher = Patcher::new(patch_type, request, options.field_validation)?;
    let mut warnings = Vec::new();
    let make = |base: Option<Base<'_>>| {
        let Some(base) = base else { return Err(Status::not_found(resource.gr(), write.name)) };
        let mut object = base.visible();
        let body = Body { registry: write.registry, expected: Expected::of(resource), at };
        warnings = patcher.apply(&mut object, body)?;
        let metadata = metadata_mut(&mut object);
        create::place(resource, request.namespace, metadata)?;
        check_name(metadata, write.name)?;
        warnings.extend(meta::dedup_owners(metadata));
        warnings.extend(write.warnings(&object, Some(base.object)));
        Ok(object)
    };
    let done = write.run(&key, None, Absent::NotFound, make).await?;
    done.response(resource, &key, warnings)
}

/// The type and the options of a PATCH.
pub(super) struct PatchRequest {
    pub(super) patch_type: PatchType,
    pub(super) options: Options,
}

/// Reads the type and the options of a PATCH.
///
/// # Errors
/// 415 for a type this server does not take, 422 for options that are not valid.
pub(super) fn patch_request(resource: &Resource, request: &WriteRequest<'_>) -> Result<PatchRequest, Status> {
    let served = if resource.custom { Served::CUSTOM_JSON } else { Served::BUILTIN_JSON };
    let patch_type = negotiate_patch(request.content_type, &served)?;
    Ok(PatchRequest { patch_type, options: Options::parse_patch(patch_type, request.query)? })
}

/// The name in a body must be the one in the path.
///
/// # Errors
/// 400 when it is missing or another one.
pub(super) fn check_name(metadata: &Map<String, Value>, expected: &str) -> Result<(), Status> {
    match meta::text(metadata, "name") {
        name if name == expected => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}

/// 422: the patch makes something of the object that cannot be decoded.
pub(super) fn not_decodable(object: &Map<String, Value>, why: &str) -> Status {
    not_decodable_from(&Value::Object(object.clone()).to_string(), why)
}

/// As [`not_decodable`], with what the client is shown of the patch or of what it makes.
pub(super) fn not_decodable_from(shown: &str, why: &str) -> Status {
    Status::invalid("", "", "", &[FieldError::invalid("patch", Value::from(shown), why)])
}

/// 500: what a configuration merges into is no object of its kind.
pub(super) fn not_convertible(described: &str, why: &str) -> Status {
    Status::unknown(format!("failed to convert new typed object ({described}) to object: {why}"))
}

/// A patch that can be applied as often as the loop needs it.
pub(super) struct Patcher<'a> {
    patch_type: PatchType,
    body: &'a [u8],
    validation: FieldValidation,
    parsed: Option<ParsedPatch>,
}

/// What a patch is applied to.
pub(super) struct Body<'a> {
    pub(super) registry: &'a Registry,
    pub(super) expected: Expected<'a>,
    pub(super) at: At,
}

impl<'a> Patcher<'a> {
    /// Parses the patch once, so that a malformed one is refused before anything is read.
    ///
    /// # Errors
    /// 400 or 413; see [`ParsedPatch::parse`].
    pub(super) fn new(
        patch_type: PatchType,
        request: &'a WriteRequest<'_>,
        validation: FieldValidation,
    ) -> Result<Self, Status> {
        let parsed = Some(ParsedPatch::parse(patch_type, &request.body)?);
        Ok(Patcher { patch_type, body: &request.body, validation, parsed })
    }

    /// Applies the patch and checks that the result is still of its kind. Returns the warnings.
    ///
    /// # Errors
    /// 400 or 422.
    pub(super) fn apply(&mut self, object: &mut Map<String, Value>, body: Body<'_>) -> Result<Vec<String>, Status> {
        let parsed = match self.parsed.take() {
            Some(parsed) => parsed,
            None => ParsedPatch::parse(self.patch_type, self.body)?,
        };
        let kind_counts = parsed.patch.may_change_kind();
        let looks_at_owners = parsed.patch.may_touch_owners();
        if looks_at_owners {
            ownership::spell_out(object);
        }
        let body = Body { expected: Expected { words: parsed.patch.words(), ..body.expected }, ..body };
        parsed.patch.apply(object, body.at)?;
        if body.expected.custom {
            check_custom_kind(body.expected, object)?;
        }
        // What the patch left alone is of the right shape, and no text to those who look at the rest.
        let owners = match object.get_mut("metadata") {
            Some(Value::Object(metadata)) if !looks_at_owners => metadata.shift_remove(ownership::MANAGED_FIELDS),
            _ => None,
        };
        let found = self.check(object, &body, kind_counts, parsed.doubts);
        let with_owners = |object: &mut Map<String, Value>| {
            if let Some(owners) = owners {
                metadata_mut(object).insert(ownership::MANAGED_FIELDS.to_owned(), owners);
            }
        };
        match found {
            Ok(doubts) => {
                *object = decode::ordered(std::mem::take(object), body.expected)?;
                with_owners(object);
                Ok(doubts)
            }
            Err(Undecodable::TooLarge) => Err(store::too_large()),
            Err(Undecodable::Text { why, .. }) if self.patch_type == PatchType::StrategicMerge => {
                Err(not_decodable_from(&ParsedPatch::parse(self.patch_type, self.body)?.patch.shown(), &why))
            }
            Err(Undecodable::Text { shown, why }) => {
                let mut shown = shown.unwrap_or_else(|| std::mem::take(object));
                with_owners(&mut shown);
                if !looks_at_owners {
                    ownership::spell_out(&mut shown);
                }
                Err(not_decodable(&shown, &why))
            }
        }
    }

    /// Checks that a patched object is of its kind and makes it fit. Returns what is to be warned of.
    fn check(
        &self,
        object: &mut Map<String, Value>,
        body: &Body<'_>,
        kind_counts: bool,
        mut doubts: Vec<String>,
    ) -> Result<Vec<String>, Undecodable> {
        let undecodable = |why: String| Undecodable::Text { shown: None, why };
        let sorted_from = doubts.len();
        if kind_counts {
            match decode::kind_problem(body.registry, body.expected, object) {
                None => {}
                Some(KindProblem::Kind(why) | KindProblem::Version(why)) => return Err(undecodable(why)),
            }
        }
        if let Some(metadata) = object.get("metadata") {
            meta::check_shape(body.expected.kind, body.expected.words, metadata).map_err(undecodable)?;
        }
        if let Some(Value::Object(metadata)) = object.get("metadata") {
            doubts.extend(meta::unknown_fields(metadata).map(|path| format!("unknown field {path:?}")));
        }
        let patched =
            (self.validation == FieldValidation::Strict && body.expected.may_change(object)).then(|| object.clone());
        doubts.extend(decode::fit(object, body.expected).map_err(|unfit| match unfit {
            Unfit::Text(why) => undecodable(why),
            Unfit::TooLarge => Undecodable::TooLarge,
        })?);
        if let (Words::Converter, Some(unknown)) = (body.expected.words, doubts.get_mut(sorted_from..)) {
            unknown.sort_unstable();
        }
        match self.validation {
            FieldValidation::Ignore => doubts.clear(),
            FieldValidation::Strict if !doubts.is_empty() => {
                let why = format!("strict decoding error: {}", doubts.join(", "));
                return Err(Undecodable::Text { shown: patched, why });
            }
            FieldValidation::Warn | FieldValidation::Strict => {}
        }
        Ok(doubts)
    }
}

/// Checks what a patch made of the kind of a custom object, whose decoder knows no kinds but wants one.
///
/// # Errors
/// 422 where it is another one or none.
fn check_custom_kind(expected: Expected<'_>, object: &Map<String, Value>) -> Result<(), Status> {
    match object.get("kind") {
        Some(Value::String(kind)) if kind == expected.kind => Ok(()),
        Some(Value::String(kind)) if !kind.is_empty() => {
            let error = FieldError::invalid("kind", go::quote(kind), format_args!("must be {}", expected.kind));
            Err(Status::invalid(expected.group, kind, meta::text(metadata(object), "name"), &[error]))
        }
        None | Some(Value::Null | Value::String(_)) => {
            let mut object = object.clone();
            ownership::spell_out(&mut object);
            let shown = Value::Object(object).to_string();
            Err(not_decodable_from(&shown, &format!("Object 'Kind' is missing in '{shown}'")))
        }
        // Another type of value is refused as such.
        Some(_) => Ok(()),
    }
}

/// Why a patched object is none of its kind.
enum Undecodable {
    /// What is wrong, and what the client is shown; `None` for the object as it is now.
    Text { shown: Option<Map<String, Value>>, why: String },
    /// Its defaults make it too large.
    TooLarge,
}
