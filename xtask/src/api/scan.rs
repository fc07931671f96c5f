//! Rust source as a list of items, without a parser: comments and literals are blanked, then brackets are
//! matched. That is enough for formatted code that compiles.

use std::ops::Range;

/// Source text, and the same text with blanks for comments and quoted text. Offsets are equal in both.
pub(super) struct Source {
    pub(super) text: String,
    blank: String,
}

/// An item: its attributes, the text up to its body, and its body.
pub(super) struct Chunk {
    pub(super) attributes: String,
    head: Range<usize>,
    pub(super) body: Option<Range<usize>>,
}

impl Source {
    pub(super) fn new(text: String) -> Self {
        let blank = blank(&text);
        Source { text, blank }
    }

    pub(super) fn whole(&self) -> Range<usize> {
        0..self.blank.len()
    }

    /// The head in one line, without comments.
    pub(super) fn head(&self, chunk: &Chunk) -> String {
        one_line(&self.blank[chunk.head.clone()])
    }

    /// The items in this range, which is a file or the body of a module, a trait or an impl.
    pub(super) fn items(&self, range: Range<usize>) -> Vec<Chunk> {
        let bytes = self.blank.as_bytes();
        let mut items = Vec::new();
        let mut at = range.start;
        let mut attributes = String::new();
        while at < range.end {
            if bytes[at].is_ascii_whitespace() || bytes[at] == b';' {
                at += 1;
                continue;
            }
            if bytes[at] == b'#' {
                let open = at + self.blank[at..].find('[').unwrap_or(0);
                let end = self.closing(open, range.end);
                attributes.push_str(&one_line(&self.text[at..end]));
                attributes.push(' ');
                at = end;
                continue;
            }
            let (head, body, end) = self.item(at, range.end);
            items.push(Chunk { attributes: std::mem::take(&mut attributes), head, body });
            at = end;
        }
        items
    }

    /// Splits the body of a struct or enum at its commas. Returns the attributes and the text of each part in one line.
    pub(super) fn members(&self, range: Range<usize>) -> Vec<(String, String)> {
        let bytes = self.blank.as_bytes();
        let (mut members, mut attributes) = (Vec::new(), String::new());
        let (mut at, mut start) = (range.start, range.start);
        let mut angles = 0_i32;
        let mut fresh = true;
        while at < range.end {
            match bytes[at] {
                b'#' if fresh => {
                    let open = at + self.blank[at..].find('[').unwrap_or(0);
                    let end = self.closing(open, range.end);
                    attributes.push_str(&one_line(&self.text[at..end]));
                    attributes.push(' ');
                    at = end;
                    start = at;
                    continue;
                }
                b'(' | b'[' | b'{' => at = self.closing(at, range.end) - 1,
                b'<' => angles += 1,
                b'>' if at > 0 && bytes[at - 1] != b'-' && bytes[at - 1] != b'=' => angles -= 1,
                b',' if angles == 0 => {
                    members.push((std::mem::take(&mut attributes), one_line(&self.blank[start..at])));
                    start = at + 1;
                    fresh = true;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            fresh &= bytes[at].is_ascii_whitespace();
            at += 1;
        }
        let last = one_line(&self.blank[start..range.end]);
        if !last.is_empty() {
            members.push((attributes, last));
        }
        members
    }

    /// Reads the item that begins here: the head, the body and the end.
    fn item(&self, start: usize, limit: usize) -> (Range<usize>, Option<Range<usize>>, usize) {
        let bytes = self.blank.as_bytes();
        let ends_with_semicolon = has_value(&self.blank[start..limit]);
        let mut at = start;
        while at < limit {
            match bytes[at] {
                b';' => return (start..at, None, at + 1),
                b'{' if !ends_with_semicolon => {
                    let end = self.closing(at, limit);
                    return (start..at, Some(at + 1..end.saturating_sub(1).max(at + 1)), end);
                }
                b'(' | b'[' | b'{' => at = self.closing(at, limit),
                _ => at += 1,
            }
        }
        (start..limit, None, limit)
    }

    /// The offset after the bracket that closes the bracket at `open`.
    fn closing(&self, open: usize, limit: usize) -> usize {
        let mut depth = 0_usize;
        for (at, byte) in self.blank.as_bytes()[open..limit].iter().enumerate() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return open + at + 1;
                    }
                }
                _ => {}
            }
        }
        limit
    }
}

