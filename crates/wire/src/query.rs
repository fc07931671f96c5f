//! Parses query strings as kube-apiserver does, and prints them as clients do.
//!
//! Clients rely on three rules of the Go server (`net/url` `ParseQuery`, apimachinery `runtime/conversion.go`). A
//! boolean is false only when it is absent, `false` (any case) or `0`, so `?watch` and `?watch=banana` are both true.
//! If a key is duplicate, the first value is used. Unknown and undecodable parameters are ignored; only an invalid
//! number is an error.

use std::borrow::Cow;
use std::time::Duration;

use listwatch_meta::{ListOptions, ResourceVersion, Status};

/// The decoded pairs of a query string, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// The same query with owned strings.
    pub fn to_static(&self) -> Query<'static> {
        let owned = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        Query { pairs: self.pairs.iter().map(|(key, value)| (owned(key), owned(value))).collect() }
    }

    /// Decodes the part of a URL after `?`. Never fails: a pair with an invalid percent escape or
    /// a `;` is dropped, as in Go. Invalid UTF-8 becomes U+FFFD.
    pub fn parse(query: &'a str) -> Self {
        let pairs = query
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'))
            .filter_map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((decode(key)?, decode(value)?))
            })
            .collect();
        Query { pairs }
    }

    /// The first value of a key; `Some("")` for a key without a value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Every value of a key, in order. Only `dryRun` is a list.
    pub fn all<'q>(&'q self, key: &'q str) -> impl Iterator<Item = &'q str> {
        self.pairs.iter().filter(move |(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// A boolean; `None` when the key is absent. Any value except `false` (any case) and `0` is
    /// true.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| !(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// A 64-bit integer; `None` when the key is absent.
    ///
    /// # Errors
    /// 400 with Go's `strconv.ParseInt` message when the value is empty, not a number or out of range.
    pub fn int(&self, key: &str) -> Result<Option<i64>, Status> {
        let Some(text) = self.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
            use std::num::IntErrorKind::{NegOverflow, PosOverflow};
            let why = match error.kind() {
                PosOverflow | NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        })
    }

    /// A string; empty when the key is absent.
    fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }
}

/// The parameters of a GET, LIST or WATCH besides its [`ListOptions`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// The `pretty` parameter; [`crate::media_type::wants_pretty`] interprets it.
    pub pretty: Option<String>,
    /// The `timeout` parameter, a Go duration. [`Extra::timeout`] parses the text on use, because a
    /// watch ignores an invalid `timeout`.
    pub timeout: Option<String>,
    /// The `includeObject` parameter: the content of a Table's rows (`None`, `Metadata`, `Object`).
    pub include_object: Option<String>,
}

impl Extra {
    /// The requested timeout; `None` if absent. Zero and negative durations, which mean the
    /// server's own limit, are also `None`.
    ///
    /// # Errors
    /// 400 when `timeout` is not a Go duration.
    pub fn timeout(&self) -> Result<Option<Duration>, Status> {
        let Some(text) = self.timeout.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        match parse_go_duration(text) {
            Ok(nanoseconds) => Ok(u64::try_from(nanoseconds).ok().filter(|n| *n > 0).map(Duration::from_nanos)),
            Err(error) => Err(Status::bad_request(format!("invalid timeout specified in the request URL - {error}"))),
        }
    }
}

/// The options of a write as sent; only numbers are validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// `dryRun`: every value; only `All` is valid.
    pub dry_run: Vec<String>,
    /// `fieldManager`: the writer's name.
    pub field_manager: String,
    /// `fieldValidation`: `Ignore`, `Warn` or `Strict`; empty is the server's default.
    pub field_validation: String,
    /// `force` of an apply patch.
    pub force: Option<bool>,
    /// `gracePeriodSeconds` of a delete.
    pub grace_period_seconds: Option<i64>,
    /// `propagationPolicy` of a delete: `Orphan`, `Background` or `Foreground`.
    pub propagation_policy: Option<String>,
    /// `orphanDependents` of a delete, deprecated since 1.7.
    pub orphan_dependents: Option<bool>,
}

