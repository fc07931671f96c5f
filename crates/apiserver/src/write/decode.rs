//! From a request body to an object of the expected kind: media type, syntax, kind, shape, strict
//! findings.
//!
//! JSON and YAML are read into a tree by [`Document`]; protobuf is first made JSON.
//!
//! Texts: `pkg/endpoints/handlers/{create,update,rest}.go`, apimachinery `runtime` errors.

use listwatch_k8s_types::{Id, message_of};
use listwatch_meta::{FieldError, Status};
use listwatch_validation::object_meta;
use listwatch_wire::media_type::{Encoding, Served, negotiate_body};
use listwatch_wire::protobuf;
use serde_json::{Map, Value};

use super::document::Document;
use super::options::FieldValidation;
use super::store::{self, OBJECT_DEPTH_MAX, is_deeper};
use super::{strict_order, typed};
use crate::crd::{FitError, Form};
use crate::registry::{Registry, Resource};
use listwatch_meta::go::{self, Words};

/// So many bytes of a body that cannot be understood are quoted in the answer.
const QUOTED_BYTES_MAX: usize = 30;

/// How Go names the type that it reads a body's kind with.
pub(super) const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The kind that a body must be of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    /// A kind of a custom resource.
    pub(super) custom: bool,
    /// What a custom resource's version knows about its objects.
    pub(super) form: Option<&'a Form>,
    /// In whose words a value of a wrong type is told.
    pub(super) words: Words,
}

impl<'a> Expected<'a> {
    /// The kind of a resource's objects.
    pub(super) fn of(resource: &'a Resource) -> Self {
        Expected {
            group: &resource.group,
            version: &resource.version,
            kind: &resource.kind,
            custom: resource.custom,
            form: resource.form.as_ref(),
            words: Words::Decoder,
        }
    }

    /// The type of a built-in kind.
    fn message(&self) -> Option<Id> {
        if self.custom { None } else { message_of(&self.api_version(), self.kind) }
    }

    /// Whether [`fit`] may change an object of this kind.
    pub(super) fn may_change(&self, object: &Map<String, Value>) -> bool {
        self.form.is_some() || self.message().is_some_and(|id| typed::has_unknown(object, id))
    }

    /// `v1`, `apps/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// An object as a client sent it.
#[derive(Debug)]
pub(super) struct Decoded {
    /// With `kind`, `apiVersion` and an object `metadata` in front.
    pub(super) object: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

/// Why a body is no document.
pub(super) enum Unreadable {
    /// The media type is not taken: 415.
    MediaType(Box<Status>),
    /// The syntax is broken; what a decoder says.
    Syntax(String),
}

/// Reads a body by its media type. Custom resources have no protobuf.
///
/// # Errors
/// [`Unreadable`].
pub(super) fn read(custom: bool, content_type: Option<&str>, body: &[u8]) -> Result<Document, Unreadable> {
    let served = if custom { Served::CUSTOM_JSON } else { Served { protobuf: true, ..Served::BUILTIN_JSON } };
    let parsed =
        match negotiate_body(content_type, &served).map_err(|status| Unreadable::MediaType(Box::new(status)))? {
            Encoding::Json => Document::from_json(body).map_err(no_kind),
            Encoding::Yaml => Document::from_yaml(body),
            Encoding::Protobuf => match protobuf::decode(body) {
                Ok(decoded) => Document::from_json(&decoded.json),
                Err(error) => Err(error.to_string()),
            },
            // Not among what is served, so it is never negotiated.
            Encoding::Cbor => Err("CBOR is not served".to_owned()),
        };
    // What is stored must be readable again, and JSON's reader stops a little deeper.
    let shallow = |document: Document| match is_deeper(&document.value, OBJECT_DEPTH_MAX, &mut 0) {
        true => Err("invalid character '{' exceeded max depth".to_owned()),
        false => Ok(document),
    };
    parsed.and_then(shallow).map_err(Unreadable::Syntax)
}

fn no_kind(why: String) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}

/// Decodes the body of a create or an update.
///
/// # Errors
/// 415 for an unknown media type, 400 for everything that is no object of the expected kind.
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
    let document = read(expected.custom, content_type, body).map_err(|unreadable| match unreadable {
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
    if expected.form.is_some() {
        check_custom_kind(expected, &object, body)?;
    } else {
        check_kind(registry, expected, &object)?;
    }
    let mut object = ordered(object, expected)?;

    let mut findings = document.strict_errors;
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        findings.extend(object_meta::unknown_fields(metadata).map(|path| format!("unknown field {path:?}")));
    }
    findings.extend(fit(&mut object, expected).map_err(|unfit| match unfit {
        Unfit::Text(why) => cannot_handle(&object, expected, &why),
        Unfit::TooLarge => store::too_large(),
    })?);
    // The decoder of custom objects finds duplicates before it knows the fields.
    let findings = if expected.custom { findings } else { strict_order::in_document_order(body, findings) };
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

/// Checks `kind` and `apiVersion`, where they are given.
pub(super) fn check_kind(
    registry: &Registry,
    expected: Expected<'_>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    match kind_problem(registry, expected, object) {
        None => Ok(()),
        Some(KindProblem::Version(why)) => Err(Status::bad_request(why)),
        Some(KindProblem::Kind(why)) => Err(cannot_handle(object, expected, &why)),
    }
}

/// What is wrong with the kind of an object.
pub(super) enum KindProblem {
    /// The right kind in another version; the whole message.
    Version(String),
    /// Another kind, or none that is known; what a decoder says.
    Kind(String),
}

/// What is wrong with `kind` and `apiVersion`; an absent one is what was expected.
pub(super) fn kind_problem(
    registry: &Registry,
    expected: Expected<'_>,
    object: &Map<String, Value>,
) -> Option<KindProblem> {
    let given = |name: &str, expected: &str| match object_meta::text(object, name) {
        "" => expected.to_owned(),
        text => text.to_owned(),
    };
    let kind = given("kind", expected.kind);
    let expected_version = expected.api_version();
    let api_version = given("apiVersion", &expected_version);
    if kind == expected.kind && api_version == expected_version {
        return None;
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let known = registry.find_kind(group, version, &kind).is_some();
    // The same kind in a version of its group that is not served, but may well be one: older
    // servers had it.
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

/// Puts `kind`, `apiVersion` and `metadata` in front and checks the shape of the latter.
///
/// # Errors
/// 400 when `metadata` cannot be an `ObjectMeta`.
pub(super) fn ordered(mut object: Map<String, Value>, expected: Expected<'_>) -> Result<Map<String, Value>, Status> {
    let metadata = object.shift_remove("metadata").unwrap_or(Value::Null);
    if let Err(why) = object_meta::check_shape(expected.kind, expected.words, &metadata) {
        return Err(cannot_handle(&object, expected, &why));
    }
    let metadata = match metadata {
        Value::Object(metadata) => metadata,
        _ => Map::new(),
    };
    let mut ordered = Map::with_capacity(object.len() + 3);
    ordered.insert("kind".to_owned(), Value::String(expected.kind.to_owned()));
    ordered.insert("apiVersion".to_owned(), Value::String(expected.api_version()));
    ordered.insert("metadata".to_owned(), Value::Object(metadata));
    ordered.extend(object.into_iter().filter(|(name, _)| name != "kind" && name != "apiVersion"));
    Ok(ordered)
}

/// Why an object does not fit its kind.
#[derive(Debug)]
pub(super) enum Unfit {
    /// What a decoder says about a value of a wrong type, or what is wrong with the metadata of an embedded
    /// object.
    Text(String),
    /// Its defaults make it larger than any store takes it.
    TooLarge,
}

/// Makes an object fit its kind: a custom resource gets its schema's defaults; then what is not
/// known goes. Returns what is to be said about that.
///
/// # Errors
/// [`Unfit`].
pub(super) fn fit(object: &mut Map<String, Value>, expected: Expected<'_>) -> Result<Vec<String>, Unfit> {
    let unknown = if let Some(schema) = expected.form.and_then(Form::schema) {
        schema.fit(object).map_err(|error| match error {
            FitError::Field(error) => Unfit::Text(error.to_string()),
            FitError::TooLarge => Unfit::TooLarge,
        })?
    } else if let Some(id) = expected.message() {
        typed::fit(expected, id, object).map_err(Unfit::Text)?
    } else {
        Vec::new()
    };
    Ok(unknown.into_iter().map(|path| format!("unknown field {path:?}")).collect())
}

/// Checks the kind of a custom object, whose decoder knows no kinds: it must say one, and be of the
/// version that is asked for.
///
/// # Errors
/// 400 for no kind or another version, 422 for another kind.
fn check_custom_kind(expected: Expected<'_>, object: &Map<String, Value>, body: &[u8]) -> Result<(), Status> {
    let (kind, api_version) = (object_meta::text(object, "kind"), object_meta::text(object, "apiVersion"));
    if kind.is_empty() {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}' ({})",
            expected.kind,
            String::from_utf8_lossy(body),
            summary(body)
        )));
    }
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