/// Whether the item ends with `;` even if it has braces: a use, a constant or a type alias.
fn has_value(text: &str) -> bool {
    let mut words = text.split(|c: char| !(c.is_alphanumeric() || "_()".contains(c))).filter(|word| !word.is_empty());
    let mut word = words.next();
    while word.is_some_and(|word| word.starts_with("pub") || word.ends_with(')') || word == "crate") {
        word = words.next();
    }
    match word {
        Some("use" | "static" | "type" | "let") => true,
        Some("const") => !matches!(words.next(), Some("fn" | "unsafe" | "async")),
        _ => false,
    }
}

/// Returns the text on one line with single spaces, and brackets as rustfmt sets them where everything fits into a
/// line.
pub(super) fn one_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (from, to) in [
        ("( ", "("),
        (" )", ")"),
        (",)", ")"),
        ("[ ", "["),
        (" ]", "]"),
        ("< ", "<"),
        (", }", " }"),
        (",>", ">"),
        (", >", ">"),
    ] {
        line = line.replace(from, to);
    }
    line.trim_end_matches(',').to_owned()
}

/// The text with blanks for comments and for the content of string and character literals.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => end_of(bytes, at, b"\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => end_of(bytes, at, b"*/") + 2,
            b'"' => quoted(bytes, at),
            b'r' if !is_word(bytes, at) => match raw(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match character(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        let end = end.min(bytes.len());
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn end_of(bytes: &[u8], at: usize, end: &[u8]) -> usize {
    bytes[at..].windows(end.len()).position(|window| window == end).map_or(bytes.len(), |found| at + found)
}

/// Whether the byte before this one belongs to the same word.
fn is_word(bytes: &[u8], at: usize) -> bool {
    // `b` and `c` may stand before a raw string.
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') && !matches!(bytes[at - 1], b'b' | b'c')
}

fn quoted(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = at + 1 + hashes;
    (bytes.get(open) == Some(&b'"')).then(|| {
        let end = [b"\"".to_vec(), vec![b'#'; hashes]].concat();
        end_of(bytes, open + 1, &end) + end.len()
    })
}

/// The end of a character literal, or `None` for a lifetime.
fn character(bytes: &[u8], open: usize) -> Option<usize> {
    if bytes.get(open + 1) == Some(&b'\\') {
        return Some(end_of(bytes, open + 3, b"'") + 1);
    }
    let width = bytes.get(open + 1).map_or(1, |byte| byte.leading_ones().max(1) as usize);
    (bytes.get(open + 1 + width) == Some(&b'\'')).then_some(open + width + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(text: &str) -> Vec<String> {
        let source = Source::new(text.to_owned());
        source.items(source.whole()).iter().map(|chunk| source.head(chunk)).collect()
    }

    #[test]
    fn rust_source_is_split_into_items() {
        let text = "//! Doc {\n#![forbid(unsafe_code)]\nuse a::{b, c};\n/// It's {\n#[derive(Clone)]\npub struct A<'a> {\n    b: &'a str,\n}\n\
                    pub const B: char = '{';\nconst fn f(\n    a: u8,\n) -> [u8; 2] {\n    \"}\\\"\"\n}\nimpl A<'_> {}\npub type X = r#\"{\"#;\n";
        assert_eq!(
            heads(text),
            [
                "use a::{b, c}",
                "pub struct A<'a>",
                "pub const B: char =",
                "const fn f(a: u8) -> [u8; 2]",
                "impl A<'_>",
                "pub type X ="
            ]
        );
    }

    #[test]
    fn members_are_split_at_commas_outside_brackets() {
        let source = Source::new(
            "#[doc = \"x\"] pub a: HashMap<u8, fn(u8, u8) -> u8>, B { c: u8, d: u8 }, E(u8, u8)".to_owned(),
        );
        let members: Vec<_> = source.members(source.whole()).into_iter().map(|(_, text)| text).collect();
        assert_eq!(members, ["pub a: HashMap<u8, fn(u8, u8) -> u8>", "B { c: u8, d: u8 }", "E(u8, u8)"]);
    }
}
