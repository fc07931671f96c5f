//! Conversion of custom resources by webhook, without I/O: the ConversionReview of a batch of objects, and the checks
//! of the response.
//!
//! ```text
//!  objects ─▶ ConversionBatch::new ─▶ request ─▶ (the caller sends) ─▶ parse_response ─▶ ConversionBatch::accept ─▶ objects
//! ```
//!
//! A webhook must not change the identity of an object. In the metadata, the webhook may change labels and annotations;
//! the server restores all other fields.
//!
//! Source of rules and texts: `apiextensions-apiserver/pkg/apiserver/conversion/{converter,webhook_converter}.go`.

use listwatch_json::{Map, Value};
use listwatch_meta::status::{STATUS_TEXT_BYTES_MAX, cut};
use listwatch_meta::{FieldError, go};
use listwatch_schema::Path;
use listwatch_validation::{Errors, object_meta};
use listwatch_webhooks::ClientConfig;
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// The API group of ConversionReviews.
const GROUP: &str = "apiextensions.k8s.io";

/// A version of ConversionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversionReviewVersion {
    /// `v1`.
    V1,
    /// `v1beta1`, whose responses are checked less strictly.
    V1Beta1,
}

impl ConversionReviewVersion {
    fn of(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(ConversionReviewVersion::V1),
            "v1beta1" => Some(ConversionReviewVersion::V1Beta1),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ConversionReviewVersion::V1 => "v1",
            ConversionReviewVersion::V1Beta1 => "v1beta1",
        }
    }
}

/// The webhook of a definition with `spec.conversion.strategy: Webhook`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionWebhook {
    /// The address of the webhook.
    pub client_config: ClientConfig,
    /// The first version of `conversionReviewVersions` that this crate knows; `None` if there is none.
    pub review_version: Option<ConversionReviewVersion>,
}

impl ConversionWebhook {
    pub(crate) fn new(client_config: &Map, review_versions: &[String]) -> Self {
        ConversionWebhook {
            client_config: ClientConfig::parse(client_config),
            review_version: review_versions.iter().find_map(|version| ConversionReviewVersion::of(version)),
        }
    }
}

/// The cause of a failed conversion, used as a metric label (`ConversionWebhookErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConversionFailureType {
    /// The call failed.
    Call,
    /// The response is not a ConversionReview, or reports a failure.
    MalformedResponse,
    /// The response and the request have different numbers of objects.
    PartialResponse,
    /// A converted object is invalid.
    InvalidObject,
}

impl ConversionFailureType {
    /// Returns the label value.
    pub fn label(self) -> &'static str {
        match self {
            ConversionFailureType::Call => "conversion_webhook_call_failure",
            ConversionFailureType::MalformedResponse => "conversion_webhook_malformed_response_failure",
            ConversionFailureType::PartialResponse => "conversion_webhook_partial_response_failure",
            ConversionFailureType::InvalidObject => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// A failed conversion. The client receives a 500 with this message and without a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError {
    text: String,
    failure: ConversionFailureType,
}

impl ConversionError {
    fn new(failure: ConversionFailureType, text: impl std::fmt::Display) -> Self {
        ConversionError { text: cut(text, STATUS_TEXT_BYTES_MAX), failure }
    }

    /// Returns the cause, for metrics.
    pub fn failure_type(&self) -> ConversionFailureType {
        self.failure
    }
}

impl std::fmt::Display for ConversionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConversionError {}

/// The error for an object that is to be converted to a version that the definition does not have.
pub fn to_invalid_version(api_version: &str) -> ConversionError {
    let text = format_args!("request to convert CR to an invalid group/version: {api_version}");
    ConversionError::new(ConversionFailureType::InvalidObject, text)
}

/// The error for an object of a version that the definition does not have.
pub fn from_invalid_version(api_version: &str) -> ConversionError {
    let text = format_args!("request to convert CR from an invalid group/version: {api_version}");
    ConversionError::new(ConversionFailureType::InvalidObject, text)
}

/// The fields of a sent object that the checks of the response need.
#[derive(Debug)]
struct Original {
    kind: String,
    metadata: Option<Value>,
}

/// The objects of one ConversionReview.
#[derive(Debug)]
pub struct ConversionBatch {
    desired_api_version: String,
    originals: Vec<Original>,
    /// The group, version and kind of the first object, for error messages.
    gvk: String,
}

impl ConversionBatch {
    /// Records the identity and the metadata of objects that are to be converted to `desired_api_version`.
    pub fn new<'o>(desired_api_version: &str, objects: impl IntoIterator<Item = &'o Map>) -> ConversionBatch {
        let mut gvk = None;
        let originals = objects.into_iter().map(|object| {
            let kind = object_meta::text(object, "kind").to_owned();
            gvk.get_or_insert_with(|| gvk_text(object_meta::text(object, "apiVersion"), &kind));
            Original { kind, metadata: object.get("metadata").cloned() }
        });
        let originals = originals.collect();
        let desired_api_version = desired_api_version.to_owned();
        ConversionBatch { desired_api_version, originals, gvk: gvk.unwrap_or_default() }
    }