impl WriteOptions {
    /// Reads the options of a create, update, patch or delete.
    ///
    /// # Errors
    /// 400 when `gracePeriodSeconds` is not a number.
    pub fn from_query(query: &Query<'_>) -> Result<Self, Status> {
        Ok(WriteOptions {
            dry_run: query.all("dryRun").map(str::to_owned).collect(),
            field_manager: query.text("fieldManager"),
            field_validation: query.text("fieldValidation"),
            force: query.bool("force"),
            grace_period_seconds: query.int("gracePeriodSeconds")?,
            propagation_policy: query.get("propagationPolicy").map(str::to_owned),
            orphan_dependents: query.bool("orphanDependents"),
        })
    }
}

/// Parses the options of a GET, LIST or WATCH. [`ListOptions::list`] and [`ListOptions::watch`]
/// validate combinations.
///
/// # Errors
/// 400 with Go's message when `limit` or `timeoutSeconds` is not a number.
pub fn parse_list_options(query: &str) -> Result<(ListOptions, Extra), Status> {
    list_options(&Query::parse(query))
}

/// As [`parse_list_options`], from a decoded query.
///
/// # Errors
/// 400 with Go's message when `limit` or `timeoutSeconds` is not a number.
pub fn list_options(query: &Query<'_>) -> Result<(ListOptions, Extra), Status> {
    // If both numbers are invalid, kube-apiserver reports this one.
    let timeout_seconds = query.int("timeoutSeconds")?;
    let options = ListOptions {
        watch: query.bool("watch").unwrap_or(false),
        allow_watch_bookmarks: query.bool("allowWatchBookmarks").unwrap_or(false),
        resource_version: ResourceVersion::new(query.text("resourceVersion")),
        resource_version_match: query.text("resourceVersionMatch"),
        limit: query.int("limit")?.unwrap_or(0),
        continue_token: query.text("continue"),
        timeout_seconds,
        send_initial_events: query.bool("sendInitialEvents"),
        label_selector: query.text("labelSelector"),
        field_selector: query.text("fieldSelector"),
        shard_selector: query.text("shardSelector"),
    };
    let extra = Extra {
        pretty: query.get("pretty").map(str::to_owned),
        timeout: query.get("timeout").map(str::to_owned),
        include_object: query.get("includeObject").map(str::to_owned),
    };
    Ok((options, extra))
}

/// Whether the raw query requests a watch, even if the rest cannot be decoded. The result determines the
/// verb for authorization (`NewRequestInfo`).
pub fn is_watch(query: &str) -> bool {
    Query::parse(query).bool("watch").unwrap_or(false)
}

/// Prints options as a client sends them: only non-default values, without a leading `?`.
/// [`parse_list_options`] of the result returns the options.
pub fn print_list_options(options: &ListOptions) -> String {
    let mut query = QueryPrinter::default();
    query.flag("watch", options.watch.then_some(true));
    query.flag("allowWatchBookmarks", options.allow_watch_bookmarks.then_some(true));
    query.text("resourceVersion", options.resource_version.as_str());
    query.text("resourceVersionMatch", &options.resource_version_match);
    query.int("limit", Some(options.limit).filter(|limit| *limit != 0));
    query.text("continue", &options.continue_token);
    query.int("timeoutSeconds", options.timeout_seconds);
    query.flag("sendInitialEvents", options.send_initial_events);
    query.text("labelSelector", &options.label_selector);
    query.text("fieldSelector", &options.field_selector);
    query.text("shardSelector", &options.shard_selector);
    query.finish()
}

/// Builds a query string pair by pair, with percent encoding.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryPrinter {
    query: String,
}

impl QueryPrinter {
    /// Adds a pair; the value may be empty.
    pub(crate) fn pair(&mut self, key: &str, value: &str) {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        encode_into(&mut self.query, key);
        self.query.push('=');
        encode_into(&mut self.query, value);
    }

    /// Adds a string unless it is empty.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.pair(key, value);
        }
    }

    /// Adds a boolean if present.
    pub(crate) fn flag(&mut self, key: &str, value: Option<bool>) {
        if let Some(value) = value {
            self.pair(key, if value { "true" } else { "false" });
        }
    }

    /// Adds a number if present.
    pub(crate) fn int(&mut self, key: &str, value: Option<i64>) {
        if let Some(value) = value {
            self.pair(key, &value.to_string());
        }
    }

    /// The query, without a leading `?`.
    pub(crate) fn finish(self) -> String {
        self.query
    }
}

