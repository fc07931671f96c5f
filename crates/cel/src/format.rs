//! The string formats that Kubernetes 1.36 checks in custom resources. Other formats are ignored.
//!
//! Each check accepts exactly what the Go functions of kube-openapi's `strfmt` accept, including
//! their peculiarities. For example, an IP address may have leading zeros, and an empty `byte` is
//! invalid.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

/// The format of a string, from the `format` keyword of a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// No format, or one that Kubernetes does not check.
    #[default]
    None,
    /// `bsonobjectid`: 24 hexadecimal digits.
    BsonObjectId,
    /// `uri`: an absolute path or an absolute URI.
    Uri,
    /// `email`.
    Email,
    /// `hostname`.
    Hostname,
    /// `ipv4`.
    Ipv4,
    /// `ipv6`.
    Ipv6,
    /// `cidr`.
    Cidr,
    /// `mac`.
    Mac,
    /// `uuid`, of any version.
    Uuid,
    /// `uuid3`.
    Uuid3,
    /// `uuid4`.
    Uuid4,
    /// `uuid5`.
    Uuid5,
    /// `isbn`, with 10 or 13 digits.
    Isbn,
    /// `isbn10`.
    Isbn10,
    /// `isbn13`.
    Isbn13,
    /// `creditcard`.
    CreditCard,
    /// `ssn`.
    Ssn,
    /// `hexcolor`.
    HexColor,
    /// `rgbcolor`.
    RgbColor,
    /// `byte`: base64.
    Byte,
    /// `password`: any text.
    Password,
    /// `date`.
    Date,
    /// `duration`: a Go or Scala duration.
    Duration,
    /// `date-time`.
    DateTime,
    /// `k8s-short-name`.
    ShortName,
    /// `k8s-long-name`.
    LongName,
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// `float`.
    Float,
    /// `double`.
    Double,
}

const STRING_FORMATS: [(&str, Format); 26] = [
    ("bsonobjectid", Format::BsonObjectId),
    ("uri", Format::Uri),
    ("email", Format::Email),
    ("hostname", Format::Hostname),
    ("ipv4", Format::Ipv4),
    ("ipv6", Format::Ipv6),
    ("cidr", Format::Cidr),
    ("mac", Format::Mac),
    ("uuid", Format::Uuid),
    ("uuid3", Format::Uuid3),
    ("uuid4", Format::Uuid4),
    ("uuid5", Format::Uuid5),
    ("isbn", Format::Isbn),
    ("isbn10", Format::Isbn10),
    ("isbn13", Format::Isbn13),
    ("creditcard", Format::CreditCard),
    ("ssn", Format::Ssn),
    ("hexcolor", Format::HexColor),
    ("rgbcolor", Format::RgbColor),
    ("byte", Format::Byte),
    ("password", Format::Password),
    ("date", Format::Date),
    ("duration", Format::Duration),
    ("datetime", Format::DateTime),
    ("k8sshortname", Format::ShortName),
    ("k8slongname", Format::LongName),
];

impl Format {
    /// The format of a schema of this type. [`Format::None`] if Kubernetes does not support the
    /// format for the type.
    pub fn parse(format: &str, kind: &str, int_or_string: bool) -> Format {
        match kind {
            _ if format.is_empty() => Format::None,
            "integer" if !int_or_string => match format {
                "int32" => Format::Int32,
                "int64" => Format::Int64,
                _ => Format::None,
            },
            "number" if !int_or_string => match format {
                "float" => Format::Float,
                "double" => Format::Double,
                _ => Format::None,
            },
            _ if int_or_string || kind.is_empty() || kind == "string" => {
                let name = format.replace('-', "");
                let known = STRING_FORMATS.iter().find(|(known, _)| *known == name);
                known.map_or(Format::None, |(_, format)| *format)
            }
            _ => Format::None,
        }
    }

