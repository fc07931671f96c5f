//! Server-side apply: parses an apply configuration and carries out the PATCH.

use listwatch_apply::managed::Managed;
use listwatch_apply::{ApplyError, Kind, Writer};
use listwatch_json::{Map, Value};
use listwatch_meta::Status;
use listwatch_meta::go::TypeErrorStyle;
use listwatch_meta::status::{
    FIELD_ERROR_BYTES_MAX, STATUS_TEXT_BYTES_MAX, StatusCause, StatusDetails, bounded_causes, cut, reason,
};
use listwatch_registry::Subresource;
use listwatch_validation::metadata_mut;

use super::decode::{self, FieldValidation, NormalizeError, check_name, set_namespace};
use super::decode_error::{DecodeErrorStyle, not_convertible};
use super::depth::{OBJECT_DEPTH_MAX, is_deeper};
use super::document::Document;
use super::expected::Expected;
use super::options::Options;
use super::ownership::{convertible_kind, decode_managed_fields, into_map, set_managed_fields};
use super::pipeline::{Absent, Base, ManagedFields, Write};
use super::request::{WriteRequest, WriteResponse};
use super::store::{self, MANAGED_FIELDS};

/// Converts an apply error into the `Status` for the client.
fn refused(error: &ApplyError) -> Status {
    let text = cut(error, STATUS_TEXT_BYTES_MAX);
    match error {
        ApplyError::BadRequest(_) => Status::bad_request(text),
        ApplyError::Other(_) => Status::unknown(text),
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.iter().map(|conflict| StatusCause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: cut(&conflict.path, FIELD_ERROR_BYTES_MAX),
            });
            let (causes, _) = bounded_causes(causes);
            let details = StatusDetails { causes, ..StatusDetails::default() };
            Status::failure(409, reason::CONFLICT, text).with_details(details)
        }
    }
}

/// A parsed apply configuration.
pub(super) struct Config {
    value: Value,
    /// Errors of strict decoding: duplicate fields in the body.
    strict_errors: Vec<String>,
    validation: FieldValidation,
}

impl Config {
    /// Parses the body of an apply request as YAML, which includes JSON.
    ///
    /// # Errors
    /// 400 when the body is not YAML, is not a map, or nests deeper than [`OBJECT_DEPTH_MAX`] levels.
    pub(super) fn parse(body: &[u8], validation: FieldValidation) -> Result<Self, Status> {
        let undecodable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
        let document =
            Document::from_yaml(body).map_err(|why| undecodable(format!("error converting YAML to JSON: {why}")))?;
        if is_deeper(&document.value, OBJECT_DEPTH_MAX, &mut 0) {
            let why = format!("error converting YAML to JSON: yaml: exceeded max depth of {OBJECT_DEPTH_MAX}");
            return Err(undecodable(why));
        }
        let value = match document.value {
            Value::Null => Value::Object(Map::new()),
            value @ Value::Object(_) => value,
            other => {
                let kind = listwatch_meta::go::json_kind(&other);
                return Err(undecodable(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
                )));
            }
        };
        let strict_errors =
            document.strict_errors.iter().map(|error| format!("error converting YAML to JSON: {error}")).collect();
        Ok(Config { value, strict_errors, validation })
    }

    /// Applies the configuration to a live object. `None` creates the object.
    ///
    /// # Errors
    /// 409 with one cause per conflict; 400 or 500 when the configuration cannot be applied.
    pub(super) fn apply(&self, kind: &Kind, live: Option<&Value>, by: Writer<'_>, force: bool) -> Result<Map, Status> {
        let applied = kind.apply(live, &self.value, by, force).map_err(|error| refused(&error))?;
        self.check_strict_errors()?;
        Ok(into_map(applied))
    }

    /// Same as [`Config::apply`], for a live object whose managed fields are passed as `entries`.
    fn apply_to(
        &self,
        kind: &Kind,
        live: Option<&Value>,
        entries: Option<&Value>,
        by: Writer<'_>,
        force: bool,
    ) -> Result<(Map, Managed), Status> {
        let managed_fields = || entries.map_or_else(|| Ok(Managed::new()), decode_managed_fields);
        let (applied, managed) =
            kind.apply_to(live, managed_fields, &self.value, by, force).map_err(|error| refused(&error))?;
        self.check_strict_errors()?;
        Ok((into_map(applied), managed))
    }

    fn check_strict_errors(&self) -> Result<(), Status> {
        if self.validation == FieldValidation::Strict && !self.strict_errors.is_empty() {
            return Err(Status::bad_request(format!("error strict decoding YAML: {}", self.strict_errors.join(""))));
        }
        Ok(())
    }

    /// Returns one warning per duplicate field. With `fieldValidation=Ignore`, returns no warnings.
    pub(super) fn warnings(&self) -> Vec<String> {
        if self.validation == FieldValidation::Ignore {
            Vec::new()
        } else {
            decode::strict_warnings(self.strict_errors.clone())
        }
    }

    fn uid(&self) -> Option<&str> {
        self.value.get("metadata")?.get("uid")?.as_str().filter(|uid| !uid.is_empty())
    }
}

