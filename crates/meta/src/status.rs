//! The Kubernetes `Status` object, which describes an error, its cause and the next step. There is
//! one constructor per class of error, with the code, reason and message of kube-apiserver
//! (apimachinery `api/errors`).

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// `v1.Status`: the body of every failed request and of some successful ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `Status`.
    #[serde(default = "status_kind")]
    pub kind: Cow<'static, str>,
    /// Always `v1`.
    #[serde(default = "status_api_version")]
    pub api_version: Cow<'static, str>,
    /// List metadata; carries only the continue token of an expired page.
    #[serde(default)]
    pub metadata: StatusMeta,
    /// `Success` or `Failure`.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub status: Cow<'static, str>,
    /// The message for humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason for programs; see [`reason`].
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    /// The object concerned, the causes, and the time until a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The metadata of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMeta {
    /// The token that continues after an expired page; see [`Status::expired_page`].
    #[serde(rename = "continue", default, skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// The resource version; some servers set it on list-like responses.
    #[serde(rename = "resourceVersion", default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

/// The object and the causes of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    /// The object's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource's plural; for `Invalid` the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The object's uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The causes, such as one per invalid field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before trying again; also sent as the `Retry-After` header.
    #[serde(default, skip_serializing_if = "is_zero32")]
    pub retry_after_seconds: u32,
}

/// One cause of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCause {
    /// The cause's reason for programs, e.g. `FieldValueInvalid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message for humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The `reason` values of a [`Status`].
pub mod reason {
    /// 400: the request is malformed.
    pub const BAD_REQUEST: &str = "BadRequest";
    /// 401: no valid credential.
    pub const UNAUTHORIZED: &str = "Unauthorized";
    /// 403: not allowed.
    pub const FORBIDDEN: &str = "Forbidden";
    /// 404: no such object or resource.
    pub const NOT_FOUND: &str = "NotFound";
    /// 405: the resource does not support the method.
    pub const METHOD_NOT_ALLOWED: &str = "MethodNotAllowed";
    /// 406: no acceptable representation.
    pub const NOT_ACCEPTABLE: &str = "NotAcceptable";
    /// 409: an object of this name exists.
    pub const ALREADY_EXISTS: &str = "AlreadyExists";
    /// 409: the object changed meanwhile.
    pub const CONFLICT: &str = "Conflict";
    /// 410: the resource version or continue token is no longer served.
    pub const EXPIRED: &str = "Expired";
    /// 410: the reason that older servers use for expired.
    pub const GONE: &str = "Gone";
    /// 413: the body is too large.
    pub const REQUEST_ENTITY_TOO_LARGE: &str = "RequestEntityTooLarge";
    /// 415: the body's media type is not understood.
    pub const UNSUPPORTED_MEDIA_TYPE: &str = "UnsupportedMediaType";
    /// 422: the object is not valid.
    pub const INVALID: &str = "Invalid";
    /// 429: try again later.
    pub const TOO_MANY_REQUESTS: &str = "TooManyRequests";
    /// 500: the server is at fault.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// 500: the store did not answer in time.
    pub const SERVER_TIMEOUT: &str = "ServerTimeout";
    /// 500: an object in the store cannot be read.
    pub const STORAGE_READ_ERROR: &str = "StorageReadError";
    /// 503: not serving now.
    pub const SERVICE_UNAVAILABLE: &str = "ServiceUnavailable";
    /// 504: the request took too long.
    pub const TIMEOUT: &str = "Timeout";
}

/// Bytes of the path, and of the message, of one [`FieldError`] in a [`Status`]. A longer text is
/// truncated and ends in `…`.
pub const FIELD_ERROR_BYTES_MAX: usize = 16 * 1024;

/// Bytes of the message of a [`Status`], and of all its causes together. A longer message is
/// truncated and ends in `…`; further causes are omitted, and the message states their number.
pub const STATUS_TEXT_BYTES_MAX: usize = 256 * 1024;

