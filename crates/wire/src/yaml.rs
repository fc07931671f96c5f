//! Writes YAML responses: JSON documents in the layout of Go's YAML library (go-yaml v2 under `sigs.k8s.io/yaml`).
//!
//! - Keys are sorted. Numbers in them are compared by value.
//! - A string that YAML would read as another type (a time, a number, `yes`) has double quotes.
//! - A string with characters that a plain scalar cannot have has single quotes.
//! - A string of several lines is a literal block.
//! - Lines are folded after column 80, at spaces.
//!
//! There is one exception. A string with U+2028 or U+2029 has double quotes, because YAML 1.1 and 1.2 disagree whether
//! these characters break lines.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use bytes::Bytes;
use listwatch_meta::Status;
use listwatch_meta::status::reason;
use serde_json::Value;

/// The column after which the next single space becomes a line break.
const BEST_WIDTH: usize = 80;
/// The indent of a nested node, in spaces.
const INDENT: usize = 2;
/// The largest simple key, in bytes. A longer key is written with a `?`.
const SIMPLE_KEY_BYTES_MAX: usize = 128;

/// The number of bytes by which a document in YAML may exceed [`GROWTH_MAX`] times its JSON. Each line of a nested value
/// begins with its indent, so a deep value can be a hundred times as long as its JSON.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many times as long as its JSON a document in YAML may be, besides [`BYTES_MAX`].
const GROWTH_MAX: usize = 4;

/// Converts a JSON document to YAML.
///
/// # Errors
/// 500 if the document is not JSON; 406 if the YAML would exceed four times the JSON by more than 4 MiB.
pub fn from_json(json: &[u8]) -> Result<Bytes, Status> {
    let document: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    let mut printer = Printer::for_json(json);
    printer.root(&document);
    printer.finish()
}

/// Converts an item of a sequence without indent, such as the `items` of a list. The members of the item that `without`
/// names are omitted.
///
/// # Errors
/// 500 if the item is not JSON; 406 if the YAML would exceed four times the JSON by more than 4 MiB.
pub fn item_from_json(json: &[u8], without: &[&str]) -> Result<Bytes, Status> {
    let mut item: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    if let Value::Object(members) = &mut item {
        members.retain(|name, _| !without.contains(&name.as_str()));
    }
    let mut printer = Printer::for_json(json);
    printer.put("-");
    printer.node(&item, 0, Place::Item);
    printer.put("\n");
    printer.finish()
}

/// The position of a node.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    /// After `key:`, with the indentation of the key.
    Value,
    /// After `-`, with the indentation of the dash, or after the `:` of a key with a `?`.
    Item,
}

struct Printer {
    out: String,
    /// The number of characters on the current line.
    column: usize,
    /// The number of bytes after which lines have no indent, and [`Printer::finish`] fails.
    bytes_max: usize,
}

impl Printer {
    fn for_json(json: &[u8]) -> Self {
        Printer { out: String::new(), column: 0, bytes_max: BYTES_MAX.saturating_add(json.len() * GROWTH_MAX) }
    }

    fn is_full(&self) -> bool {
        self.out.len() > self.bytes_max
    }

    fn finish(self) -> Result<Bytes, Status> {
        if self.is_full() {
            let message =
                format!("the object has more than {} bytes in YAML; request application/json", self.bytes_max);
            return Err(Status::failure(406, reason::NOT_ACCEPTABLE, message));
        }
        Ok(self.out.into())
    }

