//! The response of a webhook (`VerifyAdmissionResponse`, `errors/statuserror.go`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_json::{Map, Value};
use listwatch_meta::{Status, go};
use serde::Deserialize;

use crate::failure::CallError;
use crate::review::ReviewVersion;

/// The name of the patch field in Go's error messages.
const PATCH_FIELD: &str = "Go struct field AdmissionResponse.response.patch";

/// A response that passed the checks.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionResponse {
    /// The warnings for the client, even if the request is denied.
    pub warnings: Vec<String>,
    /// The annotations for the audit log. The keys lack the name of the webhook.
    pub audit_annotations: BTreeMap<String, String>,
    /// `Ok`: the operations of the JSON patch, or empty. `Err`: the denial; its patch is ignored.
    pub verdict: Result<Vec<Value>, Box<Status>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    uid: Option<String>,
    allowed: Option<bool>,
    /// A `metav1.Status`, of which any part may be absent or null.
    #[serde(rename = "status")]
    result: Option<Value>,
    patch: Option<Value>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, Option<String>>>,
    warnings: Option<Vec<Option<String>>>,
}

impl AdmissionResponse {
    /// Parses the body of a successful HTTP response with the status code `code`. `mutating` states whether the webhook
    /// may return a patch.
    ///
    /// # Errors
    /// [`CallError::Failed`] for a body that is not a valid response; the failure policy then applies.
    pub fn parse(
        webhook: &str,
        version: ReviewVersion,
        uid: &str,
        mutating: bool,
        code: u16,
        body: &[u8],
    ) -> Result<AdmissionResponse, CallError> {
        let unreadable = |why: String| CallError::failed(format!("failed to call webhook: {why}"));
        if body.is_empty() {
            let why = format!("0-length response with status code: {code} and content type: application/json");
            return Err(unreadable(why));
        }
        let parse_error =
            |why: &dyn std::fmt::Display| unreadable(format!("couldn't get version/kind; json parse error: {why}"));
        // An array would pass as a struct by its positions, so objects are required first.
        let mut review: Map = serde_json::from_slice(body).map_err(|error| parse_error(&error))?;
        let invalid = |why: String| CallError::failed(format!("received invalid webhook response: {why}"));
        let response = match review.shift_remove("response") {
            None | Some(Value::Null) => return Err(invalid("webhook response was absent".to_owned())),
            Some(response @ Value::Object(_)) => response,
            Some(other) => {
                let found = go::json_kind(&other);
                return Err(parse_error(&format_args!("json: cannot unmarshal {found} into response")));
            }
        };
        let response: Response = listwatch_json::from_value(response).map_err(|error| parse_error(&error))?;
        let kind = kind_text(&review);
        if version == ReviewVersion::V1 {
            let found = response.uid.as_deref().unwrap_or_default();
            if found != uid {
                return Err(invalid(format!("expected response.uid={}, got {}", go::quote(uid), go::quote(found))));
            }
            if kind != "admission.k8s.io/v1, Kind=AdmissionReview" {
                let why = format!("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {kind}");
                return Err(invalid(why));
            }
        }
        let patch = match &response.patch {
            Some(Value::String(patch)) => {
                let illegal = |_| unreadable("illegal base64 data in response.patch".to_owned());
                STANDARD.decode(patch.as_bytes()).map_err(illegal)?
            }
            Some(Value::Array(bytes)) => byte_array(bytes).map_err(|why| parse_error(&why))?,
            Some(other) => {
                let found = go::json_kind(other);
                let why = format!("json: cannot unmarshal {found} into {PATCH_FIELD} of type []uint8");
                return Err(parse_error(&why));
            }
            None => Vec::new(),
        };
        check_patch(version, mutating, &patch, response.patch_type.as_deref()).map_err(invalid)?;
        let verdict = if response.allowed.unwrap_or(false) {
            let is_read = mutating && !patch.is_empty();
            Ok(if is_read { operations(&patch, response.patch_type.as_deref(), version)? } else { Vec::new() })
        } else {
            Err(Box::new(denial(webhook, response.result)))
        };
        let annotations = response.audit_annotations.unwrap_or_default();
        Ok(AdmissionResponse {
            warnings: response.warnings.unwrap_or_default().into_iter().map(Option::unwrap_or_default).collect(),
            audit_annotations: annotations.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
            verdict,
        })
    }
}