/// 400: the body is understood but is no object of this kind.
pub(super) fn cannot_handle(object: &Map<String, Value>, expected: Expected<'_>, why: &str) -> Status {
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

/// The beginning of a body for an error text: as text when it begins like JSON, else in hex.
fn summary(body: &[u8]) -> String {
    let cut = &body[..body.len().min(QUOTED_BYTES_MAX)];
    let more = if body.len() > QUOTED_BYTES_MAX { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(cut)),
        Some(_) => format!("{}{more}", cut.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// The warnings that kube-apiserver makes of strict decoding errors: one for each line of what the YAML library
/// says, without its heads (`parseYAMLWarnings`).
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

    const CONFIG_MAP: Expected<'_> =
        Expected { group: "", version: "v1", kind: "ConfigMap", custom: false, form: None, words: Words::Decoder };

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
    fn kind_and_version_come_first_and_may_be_left_out() {
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
    fn protobuf_is_understood() {
        // What `kubectl create configmap` sends: a ConfigMap with the name `a` and one entry.
        let body = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x0d\n\x03\n\x01a\x12\x06\n\x01x\x12\x01y\x1a\0\"\0";
        let decode = |custom: bool, body: &[u8]| {
            let expected = Expected { custom, ..CONFIG_MAP };
            let media_type = Some("application/vnd.kubernetes.protobuf");
            super::decode(&Registry::builtin(), expected, media_type, body, FieldValidation::Strict)
                .map(|decoded| Value::Object(decoded.object).to_string())
                .map_err(|status| (status.code, status.message))
        };
        let expected = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"x":"y"}}"#;
        assert_eq!(decode(false, body), Ok(expected.to_owned()));
        assert_eq!(
            decode(false, b"{}"),
            Err((400, "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({})".to_owned()))
        );
        assert_eq!(decode(true, body).unwrap_err().0, 415, "custom resources have no protobuf");
    }

    fn check_error(content_type: Option<&str>, body: &str, code: u16, expected: &str) {
        let (found_code, found) = run(content_type, body, FieldValidation::Warn).unwrap_err();
        assert_eq!((found_code, found.as_str()), (code, expected), "{body}");
    }

    #[test]
    fn what_cannot_be_decoded_is_explained() {
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
    fn another_kind_is_refused() {
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
    fn doubtful_fields_warn_or_refuse() {
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
