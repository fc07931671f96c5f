//! [`Json`]: lazy access to values in JSON bytes.
//!
//! A Table row needs about twelve values of an object, whose size can be 1 MiB. A look-up scans the members of one JSON
//! object once, and skips the others by counting brackets. Only strings with escapes are copied. Values that are
//! absent, `null` or of another type are treated as absent, so that even an object that was never validated has a row.

use std::borrow::Cow;

use listwatch_meta::scan;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A JSON value inside a document, or an absent value. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a>(&'a [u8]);

impl<'a> Json<'a> {
    /// Creates a value from its bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Json(bytes)
    }

    /// The raw bytes; empty for an absent value.
    pub fn raw(self) -> &'a [u8] {
        self.0
    }

    /// Whether the value is present and not `null`.
    pub fn exists(self) -> bool {
        !self.0.is_empty() && self.0 != b"null"
    }

    /// The member of an object. If a key is repeated, the last member is used.
    pub fn get(self, key: &str) -> Json<'a> {
        let [member] = self.get_all([key]);
        member
    }

    /// Several members of an object, found in one pass.
    pub fn get_all<const N: usize>(self, keys: [&str; N]) -> [Json<'a>; N] {
        let mut found = [Json(b""); N];
        if self.0.first() == Some(&b'{') {
            // Members before a syntax error are found.
            let _ = scan::entries(self.0, |name, value| {
                if let Some(at) = keys.iter().position(|key| name == key.as_bytes()) {
                    found[at] = Json(value);
                }
            });
        }
        found
    }

    /// The value at a dotted path of object keys.
    pub fn at(self, path: &str) -> Json<'a> {
        path.split('.').fold(self, Json::get)
    }

    /// The members of an object, in document order.
    pub fn entries(self) -> Vec<(Cow<'a, str>, Json<'a>)> {
        let mut entries = Vec::new();
        if self.0.first() == Some(&b'{') {
            let _ = scan::entries(self.0, |name, value| {
                let name = if name.contains(&b'\\') {
                    let quoted = [b"\"", name, b"\""].concat();
                    serde_json::from_slice::<String>(&quoted).map_or_else(|_| String::from_utf8_lossy(name), Cow::Owned)
                } else {
                    String::from_utf8_lossy(name)
                };
                entries.push((name, Json(value)));
            });
        }
        entries
    }

    /// The elements of an array.
    pub fn items(self) -> Vec<Json<'a>> {
        if self.0.first() != Some(&b'[') {
            return Vec::new();
        }
        let items: Vec<&'a RawValue> = serde_json::from_slice(self.0).unwrap_or_default();
        items.into_iter().map(|item| Json(item.get().as_bytes())).collect()
    }

    /// The string; `None` for another type or an absent value.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match self.0 {
            [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => Some(String::from_utf8_lossy(inner)),
            [b'"', ..] => serde_json::from_slice::<String>(self.0).ok().map(Cow::Owned),
            _ => None,
        }
    }

    /// The string; `""` for another type or an absent value.
    pub fn string(self) -> String {
        self.text().map(Cow::into_owned).unwrap_or_default()
    }

    /// The string; `default` for an empty string, another type or an absent value.
    pub fn string_or(self, default: &str) -> String {
        self.text().filter(|text| !text.is_empty()).map_or_else(|| default.to_owned(), Cow::into_owned)
    }

    /// Whether the value is a string equal to `text`.
    pub fn is(self, text: &str) -> bool {
        self.text().is_some_and(|own| own == text)
    }

    /// The number, truncated to an integer.
    pub fn int(self) -> Option<i64> {
        let text = std::str::from_utf8(self.0).ok()?;
        text.parse().ok().or_else(|| self.float().map(|number| number as i64))
    }

    /// The number; `None` for another type or an absent value.
    pub fn float(self) -> Option<f64> {
        match self.0.first() {
            Some(b'-' | b'0'..=b'9') => std::str::from_utf8(self.0).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The boolean; `None` for another type or an absent value.
    pub fn bool(self) -> Option<bool> {
        match self.0 {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// The text of a number or string: quantities, ports, percentages.
    pub fn scalar(self) -> Option<String> {
        match self.0.first() {
            Some(b'"') => self.text().map(Cow::into_owned),
            Some(b'{' | b'[') | None => None,
            Some(_) if self.0 == b"null" => None,
            Some(_) => Some(String::from_utf8_lossy(self.0).into_owned()),
        }
    }

    /// The RFC 3339 time; `None` for an absent or invalid time and for Go's zero time.
    pub fn time(self) -> Option<OffsetDateTime> {
        let time = OffsetDateTime::parse(&self.text()?, &Rfc3339).ok()?;
        (time.year() > 1).then_some(time)
    }

    /// The number of members or elements.
    pub fn count(self) -> usize {
        match self.0.first() {
            Some(b'{') => {
                let mut count = 0;
                let _ = scan::entries(self.0, |_, _| count += 1);
                count
            }
            Some(b'[') => self.items().len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_value_of_another_type_is_treated_as_absent() {
        let document =
            br#"{"a":{"b":"x\ny","n":3,"f":2.7,"t":true,"z":null,"q":"1Gi"},"l":[1,{"k":"v"}],"a":{"b":"last"}}"#;
        let root = Json::new(document);
        assert_eq!(root.at("a.b").string(), "last", "the last of two equal keys counts");
        let first = Json::new(br#"{"b":"x\ny","n":3,"f":2.7,"t":true,"z":null,"q":"1Gi","e\"":1}"#);
        assert_eq!(first.get("b").string(), "x\ny");
        assert_eq!((first.get("n").int(), first.get("f").int(), first.get("q").int()), (Some(3), Some(2), None));
        assert_eq!((first.get("t").bool(), first.get("n").bool()), (Some(true), None));
        assert!(!first.get("z").exists() && !first.get("nope").exists() && first.get("t").exists());
        assert_eq!((first.get("n").scalar().as_deref(), first.get("q").scalar().as_deref()), (Some("3"), Some("1Gi")));
        assert_eq!(first.get("n").string(), "", "a number is no string");
        assert_eq!(first.entries().last().unwrap().0, "e\"");
        assert_eq!(root.get("l").items()[1].get("k").string(), "v");
        assert_eq!((root.get("l").count(), first.count(), root.at("a.b.c.d").count()), (2, 7, 0));
    }

    #[test]
    fn zero_or_invalid_json_time_is_none() {
        for (text, there) in [
            (&br#""2024-05-01T10:00:00Z""#[..], true),
            (br#""2024-05-01T10:00:00.123456Z""#, true),
            (br#""0001-01-01T00:00:00Z""#, false),
            (br#""yesterday""#, false),
            (b"null", false),
            (b"7", false),
        ] {
            assert_eq!(Json::new(text).time().is_some(), there, "{}", String::from_utf8_lossy(text));
        }
    }
}