    /// The name in error texts.
    pub fn name(self) -> &'static str {
        match self {
            Format::None => "",
            Format::DateTime => "date-time",
            Format::ShortName => "k8s-short-name",
            Format::LongName => "k8s-long-name",
            Format::Int32 => "int32",
            Format::Int64 => "int64",
            Format::Float => "float",
            Format::Double => "double",
            other => STRING_FORMATS.iter().find(|(_, format)| *format == other).map_or("", |(name, _)| name),
        }
    }

    /// True if a string has this format. Always true for formats of other types.
    pub fn accepts(self, text: &str) -> bool {
        match self {
            Format::None | Format::Password | Format::Int32 | Format::Int64 | Format::Float | Format::Double => true,
            Format::BsonObjectId => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
            Format::Uri => is_request_uri(text),
            Format::Email => is_email(text),
            Format::Hostname => is_hostname(text),
            Format::Ipv4 => text.contains('.') && is_ip_sloppy(text),
            Format::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => is_cidr_sloppy(text),
            Format::Mac => is_mac(text),
            Format::Uuid => is_uuid(text, None, false),
            Format::Uuid3 => is_uuid(text, Some('3'), false),
            Format::Uuid4 => is_uuid(text, Some('4'), true),
            Format::Uuid5 => is_uuid(text, Some('5'), true),
            Format::Isbn => is_isbn10(text) || is_isbn13(text),
            Format::Isbn10 => is_isbn10(text),
            Format::Isbn13 => is_isbn13(text),
            Format::CreditCard => is_credit_card(text),
            Format::Ssn => SSN.is_match(text),
            Format::HexColor => HEX_COLOR.is_match(text),
            Format::RgbColor => RGB_COLOR.is_match(text),
            Format::Byte => is_base64(text),
            Format::Date => is_date(text),
            Format::Duration => parse_duration(text).is_some(),
            Format::DateTime => is_date_time(text),
            Format::ShortName => is_short_name(text),
            Format::LongName => text.len() <= 253 && text.split('.').all(is_name_segment),
        }
    }
}

/// Compiles a constant pattern. A test covers each pattern.
fn fixed(pattern: &str) -> Regex {
    match Regex::new(pattern) {
        Ok(regex) => regex,
        Err(error) => unreachable!("a constant pattern that tests compile: {error}"),
    }
}

static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    fixed(concat!(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|",
        r"([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}",
        r"([a-zA-Z\p{L}]){2,63})$"
    ))
});
static SSN: LazyLock<Regex> = LazyLock::new(|| fixed(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| fixed("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    const PART: &str = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    fixed(&format!(r"^rgb\({PART},{PART},{PART}\)$"))
});
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    fixed(concat!(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|",
        r"3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11}|6[27][0-9]{14})$"
    ))
});
static SCALA_DURATION: LazyLock<Regex> = LazyLock::new(|| fixed(r"([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)"));

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && HOSTNAME.is_match(text) && text.split('.').all(|label| label.len() <= 63)
}

/// Whether a string is one segment of a DNS name: lower-case letters, digits, and inner dashes.
fn is_name_segment(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => inner(*first) && inner(*last) && bytes.iter().all(|b| inner(*b) || *b == b'-'),
        _ => false,
    }
}

fn is_short_name(text: &str) -> bool {
    text.len() <= 63 && is_name_segment(text)
}

/// An IPv4 address; leading zeros are accepted.
fn ipv4_sloppy(text: &str) -> Option<Ipv4Addr> {
    let mut parts = [0u8; 4];
    let mut count = 0;
    for part in text.split('.') {
        if count == 4 || part.is_empty() || part.len() > 16 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        parts[count] = part
            .trim_start_matches('0')
            .parse()
            .or_else(|error| if part.bytes().all(|b| b == b'0') { Ok(0) } else { Err(error) })
            .ok()?;
        count += 1;
    }
    (count == 4).then(|| parts.into())
}

/// An IPv6 address; leading zeros are accepted in an embedded IPv4 address.
fn ipv6_sloppy(text: &str) -> Option<Ipv6Addr> {
    if text.contains('%') {
        return None;
    }
    match text.rsplit_once(':') {
        Some((front, back)) if back.contains('.') => format!("{front}:{}", ipv4_sloppy(back)?).parse().ok(),
        _ => text.parse().ok(),
    }
}

