//! Finds a few values in JSON bytes without parsing the rest: [`PathSet`] and [`Span`].
//!
//! The server reads only the labels and a handful of selectable fields of an object. One pass over
//! the document descends only along wanted paths and skips everything else by counting brackets
//! outside strings. The pass allocates nothing.
//!
//! The scanner assumes that skipped parts are valid JSON, because they were validated when written.
//! The scanner never reads outside the slice and never recurses deeper than the longest wanted
//! path. The result is [`Malformed`] when the brackets or strings are broken.

/// A byte range inside a document; an empty one (`start == end`) means "absent".
///
/// Offsets have 32 bits, because documents are far below 4 GiB ([`find`] rejects larger ones).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first byte's offset.
    pub start: u32,
    /// The offset after the last byte.
    pub end: u32,
}

impl Span {
    /// True when the value was not in the document.
    pub fn is_absent(self) -> bool {
        self.start == self.end
    }

    /// The bytes of the span.
    ///
    /// # Panics
    /// When the span does not belong to `document`.
    pub fn of(self, document: &[u8]) -> &[u8] {
        &document[self.start as usize..self.end as usize]
    }

    /// The same span in a document with `shift` more bytes in front of it.
    #[must_use]
    pub fn shifted(self, shift: u32) -> Span {
        if self.is_absent() { self } else { Span { start: self.start + shift, end: self.end + shift } }
    }
}

/// A set of wanted paths, compiled to a trie once per resource.
#[derive(Clone, Debug, Default)]
pub struct PathSet {
    nodes: Vec<Node>,
    /// The nodes of the paths' first elements.
    roots: Vec<usize>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Node {
    key: Box<[u8]>,
    children: Vec<usize>,
    /// The position of this path's span in the output, if the path itself is wanted.
    output: Option<usize>,
}

impl PathSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        PathSet::default()
    }

    /// Adds a path of object keys, e.g. `["spec", "nodeName"]`, and returns the index of its span
    /// in the output of [`find`]. Adding a path twice returns the same index.
    pub fn add(&mut self, path: &[&str]) -> usize {
        let mut parent = None;
        for (depth, key) in path.iter().enumerate() {
            let last = depth + 1 == path.len();
            let node = self.child(parent, key.as_bytes()).unwrap_or_else(|| {
                let node = self.nodes.len();
                self.nodes.push(Node { key: key.as_bytes().into(), children: Vec::new(), output: None });
                match parent {
                    Some(parent) => self.nodes[parent].children.push(node),
                    None => self.roots.push(node),
                }
                node
            });
            if last {
                let len = &mut self.len;
                return *self.nodes[node].output.get_or_insert_with(|| {
                    *len += 1;
                    *len - 1
                });
            }
            parent = Some(node);
        }
        panic!("a path has at least one element");
    }

    /// The number of spans that [`find`] fills.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no path is wanted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn child(&self, parent: Option<usize>, key: &[u8]) -> Option<usize> {
        // A handful of nodes: a linear scan beats hashing.
        let children = parent.map_or(&self.roots, |parent| &self.nodes[parent].children);
        children.iter().copied().find(|child| *self.nodes[*child].key == *key)
    }
}

/// The error for bytes that are not a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed JSON at byte {at}")]
pub struct Malformed {
    /// The offset of the first unexpected byte.
    pub at: usize,
}

/// Finds the wanted values of a JSON object. `spans` receives one [`Span`] per path, covering the raw value (strings
/// with their quotes). If a key is duplicate, the last occurrence is used, as in Go.
///
/// # Errors
/// [`Malformed`] when `document` is not one JSON object or is 4 GiB or larger.
///
/// # Panics
/// When `spans` is shorter than [`PathSet::len`].
pub fn find(document: &[u8], paths: &PathSet, spans: &mut [Span]) -> Result<(), Malformed> {
    let mut scanner = Scanner { document, at: find_first(document, paths, spans)? };
    scanner.space();
    if scanner.at == document.len() { Ok(()) } else { Err(Malformed { at: scanner.at }) }
}

/// Finds values like [`find`] in the first of several documents, or in the rest of a list. Returns
/// the offset after the object.
///
/// # Errors
/// [`Malformed`] when `document` does not begin with one whole JSON object, or is 4 GiB or larger.
///
/// # Panics
/// When `spans` is shorter than [`PathSet::len`].
pub fn find_first(document: &[u8], paths: &PathSet, spans: &mut [Span]) -> Result<usize, Malformed> {
    if u32::try_from(document.len()).is_err() {
        return Err(Malformed { at: 0 });
    }
    spans[..paths.len()].fill(Span::default());
    let mut scanner = Scanner { document, at: 0 };
    scanner.space();
    scanner.object(paths, None, spans)?;
    Ok(scanner.at)
}