/// Carries out a PATCH with an apply configuration, on an object or on a subresource of the same kind. Creates an
/// object that does not exist.
///
/// # Errors
/// The [`Status`] for the client, such as 409 for a conflict with another field manager.
pub(super) async fn apply(
    write: &Write<'_>,
    request: &WriteRequest<'_>,
    options: &Options,
) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let config = Config::parse(&request.body, options.field_validation)?;
    let kind = &*convertible_kind(resource, write.conversions);
    let described = kind.described(&config.value);
    let decode_errors = DecodeErrorStyle::Apply(&described);
    let write = &Write { dry_run: options.dry_run, managed_fields: ManagedFields::Tracked, decode_errors, ..*write };
    let reset = resource.strategy.writes().reset_fields(write.subresource, &config.value);
    let subresource = write.subresource.map_or("", Subresource::name);
    let by = Writer { manager: write.manager, subresource, now: write.clock.time(), reset: &reset };
    let key = resource.key(request.namespace, write.name)?;
    let absent = if write.subresource.is_none() { Absent::Create } else { Absent::NotFound };
    let mut warnings = Vec::new();
    let make = |base: Option<Base<'_>>| {
        let absent = base.is_none();
        let mut live = base.as_ref().map(Base::visible);
        let entries = live.as_mut().and_then(|live| metadata_mut(live).shift_remove(MANAGED_FIELDS));
        let live = live.map(Value::Object);
        let (object, mut managed) = config.apply_to(kind, live.as_ref(), entries.as_ref(), by, options.force)?;
        if absent && let Some(uid) = config.uid() {
            return Err(Status::conflict(
                resource.gr(),
                write.name,
                format_args!("uid mismatch: the provided object specified uid {uid}, and no existing object was found"),
            ));
        }
        let mut object = decode::ordered(object, Expected::of(resource))?;
        let expected = Expected { error_style: TypeErrorStyle::Converter, ..Expected::of(resource) };
        decode::normalize(&mut object, expected).map_err(|error| match (error, resource.custom) {
            (NormalizeError::TooLarge, _) => store::too_large(),
            (NormalizeError::Text(why), true) => decode::cannot_handle(&object, expected, &why),
            (NormalizeError::Text(why), false) => not_convertible(&described, &why),
        })?;
        let metadata = metadata_mut(&mut object);
        set_namespace(resource, request.namespace, metadata)?;
        check_name(metadata, write.name)?;
        warnings = config.warnings();
        set_managed_fields(&mut object, &mut managed);
        Ok(object)
    };
    let done = write.run(&key, None, absent, make).await?;
    done.response(write, warnings).await
}
