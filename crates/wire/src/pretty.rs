//! [`Indenter`]: indents a stream of compact JSON without parsing, for `?pretty=true`, browsers and `curl`.

use bytes::{BufMut, Bytes, BytesMut};

/// Indents compact JSON chunk by chunk, by two spaces per level, as Go's `json.Indent` does.
///
/// A chunk may end at any byte. Input that is not JSON may get wrong whitespace, but loses no byte.
#[derive(Debug, Default)]
pub struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the last byte opened a bracket. An empty `{}` stays on one line.
    just_opened: bool,
}

impl Indenter {
    /// Returns the indented form of the next chunk.
    pub fn chunk(&mut self, compact: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(compact.len() * 2);
        for &byte in compact {
            if self.in_string {
                out.put_u8(byte);
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\r' => continue,
                // The final newline of a document is kept; other white space is removed.
                b'\n' if self.depth > 0 => continue,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.just_opened) {
                        self.new_line(&mut out);
                    }
                    out.put_u8(byte);
                    continue;
                }
                _ => {}
            }
            if std::mem::take(&mut self.just_opened) {
                self.new_line(&mut out);
            }
            out.put_u8(byte);
            match byte {
                b'{' | b'[' => {
                    self.depth += 1;
                    self.just_opened = true;
                }
                b',' => self.new_line(&mut out),
                b':' => out.put_u8(b' '),
                b'"' => self.in_string = true,
                _ => {}
            }
        }
        out.freeze()
    }

    fn new_line(&self, out: &mut BytesMut) {
        out.put_u8(b'\n');
        out.put_bytes(b' ', self.depth * 2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn indented_json_equals_that_of_go() {
        let compact = br#"{"a":1,"b":[],"c":{"d":"x\"{,:}","e":[true,null]},"f":{}}"#;
        let expected = "{\n  \"a\": 1,\n  \"b\": [],\n  \"c\": {\n    \"d\": \"x\\\"{,:}\",\n    \"e\": [\n      true,\n      null\n    ]\n  },\n  \"f\": {}\n}";
        assert_eq!(Indenter::default().chunk(compact), expected);
    }

    #[test]
    fn whitespace_between_tokens_is_replaced_and_the_final_newline_kept() {
        let spaced = b" {\t\"a b\" :\r\n1 ,\n\"c\":[ ],\n\n\"d\":[\n2\n]\n}\n";
        let expected = "{\n  \"a b\": 1,\n  \"c\": [],\n  \"d\": [\n    2\n  ]\n}\n";
        assert_eq!(Indenter::default().chunk(spaced), expected);
    }

    fn json() -> impl Strategy<Value = listwatch_json::Value> {
        let leaf = prop_oneof![
            Just(listwatch_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            "[a-z\"\\\\{}, :\n]{0,6}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec(("[a-z\"]{1,3}", inner), 0..4)
                    .prop_map(|members| listwatch_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indented_json_does_not_depend_on_chunk_boundaries(value in json(), cut in 0_usize..200) {
            let compact = serde_json::to_vec(&value).unwrap();
            let cut = cut.min(compact.len());
            let mut indenter = Indenter::default();
            let mut pretty = indenter.chunk(&compact[..cut]).to_vec();
            pretty.extend_from_slice(&indenter.chunk(&compact[cut..]));
            prop_assert_eq!(String::from_utf8(pretty).unwrap(), serde_json::to_string_pretty(&value).unwrap());
        }
    }
}
