//! The options of connect requests: converts the client's query to the query for the kubelet.
//!
//! Source of the rules: `pkg/registry/core/pod/strategy.go:LogLocation,streamParams`,
//! `pkg/registry/core/pod/rest/log.go`, `ValidatePodLogOptions` in `pkg/apis/core/validation/validation.go`,
//! `apimachinery/pkg/runtime/conversion.go`.

use listwatch_meta::go::quote;
use listwatch_meta::{FieldError, Status};
use listwatch_wire::query::{Query, encode_path_segment};
use time::OffsetDateTime;
use time::UtcOffset;
use time::format_description::well_known::Rfc3339;

/// The options of `pods/log` (`PodLogOptions`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogOptions {
    /// The name of the container; empty selects the only container.
    pub container: String,
    /// Whether the log continues until the container ends.
    follow: bool,
    /// Whether to return the log of the previous instance of the container.
    previous: bool,
    /// Whether each line starts with its timestamp.
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<OffsetDateTime>,
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
    /// Whether the certificate of the kubelet is accepted without verification.
    pub insecure_skip_tls_verify_backend: bool,
}

impl LogOptions {
    /// Parses and validates the query of a request for the log of a pod.
    ///
    /// # Errors
    /// 400 for a value of the wrong type; 422 for options that exclude each other or are out of range.
    pub fn from_query(query: &Query<'_>, pod: &str) -> Result<Self, Status> {
        let since_time = query.get("sinceTime").filter(|text| !matches!(*text, "" | "null"));
        let flag = |name: &str| query.bool(name).unwrap_or_default();
        let options = LogOptions {
            container: query.get("container").unwrap_or_default().to_owned(),
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since_seconds: query.int("sinceSeconds")?,
            since_time: since_time.map(parse_time).transpose()?,
            tail_lines: query.int("tailLines")?,
            limit_bytes: query.int("limitBytes")?,
            insecure_skip_tls_verify_backend: flag("insecureSkipTLSVerifyBackend"),
        };
        let mut errors = Vec::new();
        if let Some(lines) = options.tail_lines.filter(|lines| *lines < 0) {
            errors.push(FieldError::invalid("tailLines", lines, "must be greater than or equal to 0"));
        }
        if let Some(bytes) = options.limit_bytes.filter(|bytes| *bytes < 1) {
            errors.push(FieldError::invalid("limitBytes", bytes, "must be greater than 0"));
        }
        match options.since_seconds {
            Some(_) if options.since_time.is_some() => {
                errors.push(FieldError::forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
            }
            Some(seconds) if seconds < 1 => {
                errors.push(FieldError::invalid("sinceSeconds", seconds, "must be greater than 0"));
            }
            _ => {}
        }
        // The feature gate PodLogsQuerySplitStreams is alpha.
        if query.get("stream").is_some() {
            errors.push(FieldError::forbidden("stream", "may not be specified"));
        }
        if errors.is_empty() { Ok(options) } else { Err(Status::invalid("", "PodLogOptions", pod, &errors)) }
    }

    /// Formats the options as the query for the kubelet.
    pub fn to_query(&self) -> String {
        let number = |value: Option<i64>| value.map(|value| value.to_string());
        let flag = |value: bool| value.then(|| "true".to_owned());
        // The kubelet reads whole seconds.
        let since_time = self.since_time.map(|at| at.replace_nanosecond(0).unwrap_or(at));
        encode([
            ("follow", flag(self.follow)),
            ("limitBytes", number(self.limit_bytes)),
            ("previous", flag(self.previous)),
            ("sinceSeconds", number(self.since_seconds)),
            ("sinceTime", since_time.and_then(|at| at.format(&Rfc3339).ok())),
            ("tailLines", number(self.tail_lines)),
            ("timestamps", flag(self.timestamps)),
        ])
    }
}

/// Parses a time as `metav1.Time` does.
fn parse_time(text: &str) -> Result<OffsetDateTime, Status> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).map(|at| at.to_offset(UtcOffset::UTC));
    let format = "\"2006-01-02T15:04:05Z07:00\"";
    parsed.map_err(|_| Status::bad_request(format!("parsing time {} as {format}: cannot parse it", quote(text))))
}

/// Returns the query of `exec` and `attach` for the kubelet (`PodExecOptions`, `PodAttachOptions`).
pub fn stream_query(query: &Query<'_>, is_exec: bool) -> String {
    let flag = |name: &str| query.bool(name).unwrap_or_default().then(|| "1".to_owned());
    let commands = query.all("command").filter(|_| is_exec).map(|part| ("command", Some(part.to_owned())));
    let flags = [("error", flag("stderr")), ("input", flag("stdin")), ("output", flag("stdout")), ("tty", flag("tty"))];
    encode(commands.chain(flags))
}

/// Returns the query of `portforward` for the kubelet (`PodPortForwardOptions`). SPDY clients send the ports in the
/// stream instead.
///
/// # Errors
/// 400 for a port that is not a 16-bit number.
pub fn port_forward_query(query: &Query<'_>) -> Result<String, Status> {
    let mut ports = Vec::new();
    for text in query.all("ports").flat_map(|value| value.split(',')) {
        let port: u16 = text.parse().map_err(|error: std::num::ParseIntError| {
            let why = match error.kind() {
                std::num::IntErrorKind::PosOverflow => "value out of range",
                _ => "invalid syntax",
            };
            let cause = format!("strconv.ParseUint: parsing {}: {why}", quote(text));
            Status::bad_request(format!("cannot convert to []int32: {cause}"))
        })?;
        ports.push(port.to_string());
    }
    Ok(encode([("port", (!ports.is_empty()).then(|| ports.join(",")))]))
}