/// The longest prefix of `text` that has at most `bytes_max` bytes and ends at a character
/// boundary.
pub fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Formats a value, truncated at `bytes_max` bytes with `…` at the end. Formatting stops at the
/// bound, so a long value costs no more than a value of `bytes_max` bytes.
pub fn cut(value: impl fmt::Display, bytes_max: usize) -> String {
    struct Cut {
        text: String,
        bytes_max: usize,
    }
    impl fmt::Write for Cut {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            let room = self.bytes_max - self.text.len();
            if more.len() <= room {
                self.text.push_str(more);
                return Ok(());
            }
            self.text.push_str(prefix(more, room));
            self.text.push('…');
            Err(fmt::Error)
        }
    }
    let mut cut = Cut { text: String::new(), bytes_max };
    // An error means that the value was longer.
    let _ = fmt::Write::write_fmt(&mut cut, format_args!("{value}"));
    cut.text
}

/// Returns the causes that fit into [`STATUS_TEXT_BYTES_MAX`] bytes, and the number of omitted
/// ones.
pub fn bounded_causes(causes: impl IntoIterator<Item = StatusCause>) -> (Vec<StatusCause>, usize) {
    // The message repeats the causes, adds the object's name and separators.
    let mut left = STATUS_TEXT_BYTES_MAX - 2 * FIELD_ERROR_BYTES_MAX;
    let mut causes = causes.into_iter();
    let mut kept = Vec::new();
    while let Some(StatusCause { reason, message, field }) = causes.next() {
        let cause = StatusCause {
            reason,
            message: cut(message, FIELD_ERROR_BYTES_MAX),
            field: cut(field, FIELD_ERROR_BYTES_MAX),
        };
        match left.checked_sub(cause.message.len() + cause.field.len() + ": , ".len()) {
            Some(rest) => left = rest,
            None => return (kept, 1 + causes.count()),
        }
        kept.push(cause);
    }
    (kept, 0)
}

/// The `reason` of the cause that marks a resource version ahead of the server.
pub const CAUSE_RESOURCE_VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";

fn is_zero(code: &u16) -> bool {
    *code == 0
}

fn is_zero32(seconds: &u32) -> bool {
    *seconds == 0
}

fn status_kind() -> Cow<'static, str> {
    Cow::Borrowed("Status")
}

fn status_api_version() -> Cow<'static, str> {
    Cow::Borrowed("v1")
}

/// A resource in the form of error messages: `pods`, `deployments.apps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    /// The API group; `""` for core.
    pub group: &'a str,
    /// The resource's plural.
    pub resource: &'a str,
}

impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}

/// One invalid field of an object or of an options struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path, e.g. `metadata.name`.
    pub field: String,
    /// The class of the error, which is the cause's reason, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// The text after the path, e.g. `Invalid value: "X": must be ...`.
    pub message: String,
}

impl FieldError {
    /// The error for a value that is not allowed; `value` is printed as Go prints it (strings
    /// quoted).
    pub fn invalid(field: impl Into<String>, value: impl fmt::Display, detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        let separator = if detail.is_empty() { "" } else { ": " };
        let message = format!("Invalid value: {value}{separator}{detail}");
        FieldError { field: field.into(), reason: "FieldValueInvalid", message }
    }

    /// As [`FieldError::invalid`], for a text that is quoted as by Go's `%q`.
    pub fn invalid_text(field: impl Into<String>, text: &str, detail: impl fmt::Display) -> Self {
        FieldError::invalid(field, crate::go::quote(text), detail)
    }

    /// The error for a missing required value.
    pub fn required(field: impl Into<String>, detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        let message = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        FieldError { field: field.into(), reason: "FieldValueRequired", message }
    }

    /// The error for a value that must be absent.
    pub fn forbidden(field: impl Into<String>, detail: impl fmt::Display) -> Self {
        FieldError { field: field.into(), reason: "FieldValueForbidden", message: format!("Forbidden: {detail}") }
    }