    fn root(&mut self, document: &Value) {
        self.node(document, 0, Place::Root);
        if self.column > 0 {
            self.put("\n");
        }
    }

    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        match text.rfind('\n') {
            Some(end) => self.column = text[end + 1..].chars().count(),
            None => self.column += text.chars().count(),
        }
    }

    fn put_char(&mut self, c: char) {
        self.out.push(c);
        self.column = if c == '\n' { 0 } else { self.column + 1 };
    }

    /// Starts a new line, unless the current line is empty.
    fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.put("\n");
        }
        // Only indents make a document much longer than its JSON.
        if !self.is_full() {
            self.out.extend(std::iter::repeat_n(' ', indent));
            self.column += indent;
        }
    }

    fn node(&mut self, value: &Value, indent: usize, place: Place) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                let members = sorted(members.iter().collect());
                let inside = if place == Place::Root { 0 } else { indent + INDENT };
                for (position, (key, value)) in members.into_iter().enumerate() {
                    self.begin(position, inside, place);
                    self.member(key, value, inside);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                // The dashes of a list have the same indentation as their key.
                let inside = if place == Place::Item { indent + INDENT } else { indent };
                for (position, item) in items.iter().enumerate() {
                    self.begin(position, inside, place);
                    self.put("-");
                    self.node(item, inside, Place::Item);
                }
            }
            scalar => {
                if place != Place::Root {
                    self.put(" ");
                }
                let deeper = indent + INDENT;
                match scalar {
                    Value::Object(_) => self.put("{}"),
                    Value::Array(_) => self.put("[]"),
                    Value::Null => self.put("null"),
                    Value::Bool(flag) => self.put(if *flag { "true" } else { "false" }),
                    Value::Number(number) => {
                        let text = number_text(number);
                        self.put(&text);
                    }
                    Value::String(text) => self.text(text, deeper, false),
                }
            }
        }
    }

    /// Moves to the position of the next member or item of a collection.
    fn begin(&mut self, position: usize, indent: usize, place: Place) {
        match place {
            // The first item is on the line of the dash.
            Place::Item if position == 0 => self.put(" "),
            _ => self.line(indent),
        }
    }

    fn member(&mut self, key: &str, value: &Value, indent: usize) {
        let simple = key.len() <= SIMPLE_KEY_BYTES_MAX && !key.contains(is_break);
        if simple {
            self.text(key, indent, true);
        } else {
            self.put("? ");
            self.text(key, indent + INDENT, false);
            self.line(indent);
        }
        self.put(":");
        self.node(value, indent, if simple { Place::Value } else { Place::Item });
    }

    /// Writes a string in the first style that can represent it.
    fn text(&mut self, text: &str, indent: usize, is_key: bool) {
        let found = Analysis::of(text);
        if text.contains('\n') && !is_key && found.block {
            self.literal(text, indent);
        } else if text.contains('\n') || resolves_to_another_type(text) {
            self.double_quoted(text, indent, is_key);
        } else if found.plain {
            self.plain(text, indent, is_key);
        } else if found.single_quoted {
            self.single_quoted(text, indent, is_key);
        } else {
            self.double_quoted(text, indent, is_key);
        }
    }

    fn plain(&mut self, text: &str, indent: usize, is_key: bool) {
        let mut after_space = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' && !is_key && !after_space && self.column > BEST_WIDTH && chars.peek() != Some(&' ') {
                self.line(indent);
            } else {
                self.put_char(c);
            }
            after_space = c == ' ';
        }
    }

    fn single_quoted(&mut self, text: &str, indent: usize, is_key: bool) {
        self.put("'");
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((position, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            let inside = position > 0 && next.is_some_and(|next| next != ' ');
            if c == ' ' && !is_key && !after_space && self.column > BEST_WIDTH && inside {
                self.line(indent);
            } else {
                self.put_char(c);
                if c == '\'' {
                    self.put_char(c);
                }
            }
            after_space = c == ' ';
        }
        self.put("'");
    }

    fn double_quoted(&mut self, text: &str, indent: usize, is_key: bool) {
        self.put("\"");
        // go-yaml escapes every character after a byte order mark.
        let marked = text.starts_with('\u{feff}');
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((position, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            if marked || !is_printable(c) || matches!(c, '\n' | '"' | '\\') {
                self.escape(c);
            } else if c == ' ' && !is_key && !after_space && self.column > BEST_WIDTH && position > 0 && next.is_some()
            {
                self.line(indent);
                if next == Some(' ') {
                    self.put("\\");
                }
            } else {
                self.put_char(c);
            }
            after_space = c == ' ';
        }
        self.put("\"");
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '\0' => "\\0",
            '\x07' => "\\a",
            '\x08' => "\\b",
            '\t' => "\\t",
            '\n' => "\\n",
            '\x0b' => "\\v",
            '\x0c' => "\\f",
            '\r' => "\\r",
            '\x1b' => "\\e",
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{85}' => "\\N",
            '\u{a0}' => "\\_",
            '\u{2028}' => "\\L",
            '\u{2029}' => "\\P",
            _ => "",
        };
        if !short.is_empty() {
            return self.put(short);
        }
        let mut long = String::new();
        let code = u32::from(c);
        let _ = match code {
            0..=0xff => write!(long, "\\x{code:02X}"),
            0x100..=0xffff => write!(long, "\\u{code:04X}"),
            _ => write!(long, "\\U{code:08X}"),
        };
        self.put(&long);
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put("2");
        }
        match text.strip_suffix('\n') {
            None => self.put("-"),
            Some(rest) if rest.is_empty() || rest.ends_with('\n') => self.put("+"),
            Some(_) => {}
        }
        self.put("\n");
        for line in text.split_inclusive('\n') {
            if line != "\n" {
                self.line(indent);
            }
            self.put(line);
        }
    }
}

