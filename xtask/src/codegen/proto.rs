//! Reads `generated.proto`: messages with their fields by number.

use std::collections::{BTreeMap, HashMap};

use crate::failure::{Failure, Outcome, ensure, fail};

/// A field in `generated.proto`.
#[derive(Clone)]
pub(super) struct ProtoField {
    /// `optional`, `required`, `repeated` or `map`.
    pub(super) label: String,
    /// A scalar type, or the full name of a message.
    pub(super) of: String,
    pub(super) name: String,
}

/// Messages by full name, fields by number.
pub(super) type Messages = HashMap<String, BTreeMap<u32, ProtoField>>;

/// Adds the messages of one file.
pub(super) fn read(package: &str, text: &str, messages: &mut Messages) -> Outcome<()> {
    let mut message: Option<(String, BTreeMap<u32, ProtoField>)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
            message = Some((format!("{package}.{name}"), BTreeMap::new()));
        } else if line == "}" {
            messages.extend(message.take());
        } else if let Some((name, fields)) = &mut message {
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            let Some((left, number)) = line.trim_end_matches(';').rsplit_once(" = ") else {
                fail!("{name}: this line is no field: {line}");
            };
            let Some((typed, field)) = left.rsplit_once(' ') else { fail!("{name}: no type: {line}") };
            let (label, of) = match typed.split_once(' ') {
                Some((label @ ("optional" | "required" | "repeated"), of)) => (label, of),
                _ => ("map", typed.trim_start_matches("map<string, ").trim_end_matches('>')),
            };
            ensure!(!of.contains(['<', ',']), "{name}: a map of something else than strings: {line}");
            let number = number.parse().map_err(|_| Failure::from(format!("{name}: no number: {line}")))?;
            // `.a.b.C` is a full name, `C` a message of this package.
            let of = match of.strip_prefix('.') {
                Some(full) => full.to_owned(),
                None if of.starts_with("k8s.io.") || is_scalar(of) => of.to_owned(),
                None => format!("{package}.{of}"),
            };
            fields.insert(number, ProtoField { label: label.to_owned(), of, name: field.to_owned() });
        }
    }
    Ok(())
}

fn is_scalar(of: &str) -> bool {
    matches!(of, "string" | "bool" | "int32" | "int64" | "double" | "bytes" | "uint32" | "uint64" | "float")
}
