//! Shard selectors of lists and watches: [`ShardSelector`], the text of `shardSelector=`.
//!
//! Replicas of one client can share a large collection. Each replica receives only the objects whose hash is in its
//! part of the 64-bit range. The text is one or more ranges of one field, in a small subset of CEL's syntax:
//!
//! ```text
//! shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')
//! shardRange(object.metadata.uid, '0x…', '0x…') || shardRange(object.metadata.uid, '0x…', '0x…')
//! ```
//!
//! Rules and messages: `pkg/sharding` of apimachinery and of apiserver (feature gate
//! `ShardedListAndWatch`).

use std::borrow::Cow;
use std::fmt;

use crate::object::Object;

/// The text of 2^64, the exclusive end of the range of all hashes.
const END_OF_ALL: &str = "0x10000000000000000";

/// The maximum nesting depth of parentheses. A deeper text is rejected.
const DEPTH_MAX: usize = 32;

/// The shards of a list or watch. An object belongs to the shards if the hash of its field is in one of the ranges.
///
/// ```
/// use listwatch_meta::ShardSelector;
///
/// let text = "shardRange(object.metadata.namespace, '0x0000000000000000', '0x8000000000000000')";
/// let shards = ShardSelector::parse(text)?;
/// assert_eq!(shards.to_string(), text);
/// # Ok::<(), listwatch_meta::InvalidShardSelector>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSelector {
    field: ShardField,
    /// The ranges; at least one.
    ranges: Vec<Range>,
}

/// The field whose value is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardField {
    /// `object.metadata.uid`.
    Uid,
    /// `object.metadata.namespace`: a namespace's objects stay together.
    Namespace,
}

/// A range of hashes from `start` (inclusive) to `end` (exclusive); no end means 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: Option<u64>,
}

/// The error for a text that is not a shard selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid shard selector: {0}")]
pub struct InvalidShardSelector(String);

impl ShardSelector {
    /// Parses the text of `shardSelector=`.
    ///
    /// # Errors
    /// [`InvalidShardSelector`] with kube-apiserver's message, except where upstream quotes its CEL
    /// parser.
    pub fn parse(text: &str) -> Result<Self, InvalidShardSelector> {
        if text.trim().is_empty() {
            return invalid("empty shard selector is not allowed; omit the parameter for unfiltered lists");
        }
        let mut parser = Parser { rest: text.trim() };
        let mut terms = Vec::new();
        parser.any_of(&mut terms, 0)?;
        if !parser.rest.is_empty() {
            return parser.unexpected("'||' or the end");
        }
        let Some((field, _)) = terms.first().copied() else { return invalid("no shardRange()") };
        if let Some((other, _)) = terms.iter().find(|(other, _)| *other != field) {
            return invalid(format!(
                "all shard ranges must use the same field, got \"{}\" and \"{}\"",
                field.path(),
                other.path()
            ));
        }
        Ok(ShardSelector { field, ranges: terms.into_iter().map(|(_, range)| range).collect() })
    }

    /// Returns shard number `index` (from 0) of `of` shards of equal size.
    ///
    /// ```
    /// use listwatch_meta::{ShardField, ShardSelector};
    ///
    /// let second = ShardSelector::part(ShardField::Uid, 1, 2)?;
    /// assert_eq!(second.to_string(), "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')");
    /// # Ok::<(), listwatch_meta::InvalidShardSelector>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidShardSelector`] when `index` is not below `of`.
    pub fn part(field: ShardField, index: u32, of: u32) -> Result<Self, InvalidShardSelector> {
        if index >= of {
            return invalid(format!("there is no shard {index} of {of}"));
        }
        let bound = |index: u32| (u128::from(index) << 64) / u128::from(of);
        let start = u64::try_from(bound(index)).unwrap_or(u64::MAX);
        let end = u64::try_from(bound(index + 1)).ok();
        Ok(ShardSelector { field, ranges: vec![Range { start, end }] })
    }

    /// Whether the object is in these shards.
    pub fn matches(&self, object: &Object) -> bool {
        let value = match self.field {
            ShardField::Uid => object.uid(),
            ShardField::Namespace => Cow::Borrowed(object.namespace()),
        };
        self.holds(&value)
    }

    /// Whether an object with this value of the field is in these shards.
    pub fn holds(&self, value: &str) -> bool {
        let hash = fnv1a(value.as_bytes());
        self.ranges.iter().any(|range| range.start <= hash && range.end.is_none_or(|end| hash < end))
    }