/// The styles that the characters of a string allow. A string of several lines is a literal block or has double quotes.
struct Analysis {
    plain: bool,
    single_quoted: bool,
    block: bool,
}

impl Analysis {
    fn of(text: &str) -> Self {
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut space_break) = (false, false);
        let (mut after_space, mut after_blank) = (false, true);
        let mut chars = text.chars().enumerate().peekable();
        while let Some((position, c)) = chars.next() {
            let before_blank = chars.peek().is_none_or(|(_, next)| matches!(next, ' ' | '\t'));
            indicators |= match c {
                '#' => after_blank,
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                    position == 0
                }
                '?' | '-' => position == 0 && before_blank,
                ':' => before_blank,
                _ => false,
            };
            special |= !is_printable(c);
            space_break |= c == '\n' && after_space;
            after_space = c == ' ';
            after_blank = matches!(c, ' ' | '\t');
        }
        let edges = text.starts_with(' ') || text.ends_with(' ');
        Analysis {
            plain: !special && !edges && !indicators,
            single_quoted: !special,
            block: !special && !space_break && !text.ends_with(' '),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether go-yaml writes the character without an escape. Characters above the Basic Multilingual Plane are escaped.
fn is_printable(c: char) -> bool {
    matches!(
        c,
        '\n' | ' '..='~'
            | '\u{a0}'..='\u{2027}'
            | '\u{202a}'..='\u{d7ff}'
            | '\u{e000}'..='\u{fefe}'
            | '\u{ff00}'..='\u{fffd}'
    )
}

/// Whether YAML would read this string as another type, if it were a plain scalar.
fn resolves_to_another_type(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n",
        "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", ".nan", ".NaN", ".NAN", ".inf", ".Inf",
        ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
    ];
    if WORDS.contains(&text) {
        return true;
    }
    match text.as_bytes()[0] {
        // Go's `strconv.ParseFloat` accepts an underscore between two digits.
        b'.' => {
            let digit_at = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
            is_float(&text.replace('_', ""))
                && text.match_indices('_').all(|(at, _)| digit_at(at - 1) && digit_at(at + 1))
        }
        b'+' | b'-' | b'0'..=b'9' => {
            let bare = text.replace('_', "");
            is_timestamp(text) || is_prefixed_integer(&bare) || is_float(&bare) || is_base_60(text)
        }
        _ => false,
    }
}

/// Whether go-yaml reads the text as an integer with a prefix: `0x1F`, `-0b101`, `0o17`. Others are floats too.
fn is_prefixed_integer(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let Some((prefix, digits)) = unsigned.split_at_checked(2) else { return false };
    let radix = match prefix {
        "0x" | "0X" => 16,
        "0b" | "0B" => 2,
        "0o" | "0O" => 8,
        _ => return false,
    };
    if digits.starts_with(['+', '-']) {
        // go-yaml parses the digits after this prefix again, as a signed number.
        return text.starts_with("0b") && i64::from_str_radix(digits, radix).is_ok();
    }
    let max = match text.as_bytes()[0] {
        b'+' => i64::MAX.unsigned_abs(),
        b'-' => i64::MIN.unsigned_abs(),
        _ => u64::MAX,
    };
    u64::from_str_radix(digits, radix).is_ok_and(|value| value <= max)
}

/// Whether the text is a float, `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, within the range of a double.
fn is_float(text: &str) -> bool {
    // Rust's grammar has infinities and NaN besides.
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether the text is a number to the base 60 (YAML 1.1), `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`.
fn is_base_60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let sixtieths = |part: &str| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    whole.contains(':')
        && first.starts_with(|c: char| c.is_ascii_digit())
        && digits(first)
        && parts.all(sixtieths)
        && digits(fraction)
}