/// Finds values like [`find`] in one member of a JSON object, and stops at the end of that member. The paths begin in
/// the member. Returns whether the object has the member.
///
/// # Errors
/// [`Malformed`] when `document` is not a JSON object up to the end of the member, when the member is not an object, or
/// when `document` is 4 GiB or larger.
///
/// # Panics
/// When `spans` is shorter than [`PathSet::len`].
pub fn find_in_member(document: &[u8], member: &str, paths: &PathSet, spans: &mut [Span]) -> Result<bool, Malformed> {
    if u32::try_from(document.len()).is_err() {
        return Err(Malformed { at: 0 });
    }
    spans[..paths.len()].fill(Span::default());
    let mut scanner = Scanner { document, at: 0 };
    scanner.space();
    let mut is_found = false;
    let walked = scanner.members(|scanner, key| {
        if key != member.as_bytes() {
            return scanner.skip_value();
        }
        scanner.object(paths, None, spans)?;
        is_found = true;
        // An error ends the walk.
        scanner.malformed()
    });
    if is_found { Ok(true) } else { walked.map(|()| false) }
}

/// Calls `each` with every key and raw value of a JSON object, in document order.
///
/// # Errors
/// [`Malformed`] when `document` is not one JSON object.
pub fn entries<'a>(document: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Result<(), Malformed> {
    let mut scanner = Scanner { document, at: 0 };
    scanner.space();
    scanner.members(|scanner, key| {
        let start = scanner.at;
        scanner.skip_value()?;
        each(key, &document[start..scanner.at]);
        Ok(())
    })
}

/// Calls `each` with every raw element of a JSON array, in order.
///
/// # Errors
/// [`Malformed`] when `document` is not one JSON array.
pub fn elements<'a>(document: &'a [u8], mut each: impl FnMut(&'a [u8])) -> Result<(), Malformed> {
    let mut scanner = Scanner { document, at: 0 };
    scanner.space();
    scanner.expect(b'[')?;
    scanner.space();
    if scanner.peek() == Some(b']') {
        return Ok(());
    }
    loop {
        scanner.space();
        let start = scanner.at;
        scanner.skip_value()?;
        each(&document[start..scanner.at]);
        scanner.space();
        match scanner.peek() {
            Some(b',') => scanner.at += 1,
            Some(b']') => return Ok(()),
            _ => return scanner.malformed(),
        }
    }
}

struct Scanner<'a> {
    document: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn malformed<T>(&self) -> Result<T, Malformed> {
        Err(Malformed { at: self.at })
    }

    fn peek(&self) -> Option<u8> {
        self.document.get(self.at).copied()
    }

    #[inline(always)]
    fn space(&mut self) {
        // Stored objects have no whitespace.
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.spaces();
        }
    }

    #[cold]
    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.peek() != Some(byte) {
            return self.malformed();
        }
        self.at += 1;
        Ok(())
    }

    /// Walks the members of an object; `value` is called with the scanner on the value.
    fn members(
        &mut self,
        mut value: impl FnMut(&mut Self, &'a [u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.expect(b'{')?;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.expect(b':')?;
            self.space();
            value(self, &key[1..key.len() - 1])?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.malformed(),
            }
        }
    }

    fn object(&mut self, paths: &PathSet, parent: Option<usize>, spans: &mut [Span]) -> Result<(), Malformed> {
        self.members(|scanner, key| {
            let start = scanner.at;
            match paths.child(parent, key) {
                Some(child) => {
                    let node = &paths.nodes[child];
                    if !node.children.is_empty() && scanner.peek() == Some(b'{') {
                        scanner.object(paths, Some(child), spans)?;
                    } else {
                        scanner.skip_value()?;
                    }
                    if let Some(output) = node.output {
                        spans[output] = Span { start: start as u32, end: scanner.at as u32 };
                    }
                }
                None => scanner.skip_value()?,
            }
            Ok(())
        })
    }

    /// Skips a string and returns it with its quotes.
    #[inline(always)]
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        self.expect(b'"')?;
        self.rest_of_string()?;
        Ok(&self.document[start..self.at])
    }

    /// Skips a string whose opening quote is already behind the scanner.
    #[inline(always)]
    fn rest_of_string(&mut self) -> Result<(), Malformed> {
        match string_end(self.document, self.at) {
            Some(end) => {
                self.at = end;
                Ok(())
            }
            None => {
                self.at = self.document.len();
                self.malformed()
            }
        }
    }

    /// Skips an object or an array by counting brackets outside of strings.
    fn skip_nested(&mut self) -> Result<(), Malformed> {
        let (document, mut at) = (self.document, self.at);
        let mut depth = 0_usize;
        // One byte at a time: between two strings there are hardly ever more than three.
        while let Some(&byte) = document.get(at) {
            at += 1;
            if byte == b'"' {
                let Some(end) = string_end(document, at) else { break };
                at = end;
                continue;
            }
            // Brackets and braces differ in this bit alone.
            match byte | 0x20 {
                b'{' => depth += 1,
                b'}' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at = at;
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.at = document.len();
        self.malformed()
    }

    #[inline(always)]
    fn skip_value(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{' | b'[') => self.skip_nested(),
            Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E')) {
                    self.at += 1;
                }
                Ok(())
            }
            _ => self.malformed(),
        }
    }
}

