//! Decodes a request body into an object of the expected kind and checks the object against the path. The order of the
//! checks is: media type, syntax, kind, shape, strict errors, namespace and name.
//!
//! [`Document`] parses JSON and YAML into a tree. Protobuf is converted to JSON first.
//!
//! Source of the error messages: `pkg/endpoints/handlers/{create,update,rest}.go`, apimachinery `runtime` errors.

use listwatch_json::{Map, Value};
use listwatch_meta::{FieldError, Status};
use listwatch_validation::metadata_mut;
use listwatch_validation::object_meta::{self, Admission};
use listwatch_wire::media_type::{Encoding, Served, negotiate_body};
use listwatch_wire::protobuf;

use super::depth::{OBJECT_DEPTH_MAX, is_deeper};
use super::document::Document;
use super::expected::Expected;
use super::request::WriteRequest;
use super::store;
use super::{strict_order, typed};
use listwatch_meta::go::{self};
use listwatch_registry::{DefaultAndPruneError, Form, Registry, Resource};

/// Maximum bytes of an undecodable body that the error message quotes.
const QUOTED_BYTES_MAX: usize = 30;

/// The name of the Go type from which kube-apiserver reads the kind of a body.
pub(super) const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The treatment of duplicate and unknown fields (`fieldValidation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    /// Duplicate and unknown fields are ignored.
    Ignore,
    /// Each duplicate or unknown field adds a warning to the response. This is the default.
    Warn,
    /// Any duplicate or unknown field rejects the request with a 400.
    Strict,
}

/// Returns whether [`normalize`] may change an object of this kind.
pub(super) fn may_change(expected: Expected<'_>, object: &Map) -> bool {
    expected.is_custom() || expected.message().is_some_and(|id| typed::has_unknown(object, id))
}

/// An object decoded from a request body.
#[derive(Debug)]
pub(super) struct Decoded {
    /// The object, with `kind`, `apiVersion` and `metadata` as its first fields.
    pub(super) object: Map,
    pub(super) warnings: Vec<String>,
}

/// The reason why a body cannot be parsed.
pub(super) enum Unreadable {
    /// A 415: the server does not accept the media type.
    MediaType(Box<Status>),
    /// A 400: the syntax is invalid. Holds the decoder's message.
    Syntax(String),
}

/// Parses a body according to its media type.
///
/// # Errors
/// [`Unreadable`] when the media type is not accepted or the syntax is invalid.
pub(super) fn read(served: Served, content_type: Option<&str>, body: &[u8]) -> Result<Document, Unreadable> {
    let parsed =
        match negotiate_body(content_type, &served).map_err(|status| Unreadable::MediaType(Box::new(status)))? {
            Encoding::Json => Document::from_json(body).map_err(no_kind),
            Encoding::Yaml => Document::from_yaml(body),
            Encoding::Protobuf => match protobuf::decode(body) {
                Ok(decoded) => Document::from_json(&decoded.json),
                Err(error) => Err(error.to_string()),
            },
            // No kind is served in CBOR here, so the negotiation never returns it.
            Encoding::Cbor => Err("CBOR is not served".to_owned()),
        };
    // Stored objects must stay readable, and serde_json stops at 127 levels.
    let shallow = |document: Document| match is_deeper(&document.value, OBJECT_DEPTH_MAX, &mut 0) {
        true => Err("invalid character '{' exceeded max depth".to_owned()),
        false => Ok(document),
    };
    parsed.and_then(shallow).map_err(Unreadable::Syntax)
}

fn no_kind(why: String) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}

/// Decodes the body of a create or an update, sets the namespace of the request's path, and removes duplicate owners.
///
/// # Errors
/// The errors of [`decode`], and 400 when the namespaces in the body and in the path differ.
pub(super) fn decode_body(
    registry: &Registry,
    resource: &Resource,
    request: &WriteRequest<'_>,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let expected = Expected::of(resource);
    let mut decoded = decode(registry, expected, request.content_type, &request.body, validation)?;
    let metadata = metadata_mut(&mut decoded.object);
    set_namespace(resource, request.namespace, metadata)?;
    decoded.warnings.extend(object_meta::dedup_owners(metadata, Admission::Before));
    Ok(decoded)
}

/// Decodes a body into an object of the expected kind.
///
/// # Errors
/// 415 for an unsupported media type, 400 for a body that is not an object of the expected kind, 422 for a custom
/// resource of another kind.
pub(super) fn decode(
    registry: &Registry,
    expected: Expected<'_>,
    content_type: Option<&str>,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let unrecognized = |why: &str| {
        let summary = summary(body);
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why} ({summary})",
            expected.kind
        ))
    };
    let document = read(expected.served(), content_type, body).map_err(|unreadable| match unreadable {
        Unreadable::MediaType(status) => *status,
        Unreadable::Syntax(why) => unrecognized(&why),
    })?;
    let cannot_read = |value: &Value, target: &str| {
        let found = go::json_kind(value);
        unrecognized(&format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go {target}"
        ))
    };
    let object = match document.value {
        Value::Object(object) => object,
        Value::Null => Map::new(),
        other => {
            return Err(cannot_read(&other, &format!("value of type {TYPE_META}")));
        }
    };
    for name in ["apiVersion", "kind"] {
        match object.get(name) {
            None | Some(Value::String(_) | Value::Null) => {}
            Some(other) => return Err(cannot_read(other, &format!("struct field .{name} of type string"))),
        }
    }
    let api_version = object_meta::text(&object, "apiVersion");
    if api_version.matches('/').count() > 1 {
        return Err(unrecognized(&format!("unexpected GroupVersion string: {api_version}")));
    }
    if expected.is_custom() {
        if object_meta::text(&object, "kind").is_empty() {
            return Err(unrecognized(&format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(body))));
        }
        check_custom_kind(expected, &object)?;
    } else {
        check_kind(registry, expected, &object)?;
    }
    let mut object = ordered(object, expected)?;

    let mut findings = document.strict_errors;
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        findings.extend(object_meta::unknown_fields(metadata).map(|path| format!("unknown field {path:?}")));
    }
    findings.extend(normalize(&mut object, expected).map_err(|error| match error {
        NormalizeError::Text(why) => cannot_handle(&object, expected, &why),
        NormalizeError::TooLarge => store::too_large(),
    })?);
    // The decoder of custom resources reports duplicate fields before unknown fields.
    let findings = if expected.is_custom() { findings } else { strict_order::in_document_order(body, findings) };
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => strict_warnings(findings),
        FieldValidation::Strict if findings.is_empty() => Vec::new(),
        FieldValidation::Strict => {
            let why = format!("strict decoding error: {}", findings.join(", "));
            return Err(cannot_handle(&object, expected, &why));
        }
    };
    Ok(Decoded { object, warnings })
}

/// Sets the namespace from the path, or removes the namespace of cluster-scoped objects
/// (`EnsureObjectNamespaceMatchesRequestNamespace` of `pkg/registry/rest/meta.go`).
///
/// # Errors
/// 400 when the body names another namespace.
pub(super) fn set_namespace(resource: &Resource, namespace: Option<&str>, metadata: &mut Map) -> Result<(), Status> {
    let Some(namespace) = namespace.filter(|_| resource.namespaced) else {
        metadata.shift_remove("namespace");
        return Ok(());
    };
    let given = object_meta::text(metadata, "namespace");
    if given.is_empty() {
        metadata.insert("namespace", Value::from(namespace));
    } else if given != namespace {
        return Err(other_namespace());
    }
    Ok(())
}

/// Returns the 400 for an object of another namespace than that of the request.
pub(super) fn other_namespace() -> Status {
    Status::bad_request("the namespace of the provided object does not match the namespace sent on the request")
}

/// Checks that the name in the body is the name in the path.
///
/// # Errors
/// 400 when the name in the body is missing or different.
pub(super) fn check_name(metadata: &Map, expected: &str) -> Result<(), Status> {
    match object_meta::text(metadata, "name") {
        name if name == expected => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}

/// Checks `kind` and `apiVersion` if the object sets them.
pub(super) fn check_kind(registry: &Registry, expected: Expected<'_>, object: &Map) -> Result<(), Status> {
    match kind_problem(registry, expected, object) {
        None => Ok(()),
        Some(KindProblem::Version(why)) => Err(Status::bad_request(why)),
        Some(KindProblem::Kind(why)) => Err(cannot_handle(object, expected, &why)),
    }
}

/// A mismatch between the kind of an object and the expected kind.
pub(super) enum KindProblem {
    /// The kind matches, but the version does not. Holds the complete message.
    Version(String),
    /// The kind differs or is unknown. Holds the decoder's message.
    Kind(String),
}

/// Compares `kind` and `apiVersion` with the expected values. An absent field matches. `None` means that both match.
pub(super) fn kind_problem(registry: &Registry, expected: Expected<'_>, object: &Map) -> Option<KindProblem> {
    let (kind, api_version) = (object_meta::text(object, "kind"), object_meta::text(object, "apiVersion"));
    let kind = if kind.is_empty() { expected.kind } else { kind };
    if kind == expected.kind && (api_version.is_empty() || expected.is_api_version(api_version)) {
        return None;
    }
    let expected_version = expected.api_version();
    let api_version = if api_version.is_empty() { &expected_version } else { api_version };
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = registry.find_kind(group, version, kind).is_some();
    // A version that this server does not serve may still exist: older servers served it.
    let other_version = group == expected.group && !group.is_empty();
    Some(if kind == expected.kind && (known || other_version) {
        KindProblem::Version(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected_version})"
        ))
    } else if known {
        let group = expected.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
        KindProblem::Kind(format!("converting ({version}.{kind}) to ({group}.{}): unknown conversion", expected.kind))
    } else {
        KindProblem::Kind(format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ))
    })
}

/// Moves `kind`, `apiVersion` and `metadata` to the front and checks the shape of `metadata`.
///
/// # Errors
/// 400 when `metadata` cannot be an `ObjectMeta`.
pub(super) fn ordered(mut object: Map, expected: Expected<'_>) -> Result<Map, Status> {
    // Most clients write these fields first.
    let is_ordered = object.keys().take(3).eq(["kind", "apiVersion", "metadata"]);
    let mut metadata = match object.get_mut("metadata") {
        Some(metadata) if is_ordered => metadata.take(),
        Some(_) => object.shift_remove("metadata").unwrap_or(Value::Null),
        None => Value::Null,
    };
    if expected.is_custom() {
        // The decoder of custom resources writes the metadata as JSON, and reads the text into an `ObjectMeta`.
        go::round_trip_numbers(&mut metadata);
    }
    if let Err(why) = object_meta::check_shape(expected.kind, expected.error_style, &metadata) {
        return Err(cannot_handle(&object, expected, &why));
    }
    let metadata = match metadata {
        Value::Object(metadata) => metadata,
        _ => Map::new(),
    };
    let kind = Value::from(expected.kind);
    let api_version = Value::from(expected.api_version());
    let metadata = Value::Object(metadata);
    if is_ordered {
        object.values_mut().zip([kind, api_version, metadata]).for_each(|(old, new)| *old = new);
        return Ok(object);
    }
    let mut ordered = Map::with_capacity(object.len() + 3);
    ordered.insert("kind", kind);
    ordered.insert("apiVersion", api_version);
    ordered.insert("metadata", metadata);
    ordered.extend(object.into_iter().filter(|(name, _)| name != "kind" && name != "apiVersion"));
    Ok(ordered)
}

/// The reason why an object does not fit its kind.
#[derive(Debug)]
pub(super) enum NormalizeError {
    /// A value has the wrong type, or an embedded object has invalid metadata. Holds the decoder's message.
    Text(String),
    /// The object with its defaults exceeds the size limit of the store.
    TooLarge,
}

/// Normalizes an object for its kind: adds the schema's defaults to a custom resource, then removes unknown fields.
/// Returns one strict error per removed field.
///
/// # Errors
/// [`NormalizeError`] when a value has the wrong type or the object becomes too large.
pub(super) fn normalize(object: &mut Map, expected: Expected<'_>) -> Result<Vec<String>, NormalizeError> {
    let unknown = if let Some(schema) = expected.form.and_then(Form::schema) {
        schema.default_and_prune(object).map_err(|error| match error {
            DefaultAndPruneError::Field(error) => NormalizeError::Text(error.to_string()),
            DefaultAndPruneError::TooLarge => NormalizeError::TooLarge,
        })?
    } else if let Some(id) = expected.message() {
        typed::normalize(expected, id, object).map_err(NormalizeError::Text)?
    } else {
        Vec::new()
    };
    Ok(unknown.into_iter().map(|path| format!("unknown field {path:?}")).collect())
}

/// Checks the kind of a custom resource. Both `kind` and `apiVersion` are required, because the decoder of custom
/// resources cannot add them.
///
/// # Errors
/// 400 for another version, 422 for another kind.
fn check_custom_kind(expected: Expected<'_>, object: &Map) -> Result<(), Status> {
    let (kind, api_version) = (object_meta::text(object, "kind"), object_meta::text(object, "apiVersion"));
    let wanted = expected.api_version();
    if api_version != wanted {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
        )));
    }
    if kind != expected.kind {
        let error = FieldError::invalid("kind", format_args!("{kind:?}"), format_args!("must be {}", expected.kind));
        let name = object.get("metadata").and_then(|metadata| metadata.get("name")?.as_str()).unwrap_or_default();
        return Err(Status::invalid(expected.group, kind, name, &[error]));
    }
    Ok(())
}

/// Returns the 400 for a body that parses but is not an object of the expected kind.
pub(super) fn cannot_handle(object: &Map, expected: Expected<'_>, why: &str) -> Status {
    let kind = match object_meta::text(object, "kind") {
        "" => expected.kind,
        kind => kind,
    };
    let version = match object_meta::text(object, "apiVersion") {
        "" => expected.version,
        api_version => api_version.rsplit('/').next().unwrap_or_default(),
    };
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {why}", expected.kind))
}

/// Returns the first [`QUOTED_BYTES_MAX`] bytes of a body for an error message: as text if the body starts with `{`,
/// otherwise in hexadecimal.
fn summary(body: &[u8]) -> String {
    let cut = &body[..body.len().min(QUOTED_BYTES_MAX)];
    let more = if body.len() > QUOTED_BYTES_MAX { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(cut)),
        Some(_) => format!("{}{more}", cut.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// Converts strict decoding errors into the warnings of kube-apiserver (`parseYAMLWarnings`). An error of the YAML
/// parser becomes one warning per line, without its heading.
pub(super) fn strict_warnings(errors: Vec<String>) -> Vec<String> {
    const HEADS: [&str; 2] = ["yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n"];
    let mut warnings = Vec::with_capacity(errors.len());
    for error in errors {
        match HEADS.iter().find_map(|head| error.strip_prefix(head)) {
            Some(lines) => warnings.extend(lines.split('\n').map(|line| line.trim().to_owned())),
            None => warnings.push(error),
        }
    }
    warnings
}

#[cfg(test)]
mod tests {

    use super::*;

    const CONFIG_MAP: Expected<'_> = Expected::builtin("", "v1", "ConfigMap");

    fn run(
        content_type: Option<&str>,
        body: &str,
        validation: FieldValidation,
    ) -> Result<(String, Vec<String>), (u16, String)> {
        decode(&Registry::builtin(), CONFIG_MAP, content_type, body.as_bytes(), validation)
            .map(|decoded| (Value::Object(decoded.object).to_string(), decoded.warnings))
            .map_err(|status| (status.code, status.message))
    }

    fn check(body: &str, expected: &str) {
        let (object, warnings) = run(None, body, FieldValidation::Warn).unwrap();
        assert_eq!(object, expected);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn decoded_object_starts_with_kind_and_version_even_if_body_omits_them() {
        let expected = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"x":"y"}}"#;
        check(r#"{"data":{"x":"y"},"metadata":{"name":"a"}}"#, expected);
        check(r#"{"data":{"x":"y"},"metadata":{"name":"a"},"apiVersion":"v1","kind":"ConfigMap"}"#, expected);
        check(r#"{}"#, r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}"#);
        let yaml = "metadata:\n  name: a\ndata: {x: \"y\"}\n";
        for content_type in ["application/yaml", "application/yaml; charset=utf-8"] {
            assert_eq!(run(Some(content_type), yaml, FieldValidation::Warn).unwrap().0, expected);
        }
    }

    #[test]
    fn protobuf_body_is_decoded_for_builtin_kinds_and_rejected_for_custom_resources() {
        // The body that `kubectl create configmap` sends: a ConfigMap named `a` with one entry.
        let body = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x0d\n\x03\n\x01a\x12\x06\n\x01x\x12\x01y\x1a\0\"\0";
        let media_type = Some("application/vnd.kubernetes.protobuf");
        let decode = |body: &[u8]| {
            super::decode(&Registry::builtin(), CONFIG_MAP, media_type, body, FieldValidation::Strict)
                .map(|decoded| Value::Object(decoded.object).to_string())
                .map_err(|status| (status.code, status.message))
        };
        let expected = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"x":"y"}}"#;
        assert_eq!(decode(body), Ok(expected.to_owned()));
        assert_eq!(
            decode(b"{}"),
            Err((400, "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({})".to_owned()))
        );
        let custom = read(Served::CUSTOM_JSON, media_type, body);
        assert!(matches!(custom, Err(Unreadable::MediaType(status)) if status.code == 415), "no protobuf");
    }

    fn check_error(content_type: Option<&str>, body: &str, code: u16, expected: &str) {
        let (found_code, found) = run(content_type, body, FieldValidation::Warn).unwrap_err();
        assert_eq!((found_code, found.as_str()), (code, expected), "{body}");
    }

    #[test]
    fn undecodable_body_is_rejected_with_upstream_message() {
        let unrecognized =
            |why: &str| format!("the object provided is unrecognized (must be of type ConfigMap): {why}");
        let syntax = |why: &str| unrecognized(&format!("couldn't get version/kind; json parse error: {why}"));
        check_error(
            None,
            "{bad",
            400,
            &syntax("invalid character 'b' looking for beginning of object key string ({bad)"),
        );
        check_error(None, "", 400, &syntax("unexpected end of JSON input (<empty>)"));
        check_error(
            None,
            "[]",
            400,
            &syntax(
                r#"json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (5b5d)"#,
            ),
        );
        check_error(
            None,
            r#"{"kind":5,"apiVersion":"v1","metadata":{"name":"a"}}"#,
            400,
            &syntax(
                "json: cannot unmarshal number into Go struct field .kind of type string ({\"kind\":5,\"apiVersion\":\"v1\",\"m ...)",
            ),
        );
        check_error(
            None,
            r#"{"kind":"ConfigMap","apiVersion":"a/b/c","metadata":{"name":"a"}}"#,
            400,
            &unrecognized("unexpected GroupVersion string: a/b/c ({\"kind\":\"ConfigMap\",\"apiVersio ...)"),
        );
        check_error(
            Some("text/plain"),
            "x",
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        );
        assert!(
            run(Some("application/yaml"), "a: [b", FieldValidation::Warn)
                .unwrap_err()
                .1
                .starts_with(&unrecognized("yaml: "))
        );
    }

    #[test]
    fn body_of_another_kind_or_version_returns_400() {
        let object = |kind: &str, api_version: &str| format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}"}}"#);
        check_error(
            None,
            &object("Pod", "v1"),
            400,
            "Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion",
        );
        check_error(
            None,
            &object("Deployment", "apps/v1"),
            400,
            "Deployment in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Deployment) to (core.ConfigMap): unknown conversion",
        );
        check_error(
            None,
            &object("Foo", "v1"),
            400,
            "Foo in version \"v1\" cannot be handled as a ConfigMap: no kind \"Foo\" is registered for version \"v1\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        );
        check_error(
            None,
            &object("ConfigMap", "v2"),
            400,
            "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        );
        check_error(
            None,
            r#"{"metadata":[]}"#,
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
        );
    }

    #[test]
    fn field_validation_ignores_warns_or_rejects_duplicate_and_unknown_fields() {
        let body = r#"{"metadata":{"name":"a","name":"b","odd":1},"data":{"a":"1","a":"2"}}"#;
        let findings =
            [r#"duplicate field "metadata.name""#, r#"unknown field "metadata.odd""#, r#"duplicate field "data.a""#];
        assert_eq!(run(None, body, FieldValidation::Warn).unwrap().1, findings);
        assert_eq!(run(None, body, FieldValidation::Ignore).unwrap().1, [""; 0]);
        assert_eq!(
            run(None, body, FieldValidation::Strict).unwrap_err(),
            (
                400,
                format!(
                    "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: {}",
                    findings.join(", ")
                )
            )
        );
    }
}