/// Whether the text is a date with an optional time: `2006-1-2`, `2006-1-2T15:4:5.9Z07:00`, `2006-1-2 15:4:5.9`.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = text.split_at(text.find(['T', 't', ' ']).unwrap_or(text.len()));
    let mut parts = date.split('-');
    let mut part = |digits: RangeInclusive<usize>| parts.next().and_then(|part| number_of_digits(part, digits));
    let (Some(year), Some(month), Some(day)) = (part(4..=4), part(1..=2), part(1..=2)) else { return false };
    let month = u8::try_from(month).ok().and_then(|month| time::Month::try_from(month).ok());
    let days = month.map_or(0, |month| month.length(i32::try_from(year).unwrap_or(0)));
    if parts.next().is_some() || !(1..=u32::from(days)).contains(&day) {
        return false;
    }
    let clock = match time.as_bytes() {
        [] => return true,
        [b' ', ..] => time.trim_start_matches(' '),
        [.., b'Z'] => &time[1..time.len() - 1],
        _ => {
            let Some((clock, offset)) = time[1..].split_at_checked(time.len().saturating_sub(7)) else { return false };
            let offset = offset.strip_prefix(['+', '-']).and_then(|offset| offset.split_once(':'));
            // Go's `time.Parse` accepts these bounds: "some people do write offsets of 24 hours or 60 minutes".
            let within = |text, max| number_of_digits(text, 2..=2).is_some_and(|value| value <= max);
            if !offset.is_some_and(|(hours, minutes)| within(hours, 24) && within(minutes, 60)) {
                return false;
            }
            clock
        }
    };
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let mut parts = clock.split(':');
    let mut part_below =
        |limit| parts.next().and_then(|part| number_of_digits(part, 1..=2)).is_some_and(|value| value < limit);
    part_below(24)
        && part_below(60)
        && part_below(60)
        && parts.next().is_none()
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a number with this many decimal digits.
fn number_of_digits(text: &str, digits: RangeInclusive<usize>) -> Option<u32> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Formats a number: an integer unchanged, any other number as Go's `%g` does.
fn number_text(number: &serde_json::Number) -> String {
    // These are the shortest digits, as in Go. Rust's `{:e}` rounds up between two equally near candidates, Go to even.
    let text = number.to_string();
    if !number.is_f64() {
        return text;
    }
    let (decimal, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, unsigned) = decimal.split_at(usize::from(decimal.starts_with('-')));
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    let first = whole.len() as i32 - 1 - (all.len() - digits.len()) as i32 + exponent.parse::<i32>().unwrap_or(0);
    if digits.is_empty() || (-4..6).contains(&first) {
        return text.strip_suffix(".0").unwrap_or(&text).to_owned();
    }
    let (lead, rest) = digits.split_at(1);
    let rest = rest.trim_end_matches('0');
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{lead}{point}{rest}e{first:+03}")
}

/// Sorts members by [`key_order`] with a merge sort.
///
/// The order is not total: `11 < 1a`, `1a < 9`, but `9 < 11`. `slice::sort_by` panics then.
fn sorted<'a>(mut members: Vec<(&'a String, &'a Value)>) -> Vec<(&'a String, &'a Value)> {
    if members.len() < 2 {
        return members;
    }
    let mut merged = Vec::with_capacity(members.len());
    let mut right = sorted(members.split_off(members.len() / 2)).into_iter().peekable();
    let mut left = sorted(members).into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if key_order(b.0, a.0).is_lt() { &mut right } else { &mut left };
        merged.extend(next.next());
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