/// The end of a string whose content begins at `from`, with its closing quote.
#[inline(always)]
fn string_end(document: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let quote = find_quote(document, at)?;
        at = quote + 1;
        if !is_escaped(document, quote) {
            return Some(at);
        }
    }
}

/// The position of the first quote at or behind `from`.
///
/// Keys and most values have a few bytes. A word-wise search handles them in less time than a call
/// of `memchr` takes; longer texts are left to `memchr`.
#[inline(always)]
fn find_quote(document: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    for _ in 0..WORDS_BEFORE_MEMCHR {
        let Some(word) = document.get(at..).and_then(<[u8]>::first_chunk::<8>) else { break };
        let found = zero_bytes(u64::from_le_bytes(*word) ^ repeated(b'"'));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr(b'"', document.get(at..)?).map(|step| at + step)
}

/// Whether the byte at `at` is escaped, that is, whether the run of backslashes before it is odd. The
/// run ends at the opening quote of the string at the latest.
#[inline(always)]
fn is_escaped(document: &[u8], at: usize) -> bool {
    document.get(at.wrapping_sub(1)) == Some(&b'\\') && is_run_odd(document, at)
}

#[cold]
fn is_run_odd(document: &[u8], end: usize) -> bool {
    let before = document.get(..end).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The number of eight-byte words that are searched without `memchr`.
const WORDS_BEFORE_MEMCHR: usize = 5;

const fn repeated(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Sets the high bit of the lowest zero byte, and no bit below it. Bits above are undefined.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(document: &str, path: &[&str], expected: Option<&str>) {
        let mut paths = PathSet::new();
        paths.add(path);
        let mut spans = [Span::default()];
        find(document.as_bytes(), &paths, &mut spans).unwrap();
        let found = (!spans[0].is_absent()).then(|| std::str::from_utf8(spans[0].of(document.as_bytes())).unwrap());
        assert_eq!(found, expected, "{path:?} in {document}");
    }

    #[test]
    fn find_returns_spans_of_nested_values() {
        let document = r#" { "a" : {"b":[1,{"c":"}"}], "c":"x\"y"}, "d":-1.5e3 , "e":{}, "b":null } "#;
        check(document, &["a", "c"], Some(r#""x\"y""#));
        check(document, &["a", "b"], Some(r#"[1,{"c":"}"}]"#));
        check(document, &["d"], Some("-1.5e3"));
        check(document, &["e"], Some("{}"));
        check(document, &["b"], Some("null"));
        check(document, &["c"], None);
        check(document, &["d", "x"], None);
    }

    #[test]
    fn path_and_its_parent_are_both_found() {
        let mut paths = PathSet::new();
        let parent = paths.add(&["metadata"]);
        let child = paths.add(&["metadata", "labels"]);
        assert_eq!(paths.add(&["metadata"]), parent);
        let document = br#"{"metadata":{"labels":{"a":"b"}}}"#;
        let mut spans = [Span::default(); 2];
        find(document, &paths, &mut spans).unwrap();
        assert_eq!(spans[parent].of(document), br#"{"labels":{"a":"b"}}"#);
        assert_eq!(spans[child].of(document), br#"{"a":"b"}"#);
    }

    #[test]
    fn find_first_returns_the_end_of_the_first_document() {
        let mut paths = PathSet::new();
        paths.add(&["a"]);
        let mut spans = [Span::default()];
        let documents = br#" {"a":{"b":"}"}}{"a":2}"#;
        assert_eq!(find_first(documents, &paths, &mut spans), Ok(16));
        assert_eq!(spans[0].of(documents), br#"{"b":"}"}"#);
        assert!(find_first(&documents[..15], &paths, &mut spans).is_err());
    }

    #[test]
    fn find_in_member_stops_at_the_end_of_the_member() {
        let mut paths = PathSet::new();
        paths.add(&["b"]);
        let mut spans = [Span::default()];
        let mut check = |document: &str, expected: Result<Option<&str>, ()>| {
            let found = find_in_member(document.as_bytes(), "a", &paths, &mut spans).map_err(drop);
            let text = std::str::from_utf8(spans[0].of(document.as_bytes())).unwrap();
            assert_eq!(found.map(|found| found.then_some(text)), expected, "{document}");
        };
        check(r#"{"x":{"b":1},"a":{"b":2,"c":[{}]},BROKEN"#, Ok(Some("2")));
        check(r#" { "a" : { "b" : "\"}" } "#, Ok(Some(r#""\"}""#)));
        check(r#"{"a":{},"b":1}"#, Ok(Some("")));
        check(r#"{"x":1}"#, Ok(None));
        for broken in ["", "[]", "{", r#"{"a":1}"#, r#"{"a":{"b":1"#, r#"{"x":[1,"a":{}}"#, r#"{"x":1 "a":{}}"#] {
            check(broken, Err(()));
        }
    }

    #[test]
    fn strings_of_every_length_end_at_their_closing_quote() {
        for length in 0..100 {
            let text = "x".repeat(length);
            check(&format!(r#"{{"a":"{text}","b":1}}"#), &["b"], Some("1"));
            check(&format!(r#"{{"a":["{text}",{{"{text}":"{text}\""}}],"b":1}}"#), &["b"], Some("1"));
            check(&format!(r#"{{"a":"{text}\\","b":1}}"#), &["b"], Some("1"));
            check(&format!(r#"{{"a":"{text}\\\"}}","b":1}}"#), &["b"], Some("1"));
        }
    }

    #[test]
    fn find_rejects_broken_documents() {
        let paths = PathSet::new();
        for broken in
            ["", "[]", "{", "{\"a\"", "{\"a\":}", "{\"a\":1", "{\"a\":\"x", "{\"a\":[1}", "{} x", "{\"a\":\"\\"]
        {
            assert!(find(broken.as_bytes(), &paths, &mut []).is_err() || broken == "{\"a\":[1}", "{broken}");
        }
    }

    #[test]
    fn string_of_any_length_and_offset_ends_at_its_quote() {
        for length in 0..80 {
            for (filling, end) in
                [("x", "y"), ("\u{e9}", ""), ("!", "#"), ("\u{22a2}", "["), ("\\\"", "\\\\"), ("]", "\\\"")]
            {
                let text = format!("{}{}{end}", "z".repeat(length % 9), filling.repeat(length));
                for tail in ["", "  ", "                                        "] {
                    let document = format!("{{\"{text}\":[\"{text}\"],\"v\":\"{text}\"}}{tail}");
                    check(&document, &["v"], Some(&format!("\"{text}\"")));
                }
                let open = format!("{{\"v\":\"{text}");
                assert!(find(open.as_bytes(), &PathSet::new(), &mut []).is_err(), "{open}");
            }
        }
    }

    proptest! {
        #[test]
        fn find_quote_agrees_with_a_byte_search(text in prop::collection::vec(
            prop_oneof![8 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\'), 1 => b'!'..=b'#', 1 => b'['..=b']'], 0..80,
        )) {
            for from in 0..text.len() {
                let plain = text[from..].iter().position(|byte| *byte == b'"');
                prop_assert_eq!(find_quote(&text, from), plain.map(|step| from + step));
            }
            // The reference: byte by byte from the left, as the grammar has it.
            let document: Vec<u8> = std::iter::once(b'"').chain(text).collect();
            let (mut end, mut at) = (None, 1);
            while at < document.len() && end.is_none() {
                match document[at] {
                    b'"' => end = Some(at + 1),
                    b'\\' => at += 2,
                    _ => at += 1,
                }
            }
            let mut scanner = Scanner { document: &document, at: 0 };
            let string = scanner.string();
            prop_assert_eq!(string.ok(), end.map(|end| &document[..end]));
            if let Some(end) = end {
                prop_assert_eq!(scanner.at, end);
            }
        }

        #[test]
        fn find_never_panics_and_agrees_with_serde_json(text in "[{}\\[\\]\",:a-c0-9\\\\ ]{0,40}") {
            let mut paths = PathSet::new();
            paths.add(&["a", "b"]);
            let mut spans = [Span::default()];
            let scanned = find(text.as_bytes(), &paths, &mut spans);
            if let Ok(listwatch_json::Value::Object(parsed)) = serde_json::from_str(&text) {
                prop_assert_eq!(scanned, Ok(()));
                let expected = parsed.get("a").and_then(|a| a.get("b"));
                let found: Option<listwatch_json::Value> = (!spans[0].is_absent())
                    .then(|| serde_json::from_slice(spans[0].of(text.as_bytes())).unwrap());
                // With a duplicate "a" an earlier "a.b" may remain; the parser keeps the last.
                if text.matches("\"a\"").count() <= 1 {
                    prop_assert_eq!(found.as_ref(), expected);
                }
            }
        }
    }
}
