//! Paths into documents: `metadata.name`, `items[0].metadata`, `items[*].metadata.name`, `annotations['a.b/c']`, and
//! `$` for the whole document.

use serde_json::Value;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Member(String),
    Index(usize),
    /// Every element of a list. The result of the path is then a list.
    Each,
}

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    parts: Vec<Part>,
    text: String,
}

impl Path {
    /// Parses a path.
    ///
    /// # Errors
    /// A text that names the path.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("the path {text:?} {why}");
        let mut parts = Vec::new();
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                if let Some(quoted) = inside.strip_prefix('\'') {
                    let (name, after) = quoted.split_once("']").ok_or_else(|| wrong("has no closing ']"))?;
                    parts.push(Part::Member(name.to_owned()));
                    rest = after;
                } else {
                    let (index, after) = inside.split_once(']').ok_or_else(|| wrong("has no closing ]"))?;
                    parts.push(match index {
                        "*" => Part::Each,
                        _ => Part::Index(index.parse().map_err(|_| wrong("has an index that is not a number"))?),
                    });
                    rest = after;
                }
                continue;
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                return Err(wrong("has an empty member"));
            }
            parts.push(Part::Member(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        Ok(Path { parts, text: text.to_owned() })
    }

    /// The value at this path. With `[*]`, the list of the values that exist; otherwise `None` if there is no value.
    pub(crate) fn find(&self, document: &Value) -> Option<Value> {
        find(&self.parts, document)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.text.is_empty() { "$" } else { &self.text })
    }
}

fn find(parts: &[Part], value: &Value) -> Option<Value> {
    let Some((part, rest)) = parts.split_first() else { return Some(value.clone()) };
    match part {
        Part::Member(name) => find(rest, value.get(name)?),
        Part::Index(index) => find(rest, value.get(index)?),
        Part::Each => {
            let found = value.as_array()?.iter().filter_map(|element| find(rest, element));
            Some(Value::Array(found.collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_finds_members_indexes_and_elements() {
        let document = json!({"a": {"b.c/d": 1}, "items": [{"n": "x"}, {}, {"n": "y"}]});
        let check = |path: &str, expected: Option<Value>| {
            assert_eq!(Path::parse(path).unwrap().find(&document), expected, "{path}");
        };
        check("a['b.c/d']", Some(json!(1)));
        check("items[2].n", Some(json!("y")));
        check("items[*].n", Some(json!(["x", "y"])));
        check("items[9].n", None);
        check("a.absent", None);
        check("$", Some(document.clone()));
        check("$.a['b.c/d']", Some(json!(1)));
        check("a[*]", None);
    }

    #[test]
    fn malformed_path_is_rejected() {
        for path in ["a..b", "a[", "a[x]", "a['b", "a."] {
            assert!(Path::parse(path).is_err(), "{path}");
        }
    }
}