/// Compares keys as go-yaml does: letters follow other characters, and runs of digits are compared by their value.
fn key_order(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    let (x, y) = (a[at], b[at]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Zeros after another digit are part of the number.
    let inside =
        (x == '0' || y == '0') && a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|digit| *digit != '0');
    let number = |text: &[char]| {
        let run: Vec<i64> = text.iter().map_while(|c| c.to_digit(10)).map(i64::from).collect();
        let value = run.iter().fold(i64::from(inside), |value, digit| value.wrapping_mul(10).wrapping_add(*digit));
        (value, run.len())
    };
    number(&a[at..]).cmp(&number(&b[at..])).then(x.cmp(&y))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(json: &str, expected: &str) {
        let yaml = from_json(json.as_bytes()).unwrap();
        assert_eq!(std::str::from_utf8(&yaml).unwrap(), expected, "{json}");
    }

    #[test]
    fn yaml_document_has_the_layout_of_go_yaml() {
        check("{}", "{}\n");
        check("[]", "[]\n");
        check("7", "7\n");
        check(r#"{"b":1,"a":{"c":[],"b":{}}}"#, "a:\n  b: {}\n  c: []\nb: 1\n");
        check(r#"{"l":[1,[2,3],{"b":1,"a":[true]},"x"]}"#, "l:\n- 1\n- - 2\n  - 3\n- a:\n  - true\n  b: 1\n- x\n");
        check(r#"{"a10":1,"a9":2,"a":3,"A":4,"1":5}"#, "\"1\": 5\nA: 4\na: 3\na9: 2\na10: 1\n");
        check(r#"{"v":[true,false,null]}"#, "v:\n- true\n- false\n- null\n");
    }

    fn check_string(text: &str, expected: &str) {
        check(&serde_json::json!({ "k": text }).to_string(), &format!("k: {expected}\n"));
    }

    #[test]
    fn yaml_number_has_the_format_of_go() {
        for (json, expected) in [
            ("0", "0"),
            ("-12345678", "-12345678"),
            ("18446744073709551615", "18446744073709551615"),
            ("0.0", "0"),
            ("1.0", "1"),
            ("-1.5", "-1.5"),
            ("0.0001", "0.0001"),
            ("0.00015", "0.00015"),
            ("0.00001", "1e-05"),
            ("-1.25e-7", "-1.25e-07"),
            ("100000.0", "100000"),
            ("999999.5", "999999.5"),
            ("1000000.0", "1e+06"),
            ("1234567.5", "1.2345675e+06"),
            ("1200000.0", "1.2e+06"),
            ("1e21", "1e+21"),
            ("123456789012345678901", "1.2345678901234568e+20"),
            ("1.5e300", "1.5e+300"),
            ("5e-324", "5e-324"),
            // Two shortest decimals are equally near to these values.
            ("575319114565030.25", "5.753191145650302e+14"),
            ("999999.00048828125", "999999.0004882812"),
        ] {
            check(json, &format!("{expected}\n"));
        }
    }

    #[test]
    fn yaml_string_has_the_quotes_of_go_yaml() {
        for (text, expected) in [
            ("plain text", "plain text"),
            ("yellow", "yellow"),
            ("- a", "'- a'"),
            ("-", "'-'"),
            ("-a", "-a"),
            ("a - b", "a - b"),
            ("? a", "'? a'"),
            ("?a", "?a"),
            ("a: b", "'a: b'"),
            ("a:", "'a:'"),
            ("a:\tb", "\"a:\\tb\""),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            ("#b", "'#b'"),
            ("a#b", "a#b"),
            ("it's", "it's"),
            ("'s: x", "'''s: x'"),
            ("*", "'*'"),
            ("a*", "a*"),
            (" a", "' a'"),
            ("a ", "'a '"),
            ("a\tb", "\"a\\tb\""),
            ("ä€", "ä€"),
            ("{a}", "'{a}'"),
            ("a,b", "a,b"),
            ("---", "'---'"),
            ("...a", "'...a'"),
            ("=", "="),
            ("<<", "<<"),
            ("a\nb", "|-\n  a\n  b"),
            ("a\nb\n", "|\n  a\n  b"),
            ("\n", "|2+\n"),
            ("a\n\n", "|+\n  a\n"),
            ("a\n\nb", "|-\n  a\n\n  b"),
            (" a\nb", "|2-\n   a\n  b"),
            ("a\n b", "|-\n  a\n   b"),
            ("\na", "|2-\n\n  a"),
            ("a \nb", "\"a \\nb\""),
            ("a\nb ", "\"a\\nb \""),
            ("a\n\tb", "\"a\\n\\tb\""),
        ] {
            check_string(text, expected);
        }
    }

    #[test]
    fn yaml_string_that_reads_as_another_type_has_double_quotes() {
        let check = |quoted: bool, texts: &[&str]| {
            for text in texts {
                check_string(text, &if quoted { format!("\"{text}\"") } else { (*text).to_owned() });
            }
        };
        // Words of `resolve.go`.
        check(true, &["", "~", "null", "true", "True", "no", "y", "Off", ".nan", "-.Inf"]);
        check(false, &["nULL", "tRUE", "+.nan", "nan", "inf", "-inf", "+Infinity", "-nan"]);
        // Integers, with underscores after the first character.
        check(true, &["7", "-7", "+7", "0", "089", "1_000", "1__0_", "0_", "18446744073709551616"]);
        check(false, &["_1", "500m", "--1", "+-1", "1 0", "1x1", "0z1"]);
        // Integers with a prefix: unsigned ones have 64 bits, signed ones 63.
        check(true, &["0x1F", "0X1f", "-0x1F", "+0x1F", "0b101", "0B1", "-0b1", "0o17", "0O7", "0x_1"]);
        check(true, &["0xffffffffffffffff", "+0x7fffffffffffffff", "-0x8000000000000000", "0b-1", "0b+1"]);
        check(false, &["0x", "0x1G", "0b2", "0o8", "0x-1", "0B-1", "-0b-1", "+0b-1", "0b-"]);
        check(false, &["0x10000000000000000", "+0x8000000000000000", "-0x8000000000000001"]);
        // Floats, with underscores between digits if they begin with a point.
        check(true, &["1.5", "-1.", "+.5", ".5", "1e3", "1E+3", "-1.5e-3", "1_0.5", ".5_5", ".1_2_3", "09.5"]);
        check(false, &["1.2.3", "10.0.0.1", "1e", "1e+", "+.", "-.e1", "1.5f", ".e1", ".5e"]);
        check(false, &["1e999", &"9".repeat(400)]);
        check(false, &["._5", ".5_", ".5__5", ".5_e1", ".5e_1"]);
        // Numbers to the base 60.
        check(true, &["1:30", "-1:30", "+1:30", "1:5", "1_0:30", "190:20:30", "1:30.15", "1:30.", "1:30._5"]);
        check(false, &["80:8080", "1:60", "1:300", "1::3", "1a:30", "1.5:30", "+_1:30", "-:30", "1:30.x"]);
    }

    #[test]
    fn yaml_string_that_reads_as_a_time_has_double_quotes() {
        let check = |quoted: bool, texts: &[&str]| {
            for text in texts {
                check_string(text, &if quoted { format!("\"{text}\"") } else { (*text).to_owned() });
            }
        };
        check(true, &["2024-05-01", "2024-5-1", "2024-12-31", "2024-02-29", "2000-02-29", "0000-02-29"]);
        check(false, &["2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-05-32", "2024-05-00"]);
        check(false, &["2024-13-01", "2024-00-01", "2024-300-01", "2024-005-01", "2024-05-001", "2024-+5-01"]);
        check(false, &["2024-5", "2024-5-", "2024-5-1-1", "202-05-01", "20245-05-01"]);
        // A time needs a zone after `T`, and has none after a space.
        check(true, &["2024-05-01T10:00:00Z", "2024-05-01t1:2:3Z", "2024-05-01T23:59:59Z"]);
        check(true, &["2024-05-01T10:00:00+02:00", "2024-5-1 1:2:3", "2024-5-1   1:2:3.5"]);
        check(false, &["2024-05-01T10:00:00", "2024-05-01T10:00:00z", "2024-05-01T10:00:00 Z"]);
        check(false, &["2024-05-01 10:00:00Z", "2024-05-01 10:00:00+02:00"]);
        check(false, &["2024-05-01T", "2024-05-01TZ", "2024-05-01T10:00", "2024-05-01T10:00Z"]);
        check(false, &["2024-05-01T24:00:00Z", "2024-05-01T10:60:00Z", "2024-05-01T10:00:60Z"]);
        check(false, &["2024-05-01T10:00:00:00Z", "2024-05-01T010:00:00Z"]);
        // Fractions have any number of digits.
        check(true, &["2024-05-01T10:00:00.123456Z", "2024-05-01T1:0:0,5Z", "2024-05-01T1:0:0.1234567890123Z"]);
        check(false, &["2024-05-01T10:00:00.Z", "2024-05-01T10:00:00.5xZ"]);
        // Offsets have up to 24 hours and up to 60 minutes, with two digits each.
        check(true, &["2024-05-01T10:00:00-24:60"]);
        check(false, &["2024-05-01T10:00:00+25:00", "2024-05-01T10:00:00+02:61"]);
        check(false, &["2024-05-01T10:00:00+2:00", "2024-05-01T10:00:00+002:0", "2024-05-01T10:00:00+2:000"]);
        check(false, &["2024-05-01T10:00:00+02.00", "2024-05-01T10:00:00*02:00", "2024-05-01T+02:00"]);
        check(false, &["2024-05-01T10:00:00+aa:00", "2024-05-01T10:00:00+02:aa", "2024-05-01Tä2:00"]);
    }

    #[test]
    fn unprintable_character_is_escaped_as_by_go_yaml() {
        for (character, expected) in [
            ('\0', "\\0"),
            ('\x01', "\\x01"),
            ('\x07', "\\a"),
            ('\x08', "\\b"),
            ('\t', "\\t"),
            ('\x0b', "\\v"),
            ('\x0c', "\\f"),
            ('\r', "\\r"),
            ('\x1b', "\\e"),
            ('\x1f', "\\x1F"),
            ('\x7f', "\\x7F"),
            ('\u{84}', "\\x84"),
            ('\u{85}', "\\N"),
            ('\u{2028}', "\\L"),
            ('\u{2029}', "\\P"),
            ('\u{feff}', "\\uFEFF"),
            ('\u{ffff}', "\\uFFFF"),
            ('😀', "\\U0001F600"),
        ] {
            check_string(&format!("a{character}b"), &format!("\"a{expected}b\""));
        }
        for character in ['~', '\u{a0}', 'ÿ', '\u{2027}', '\u{202a}', '\u{d7ff}', '\u{e000}', '\u{fffd}'] {
            check_string(&format!("a{character}b"), &format!("a{character}b"));
        }
        check_string("\t\"\\", "\"\\t\\\"\\\\\"");
        // These are printable, but everything after a byte order mark is escaped.
        check_string("\u{feff}\u{a0}ÿ€ a", "\"\\uFEFF\\_\\xFF\\u20AC\\x20\\x61\"");
        check_string("a\u{2028}b\nc", "\"a\\Lb\\nc\"");
    }

    #[test]
    fn yaml_line_is_folded_at_the_first_single_space_after_column_80() {
        // `k: ` and the text before the space take 80 columns, or 81.
        let (fits, long) = ("x".repeat(77), "x".repeat(78));
        check_string(&format!("{fits} y z"), &format!("{fits} y\n  z"));
        check_string(&format!("{long} y z"), &format!("{long}\n  y z"));
        check_string(&format!("{long}  y z"), &format!("{long}  y\n  z"));
        // The quote takes a column.
        let (fits, long) = ("x".repeat(76), "x".repeat(77));
        check_string(&format!("{fits} y z:"), &format!("'{fits} y\n  z:'"));
        check_string(&format!("{long} y z:"), &format!("'{long}\n  y z:'"));
        check_string(&format!("{long}  y 'z:"), &format!("'{long}  y\n  ''z:'"));
        check_string(&format!("{long} "), &format!("'{long} '"));
        check_string(&format!("{fits} y z\t"), &format!("\"{fits} y\n  z\\t\""));
        check_string(&format!("{long} y z\t"), &format!("\"{long}\n  y z\\t\""));
        check_string(&format!("{long}  y\t"), &format!("\"{long}\n  \\ y\\t\""));
        check_string(&format!("\t{long} "), &format!("\"\\t{long} \""));
        // Spaces at the beginning are not folded, and keys neither.
        let key = "k".repeat(90);
        check(&serde_json::json!({ &key: " a" }).to_string(), &format!("{key}: ' a'\n"));
        check(&serde_json::json!({ &key: " a\t" }).to_string(), &format!("{key}: \" a\\t\"\n"));
        for (member, expected) in [("a b", "a b"), ("a b:", "'a b:'"), ("a b\t", "\"a b\\t\"")] {
            let expected = expected.replace('a', &key);
            check(&serde_json::json!({ member.replace('a', &key): 1 }).to_string(), &format!("{expected}: 1\n"));
        }
    }

    #[test]
    fn yaml_key_that_is_long_or_has_line_breaks_has_a_question_mark() {
        let (simple, long) = ("k".repeat(128), "k".repeat(129));
        for (json, expected) in [
            (serde_json::json!({ &simple: 1 }), format!("{simple}: 1\n")),
            (serde_json::json!({ &long: 1 }), format!("? {long}\n: 1\n")),
            (serde_json::json!({ "ä".repeat(65): 1 }), format!("? {}\n: 1\n", "ä".repeat(65))),
            (serde_json::json!({ "a\nb": 1 }), "? |-\n  a\n  b\n: 1\n".to_owned()),
            (serde_json::json!({ "a\rb": 1 }), "? \"a\\rb\"\n: 1\n".to_owned()),
            (serde_json::json!({ "\u{85}": 1 }), "? \"\\N\"\n: 1\n".to_owned()),
            // The value begins on the line of the colon.
            (serde_json::json!({ &long: { "b": 1, "c": [] } }), format!("? {long}\n: b: 1\n  c: []\n")),
            (serde_json::json!({ &long: [1, [2]] }), format!("? {long}\n: - 1\n  - - 2\n")),
            (serde_json::json!({ "a": { &long: "x\ny" } }), format!("a:\n  ? {long}\n  : |-\n    x\n    y\n")),
        ] {
            check(&json.to_string(), &expected);
        }
    }

    /// The keys of a document in the order of its text.
    fn keys(members: &serde_json::Map<String, Value>) -> Vec<String> {
        let yaml = from_json(&serde_json::to_vec(members).unwrap()).unwrap();
        let printed: serde_json::Map<String, Value> = yaml_serde::from_slice(&yaml).unwrap();
        assert_eq!(&printed, members, "every member is printed once");
        printed.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn yaml_keys_have_the_order_of_go_yaml() {
        for (first, second) in [
            ("", "a"),
            ("a", "aa"),
            ("B", "a"),
            ("z", "ä"),
            ("_", "a"),
            ("1", "A"),
            ("-", "_"),
            ("a9", "a10"),
            ("a9b", "a10a"),
            ("a2", "a02"),
            ("a02", "a3"),
            ("a00", "a01"),
            // A zero that differs is part of the number before it, unless that number is zero too.
            ("a2-", "a20"),
            ("a19", "a101"),
            ("a15-", "a101"),
            ("a20-", "a200"),
            ("b0-", "b00"),
            // Letters follow digits, even inside of a number.
            ("a11", "a1a"),
            // Values beyond 63 bits wrap around.
            ("a9223372036854775808", "a1223372036854775807"),
        ] {
            for members in [[first, second], [second, first]] {
                let members = members.into_iter().map(|key| (key.to_owned(), Value::Null)).collect();
                assert_eq!(keys(&members), [first, second]);
            }
        }
    }

    #[test]
    fn yaml_keys_without_a_total_order_are_printed() {
        // Such keys have cycles: `11 < 1a`, `1a < 9`, `9 < 11`.
        let hashes = (0..500_u32).map(|n| format!("{:08x}", n.wrapping_mul(0x9e37_79b9)));
        assert_eq!(keys(&hashes.map(|key| (key, Value::Null)).collect()).len(), 500);
    }

    #[test]
    fn yaml_much_longer_than_its_json_returns_406() {
        const LEVELS: usize = 100;
        let nested = |leaf: &str| format!("{}{leaf}{}", r#"{"a":"#.repeat(LEVELS), "}".repeat(LEVELS));
        let numbers = nested(&format!("[{}0]", "0,".repeat(500_000)));
        let lines = nested(&format!("\"{}\"", r"x\n".repeat(500_000)));
        let words = nested(&format!("\"{}\"", "x ".repeat(500_000)));
        for (name, json) in [("numbers", &numbers), ("lines", &lines), ("words", &words)] {
            let error = from_json(json.as_bytes()).expect_err(name);
            assert_eq!((error.code, &*error.reason), (406, "NotAcceptable"), "{name}");
            assert!(error.message.ends_with("bytes in YAML; request application/json"), "{}", error.message);
            assert_eq!(item_from_json(json.as_bytes(), &[]).expect_err(name).code, 406, "{name}");
        }
        // A thousand numbers on this level are a hundred times as long, too, but short.
        assert!(from_json(nested(&format!("[{}0]", "0,".repeat(1_000))).as_bytes()).is_ok());
    }

    #[test]
    fn yaml_list_item_has_no_indent() {
        assert_eq!(
            item_from_json(br#"{"b":[1],"kind":"x","a":{"c":2}}"#, &["kind"]).unwrap(),
            "- a:\n    c: 2\n  b:\n  - 1\n"
        );
        assert_eq!(item_from_json(b"{}", &[]).unwrap(), "- {}\n");
        assert!(from_json(b"{").is_err());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            "[a-z0-9\"'\\\\{}, :#\n\t.-]{0,9}".prop_map(Into::into),
            "([a-z]{1,9}[ ]{1,2}){0,30}".prop_map(Into::into),
            "\\PC{0,5}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec(("[a-z0-9\": \n]{0,3}|[a-z]{120,140}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_yaml_parses_to_the_same_value(value in json()) {
            let yaml = from_json(&serde_json::to_vec(&value).unwrap()).unwrap();
            let back: Value = yaml_serde::from_slice(&yaml)
                .map_err(|error| TestCaseError::fail(format!("{error}: {}", String::from_utf8_lossy(&yaml))))?;
            prop_assert_eq!(back, value, "{}", String::from_utf8_lossy(&yaml));
        }
    }
}