fn is_ip_sloppy(text: &str) -> bool {
    ipv4_sloppy(text).is_some() || ipv6_sloppy(text).is_some()
}

fn is_cidr_sloppy(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let bits_max = if ipv4_sloppy(address).is_some() {
        32
    } else if ipv6_sloppy(address).is_some() {
        128
    } else {
        return false;
    };
    !bits.is_empty()
        && bits.len() < 8
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.parse::<u32>().is_ok_and(|bits| bits <= bits_max)
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, width: usize| -> Option<usize> {
        let mut bytes = 0;
        for group in text.split(separator) {
            if group.len() != width || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            bytes += width / 2;
        }
        Some(bytes)
    };
    let bytes = match (text.contains(':'), text.contains('-'), text.contains('.')) {
        (true, false, false) => groups(':', 2),
        (false, true, false) => groups('-', 2),
        (false, false, true) => groups('.', 4),
        _ => None,
    };
    matches!(bytes, Some(6 | 8 | 20))
}

/// Whether a string has groups of 8, 4, 4, 4 and 12 hexadecimal digits; each dash is optional.
fn is_uuid(text: &str, version: Option<char>, rfc_variant: bool) -> bool {
    let mut rest = text;
    for (index, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(width) else { return false };
        if !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        if index == 2 && version.is_some_and(|version| !group.starts_with(version)) {
            return false;
        }
        if index == 3 && rfc_variant && !group.starts_with(['8', '9', 'a', 'b', 'A', 'B']) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

fn is_isbn10(text: &str) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    if digits.len() != 10 {
        return false;
    }
    let mut sum = 0;
    for (index, c) in digits.iter().enumerate() {
        let digit = match (index, c) {
            (9, 'X') => 10,
            (_, c) => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += (index as u32 + 1) * digit;
    }
    sum % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> =
        text.chars().filter(|c| !c.is_whitespace() && *c != '-').map(|c| c.to_digit(10)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 13) else { return false };
    let sum: u32 =
        digits[..12].iter().enumerate().map(|(index, digit)| digit * if index % 2 == 0 { 1 } else { 3 }).sum();
    digits[12] == (10 - sum % 10) % 10
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !CREDIT_CARD.is_match(&digits) {
        return false;
    }
    let luhn: u32 = digits.bytes().rev().enumerate().fold(0, |sum, (index, b)| {
        let digit = u32::from(b - b'0') * if index % 2 == 1 { 2 } else { 1 };
        sum + digit / 10 + digit % 10
    });
    luhn.is_multiple_of(10)
}

fn is_base64(text: &str) -> bool {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return false;
    }
    let data = text.trim_end_matches('=');
    text.len() - data.len() <= 2 && data.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

/// Whether a string is `YYYY-MM-DD` with an existing day.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return false;
    }
    let number = |range: std::ops::Range<usize>| -> Option<u32> {
        bytes[range].iter().try_fold(0, |sum, b| b.is_ascii_digit().then(|| sum * 10 + u32::from(b - b'0')))
    };
    let (Some(year), Some(month), Some(day)) = (number(0..4), number(5..7), number(8..10)) else { return false };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// Whether a string is a date, `t`, and a time with a zone. A second `t` and the text after it are
/// ignored, as in Kubernetes.
fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    if !is_date(date) {
        return false;
    }
    let two = |text: &str, max: u32| {
        text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u32>().is_ok_and(|n| n <= max)
    };
    let (Some(hour), Some(minute), Some(second)) = (time.get(0..2), time.get(3..5), time.get(6..8)) else {
        return false;
    };
    if !two(hour, 23)
        || !two(minute, 59)
        || !two(second, 59)
        || time.as_bytes()[2] != b':'
        || time.as_bytes()[5] != b':'
    {
        return false;
    }
    let rest = &time[8..];
    if is_zone(rest) {
        return true;
    }
    // The fraction: any one character, then digits.
    let mut chars = rest.chars();
    chars.next();
    let fraction = chars.as_str();
    let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    zone.len() < fraction.len() && is_zone(zone)
}

