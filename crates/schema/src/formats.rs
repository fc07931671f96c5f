//! Finds the formats of a schema that Kubernetes does not know: [`each_unknown_format`].
//!
//! Source: apiextensions-apiserver `pkg/apiserver/validation/formats.go`, `GetUnrecognizedFormats`;
//! `pkg/apis/apiextensions/validation/validation.go`, `SchemaHas`.

use listwatch_cel::format::Format;
use listwatch_json::Value;

use crate::limits::SCHEMA_DEPTH_MAX;

/// Calls `visit` with each format of a schema and its parts that has no meaning for the type there. Parts below
/// [`SCHEMA_DEPTH_MAX`] levels are omitted; a definition with such parts is invalid.
pub fn each_unknown_format(schema: &Value, visit: &mut dyn FnMut(&str)) {
    walk(schema, SCHEMA_DEPTH_MAX, visit);
}

fn walk(schema: &Value, depth_left: usize, visit: &mut dyn FnMut(&str)) {
    let (Some(members), Some(depth_left)) = (schema.as_object(), depth_left.checked_sub(1)) else { return };
    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let format = text("format");
    if !format.is_empty() && Format::parse(format, text("type"), false) == Format::None {
        visit(format);
    }
    for (name, part) in members {
        match name.as_str() {
            "items" | "allOf" | "anyOf" | "oneOf" | "not" | "additionalProperties" | "additionalItems" => match part {
                Value::Array(parts) => parts.iter().for_each(|part| walk(part, depth_left, visit)),
                part => walk(part, depth_left, visit),
            },
            "properties" | "patternProperties" | "definitions" | "dependencies" => {
                for (_, part) in part.as_object().into_iter().flatten() {
                    walk(part, depth_left, visit);
                }
            }
            _ => {}
        }
    }
}