    /// The error for a value outside an enumeration.
    pub fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        FieldError {
            field: field.into(),
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {value:?}: supported values: {}", supported.join(", ")),
        }
    }

    /// The error for a list with more than `items_max` items.
    pub fn too_many(field: impl Into<String>, found: usize, items_max: usize) -> Self {
        let items = if items_max == 1 { "item" } else { "items" };
        FieldError {
            field: field.into(),
            reason: "FieldValueTooMany",
            message: format!("Too many: {found}: must have at most {items_max} {items}"),
        }
    }

    /// The error for a reference to an object that does not exist.
    pub fn not_found(field: impl Into<String>, value: impl fmt::Display) -> Self {
        FieldError { field: field.into(), reason: "FieldValueNotFound", message: format!("Not found: {value}") }
    }

    /// The error for a value above its size limit.
    pub fn too_long(field: impl Into<String>, detail: impl fmt::Display) -> Self {
        FieldError { field: field.into(), reason: "FieldValueTooLong", message: format!("Too long: {detail}") }
    }

    /// The error for a value that occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl fmt::Display) -> Self {
        FieldError { field: field.into(), reason: "FieldValueDuplicate", message: format!("Duplicate value: {value}") }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl Status {
    /// A failure without details. A message beyond [`STATUS_TEXT_BYTES_MAX`] bytes is truncated.
    pub fn failure(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > STATUS_TEXT_BYTES_MAX {
            message.truncate(prefix(&message, STATUS_TEXT_BYTES_MAX).len());
            message.push('…');
        }
        Status {
            kind: status_kind(),
            api_version: status_api_version(),
            metadata: StatusMeta::default(),
            status: Cow::Borrowed("Failure"),
            message,
            reason: Cow::Borrowed(reason),
            details: None,
            code,
        }
    }

    /// The response to a delete that removed the object at once.
    pub fn deleted(gr: GroupResource<'_>, name: &str, uid: &str) -> Self {
        let mut status = Status::failure(0, "", "");
        status.status = Cow::Borrowed("Success");
        status.details = Some(StatusDetails {
            name: name.to_owned(),
            group: gr.group.to_owned(),
            kind: gr.resource.to_owned(),
            uid: uid.to_owned(),
            ..StatusDetails::default()
        });
        status
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(details);
        self
    }

    fn about(self, gr: GroupResource<'_>, name: &str) -> Self {
        self.with_details(StatusDetails {
            name: name.to_owned(),
            group: gr.group.to_owned(),
            kind: gr.resource.to_owned(),
            ..StatusDetails::default()
        })
    }

    /// Sets the seconds until a client may retry.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_with(StatusDetails::default).retry_after_seconds = seconds;
        self
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::failure(400, reason::BAD_REQUEST, message)
    }

    /// 401: the credential is missing or not recognized.
    pub fn unauthorized() -> Self {
        Status::failure(401, reason::UNAUTHORIZED, "Unauthorized")
    }

    /// 403: `why` is the rule that forbids the request.
    pub fn forbidden(gr: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = if name.is_empty() {
            format!("{gr} is forbidden: {why}")
        } else {
            format!("{gr} {name:?} is forbidden: {why}")
        };
        Status::failure(403, reason::FORBIDDEN, message).about(gr, name)
    }

    /// 404: the object does not exist.
    pub fn not_found(gr: GroupResource<'_>, name: &str) -> Self {
        Status::failure(404, reason::NOT_FOUND, format!("{gr} {name:?} not found")).about(gr, name)
    }

    /// 404: the resource does not exist in this API group.
    pub fn no_such_resource() -> Self {
        Status::failure(404, reason::NOT_FOUND, "the server could not find the requested resource")
            .with_details(StatusDetails::default())
    }

    /// 405: the path exists but does not support this method.
    pub fn method_not_allowed() -> Self {
        Status::failure(
            405,
            reason::METHOD_NOT_ALLOWED,
            "the server does not allow this method on the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// 405: the resource does not support the verb.
    pub fn verb_not_supported(verb: &str, gr: GroupResource<'_>) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{gr}\"");
        Status::failure(405, reason::METHOD_NOT_ALLOWED, message).about(gr, "")
    }

    /// 409: an object of this name exists.
    pub fn already_exists(gr: GroupResource<'_>, name: &str) -> Self {
        Status::failure(409, reason::ALREADY_EXISTS, format!("{gr} {name:?} already exists")).about(gr, name)
    }

    /// 409: another write succeeded first, or a precondition failed; `why` says which.
    pub fn conflict(gr: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {gr} {name:?}: {why}");
        Status::failure(409, reason::CONFLICT, message).about(gr, name)
    }

    /// 409: the object was changed after the client read it.
    pub fn modified(gr: GroupResource<'_>, name: &str) -> Self {
        Status::conflict(
            gr,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 410: the resource version of a list is no longer available.
    pub fn expired_list() -> Self {
        Status::failure(410, reason::EXPIRED, "The resourceVersion for the provided list is too old.")
    }

    /// 410: a page token expired; `token` resumes at the latest state, inconsistently.
    pub fn expired_page(token: Option<String>) -> Self {
        let mut message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter".to_owned();
        if token.is_some() {
            message.push_str(", or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.");
        } else {
            message.push('.');
        }
        let mut status = Status::failure(410, reason::EXPIRED, message);
        status.metadata.continue_token = token.unwrap_or_default();
        status
    }

    /// 410 in a stream: the watch's revision has left the history; `oldest` is the oldest usable
    /// revision.
    pub fn expired_watch(requested: u64, oldest: u64) -> Self {
        Status::failure(410, reason::EXPIRED, format!("too old resource version: {requested} ({oldest})"))
    }

    /// 410 in a stream: the store has compacted the watch's revision.
    pub fn compacted_watch() -> Self {
        Status::failure(410, reason::EXPIRED, "The resourceVersion for the provided watch is too old.")
    }

    /// 504: the server did not reach the requested version within the wait.
    pub fn too_large_resource_version(requested: u64, current: u64, retry_after_seconds: u32) -> Self {
        Status::failure(
            504,
            reason::TIMEOUT,
            format!("Timeout: Too large resource version: {requested}, current: {current}"),
        )
        .with_details(StatusDetails {
            causes: vec![StatusCause {
                reason: CAUSE_RESOURCE_VERSION_TOO_LARGE.to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds,
            ..StatusDetails::default()
        })
    }

    /// 413: the body is larger than `limit` bytes.
    pub fn request_entity_too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Status::failure(413, reason::REQUEST_ENTITY_TOO_LARGE, message)
    }

    /// 422: the object has invalid fields. `kind` and `group` are those of the object. Errors
    /// beyond [`STATUS_TEXT_BYTES_MAX`] bytes are only counted.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let (causes, more) = bounded_causes(errors.iter().map(|error| StatusCause {
            reason: error.reason.to_owned(),
            message: error.message.clone(),
            field: error.field.clone(),
        }));
        // A duplicate error appears once in the message, but stays in the causes.
        let mut seen = std::collections::HashSet::new();
        let texts = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message));
        let mut texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
        if more > 0 {
            texts.push(format!("{more} more errors"));
        }
        let findings = match texts.as_slice() {
            [single] => single.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let name = cut(name, FIELD_ERROR_BYTES_MAX);
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        Status::failure(422, reason::INVALID, format!("{qualified} {name:?} is invalid: {findings}")).with_details(
            StatusDetails { name, group: group.to_owned(), kind: kind.to_owned(), causes, ..StatusDetails::default() },
        )
    }

    /// 429: the client may retry after `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Status::failure(429, reason::TOO_MANY_REQUESTS, message).retry_after(seconds)
    }

    /// 500: this server is at fault.
    pub fn internal(error: impl fmt::Display) -> Self {
        let error = error.to_string();
        Status::failure(500, reason::INTERNAL_ERROR, format!("Internal error occurred: {error}")).with_details(
            StatusDetails {
                causes: vec![StatusCause { message: error, ..StatusCause::default() }],
                ..StatusDetails::default()
            },
        )
    }

    /// 500 with an empty reason, as kube-apiserver converts an untyped error.
    pub fn unknown(message: impl Into<String>) -> Self {
        Status::failure(500, "", message)
    }

    /// 500: the store did not answer; the client should try again soon.
    pub fn server_timeout(operation: &str, gr: GroupResource<'_>) -> Self {
        let message =
            format!("The {operation} operation against {gr} could not be completed at this time, please try again.");
        Status::failure(500, reason::SERVER_TIMEOUT, message).about(gr, operation).retry_after(2)
    }

    /// 503: this server is not serving now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Status::failure(503, reason::SERVICE_UNAVAILABLE, message)
    }

    /// 504: the time or the computation that a request may take is used up.
    pub fn request_timed_out() -> Self {
        Status::timeout("request did not complete within the allotted timeout")
    }

    /// 504: the request took too long.
    pub fn timeout(message: impl fmt::Display) -> Self {
        Status::failure(504, reason::TIMEOUT, format!("Timeout: {message}"))
    }

    /// True if the resource version or token is no longer served: reason `Expired` or `Gone`, or
    /// code 410 with an unknown reason.
    pub fn is_expired(&self) -> bool {
        matches!(&*self.reason, reason::EXPIRED | reason::GONE) || (self.code == 410 && self.reason.is_empty())
    }

    /// True if the server has not reached the requested resource version yet.
    pub fn is_too_large_resource_version(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        self.reason == reason::TIMEOUT
            && (self.message.contains("Too large resource version")
                || causes.into_iter().any(|cause| cause.reason == CAUSE_RESOURCE_VERSION_TOO_LARGE))
    }

    /// The seconds of the `Retry-After` header, if any.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0)
    }

    /// The status as one line of JSON, without a newline.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a Status has no map with non-string keys")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.message, self.code, self.reason)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: &Status, expected: &str) {
        assert_eq!(String::from_utf8(status.to_json()).unwrap(), expected);
        assert_eq!(&serde_json::from_str::<Status>(expected).unwrap(), status);
    }

    #[test]
    fn status_bodies_equal_those_of_kube_apiserver() {
        check(
            &Status::too_large_resource_version(9, 4, 1),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 9, current: 4","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#,
        );
        check(
            &Status::not_found(GroupResource { group: "apps", resource: "deployments" }, "web"),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"deployments.apps \"web\" not found","reason":"NotFound","details":{"name":"web","group":"apps","kind":"deployments"},"code":404}"#,
        );
        check(
            &Status::no_such_resource(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#,
        );
        check(
            &Status::deleted(GroupResource { group: "", resource: "pods" }, "x", "u"),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"x","kind":"pods","uid":"u"}}"#,
        );
        check(
            &Status::expired_watch(3, 7),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 3 (7)","reason":"Expired","code":410}"#,
        );
        check(
            &Status::invalid("", "Pod", "X", &[FieldError::invalid("metadata.name", "\"X\"", "no")]),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Pod \"X\" is invalid: metadata.name: Invalid value: \"X\": no","reason":"Invalid","details":{"name":"X","kind":"Pod","causes":[{"reason":"FieldValueInvalid","message":"Invalid value: \"X\": no","field":"metadata.name"}]},"code":422}"#,
        );
    }

    #[test]
    fn status_text_is_truncated_at_its_bound() {
        let error = |bytes: usize| FieldError::invalid("a".repeat(bytes), 1, "é".repeat(bytes));
        let status = Status::invalid("", "Pod", &"n".repeat(1 << 20), &vec![error(1 << 20); 100]);
        assert!(status.to_json().len() < 3 * STATUS_TEXT_BYTES_MAX, "{} bytes", status.to_json().len());
        let causes = &status.details.as_ref().unwrap().causes;
        assert!(!causes.is_empty() && causes.iter().all(|cause| cause.message.ends_with('…')));
        let few = Status::invalid("", "Pod", "n", &vec![error(10); 1000]);
        assert_eq!(few.details.unwrap().causes.len(), 1000, "a thousand ordinary errors have room");
        let many = Status::invalid("", "Pod", "n", &vec![error(100); 10_000]);
        let named = many.details.unwrap().causes.len();
        assert!(many.message.ends_with(&format!(", {} more errors]", 10_000 - named)), "{named}");
        assert_eq!(Status::bad_request("x".repeat(STATUS_TEXT_BYTES_MAX + 1)).message.len(), STATUS_TEXT_BYTES_MAX + 3);
        assert_eq!((cut("abc", 3), cut("äbc", 1)), ("abc".to_owned(), "…".to_owned()));
    }

    #[test]
    fn expired_and_too_large_statuses_are_recognized_by_reason_and_code() {
        assert!(Status::expired_list().is_expired());
        assert!(Status::failure(410, "", "old server").is_expired());
        assert!(!Status::failure(410, "Other", "").is_expired());
        assert!(Status::too_large_resource_version(2, 1, 0).is_too_large_resource_version());
        assert!(!Status::timeout("slow").is_too_large_resource_version());
    }
}