fn is_zone(text: &str) -> bool {
    if text == "z" {
        return true;
    }
    let bytes = text.as_bytes();
    bytes.len() == 6
        && matches!(bytes[0], b'+' | b'-')
        && bytes[3] == b':'
        && [1, 2, 4, 5].into_iter().all(|at| bytes[at].is_ascii_digit())
}

/// Parses a Go duration (`time.ParseDuration`) or a Scala duration such as `3 days`, in nanoseconds (kube-openapi
/// `strfmt.ParseDuration`).
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    const SECOND: i64 = 1_000_000_000;
    const UNITS: [(i64, &[&str]); 8] = [
        (1, &["ns", "nano"]),
        (1_000, &["us", "µs", "micro"]),
        (1_000_000, &["ms", "milli"]),
        (SECOND, &["s", "sec"]),
        (60 * SECOND, &["m", "min"]),
        (3_600 * SECOND, &["h", "hr", "hour"]),
        (24 * 3_600 * SECOND, &["d", "day"]),
        (7 * 24 * 3_600 * SECOND, &["w", "wk", "week"]),
    ];
    if let Some(duration) = parse_go_duration(text) {
        return Some(duration);
    }
    let mut total = None;
    for found in SCALA_DURATION.captures_iter(text) {
        let factor: i64 = found[1].parse().ok()?;
        let unit = found[2].to_lowercase();
        let multiplier = UNITS.iter().find(|(_, names)| {
            names.contains(&unit.as_str()) || names.last().is_some_and(|longest| unit.starts_with(longest))
        });
        if let Some((multiplier, _)) = multiplier {
            // Go's arithmetic wraps around.
            total = Some(total.unwrap_or(0i64).wrapping_add(factor.wrapping_mul(*multiplier)));
        }
    }
    total
}

/// Parses a Go duration such as `-1.5h30m`, in nanoseconds.
pub(crate) fn parse_go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let whole_len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, after) = rest.split_at(whole_len);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let scale: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        if whole.len() > 19 {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total += whole * scale;
        // Digits after the 18th are below a nanosecond for any unit.
        let fraction = &fraction[..fraction.len().min(18)];
        if !fraction.is_empty() {
            total += fraction.parse::<u128>().ok()? * scale / 10u128.pow(fraction.len() as u32);
        }
        if total > 1 << 63 {
            return None;
        }
        rest = after;
    }
    if negative { i64::try_from(-(total as i128)).ok() } else { i64::try_from(total).ok() }
}

/// Whether Go's `url.ParseRequestURI` accepts a string: an absolute path or an absolute URI. A
/// fragment is not cut off.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = split_scheme(text) else { return false };
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !path.starts_with('/') {
        return scheme;
    }
    let path = match path.strip_prefix("//") {
        Some(after) if scheme => {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            if !is_authority(authority) {
                return false;
            }
            path
        }
        _ => path,
    };
    escapes_are_whole(path)
}

/// Whether there is a scheme, and the text after it. `None` if the scheme is malformed.
pub(crate) fn split_scheme(text: &str) -> Option<(bool, &str)> {
    for (index, b) in text.bytes().enumerate() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index > 0 => return Some((true, &text[index + 1..])),
            b':' => return None,
            _ => return Some((false, text)),
        }
    }
    Some((false, text))
}

pub(crate) fn is_authority(text: &str) -> bool {
    let host = match text.rsplit_once('@') {
        Some((user, host)) => {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
            if !user.bytes().all(allowed) || !escapes_are_whole(user) {
                return false;
            }
            host
        }
        None => text,
    };
    let is_port = |port: &str| {
        port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
    };
    if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return false };
        return is_port(&host[end + 1..]);
    }
    if host.rfind(':').is_some_and(|at| !is_port(&host[at..])) {
        return false;
    }
    let refused = |b: u8| b.is_ascii() && !b.is_ascii_alphanumeric() && !b"-_.~!$&'()*+,;=:[]<>\"%".contains(&b);
    !host.bytes().any(refused) && escapes_are_whole(host)
}

pub(crate) fn escapes_are_whole(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let whole = bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
            if !whole {
                return false;
            }
            at += 2;
        }
        at += 1;
    }
    true
}