/// Percent-encodes one query component: all except RFC 3986's unreserved characters.
fn encode_into(out: &mut String, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// Percent-encodes one segment of a path.
pub fn encode_path_segment(segment: &str) -> String {
    let mut encoded = String::with_capacity(segment.len());
    encode_into(&mut encoded, segment);
    encoded
}

/// Decodes one query component; `None` for an invalid percent escape.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit()?, digit()?);
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    Some(Cow::Owned(match String::from_utf8(decoded) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }))
}

/// Parses a Go duration (`1h2m3.5s`, `-100ms`, `0`) to nanoseconds.
///
/// # Errors
/// The message of Go's `time.ParseDuration`.
pub fn parse_go_duration(text: &str) -> Result<i64, InvalidDuration> {
    let invalid = |why: String| InvalidDuration { why };
    let malformed = || invalid(format!("time: invalid duration {text:?}"));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(malformed());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let whole_len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, behind) = rest.split_at(whole_len);
        let (fraction, behind) = match behind.strip_prefix('.') {
            Some(behind) => behind.split_at(behind.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", behind),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let unit_len = behind.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_len);
        let scale: u64 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(invalid(format!("time: missing unit in duration {text:?}"))),
            _ => return Err(invalid(format!("time: unknown unit {unit:?} in duration {text:?}"))),
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| malformed())? };
        let part = whole.checked_mul(scale).ok_or_else(malformed)?;
        // Digits beyond a nanosecond of the largest unit are ignored.
        let mut divisor = scale;
        let mut parts = part;
        for digit in fraction.bytes().take(18) {
            divisor /= 10;
            parts = parts.checked_add(u64::from(digit - b'0') * divisor).ok_or_else(malformed)?;
        }
        total = total.checked_add(parts).ok_or_else(malformed)?;
        rest = behind;
    }
    let total = i64::try_from(total).map_err(|_| malformed())?;
    Ok(if negative { -total } else { total })
}