    /// Encodes the ConversionReview. `uid` is a fresh UUID, which the response repeats, and `objects` are the objects
    /// of the batch as JSON.
    pub fn request<'o>(
        &self,
        version: ConversionReviewVersion,
        uid: &str,
        objects: impl IntoIterator<Item = &'o [u8]>,
    ) -> Vec<u8> {
        let desired = Value::from(&*self.desired_api_version);
        let mut body = format!(
            r#"{{"kind":"ConversionReview","apiVersion":"{GROUP}/{}","request":{{"uid":{},"desiredAPIVersion":{desired},"objects":["#,
            version.name(),
            Value::from(uid),
        )
        .into_bytes();
        for (position, object) in objects.into_iter().enumerate() {
            if position > 0 {
                body.push(b',');
            }
            body.extend_from_slice(object);
        }
        body.extend_from_slice(b"]}}\n");
        body
    }

    /// Parses the body of a successful HTTP response with the status code `code`. Returns the converted objects.
    /// [`ConversionBatch::accept`] checks them.
    ///
    /// # Errors
    /// The body is not a ConversionReview, belongs to another request, or reports a failure.
    pub fn parse_response(
        &self,
        version: ConversionReviewVersion,
        uid: &str,
        code: u16,
        body: &[u8],
    ) -> Result<Vec<Value>, ConversionError> {
        parse_response(version, uid, code, body).map_err(|(failure, why)| self.failed(failure, why))
    }

    /// Returns the error for a failed call. `why` is the error message of the HTTP client or of the webhook.
    pub fn call_failed(&self, why: impl std::fmt::Display) -> ConversionError {
        self.failed(ConversionFailureType::Call, why)
    }

    /// The error for a webhook that accepts no ConversionReview of this server.
    pub fn no_review_version(&self) -> ConversionError {
        ConversionError::new(ConversionFailureType::Call, "no supported conversion review versions")
    }

    fn failed(&self, failure: ConversionFailureType, why: impl std::fmt::Display) -> ConversionError {
        ConversionError::new(failure, format_args!("conversion webhook for {} failed: {why}", self.gvk))
    }

    /// Checks the converted objects and restores the metadata of the sent objects, except labels and annotations.
    /// Returns the objects in the order of the request.
    ///
    /// # Errors
    /// The number of objects differs; an object has a different version, kind, name, namespace or uid; or labels or
    /// annotations are invalid.
    pub fn accept(self, converted: Vec<Value>) -> Result<Vec<Map>, ConversionError> {
        let ConversionBatch { desired_api_version, originals, gvk } = self;
        if converted.len() != originals.len() {
            let text = format_args!(
                "conversion webhook for {gvk} returned {} objects, expected {}",
                converted.len(),
                originals.len()
            );
            return Err(ConversionError::new(ConversionFailureType::PartialResponse, text));
        }
        let is_list = originals.len() > 1;
        let accept = |(position, (original, converted)): (usize, (Original, Value))| {
            accept_object(original, converted, &desired_api_version).map_err(|invalid| {
                let text = if is_list { invalid.text_in_list(&gvk, position) } else { invalid.text(&gvk) };
                ConversionError::new(ConversionFailureType::InvalidObject, text)
            })
        };
        originals.into_iter().zip(converted).enumerate().map(accept).collect()
    }
}