/// Whether a string is an address in the syntax of `net/mail`: `a@b`, or a name and `<a@b>`.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    if let Some(front) = text.strip_suffix('>') {
        let Some((name, address)) = front.rsplit_once('<') else { return false };
        return is_display_name(name.trim_matches([' ', '\t'])) && is_addr_spec(address);
    }
    is_addr_spec(text)
}

fn is_display_name(name: &str) -> bool {
    if let Some(quoted) = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        return is_quoted_content(quoted);
    }
    name.chars().all(|c| is_atom_char(c) || matches!(c, ' ' | '\t' | '.'))
}

fn is_quoted_content(text: &str) -> bool {
    let mut escaped = false;
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return false,
            c if c.is_control() && c != '\t' => return false,
            _ => {}
        }
    }
    !escaped
}

fn is_addr_spec(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let local_is_good = match local.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) => is_quoted_content(quoted) && !quoted.is_empty(),
        None => is_dot_atom(local),
    };
    let domain_is_good = match domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(literal) => literal.parse::<std::net::IpAddr>().is_ok(),
        None => is_dot_atom(domain),
    };
    local_is_good && domain_is_good
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atom_char))
}

fn is_atom_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || (!c.is_ascii() && !c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_reject_as_in_kubernetes() {
        fn check(format: &str, good: &[&str], bad: &[&str]) {
            let known = Format::parse(format, "string", false);
            assert_ne!(known, Format::None, "{format} is known");
            for text in good {
                assert!(known.accepts(text), "{text:?} is a {format}");
            }
            for text in bad {
                assert!(!known.accepts(text), "{text:?} is no {format}");
            }
        }
        check(
            "bsonobjectid",
            &["507f1f77bcf86cd799439011"],
            &["", "507f1f77bcf86cd79943901", "g07f1f77bcf86cd799439011"],
        );
        check(
            "uri",
            &["http://x.y", "/path", "mailto:a@b", "https://u:p@h:80/p?q=%zz", "http://[::1]:80/", "*"],
            &["", "x", "foo/bar", "http://a b/", "http://h:x/", "/%zz", ":x", "http://[::1", "/a\n"],
        );
        check(
            "email",
            &["a@b", "Foo Bar <a.b@c.d>", "\"a b\"@c", "a+b@c-d.e", "a@[127.0.0.1]"],
            &["", "a", "a@", "@b", "a..b@c", "a b@c", "a@b@c d", "<a@b"],
        );
        check("hostname", &["a", "a-b.example.com", "1.example.com", "☃.example.com"], &["", "-a", "a_b", "a..b.com"]);
        check("ipv4", &["1.2.3.4", "010.2.3.004", "::1.2.3.4"], &["", "1.2.3", "256.1.1.1", "::1", "1.2.3.4.5"]);
        check("ipv6", &["::1", "fe80::1", "::ffff:1.2.3.4"], &["", "1.2.3.4", "::g", "fe80::1%eth0"]);
        check(
            "cidr",
            &["1.2.3.0/24", "01.2.3.4/8", "::/0", "fe80::1/128"],
            &["", "1.2.3.4", "1.2.3.4/33", "::/129", "1.2.3.4/"],
        );
        check(
            "mac",
            &["00:11:22:aa:BB:cc", "00-11-22-33-44-55", "0011.2233.4455", "00:11:22:33:44:55:66:77"],
            &["", "00:11", "00:11:22-33:44:55"],
        );
        check(
            "uuid",
            &["00000000-0000-0000-0000-000000000000", "0000000000000000000000000000000A"],
            &["", "0", "00000000-0000-0000-0000-00000000000g"],
        );
        check(
            "uuid4",
            &["c56a4180-65aa-42ec-a945-5fd21dec0538"],
            &["c56a4180-65aa-32ec-a945-5fd21dec0538", "c56a4180-65aa-42ec-c945-5fd21dec0538"],
        );
        check("uuid3", &["c56a4180-65aa-32ec-0945-5fd21dec0538"], &["c56a4180-65aa-42ec-a945-5fd21dec0538"]);
        check("uuid5", &["c56a4180-65aa-52ec-a945-5fd21dec0538"], &["c56a4180-65aa-42ec-a945-5fd21dec0538"]);
        check("isbn10", &["0321751043", "0-321-75104-3", "048665088X"], &["0321751044", "x", "978-0321751041"]);
        check("isbn13", &["978-0321751041"], &["978-0321751042", "0321751043"]);
        check("isbn", &["978-0321751041", "0321751043"], &["1"]);
        check("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112", ""]);
        check("ssn", &["111-11-1111", "111111111", "111 11 1111"], &["111-111-111", "00-1"]);
        check("hexcolor", &["#FFF", "ffffff"], &["#ff", "#ggg", ""]);
        check("rgbcolor", &["rgb(0,100,255)", "rgb( 1, 2, 3 )"], &["rgb(256,0,0)", "rgb(1,2)"]);
        check("byte", &["YWJj", "YQ==", "YWI="], &["", "YQ", "YQ=", "Y===", "YW-j"]);
        check("password", &["", "x"], &[]);
        check("date", &["2024-02-29", "0000-01-01"], &["2023-02-29", "2023-1-1", "2023-13-01", "2023-01-00", ""]);
        check(
            "date-time",
            &[
                "2014-12-15T19:30:20.000Z",
                "2014-12-15t19:30:20z",
                "2014-12-15T19:30:20+01:00",
                "2014-12-15T19:30:20,5Z",
            ],
            &[
                "2014-12-15",
                "2014-12-15T24:00:00Z",
                "2014-12-15T19:30:20",
                "2014-12-15T19:30:60Z",
                "2014-12-15T19:30:20.Z",
                "",
            ],
        );
        check("datetime", &["2014-12-15T19:30:20Z"], &["x"]);
        check(
            "duration",
            &["1h30m", "-1.5h", "0", "22 ns", "3 days", "1wk", "1 hour 2 minutes", "1us", "1µs"],
            &["", "1", "1x", "h", "-"],
        );
        check("k8s-short-name", &["a", "a-b", "0"], &["", "A", "-a", "a.b", &"a".repeat(64)]);
        check("k8s-long-name", &["a.b-c.d"], &["", "a..b", ".a", "A.b"]);
    }

    #[test]
    fn format_is_ignored_for_schemas_of_other_types() {
        fn check(format: &str, kind: &str, expected: Format) {
            assert_eq!(Format::parse(format, kind, false), expected, "{format} of {kind}");
        }
        check("int32", "integer", Format::Int32);
        check("int32", "number", Format::None);
        check("int32", "string", Format::None);
        check("double", "number", Format::Double);
        check("date", "", Format::Date);
        check("date", "object", Format::None);
        check("foo", "string", Format::None);
        assert_eq!(Format::parse("int32", "", true), Format::None);
    }

    #[test]
    fn scala_durations_are_parsed_in_nanoseconds() {
        fn check(text: &str, expected: Option<i64>) {
            assert_eq!(parse_duration(text), expected, "{text:?}");
        }
        const HOUR: i64 = 3_600_000_000_000;
        check("1h30m", Some(HOUR * 3 / 2));
        check("7d", Some(7 * 24 * HOUR));
        check("3 days", Some(3 * 24 * HOUR));
        check("1 week 2 hours", Some((7 * 24 + 2) * HOUR));
        check("2 HR", Some(2 * HOUR));
        check("5 micros", Some(5_000));
        check("5 µs", Some(5_000));
        check("5 parsecs", None);
        check("99999999999999999999 days", None);
        check("days", None);
    }

    #[test]
    fn go_durations_are_parsed_in_nanoseconds() {
        fn check(text: &str, expected: Option<i64>) {
            assert_eq!(parse_go_duration(text), expected, "{text:?}");
        }
        check("1s", Some(1_000_000_000));
        check("1.5h", Some(5_400_000_000_000));
        check("-1m2s", Some(-62_000_000_000));
        check(".5s", Some(500_000_000));
        check("1", None);
        check("2562047h47m16.854775807s", Some(i64::MAX));
        check("2562047h47m16.854775808s", None);
        check("99999999999999999999h", None);
    }
}