    /// The field whose value is hashed.
    pub fn field(&self) -> ShardField {
        self.field
    }
}

impl ShardField {
    fn path(self) -> &'static str {
        match self {
            ShardField::Uid => "object.metadata.uid",
            ShardField::Namespace => "object.metadata.namespace",
        }
    }
}

/// Prints the selector in the form of `metadata.shardInfo.selector` in a list. The text parses to an equal selector.
impl fmt::Display for ShardSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.ranges.iter().enumerate() {
            let or = if position > 0 { " || " } else { "" };
            write!(f, "{or}shardRange({}, '0x{:016x}', '", self.field.path(), range.start)?;
            match range.end {
                Some(end) => write!(f, "0x{end:016x}')")?,
                None => write!(f, "{END_OF_ALL}')")?,
            }
        }
        Ok(())
    }
}

/// The 64-bit FNV-1a hash (Go's `fnv.New64a`).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn invalid<T>(why: impl Into<String>) -> Result<T, InvalidShardSelector> {
    Err(InvalidShardSelector(why.into()))
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn unexpected<T>(&self, wanted: &str) -> Result<T, InvalidShardSelector> {
        let found: String = self.rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("'{found}'") };
        invalid(format!("CEL parse error: found {found}, expected {wanted}"))
    }

    /// Consumes a token and the whitespace after it. Returns false if the text begins otherwise.
    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), InvalidShardSelector> {
        if self.take(token) { Ok(()) } else { self.unexpected(&format!("'{token}'")) }
    }

    fn any_of(&mut self, terms: &mut Vec<(ShardField, Range)>, depth: usize) -> Result<(), InvalidShardSelector> {
        loop {
            if self.take("(") {
                if depth == DEPTH_MAX {
                    return invalid(format!("CEL parse error: more than {DEPTH_MAX} parentheses"));
                }
                self.any_of(terms, depth + 1)?;
                self.expect(")")?;
            } else {
                terms.push(self.term()?);
            }
            if !self.take("||") {
                return Ok(());
            }
        }
    }

    fn term(&mut self) -> Result<(ShardField, Range), InvalidShardSelector> {
        let function = self.path();
        if function.is_empty() {
            return self.unexpected("shardRange()");
        }
        if !self.take("(") {
            return invalid(format!("unexpected expression \"{function}\"; expected shardRange() call or || operator"));
        }
        if function != "shardRange" {
            return invalid(format!("unsupported function \"{function}\"; only shardRange() and || are allowed"));
        }
        let field = match self.path() {
            "object.metadata.uid" => ShardField::Uid,
            "object.metadata.namespace" => ShardField::Namespace,
            "" => return self.unexpected("a field path (e.g. object.metadata.uid)"),
            other => {
                return invalid(format!(
                    "unsupported field path \"{other}\"; supported: object.metadata.uid, object.metadata.namespace"
                ));
            }
        };
        self.expect(",")?;
        let start = self.bound("hexStart")?;
        self.expect(",")?;
        let end = self.bound("hexEnd")?;
        self.expect(")")?;
        match (start, end) {
            (Some(start), end) if end.is_none_or(|end| start < end) => Ok((field, Range { start, end })),
            (start, end) => {
                let shown = |bound: Option<u64>| bound.map_or(END_OF_ALL.to_owned(), |bound| format!("0x{bound:016x}"));
                let (start, end) = (shown(start), shown(end));
                invalid(format!("shard range start {start} must be less than end {end}"))
            }
        }
    }

    /// Takes a field path: identifiers separated by dots.
    fn path(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let (path, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        path
    }

    /// Takes a quoted number; `None` is the end of all hashes.
    fn bound(&mut self, name: &str) -> Result<Option<u64>, InvalidShardSelector> {
        let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
            return invalid(format!("{name} must be a string literal (e.g. '0xff')"));
        };
        let Some((text, rest)) = self.rest[1..].split_once(quote) else {
            return self.unexpected("a string literal that ends");
        };
        self.rest = rest.trim_start();
        let Some(hex) = text.strip_prefix("0x") else {
            return invalid(format!("{name} must have '0x' prefix, got {text:?}"));
        };
        if hex.is_empty() {
            return invalid(format!("{name}: hex value is required after '0x'"));
        }
        if hex.chars().count() > 17 {
            let length = hex.len();
            return invalid(format!("{name}: hex value too long ({length} chars, max 17): {hex:?}"));
        }
        if let Some(other) = hex.chars().find(|c| !matches!(c, '0'..='9' | 'a'..='f')) {
            return invalid(format!("{name}: invalid hex character {:?} in {text:?}", other.to_string()));
        }
        match hex.len() {
            17 if text == END_OF_ALL => Ok(None),
            17 => invalid(format!("{name}: 17-digit hex value must be '{END_OF_ALL}' (2^64), got {text:?}")),
            16 => Ok(u64::from_str_radix(hex, 16).ok()),
            _ => {
                let padded = format!("0x{hex:0>16}");
                invalid(format!(
                    "{name} must be a 0x-prefixed 16-digit hex value, got {text:?} (did you mean {padded:?}?)"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: &str = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
    const SECOND: &str = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')";

    #[test]
    fn shard_hash_equals_fnv_64a_of_go() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn equivalent_shard_selector_texts_parse_to_the_same_shards() {
        for text in [
            FIRST.to_owned(),
            format!("  ({FIRST}) "),
            FIRST.replace('\'', "\"").replace(", ", ","),
            FIRST.replace('(', " ( ").replace(')', " ) "),
        ] {
            assert_eq!(ShardSelector::parse(&text).map(|shards| shards.to_string()), Ok(FIRST.to_owned()), "{text}");
        }
        let both = format!("{FIRST} || {SECOND}");
        assert_eq!(ShardSelector::parse(&format!("({FIRST}) ||({SECOND})")).unwrap().to_string(), both);
    }

    #[test]
    fn shard_selector_parse_error_names_the_problem() {
        for (text, why) in [
            (" ", "empty shard selector is not allowed"),
            ("true", "unexpected expression \"true\""),
            ("hash(object.metadata.uid)", "unsupported function \"hash\""),
            (&FIRST.replace("uid", "name"), "unsupported field path \"object.metadata.name\""),
            (&FIRST.replace("'0x0000000000000000'", "0"), "hexStart must be a string literal"),
            (&FIRST.replace("0x8", "8"), "hexEnd must have '0x' prefix, got \"8000000000000000\""),
            (&FIRST.replace("0x8000000000000000", "0xf"), "(did you mean \"0x000000000000000f\"?)"),
            (&FIRST.replace("0x8", "0xA"), "hexEnd: invalid hex character \"A\""),
            (&FIRST.replace("0x8", "0x28"), "17-digit hex value must be"),
            (&FIRST.replace("0x8", "0x12345"), "hex value too long (20 chars, max 17)"),
            (&FIRST.replace("0x8", "0x0"), "start 0x0000000000000000 must be less than end 0x0000000000000000"),
            (&SECOND.replace("0x8000000000000000", END_OF_ALL), "must be less than end"),
            (&format!("{FIRST} || {}", SECOND.replace("uid", "namespace")), "must use the same field"),
            (&format!("{FIRST} && {SECOND}"), "CEL parse error: found '&&"),
            (&FIRST[..FIRST.len() - 1], "CEL parse error: found the end, expected ')'"),
            (&"(".repeat(100), "more than 32 parentheses"),
        ] {
            let error = ShardSelector::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("invalid shard selector: ") && error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn complementary_shards_contain_each_value_exactly_once(value in ".{0,40}") {
            let holds = |text| ShardSelector::parse(text).unwrap().holds(&value);
            prop_assert!(holds(FIRST) != holds(SECOND));
        }

        #[test]
        fn equal_shards_contain_each_value_exactly_once(value in ".{0,40}", of in 1_u32..50) {
            let parts = (0..of).map(|index| ShardSelector::part(ShardField::Uid, index, of).unwrap());
            let parts: Vec<_> = parts.inspect(|part| assert_eq!(ShardSelector::parse(&part.to_string()).as_ref(), Ok(part))).collect();
            prop_assert_eq!(parts.iter().filter(|part| part.holds(&value)).count(), 1);
            prop_assert!(ShardSelector::part(ShardField::Uid, of, of).is_err());
        }

        #[test]
        fn shard_selector_parsing_never_panics(text in "(shardRange|object.metadata.uid|[(),'\"| 0x8é]){0,20}") {
            if let Ok(shards) = ShardSelector::parse(&text) {
                prop_assert_eq!(ShardSelector::parse(&shards.to_string()), Ok(shards));
            }
        }
    }
}