/// Formats the group, version and kind as Go does (`schema.GroupVersionKind.String`).
fn gvk_text(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!("{group}/{version}, Kind={kind}")
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    uid: Option<String>,
    converted_objects: Option<Vec<Value>>,
    result: Option<ReviewResult>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReviewResult {
    status: Option<String>,
    message: Option<String>,
}

fn parse_response(
    version: ConversionReviewVersion,
    uid: &str,
    code: u16,
    body: &[u8],
) -> Result<Vec<Value>, (ConversionFailureType, String)> {
    let malformed = |why: String| (ConversionFailureType::MalformedResponse, why);
    if body.is_empty() {
        let why = format!("0-length response with status code: {code} and content type: application/json");
        return Err((ConversionFailureType::Call, why));
    }
    let unreadable = |why: &dyn std::fmt::Display| {
        (ConversionFailureType::Call, format!("couldn't get version/kind; json parse error: {why}"))
    };
    // An array would pass as a struct by its positions, so objects are required first.
    let mut review: Map = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    let response = review.shift_remove("response");
    if version == ConversionReviewVersion::V1 {
        let expected = gvk_text(&format!("{GROUP}/v1"), "ConversionReview");
        let text = |name: &str| object_meta::text(&review, name);
        let found = gvk_text(text("apiVersion"), text("kind"));
        if found != expected {
            return Err(malformed(format!("expected webhook response of {expected}, got {found}")));
        }
    }
    let response = match response {
        None | Some(Value::Null) => return Err(malformed("no response provided".to_owned())),
        Some(response @ Value::Object(_)) => {
            listwatch_json::from_value::<Response>(response).map_err(|error| unreadable(&error))?
        }
        Some(other) => {
            let found = go::json_kind(&other);
            return Err(unreadable(&format_args!("json: cannot unmarshal {found} into response")));
        }
    };
    let found = response.uid.as_deref().unwrap_or_default();
    if version == ConversionReviewVersion::V1 && found != uid {
        return Err(malformed(format!("expected response.uid={}, got {}", go::quote(uid), go::quote(found))));
    }
    let ReviewResult { status, message } = response.result.unwrap_or_default();
    let status = status.unwrap_or_default();
    if status != "Success" {
        return Err(malformed(match message {
            Some(message) if !message.is_empty() => message,
            _ => format!("response.result.status was '{status}', not 'Success'"),
        }));
    }
    Ok(response.converted_objects.unwrap_or_default())
}

/// The reason why a converted object is invalid. Upstream has different messages for a single object and for a list.
enum InvalidObject {
    Unreadable(String),
    VersionOrKind(String),
    Identity(String),
    Metadata(String),
}

impl InvalidObject {
    fn text(&self, gvk: &str) -> String {
        match self {
            InvalidObject::Unreadable(why) => why.clone(),
            InvalidObject::VersionOrKind(why) => {
                format!("conversion webhook for {gvk} returned invalid object at index 0: {why}")
            }
            InvalidObject::Identity(why) => format!("conversion webhook for {gvk} returned invalid object: {why}"),
            InvalidObject::Metadata(why) => format!("conversion webhook for {gvk} returned invalid metadata: {why}"),
        }
    }

    fn text_in_list(&self, gvk: &str, position: usize) -> String {
        // Upstream counts the object before all checks but the first one.
        let next = position + 1;
        let of = |position: usize, why: &str| {
            format!("conversion webhook for {gvk} returned invalid converted object at index {position}: {why}")
        };
        match self {
            InvalidObject::Unreadable(why) => of(position, why),
            InvalidObject::VersionOrKind(why) | InvalidObject::Identity(why) => of(next, why),
            InvalidObject::Metadata(why) => {
                format!("conversion webhook for {gvk} returned invalid metadata in object at index {next}: {why}")
            }
        }
    }
}

fn accept_object(original: Original, converted: Value, desired_api_version: &str) -> Result<Map, InvalidObject> {
    let mut converted = match converted {
        Value::Object(converted) => converted,
        Value::Null => return Err(InvalidObject::Unreadable("unexpected end of JSON input".to_owned())),
        other => {
            let found = go::json_kind(&other);
            let text =
                format!("json: cannot unmarshal {found} into Go value of type struct {{ Items json.RawMessage }}");
            return Err(InvalidObject::Unreadable(text));
        }
    };
    let kind = object_meta::text(&converted, "kind");
    if kind.is_empty() {
        let shown = cut(Value::Object(converted), STATUS_TEXT_BYTES_MAX);
        return Err(InvalidObject::Unreadable(format!("Object 'Kind' is missing in '{shown}'")));
    }
    let found = object_meta::text(&converted, "apiVersion");
    if found != desired_api_version {
        let text = format!("invalid groupVersion (expected {desired_api_version}, received {found})");
        return Err(InvalidObject::VersionOrKind(text));
    }
    if kind != original.kind {
        let text = format!("invalid kind (expected {}, received {kind})", original.kind);
        return Err(InvalidObject::VersionOrKind(text));
    }
    for (name, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let text = |metadata: Option<&Value>| {
            metadata.and_then(|metadata| metadata.get(name)?.as_str()).unwrap_or_default().to_owned()
        };
        let (before, after) = (text(original.metadata.as_ref()), text(converted.get("metadata")));
        if before != after {
            return Err(InvalidObject::Identity(format!("must have the same {shown}: {before} != {after}")));
        }
    }
    let returned = match converted.shift_remove("metadata") {
        Some(Value::Object(returned)) => returned,
        Some(other) => {
            let text = format!("invalid metadata of type {} in converted object", go::type_name(&other));
            return Err(InvalidObject::Metadata(text));
        }
        None => return Err(InvalidObject::Metadata("missing metadata in converted object".to_owned())),
    };
    let metadata = restore_metadata(original.metadata, returned).map_err(InvalidObject::Metadata)?;
    let mut ordered = Map::with_capacity(converted.len() + 1);
    ordered.insert("kind", Value::from(original.kind));
    ordered.insert("apiVersion", Value::from(desired_api_version));
    ordered.insert("metadata", Value::Object(metadata));
    ordered.extend(converted.into_iter().filter(|(name, _)| name != "kind" && name != "apiVersion"));
    // kube-apiserver decodes the objects, and encodes them for the store and for clients.
    ordered.values_mut().for_each(go::round_trip_numbers);
    Ok(ordered)
}

/// Returns the original metadata with the labels and annotations that the webhook returned (`restoreObjectMeta`).
fn restore_metadata(original: Option<Value>, mut returned: Map) -> Result<Map, String> {
    let mut metadata = match original {
        None => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(other) => return Err(format!("invalid metadata of type {} in input object", go::type_name(&other))),
    };
    for name in ["labels", "annotations"] {
        let new = match returned.shift_remove(name) {
            None | Some(Value::Null) => {
                metadata.shift_remove(name);
                continue;
            }
            Some(Value::Object(new)) => new,
            Some(other) => {
                return Err(format!("invalid metadata.{name} of type {} in converted object", go::type_name(&other)));
            }
        };
        let is_unchanged = match metadata.get(name) {
            None | Some(Value::Null) => new.is_empty(),
            Some(Value::Object(old)) => *old == new,
            Some(other) => {
                return Err(format!("invalid metadata.{name} of type {} in original object", go::type_name(other)));
            }
        };
        if let Some((key, value)) = new.iter().find(|(_, value)| !value.is_string()) {
            let found = go::type_name(value);
            return Err(format!("metadata.{name}[{key}] must be a string, but is {found} in converted object"));
        }
        if !is_unchanged {
            check_text_map(name, &new)?;
        }
        metadata.insert(name, Value::Object(new));
    }
    Ok(metadata)
}

/// Validates changed labels or annotations.
fn check_text_map(name: &str, map: &Map) -> Result<(), String> {
    let mut errors = Errors::default();
    if name == "labels" {
        object_meta::validate_labels(map, "metadata.labels", &mut errors);
    } else {
        // Upstream names the field in the singular.
        object_meta::validate_annotations_at(map, &Path::root("metadata").child("annotation"), &mut errors);
    }
    let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
    match &texts[..] {
        [] => Ok(()),
        [only] => Err(only.clone()),
        all => Err(format!("[{}]", all.join(", "))),
    }
}
