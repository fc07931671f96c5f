//! Converts a kubelet's error response to a log request into a Status.
//!
//! Source of the rules: `apiserver/pkg/registry/generic/rest/response_checker.go`, `NewGenericServerResponse` in
//! `apimachinery/pkg/api/errors/errors.go`.

use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_meta::status::{StatusDetails, reason};

/// Maximum number of bytes that are read of a kubelet's error response (`maxReadLength`). The rest is omitted.
pub const ERROR_BYTES_MAX: usize = 50_000;

/// Whether a response with this status code contains the log.
pub fn is_log(code: u16) -> bool {
    (200..=206).contains(&code)
}

/// Returns the Status for a response of the kubelet. `body` has at most [`ERROR_BYTES_MAX`] bytes.
pub fn to_status(code: u16, body: &str, pod: &str) -> Status {
    let (reason, text) = match code {
        500 => return Status::internal(body),
        400 => return Status::bad_request(body),
        401 => (reason::UNAUTHORIZED, "the server has asked for the client to provide credentials".to_owned()),
        403 => (reason::FORBIDDEN, body.to_owned()),
        404 => (reason::NOT_FOUND, "the server could not find the requested resource".to_owned()),
        405 => {
            (reason::METHOD_NOT_ALLOWED, "the server does not allow this method on the requested resource".to_owned())
        }
        409 => (reason::CONFLICT, "the server reported a conflict".to_owned()),
        429 => {
            let text = "the server has received too many requests and has asked us to try again later";
            (reason::TOO_MANY_REQUESTS, text.to_owned())
        }
        503 => (reason::SERVICE_UNAVAILABLE, "the server is currently unable to handle the request".to_owned()),
        504 => {
            let text = "the server was unable to return a response in the time allotted, but may still be processing \
                        the request";
            (reason::TIMEOUT, text.to_owned())
        }
        501.. => {
            let text = format!("an error on the server ({}) has prevented the request from succeeding", quote(body));
            (reason::INTERNAL_ERROR, text)
        }
        code => ("", format!("the server responded with the status code {code} but did not return more information")),
    };
    // Upstream leaves the verb out, and its space stays.
    Status::failure(code, reason, format!("{text} ( pods/log {pod})")).with_details(StatusDetails {
        name: pod.to_owned(),
        kind: "pods/log".to_owned(),
        ..StatusDetails::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_error_response_is_converted_to_upstreams_status() {
        let check = |code: u16, reason: &str, text: &str| {
            let status = to_status(code, "no such container", "p");
            assert_eq!((status.code, &*status.reason, &*status.message), (code, reason, text));
        };
        check(400, "BadRequest", "no such container");
        check(500, "InternalError", "Internal error occurred: no such container");
        check(404, "NotFound", "the server could not find the requested resource ( pods/log p)");
        check(403, "Forbidden", "no such container ( pods/log p)");
        let unexpected = "an error on the server (\"no such container\") has prevented the request from succeeding";
        check(502, "InternalError", &format!("{unexpected} ( pods/log p)"));
        let other = "the server responded with the status code 418 but did not return more information";
        check(418, "", &format!("{other} ( pods/log p)"));
        assert!(is_log(200) && is_log(206) && !is_log(207) && !is_log(199) && !is_log(302));
    }
}