/// Reads a patch that is an array of numbers. Go decodes this form of `[]byte` as well, and kube-rs sends it.
fn byte_array(items: &[Value]) -> Result<Vec<u8>, String> {
    let byte = |item: &Value| match item {
        Value::Null => Ok(0),
        item => item.as_u64().and_then(|number| u8::try_from(number).ok()).ok_or_else(|| {
            let found = if item.is_number() { format!("number {item}") } else { go::json_kind(item).to_string() };
            format!("json: cannot unmarshal {found} into {PATCH_FIELD} of type uint8")
        }),
    };
    items.iter().map(byte).collect()
}

/// Formats the group, version and kind as Go does (`schema.GroupVersionKind.String`).
fn kind_text(review: &Map) -> String {
    let text = |name: &str| review.get(name).and_then(Value::as_str).unwrap_or_default();
    let api_version = text("apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!("{group}/{version}, Kind={}", text("kind"))
}

/// Checks that the patch and the patch type are allowed, and that both or neither are present.
fn check_patch(version: ReviewVersion, mutating: bool, patch: &[u8], patch_type: Option<&str>) -> Result<(), String> {
    if version == ReviewVersion::V1Beta1 {
        return Ok(());
    }
    let why = match (mutating, patch.is_empty(), patch_type) {
        (_, true, None) => return Ok(()),
        (false, false, _) => "validating webhook may not return response.patch",
        (false, true, Some(_)) => "validating webhook may not return response.patchType",
        (true, false, None) => "webhook returned response.patch but not response.patchType",
        (true, true, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, false, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (true, false, Some(_)) => return Ok(()),
    };
    Err(why.to_owned())
}

/// Parses a JSON patch. In `v1beta1`, the patch type may be absent, because there is only one patch type.
fn operations(patch: &[u8], patch_type: Option<&str>, version: ReviewVersion) -> Result<Vec<Value>, CallError> {
    let undecodable = |why: String| CallError::failed(format!("received undecodable patch in webhook response: {why}"));
    let operations: Option<Vec<Value>> =
        serde_json::from_slice(patch).map_err(|error| undecodable(error.to_string()))?;
    let operations = operations.unwrap_or_default();
    if let Some(operation) = operations.iter().find(|operation| !operation.is_object()) {
        let found = go::json_kind(operation);
        let why = format!("json: cannot unmarshal {found} into Go value of type jsonpatch.Operation");
        return Err(undecodable(why));
    }
    match patch_type {
        Some(other) if !operations.is_empty() && version == ReviewVersion::V1 && other != "JSONPatch" => {
            Err(CallError::failed(format!("unsupported patch type {}", go::quote(other))))
        }
        _ => Ok(operations),
    }
}

/// Returns the Status for the client if a webhook denies the request (`ToStatusErr`).
fn denial(webhook: &str, result: Option<Value>) -> Status {
    let mut status = Status::failure(400, "", "");
    if let Some(Value::Object(result)) = result {
        let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        status.message = text("message");
        status.reason = text("reason").into();
        // The server sends the code, so the code has to be an error of HTTP.
        let code = result.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        status.code = code.filter(|code| (400..=599).contains(code)).unwrap_or(400);
        status.details = result.get("details").and_then(|details| listwatch_json::from_value(details.clone()).ok());
        if !matches!(text("status").as_str(), "" | "Success") {
            status.status = text("status").into();
        }
    }
    let denied = format!("admission webhook {} denied the request", go::quote(webhook));
    status.message = match (status.message.as_str(), &*status.reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    status
}