/// Encodes the pairs with a value as a query with the question mark; empty without pairs. The pairs are sorted by key,
/// as in Go's `url.Values.Encode`.
fn encode(pairs: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
    let mut query = String::new();
    for (key, value) in pairs.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(&format!("{key}={}", encode_path_segment(&value)));
    }
    query
}

#[cfg(test)]
mod tests {
    use listwatch_json::Value;
    use listwatch_registry::Subresource;
    use listwatch_write::{connect_options, query_of_options};

    use super::*;

    /// Returns the query for the kubelet, or the code and the message of the error.
    fn log(query: &str) -> String {
        match LogOptions::from_query(&Query::parse(query), "p") {
            Ok(options) => options.to_query(),
            Err(status) => format!("{} {}", status.code, status.message),
        }
    }

    #[test]
    fn options_that_a_plugin_changed_are_forwarded_to_the_kubelet() {
        let query = Query::parse("command=sh&command=a%20b%26&stdin=1&container=c");
        let mut options = connect_options(&Subresource::Exec, "Pod", &query, "");
        options.insert("tty", true.into());
        options.insert("stdin", false.into());
        options.insert("container", "d&e".into());
        let changed = query_of_options(&options);
        let changed = Query::parse(&changed);
        assert_eq!(stream_query(&changed, true), "?command=sh&command=a%20b%26&tty=1");
        assert_eq!(changed.get("container"), Some("d&e"));
        let mut options = connect_options(&Subresource::PortForward, "Pod", &Query::parse("ports=1,2"), "");
        options.insert("ports", vec![Value::from(3), Value::from(4)].into());
        let changed = query_of_options(&options);
        assert_eq!(port_forward_query(&Query::parse(&changed)).unwrap(), "?port=3%2C4");
    }

    #[test]
    fn log_options_are_forwarded_to_the_kubelet() {
        assert_eq!(log(""), "");
        assert_eq!(log("container=c&follow=false&previous=0&insecureSkipTLSVerifyBackend=true&pretty=true"), "");
        let all = "follow=true&previous=1&timestamps&tailLines=10&limitBytes=5&sinceSeconds=60";
        let expected = "?follow=true&limitBytes=5&previous=true&sinceSeconds=60&tailLines=10&timestamps=true";
        assert_eq!(log(all), expected);
        assert_eq!(log("tailLines=0"), "?tailLines=0");
        assert_eq!(log("sinceTime=2026-01-02T03:04:05.678%2B02:00"), "?sinceTime=2026-01-02T01%3A04%3A05Z");
        assert_eq!(log("sinceTime="), "");
        let options = LogOptions::from_query(&Query::parse("container=c&insecureSkipTLSVerifyBackend=true"), "p");
        let options = options.unwrap();
        assert!(options.container == "c" && options.insecure_skip_tls_verify_backend);
    }

    #[test]
    fn invalid_log_options_are_rejected_with_upstreams_text() {
        let invalid = |what: &str| format!("422 PodLogOptions \"p\" is invalid: {what}");
        let negative = "Invalid value: -1: must be greater than or equal to 0";
        assert_eq!(log("tailLines=-1"), invalid(&format!("tailLines: {negative}")));
        assert_eq!(log("limitBytes=0"), invalid("limitBytes: Invalid value: 0: must be greater than 0"));
        assert_eq!(log("sinceSeconds=0"), invalid("sinceSeconds: Invalid value: 0: must be greater than 0"));
        let both = "sinceSeconds=0&sinceTime=2026-01-02T03:04:05Z";
        let text = ": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        assert_eq!(log(both), invalid(text));
        assert_eq!(log("stream=Stdout"), invalid("stream: Forbidden: may not be specified"));
        let several = format!("[tailLines: {negative}, limitBytes: Invalid value: -1: must be greater than 0]");
        assert_eq!(log("tailLines=-1&limitBytes=-1"), invalid(&several));
        assert_eq!(log("tailLines=x"), "400 strconv.ParseInt: parsing \"x\": invalid syntax");
        assert!(log("sinceTime=yesterday").starts_with("400 parsing time \"yesterday\" as "));
    }

    #[test]
    fn exec_and_attach_options_are_forwarded_to_the_kubelet() {
        let check = |query: &str, is_exec: bool, expected: &str| {
            assert_eq!(stream_query(&Query::parse(query), is_exec), expected, "{query}");
        };
        let asked = "command=sh&command=-c&command=echo+%26&container=c&stdin=true&stdout=true&stderr=true&tty=false";
        check(asked, true, "?command=sh&command=-c&command=echo%20%26&error=1&input=1&output=1");
        check(asked, false, "?error=1&input=1&output=1");
        check("tty=1&stdout", false, "?output=1&tty=1");
        check("", true, "");
    }

    #[test]
    fn portforward_rejects_ports_that_are_not_16_bit_numbers() {
        let check = |query: &str, expected: &str| {
            let found = port_forward_query(&Query::parse(query)).unwrap_or_else(|status| status.message);
            assert_eq!(found, expected, "{query}");
        };
        check("", "");
        check("ports=80&ports=443,8080", "?port=80%2C443%2C8080");
        let wrong = "cannot convert to []int32: strconv.ParseUint: parsing";
        check("ports=x", &format!("{wrong} \"x\": invalid syntax"));
        check("ports=80&ports=65536", &format!("{wrong} \"65536\": value out of range"));
    }
}
