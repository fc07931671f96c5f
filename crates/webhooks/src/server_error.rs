//! The error text for a webhook that responds with an HTTP error (`client-go/rest/request.go`,
//! `NewGenericServerResponse`).

use listwatch_json::Value;
use listwatch_meta::go;
use listwatch_meta::status::prefix;

use crate::failure::CallError;

/// Maximum number of body bytes in an error message (`maxUnstructuredResponseTextBytes`). The rest is cut off.
const SHOWN_BODY_BYTES_MAX: usize = 2048;

/// Whether client-go reads the body of a response with this HTTP status code (`transformResponse`).
pub fn is_success(code: u16) -> bool {
    (200..=206).contains(&code)
}

/// Returns the error for a response outside 200 to 206. The text contains the message of a Status in the body. A
/// redirect is also an error, because webhooks must not redirect the server.
///
/// `code` is the HTTP status code. `content_type` is the value of the header `Content-Type`; empty if the header is
/// absent.
pub fn response_error(code: u16, content_type: &str, body: &[u8]) -> CallError {
    let message = response_error_text(code, content_type, body);
    CallError::failed_with(format!("failed to call webhook: {message}"), code)
}

/// Returns client-go's error message for a response outside 200 to 206.
///
/// `code` is the HTTP status code. `content_type` is the value of the header `Content-Type`; empty if the header is
/// absent.
pub fn response_error_text(code: u16, content_type: &str, body: &[u8]) -> String {
    status_message(body).unwrap_or_else(|| generic_message(code, content_type, body))
}

/// Returns the message of a Status with `status: Failure`.
fn status_message(body: &[u8]) -> Option<String> {
    let status: Value = serde_json::from_slice(body).ok()?;
    let is = |name: &str, wanted: &str| status.get(name).and_then(Value::as_str).is_none_or(|found| found == wanted);
    let fails = status.get("status").and_then(Value::as_str) == Some("Failure");
    let message = status.get("message").and_then(Value::as_str).unwrap_or_default();
    (fails && is("kind", "Status") && is("apiVersion", "v1")).then(|| prefix(message, SHOWN_BODY_BYTES_MAX).to_owned())
}

fn generic_message(code: u16, content_type: &str, body: &[u8]) -> String {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let is_text = media.is_empty() || media.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/"));
    let body = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BODY_BYTES_MAX)]);
    let shown = if is_text { body.trim() } else { "unknown" };
    let message = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => shown,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if matches!(shown, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => shown,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => {
            return format!("an error on the server ({}) has prevented the request from succeeding", go::quote(shown));
        }
        _ => return format!("the server responded with the status code {code} but did not return more information"),
    };
    message.to_owned()
}
