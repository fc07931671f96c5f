//! Writes YAML responses: JSON documents in the layout of Go's YAML library (go-yaml v2 under `sigs.k8s.io/yaml`).
//!
//! - Keys are sorted. Numbers in them are compared by value.
//! - A string that YAML would read as another type (a time, a number, `yes`) has double quotes.
//! - A string with characters that a plain scalar cannot have has single quotes.
//! - A string of several lines is a literal block.
//! - Lines are folded after column 80, at spaces.

use std::cmp::Ordering;
use std::fmt::Write as _;

use bytes::Bytes;
use listwatch_meta::Status;
use serde_json::Value;

/// The column after which the next single space becomes a line break.
const BEST_WIDTH: usize = 80;
/// The indent of a nested node, in spaces.
const INDENT: usize = 2;
/// The largest simple key, in bytes. A longer key is written with a `?`.
const SIMPLE_KEY_BYTES_MAX: usize = 128;

/// Converts a JSON document to YAML.
///
/// # Errors
/// 500 if the document is not JSON.
pub fn from_json(json: &[u8]) -> Result<Bytes, Status> {
    let document: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    let mut printer = Printer::default();
    printer.root(&document);
    Ok(printer.out.into())
}

/// Converts an item of a sequence without indent, such as the `items` of a list. The members of the item that `without`
/// names are omitted.
///
/// # Errors
/// 500 if the item is not JSON.
pub fn item_from_json(json: &[u8], without: &[&str]) -> Result<Bytes, Status> {
    let mut item: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    if let Value::Object(members) = &mut item {
        members.retain(|name, _| !without.contains(&name.as_str()));
    }
    let mut printer = Printer::default();
    printer.put("-");
    printer.node(&item, 0, Place::Item);
    printer.put("\n");
    Ok(printer.out.into())
}

/// The position of a node.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    /// After `key:`, with the indentation of the key.
    Value,
    /// After `-`, with the indentation of the dash.
    Item,
}

#[derive(Default)]
struct Printer {
    out: String,
    /// The number of characters on the current line.
    column: usize,
}