/// The error for a text that is not a Go duration, with Go's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct InvalidDuration {
    why: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn query_booleans_are_false_only_when_absent_false_or_zero() {
        fn check(query: &str, expected: Option<bool>) {
            assert_eq!(Query::parse(query).bool("watch"), expected, "{query}");
        }
        check("", None);
        check("watchh=true", None);
        check("watch", Some(true));
        check("watch=", Some(true));
        check("watch=banana", Some(true));
        check("watch=1", Some(true));
        check("watch=false", Some(false));
        check("watch=FaLse", Some(false));
        check("watch=0", Some(false));
        check("watch=00", Some(true));
        check("watch=0&watch=1", Some(false));
        check("%77atch=tru%65", Some(true));
    }

    #[test]
    fn query_is_a_watch_even_if_other_parameters_are_invalid() {
        fn check(query: &str, expected: bool) {
            assert_eq!(is_watch(query), expected, "{query}");
        }
        check("", false);
        check("watch=0", false);
        check("limit=soon&labelSelector=%zz&watch=true", true);
        check("limit=5&watch", true);
    }

    #[test]
    fn owned_query_equals_the_borrowed_one() {
        let query = Query::parse("a=%41b&watch&a=c");
        assert_eq!(query.to_static(), query);
    }

    #[test]
    fn invalid_number_fails_with_gos_message() {
        fn check(query: &str, expected: Result<Option<i64>, &str>) {
            let found = Query::parse(query).int("limit");
            let found = found.map_err(|status| {
                assert_eq!((status.code, &*status.reason), (400, "BadRequest"));
                status.message
            });
            assert_eq!(found, expected.map_err(str::to_owned), "{query}");
        }
        check("", Ok(None));
        check("limit=5", Ok(Some(5)));
        check("limit=-5", Ok(Some(-5)));
        check("limit=%2B5", Ok(Some(5)));
        check("limit=007", Ok(Some(7)));
        check("limit=", Err("strconv.ParseInt: parsing \"\": invalid syntax"));
        check("limit=x", Err("strconv.ParseInt: parsing \"x\": invalid syntax"));
        check("limit=+5", Err("strconv.ParseInt: parsing \" 5\": invalid syntax"));
        check("limit=1_0", Err("strconv.ParseInt: parsing \"1_0\": invalid syntax"));
        check(
            "limit=9223372036854775808",
            Err("strconv.ParseInt: parsing \"9223372036854775808\": value out of range"),
        );
    }

    #[test]
    fn query_pairs_decode_as_in_go() {
        fn check(query: &str, expected: &[(&str, &str)]) {
            let found = Query::parse(query);
            let found: Vec<_> = found.pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
            assert_eq!(found, expected, "{query}");
        }
        check("a=b&c", &[("a", "b"), ("c", "")]);
        check("a=b%3Dc+d%2b", &[("a", "b=c d+")]);
        check("&&a==", &[("a", "=")]);
        check("a=%zz&b=%4&c=%&d=1", &[("d", "1")]);
        check("a=1;b=2&c=3", &[("c", "3")]);
        check("labelSelector=app%20in%20%28a%2Cb%29", &[("labelSelector", "app in (a,b)")]);
        check("a=%FF", &[("a", "\u{fffd}")]);
    }

    #[test]
    fn durations_parse_as_in_go() {
        fn check(text: &str, expected: Result<i64, &str>) {
            assert_eq!(parse_go_duration(text).map_err(|error| error.why), expected.map_err(str::to_owned), "{text}");
        }
        check("0", Ok(0));
        check("5s", Ok(5_000_000_000));
        check("1h2m3.5s", Ok(3_723_500_000_000));
        check("-1.5ms", Ok(-1_500_000));
        check(".5s", Ok(500_000_000));
        check("1.s", Ok(1_000_000_000));
        check("3\u{b5}s", Ok(3_000));
        check("7ns", Ok(7));
        check("+1us2ns", Ok(1_002));
        check("", Err("time: invalid duration \"\""));
        check("x", Err("time: invalid duration \"x\""));
        check("5", Err("time: missing unit in duration \"5\""));
        check("5d", Err("time: unknown unit \"d\" in duration \"5d\""));
        check("99999999999h", Err("time: invalid duration \"99999999999h\""));
        check(".s", Err("time: invalid duration \".s\""));
    }

    #[test]
    fn invalid_timeout_returns_400_and_nonpositive_one_is_ignored() {
        fn check(text: &str, expected: Result<Option<u64>, &str>) {
            let found = parse_list_options(&format!("timeout={text}")).unwrap().1.timeout();
            let found = found.map(|found| found.map(|timeout| timeout.as_secs())).map_err(|status| status.message);
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        }
        check("30s", Ok(Some(30)));
        check("", Ok(None));
        check("0s", Ok(None));
        check("-5s", Ok(None));
        check("soon", Err("invalid timeout specified in the request URL - time: invalid duration \"soon\""));
    }

    #[test]
    fn write_options_are_parsed_from_the_query() {
        let query = Query::parse("dryRun=All&dryRun=x&fieldManager=kubectl&force&gracePeriodSeconds=0");
        let options = WriteOptions::from_query(&query).unwrap();
        assert_eq!(options.dry_run, ["All", "x"]);
        assert_eq!(options.field_manager, "kubectl");
        assert_eq!((options.force, options.grace_period_seconds), (Some(true), Some(0)));
        assert!(WriteOptions::from_query(&Query::parse("gracePeriodSeconds=soon")).is_err());
    }

    fn any_options() -> impl Strategy<Value = ListOptions> {
        let text = || prop_oneof![Just(String::new()), ".{0,12}", "[a-z0-9=,!() ]{0,20}"];
        let flags = (any::<bool>(), any::<bool>(), any::<Option<bool>>());
        let numbers = (any::<i64>(), any::<Option<i64>>());
        (flags, numbers, text(), text(), text(), text(), text()).prop_map(
            |((watch, bookmarks, initial), (limit, timeout), version, matching, token, labels, fields)| ListOptions {
                watch,
                allow_watch_bookmarks: bookmarks,
                resource_version: ResourceVersion::new(version),
                resource_version_match: matching,
                limit,
                continue_token: token,
                timeout_seconds: timeout,
                send_initial_events: initial,
                label_selector: labels,
                field_selector: fields,
                shard_selector: String::new(),
            },
        )
    }

    proptest! {
        #[test]
        fn printed_options_parse_to_equal_options(options in any_options()) {
            let printed = print_list_options(&options);
            prop_assert_eq!(parse_list_options(&printed).unwrap().0, options, "{}", printed);
        }

        #[test]
        fn random_query_never_panics(query in "[a-z%&=;+0-9]{0,60}|.{0,60}", duration in ".{0,20}") {
            let query = format!("{query}&timeout={duration}");
            if let Ok((_, extra)) = parse_list_options(&query) {
                let _ = extra.timeout();
            }
            let _ = parse_go_duration(&duration);
        }
    }
}
