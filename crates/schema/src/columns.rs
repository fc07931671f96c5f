//! Paths into objects that a definition contains: printer columns, selectable fields, the scale
//! subresource, and the `fieldPath` of a rule.
//! Rules: apiextensions-apiserver `pkg/apis/apiextensions/validation/validation.go` and
//! `pkg/apiserver/schema/cel/validation.go:ValidFieldPath`, Kubernetes 1.36.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_meta::FieldError;

use crate::field_errors::{duplicate, invalid_str, required, too_many};
use crate::limits::SELECTABLE_FIELDS_MAX;
use crate::path::Path;
use crate::schema::{Kind, Node, Schema};

const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

/// The field at a path.
pub(crate) struct FoundField<'n> {
    /// The path in normalized form.
    pub(crate) path: String,
    /// The first element of the path.
    root: String,
    pub(crate) node: &'n Node,
}

/// Finds the field of a path such as `.spec.a['b.c']`. Without `brackets`, bracket notation is an
/// error.
pub(crate) fn field_path<'n>(path: &str, node: &'n Node, brackets: bool) -> Result<FoundField<'n>, String> {
    const NO_FIELD: &str = "does not refer to a valid field";
    const END: &str = "unexpected end of JSON path";
    let mut found = FoundField { path: String::new(), root: String::new(), node };
    let mut tokens = Tokens(path);
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let token = tokens.next().ok_or(END)?;
                let quoted = token.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let quoted = quoted.ok_or_else(|| format!("expected single quoted string but got {token}"))?;
                let name = unescape(quoted)?;
                match tokens.next().ok_or(END)? {
                    "]" => name,
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => tokens.next().ok_or(END)?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        if found.path.is_empty() {
            found.root.clone_from(&name);
        }
        if !found.node.properties.is_empty() {
            found.node = found.node.property(&name).ok_or(NO_FIELD)?;
            if !found.path.is_empty() {
                found.path.push('.');
            }
            found.path.push_str(&name);
        } else {
            found.node = found.node.additional_schema().ok_or(NO_FIELD)?;
            found.path.push_str(&format!("[{name}]"));
        }
    }
    Ok(found)
}

/// Splits a path at `.`, `[` and `]`, which are separate tokens. A single-quoted part is one token.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.0.as_bytes();
        let end = match bytes.first()? {
            b'\'' => {
                let end = (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\');
                end.map_or(bytes.len(), |end| end + 1)
            }
            b'.' | b'[' | b']' => 1,
            _ => bytes.iter().position(|b| matches!(b, b'.' | b'[' | b']')).unwrap_or(bytes.len()),
        };
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(token)
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(c @ ('\'' | '\\')) => c,
            Some(other) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}

impl Schema {
    /// Checks the `selectableFields` of a version; `at` is their path.
    pub fn check_selectable_fields(&self, json_paths: &[&str], at: &str) -> Vec<FieldError> {
        let at = Path::root(at);
        let mut errors = Vec::new();
        let mut seen = HashSet::new();
        for (index, json_path) in json_paths.iter().enumerate() {
            let item = at.index(index);
            let at = item.child("jsonPath");
            if json_path.is_empty() {
                errors.push(required(at, ""));
                continue;
            }
            let found = match field_path(json_path, &self.root, false) {
                Ok(found) => found,
                Err(why) => {
                    errors.push(invalid_str(at, json_path, format_args!("is an invalid path: {why}")));
                    continue;
                }
            };
            if found.root == "metadata" {
                errors.push(invalid_str(at, json_path, "must not point to fields in metadata"));
            }
            if !matches!(found.node.kind, Kind::String | Kind::Boolean | Kind::Integer) || found.node.int_or_string {
                let detail = concat!(
                    "must point to a field of type string, boolean or integer. ",
                    "Enum string fields and strings with formats are allowed."
                );
                errors.push(invalid_str(at, json_path, detail));
            }
            if !seen.insert(found.path) {
                errors.push(duplicate(at, &Value::from(*json_path)));
            }
        }
        if seen.len() > SELECTABLE_FIELDS_MAX {
            errors.push(too_many(at, seen.len() as i64, SELECTABLE_FIELDS_MAX as i64));
        }
        errors
    }
}

/// Checks an entry of `additionalPrinterColumns`; `at` is its path.
pub fn check_printer_column(column: &Value, at: &str) -> Vec<FieldError> {
    let at = Path::root(at);
    let text = |name: &str| column.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    if text("name").is_empty() {
        errors.push(required(at.child("name"), ""));
    }
    let kind = text("type");
    let detail = format!("must be one of {COLUMN_TYPES}");
    if kind.is_empty() {
        errors.push(required(at.child("type"), detail));
    } else if !COLUMN_TYPES.split(',').any(|known| known == kind) {
        errors.push(invalid_str(at.child("type"), kind, detail));
    }
    let format = text("format");
    if !format.is_empty() && !COLUMN_FORMATS.split(',').any(|known| known == format) {
        errors.push(invalid_str(at.child("format"), format, format_args!("must be one of {COLUMN_FORMATS}")));
    }
    let json_path = text("jsonPath");
    if json_path.is_empty() {
        errors.push(required(at.child("JSONPath"), ""));
    } else {
        errors.extend(simple_path(json_path, &at.child("JSONPath")));
    }
    errors
}

/// Checks a `scale` subresource; `at` is the path of `subresources`.
pub fn check_scale(scale: &Value, at: &str) -> Vec<FieldError> {
    let at = Path::root(at);
    let text = |name: &str| scale.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    let paths: [(&str, bool, &[&str], &str); 3] = [
        ("specReplicasPath", true, &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", true, &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", false, &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (name, needed, roots, detail) in paths {
        let path = text(name);
        let field = format!("scale.{name}");
        let at = at.child(&field);
        if path.is_empty() {
            if needed {
                errors.push(required(at, ""));
            }
        } else if let Some(error) = simple_path(path, &at) {
            errors.push(error);
        } else if !roots.iter().any(|root| path.starts_with(root)) {
            errors.push(invalid_str(at, path, detail));
        }
    }
    errors
}

fn simple_path(path: &str, at: &Path<'_>) -> Option<FieldError> {
    (!path.starts_with('.')).then(|| invalid_str(at, path, "must be a simple json path starting with ."))
}