impl Printer {
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
        for _ in 0..indent {
            self.put_char(' ');
        }
    }

    fn node(&mut self, value: &Value, indent: usize, place: Place) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                let mut members: Vec<(&String, &Value)> = members.iter().collect();
                members.sort_by(|a, b| key_order(a.0, b.0));
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
            Place::Root if position == 0 => {}
            // The first item is on the line of the dash.
            Place::Item if position == 0 => self.put(" "),
            _ => self.line(indent),
        }
    }

    fn member(&mut self, key: &str, value: &Value, indent: usize) {
        let simple = key.len() <= SIMPLE_KEY_BYTES_MAX && !key.contains('\n');
        if simple {
            self.text(key, indent, true);
        } else {
            self.put("? ");
            self.text(key, indent + INDENT, false);
            self.line(indent);
        }
        self.put(":");
        self.node(value, indent, Place::Value);
    }

    /// Writes a string in the first style that can represent it.
    fn text(&mut self, text: &str, indent: usize, is_key: bool) {
        let found = Analysis::of(text);
        if text.contains('\n') && !is_key && found.block {
            self.literal(text, indent);
        } else if text.contains('\n') || is_something_else(text) {
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
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((position, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            if c == ' ' && !is_key && !after_space && self.column > BEST_WIDTH && position > 0 && next.is_some() {
                self.line(indent);
                if next == Some(' ') {
                    self.put("\\");
                }
            } else if !is_printable(c) || is_break(c) || matches!(c, '"' | '\\') {
                self.escape(c);
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

/// The styles that the characters of a string allow.
struct Analysis {
    plain: bool,
    single_quoted: bool,
    block: bool,
}

impl Analysis {
    fn of(text: &str) -> Self {
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut breaks, mut break_space, mut space_break) = (false, false, false, false);
        let (mut after_space, mut after_break, mut after_blank) = (false, false, true);
        let mut chars = text.chars().enumerate().peekable();
        while let Some((position, c)) = chars.next() {
            let before_blank = chars.peek().is_none_or(|(_, next)| matches!(next, ' ' | '\t'));
            indicators |= match c {
                '#' if position > 0 => after_blank,
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                    position == 0
                }
                '?' | '-' => position == 0 && before_blank,
                ':' => before_blank,
                _ => false,
            };
            special |= !is_printable(c);
            break_space |= c == ' ' && after_break;
            space_break |= is_break(c) && after_space;
            breaks |= is_break(c);
            after_space = c == ' ';
            after_break = is_break(c);
            after_blank = matches!(c, ' ' | '\t') || is_break(c);
        }
        let edge = |c: Option<char>| c.is_some_and(|c| c == ' ' || is_break(c));
        let edges = edge(text.chars().next()) || edge(text.chars().next_back());
        let whole = !special && !space_break;
        Analysis {
            plain: whole && !edges && !break_space && !breaks && !indicators,
            // Line breaks other than a newline would be invisible here.
            single_quoted: whole && !break_space && !breaks,
            block: whole && !text.ends_with(' '),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether go-yaml prints the character. Characters above the Basic Multilingual Plane are escaped.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

/// Whether YAML would read this string as another type, if it were a plain scalar.
fn is_something_else(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n",
        "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", ".nan", ".NaN", ".NAN", ".inf", ".Inf",
        ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
    ];
    if WORDS.contains(&text) {
        return true;
    }
    match text.as_bytes()[0] {
        b'.' => is_float(text),
        b'+' | b'-' | b'0'..=b'9' => {
            let bare = text.replace('_', "");
            is_timestamp(text) || is_integer(&bare) || is_float(&bare) || is_base_60(text)
        }
        _ => false,
    }
}

/// Whether Go's `strconv.ParseInt` or `ParseUint` accepts the text with any base.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let radix = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix));
    let (digits, radix) = if let Some(digits) = radix(["0x", "0X"]) {
        (digits, 16)
    } else if let Some(digits) = radix(["0b", "0B"]) {
        (digits, 2)
    } else if let Some(digits) = radix(["0o", "0O"]) {
        (digits, 8)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (&digits[1..], 8)
    } else {
        (digits, 10)
    };
    !digits.starts_with(['+', '-']) && u64::from_str_radix(digits, radix).is_ok()
}

/// Whether the text is a float, `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, within the range of a double.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
        && text.parse::<f64>().is_ok_and(f64::is_finite)
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
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = parts.next().filter(|year| year.len() == 4).and_then(digits);
    let (Some(year), Some(month), Some(day), None) =
        (year, parts.next().and_then(digits), parts.next().and_then(digits), parts.next())
    else {
        return false;
    };
    let month = u8::try_from(month).ok().and_then(|month| time::Month::try_from(month).ok());
    let Some(month) = month else { return false };
    if day == 0 || u32::from(month.length(i32::try_from(year).unwrap_or(0))) < day {
        return false;
    }
    let Some(time) = time else { return true };
    let zoned = !text.contains(' ');
    let clock = match (zoned, time.strip_suffix('Z')) {
        (true, Some(clock)) => clock,
        (true, None) => {
            let Some((clock, offset)) = time.split_at_checked(time.len().saturating_sub(6)) else { return false };
            let offset = offset.strip_prefix(['+', '-']).and_then(|offset| offset.split_once(':'));
            let in_day = |(hours, minutes): (&str, &str)| {
                hours.len() == 2
                    && minutes.len() == 2
                    && digits(hours).is_some_and(|hours| hours <= 24)
                    && digits(minutes).is_some_and(|minutes| minutes < 60)
            };
            if !offset.is_some_and(in_day) {
                return false;
            }
            clock
        }
        (false, _) => time,
    };
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let mut parts = clock.split(':');
    let part = |text: Option<&str>, limit| {
        text.filter(|text| text.len() <= 2).and_then(digits).is_some_and(|value| value < limit)
    };
    part(parts.next(), 24)
        && part(parts.next(), 60)
        && part(parts.next(), 60)
        && parts.next().is_none()
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses up to four digits as a number.
fn digits(text: &str) -> Option<u32> {
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Formats a number: an integer unchanged, any other number as Go's `%g` does.
fn number_text(number: &serde_json::Number) -> String {
    let value = match number.as_f64() {
        Some(value) if number.is_f64() => value,
        _ => return number.to_string(),
    };
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Compares keys: letters follow other characters, and runs of digits are compared by their value.
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
        let run: Vec<u64> = text.iter().map_while(|c| c.to_digit(10)).map(u64::from).collect();
        let value = run.iter().fold(u64::from(inside), |value, digit| value.wrapping_mul(10).wrapping_add(*digit));
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
        check(
            r#"{"v":[1.5,1e21,0.00001,12345678,1234567.5,1.0,null]}"#,
            "v:\n- 1.5\n- 1e+21\n- 1e-05\n- 12345678\n- 1.2345675e+06\n- 1\n- null\n",
        );
    }

    #[test]
    fn yaml_string_has_the_quotes_of_go_yaml() {
        for (text, expected) in [
            ("plain text", "plain text"),
            ("", "\"\""),
            ("2024-05-01T10:00:00Z", "\"2024-05-01T10:00:00Z\""),
            ("2024-05-01T10:00:00.123456Z", "\"2024-05-01T10:00:00.123456Z\""),
            ("2024-05-01T10:00:00+02:00", "\"2024-05-01T10:00:00+02:00\""),
            ("2024-05-01", "\"2024-05-01\""),
            ("2024-5-1 1:2:3", "\"2024-5-1 1:2:3\""),
            ("2024-13-01", "2024-13-01"),
            ("2024-02-30", "2024-02-30"),
            ("2024-05-01T25:00:00Z", "2024-05-01T25:00:00Z"),
            ("7", "\"7\""),
            ("1_000", "\"1_000\""),
            ("0x1F", "\"0x1F\""),
            ("089", "\"089\""),
            ("1e3", "\"1e3\""),
            ("1e999", "1e999"),
            (".5", "\".5\""),
            ("1.2.3", "1.2.3"),
            ("10.0.0.1", "10.0.0.1"),
            ("1:30", "\"1:30\""),
            ("80:8080", "80:8080"),
            ("500m", "500m"),
            ("true", "\"true\""),
            ("no", "\"no\""),
            ("y", "\"y\""),
            ("yellow", "yellow"),
            ("null", "\"null\""),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            ("a#b", "a#b"),
            ("it's", "it's"),
            ("'s: x", "'''s: x'"),
            ("*", "'*'"),
            (" a", "' a'"),
            ("a\tb", "\"a\\tb\""),
            ("ä€", "ä€"),
            ("😀", "\"\\U0001F600\""),
            ("{a}", "'{a}'"),
            ("a,b", "a,b"),
            ("---", "'---'"),
            ("=", "="),
            ("a\nb", "|-\n  a\n  b"),
            ("a\nb\n", "|\n  a\n  b"),
            ("a\n\n", "|+\n  a\n"),
            (" a\nb", "|2-\n   a\n  b"),
            ("a \nb", "\"a \\nb\""),
        ] {
            let json = serde_json::json!({ "k": text }).to_string();
            check(&json, &format!("k: {expected}\n"));
        }
    }

    #[test]
    fn long_yaml_line_is_folded_at_single_spaces() {
        let word = "abcdefghi";
        let long = [word; 12].join(" ");
        let line = [word; 8].join(" ");
        let rest = [word; 4].join(" ");
        check(&serde_json::json!({ "k": long }).to_string(), &format!("k: {line}\n  {rest}\n"));
        check(&serde_json::json!({ "k": format!("{long}: x") }).to_string(), &format!("k: '{line}\n  {rest}: x'\n"));
        check(&serde_json::json!({ "k": format!("{long}\tx") }).to_string(), &format!("k: \"{line}\n  {rest}\\tx\"\n"));
        let key = "k".repeat(129);
        check(&serde_json::json!({ key.as_str(): 1 }).to_string(), &format!("? {key}\n: 1\n"));
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
