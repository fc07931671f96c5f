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
use listwatch_json::{JsonString, Value};
use listwatch_meta::Status;

/// The column after which the next single space becomes a line break.
const BEST_WIDTH: usize = 80;
/// The indent of a nested node, in spaces.
const INDENT: usize = 2;
/// The largest simple key, in bytes. A longer key is written with a `?`.
const SIMPLE_KEY_BYTES_MAX: usize = 128;

/// The number of bytes by which a document in block style may exceed [`GROWTH_MAX`] times its JSON. Each line of a nested
/// value begins with its indent, so a deep value can be a hundred times as long as its JSON.
const EXCESS_BYTES_MAX: usize = 1024 * 1024;
/// How many times as long as its JSON a document in block style may be, besides [`EXCESS_BYTES_MAX`].
const GROWTH_MAX: usize = 4;

/// Converts a JSON document to YAML. A document that would be much longer than its JSON because of its indents is
/// returned as JSON, which YAML parsers read.
///
/// # Errors
/// 500 if the document is not JSON.
pub fn from_json(json: &[u8]) -> Result<Bytes, Status> {
    let document: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    let mut printer = Printer::for_json(json);
    printer.root(&document);
    Ok(printer.finish().unwrap_or_else(|| format!("{document}\n").into()))
}

/// Converts an item of a sequence without indent, such as the `items` of a list. The members of the item that `without`
/// names are omitted. An item that would be much longer than its JSON because of its indents is written as JSON.
///
/// # Errors
/// 500 if the item is not JSON.
pub fn item_from_json(json: &[u8], without: &[&str]) -> Result<Bytes, Status> {
    let mut item: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    if let Value::Object(members) = &mut item {
        members.retain(|name, _| !without.contains(&name.as_str()));
    }
    let mut printer = Printer::for_json(json);
    printer.put("-");
    printer.node(&item, 0, Place::Item);
    printer.put("\n");
    Ok(printer.finish().unwrap_or_else(|| format!("- {item}\n").into()))
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
    /// The number of bytes after which the printer stops.
    bytes_max: usize,
}

impl Printer {
    fn for_json(json: &[u8]) -> Self {
        let bytes_max = json.len().saturating_mul(GROWTH_MAX).saturating_add(EXCESS_BYTES_MAX);
        Printer { out: String::new(), column: 0, bytes_max }
    }

    fn is_full(&self) -> bool {
        self.out.len() > self.bytes_max
    }

    /// Returns the document; `None` if the printer has stopped before its end.
    fn finish(mut self) -> Option<Bytes> {
        if self.is_full() {
            return None;
        }
        // A slow reader holds the buffer.
        self.out.shrink_to_fit();
        Some(self.out.into())
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
        // The rest of the document then grows no longer than its JSON, also the words of one folded string.
        if !self.is_full() {
            self.out.extend(std::iter::repeat_n(' ', indent));
            self.column += indent;
        }
    }

    fn node(&mut self, value: &Value, indent: usize, place: Place) {
        if self.is_full() {
            return;
        }
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
fn sorted<'a>(mut members: Vec<(&'a JsonString, &'a Value)>) -> Vec<(&'a JsonString, &'a Value)> {
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
mod tests;
