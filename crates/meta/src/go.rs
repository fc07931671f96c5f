//! How Go prints texts and names values: error texts are made by its `fmt`, `strconv` and `encoding/json`, and
//! clients compare them.

use std::fmt::Write as _;

use serde_json::Value;

/// Bytes as a text. Each byte that is no UTF-8 becomes one U+FFFD, as Go's `encoding/json` writes it.
pub fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

/// `strconv.Quote`, which is `%q` of a string.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{07}' => out.push_str("\\a"),
            '\u{08}' => out.push_str("\\b"),
            '\u{0c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{0b}' => out.push_str("\\v"),
            ' '..='~' => out.push(c),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x80 => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if (c as u32) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => {
                let _ = write!(out, "\\U{:08x}", c as u32);
            }
        }
    }
    out.push('"');
    out
}

/// Whether Go prints a character as it is. The standard library's table of printable characters is
/// only reachable through its escapes; a letter goes before, for what joins the letter before it.
fn is_printable(c: char) -> bool {
    let mut probe = String::from("a");
    probe.push(c);
    probe.escape_debug().count() == 2
}

/// The word for a JSON value in `encoding/json`'s errors.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_go_quotes_them() {
        fn check(text: &str, expected: &str) {
            assert_eq!(quote(text), expected);
        }
        check("a", r#""a""#);
        check("a\"b\\", r#""a\"b\\""#);
        check("\n\t\r\u{7}\u{b}", r#""\n\t\r\a\v""#);
        check("\u{1}\u{7f}", r#""\x01\x7f""#);
        check("é世\u{301}", "\"é世\u{301}\"");
        check("\u{a0}\u{feff}", r#""\u00a0\ufeff""#);
        check("'", r#""'""#);
    }

    #[test]
    fn invalid_utf8_bytes_are_replaced_one_by_one() {
        assert_eq!(text("b\u{f8}b".as_bytes()), "b\u{f8}b");
        assert_eq!(text(b"a\xe2\x82b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn values_are_named_as_go_names_them() {
        let named = |text: &str| json_kind(&serde_json::from_str(text).unwrap());
        let texts = ["null", "true", "1.5", "\"\"", "[{}]", "{}"];
        assert_eq!(texts.map(named), ["null", "bool", "number", "string", "array", "object"]);
    }
}
