//! The outcome of a call: [`Status`], with its [`Code`].

use std::borrow::Cow;
use std::fmt;

use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode;

/// The header or trailer with the number of the code.
const GRPC_STATUS: &str = "grpc-status";
/// The header or trailer with the text of the error, percent-encoded.
const GRPC_MESSAGE: &str = "grpc-message";

/// A code of gRPC. Source: <https://github.com/grpc/grpc/blob/master/doc/statuscodes.md>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The caller or the server cancelled the call.
    Cancelled,
    /// Another error.
    Unknown,
    /// The request is invalid, whatever the state of the server.
    InvalidArgument,
    /// The time limit has passed.
    DeadlineExceeded,
    /// A requested entity does not exist.
    NotFound,
    /// An entity to create exists.
    AlreadyExists,
    /// The caller is known, and may not do this.
    PermissionDenied,
    /// A quota or another resource is used up.
    ResourceExhausted,
    /// The state of the server does not allow the request.
    FailedPrecondition,
    /// The request conflicts with another one.
    Aborted,
    /// A value is beyond the valid range.
    OutOfRange,
    /// The server does not have the method.
    Unimplemented,
    /// An invariant is broken, or a response violates the protocol.
    Internal,
    /// The server cannot serve the request now, or was not reached.
    Unavailable,
    /// Data is lost or corrupt.
    DataLoss,
    /// The caller's credential is missing or invalid.
    Unauthenticated,
}

impl Code {
    /// The code of a `grpc-status`, or `None` for success. A code that gRPC does not define is
    /// [`Code::Unknown`].
    fn parse(number: &[u8]) -> Option<Self> {
        Some(match number {
            b"0" => return None,
            b"1" => Code::Cancelled,
            b"3" => Code::InvalidArgument,
            b"4" => Code::DeadlineExceeded,
            b"5" => Code::NotFound,
            b"6" => Code::AlreadyExists,
            b"7" => Code::PermissionDenied,
            b"8" => Code::ResourceExhausted,
            b"9" => Code::FailedPrecondition,
            b"10" => Code::Aborted,
            b"11" => Code::OutOfRange,
            b"12" => Code::Unimplemented,
            b"13" => Code::Internal,
            b"14" => Code::Unavailable,
            b"15" => Code::DataLoss,
            b"16" => Code::Unauthenticated,
            _ => Code::Unknown,
        })
    }

    /// The code of a response that is not one of gRPC, such as that of a proxy. Source:
    /// <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>.
    fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502 | 503 | 504 => Code::Unavailable,
            _ => Code::Unknown,
        }
    }

    /// The code of a stream that the server has reset (gRPC, "Errors" of the protocol).
    fn of_reset(reason: h2::Reason) -> Self {
        match reason {
            h2::Reason::REFUSED_STREAM => Code::Unavailable,
            h2::Reason::CANCEL => Code::Cancelled,
            h2::Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            h2::Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The kind of the error.
    pub code: Code,
    /// The text of the server; or that of the local error, with its causes.
    pub message: Cow<'static, str>,
    /// Whether the server certainly did not process the request, so that it may be repeated even if it changes
    /// something.
    pub unsent: bool,
}

impl Status {
    /// The error of a response that violates the protocol.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Status { code: Code::Internal, message: message.into(), unsent: false }
    }

    /// The error of a connection that was not established.
    pub(crate) fn unconnected(error: &dyn std::error::Error) -> Self {
        Status { code: Code::Unavailable, message: error_chain(error).into(), unsent: true }
    }

    /// The error of a stream.
    pub(crate) fn of_stream(error: &h2::Error) -> Self {
        let code = match error.reason() {
            Some(reason) if error.is_reset() => Code::of_reset(reason),
            _ => Code::Unavailable,
        };
        Status { code, message: error_chain(error).into(), unsent: false }
    }

    /// The error of a stream before its response.
    pub(crate) fn before_response(error: &h2::Error) -> Self {
        // RFC 9113, 8.7: a stream that was refused was not processed.
        let unsent = error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        Status { unsent, ..Status::of_stream(error) }
    }

    /// The outcome in the headers of a response without messages, or in the trailers. `None` if they have none.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Option<Result<(), Self>> {
        let code = headers.get(GRPC_STATUS)?;
        Some(match Code::parse(code.as_bytes()) {
            None => Ok(()),
            Some(code) => {
                let message = headers.get(GRPC_MESSAGE).map(|text| percent_decode(text.as_bytes()).decode_utf8_lossy());
                Err(Status { code, message: message.unwrap_or_default().into_owned().into(), unsent: false })
            }
        })
    }

    /// The error of a response that is not one of gRPC.
    pub(crate) fn of_http(status: StatusCode) -> Self {
        Status {
            code: Code::of_http(status),
            message: format!("the server answers HTTP {status}").into(),
            unsent: false,
        }
    }
}

/// Formats an error with its causes, outermost first, without repetition.
///
/// ```
/// let error = std::io::Error::other("the disk is full");
/// assert_eq!(listwatch_grpc::error_chain(&error), "the disk is full");
/// ```
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

impl std::error::Error for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn status_is_read_from_its_headers() {
        assert_eq!(Status::of_headers(&headers(&[])), None);
        assert_eq!(Status::of_headers(&headers(&[("grpc-status", "0"), ("grpc-message", "")])), Some(Ok(())));
        for (number, code) in [
            ("1", Code::Cancelled),
            ("2", Code::Unknown),
            ("3", Code::InvalidArgument),
            ("4", Code::DeadlineExceeded),
            ("5", Code::NotFound),
            ("6", Code::AlreadyExists),
            ("7", Code::PermissionDenied),
            ("8", Code::ResourceExhausted),
            ("9", Code::FailedPrecondition),
            ("10", Code::Aborted),
            ("11", Code::OutOfRange),
            ("12", Code::Unimplemented),
            ("13", Code::Internal),
            ("14", Code::Unavailable),
            ("15", Code::DataLoss),
            ("16", Code::Unauthenticated),
            ("17", Code::Unknown),
            ("", Code::Unknown),
            ("00", Code::Unknown),
        ] {
            let found = Status::of_headers(&headers(&[("grpc-status", number)])).unwrap().unwrap_err();
            assert_eq!((found.code, &*found.message), (code, ""), "{number:?}");
        }
        let found = Status::of_headers(&headers(&[("grpc-status", "5"), ("grpc-message", "100%25 k%C3%A4se %zz")]));
        assert_eq!(found.unwrap().unwrap_err().message, "100% käse %zz");
    }
}
