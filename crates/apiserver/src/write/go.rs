//! How Go prints values, for error texts that a client compares or a human knows.

pub(crate) use listwatch_meta::go::json_kind;
pub(super) use listwatch_meta::go::quote;
use serde_json::{Map, Value};

/// A value as `%v` prints it: `map[a:1 b:[x y]]`.
pub(crate) fn print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => print_list(items),
        Value::Object(map) => print_map(map),
        scalar => scalar.to_string(),
    }
}

/// A value as `%s` prints it, which is made for texts and says so.
pub(super) fn print_as_text(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={value})", type_name(value)),
        other => print(other),
    }
}

/// A list as `%v` prints it.
pub(super) fn print_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" "))
}

/// A map as `%v` prints it: sorted by name.
pub(super) fn print_map(map: &Map<String, Value>) -> String {
    let mut members: Vec<String> = map.iter().map(|(name, value)| format!("{name}:{}", print(value))).collect();
    members.sort();
    format!("map[{}]", members.join(" "))
}

/// The Go type that `encoding/json` decodes a value to when nothing else is asked for.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Whose words tell that a value is of a wrong type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// `encoding/json`'s, which reads bodies and what most patches make of an object.
    Decoder,
    /// apimachinery's `runtime.DefaultUnstructuredConverter`'s, which reads what a strategic merge makes.
    Converter,
}

/// What the converter says when it finds `value` where `wanted` is to be, a type by Go's name.
pub(super) fn cannot_convert(value: &Value, wanted: &str) -> String {
    let kind = match value {
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        scalar => type_name(scalar),
    };
    // What has a decoder of its own is given to it, and that speaks for itself.
    let decoder = |target: &str| {
        let found = match value {
            Value::Number(number) => format!("number {number}"),
            other => json_kind(other).to_owned(),
        };
        format!("json: cannot unmarshal {found} into Go value of type {target}")
    };
    match wanted {
        list if list.starts_with("[]") => format!("cannot restore slice from {kind}"),
        map if map.starts_with("map[") => format!("cannot restore map from {kind}"),
        "string" if kind == "int64" => "cannot convert int64 to string".to_owned(),
        "int32" | "int64" if value.is_number() => format!("cannot convert {kind} to {wanted}"),
        "string" | "bool" | "int32" | "int64" | "float64" => format!("unrecognized type: {wanted}"),
        "v1.Time" | "v1.MicroTime" => {
            format!("json: cannot unmarshal {} into Go value of type string", json_kind(value))
        }
        "intstr.IntOrString" => decoder("int32"),
        _ => format!("cannot restore struct from: {kind}"),
    }
}

/// The warnings that kube-apiserver makes of strict decoding errors: one for each line of what the YAML library
/// says, without its heads (`parseYAMLWarnings`).
pub(super) fn strict_warnings(errors: Vec<String>) -> Vec<String> {
    const HEADS: [&str; 2] = ["yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n"];
    let mut warnings = Vec::with_capacity(errors.len());
    for error in errors {
        match HEADS.iter().find_map(|head| error.strip_prefix(head)) {
            Some(lines) => warnings.extend(lines.split('\n').map(|line| line.trim().to_owned())),
            None => warnings.push(error),
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_converter_tells_wrong_types_in_its_own_words() {
        for (value, wanted, expected) in [
            (json!({}), "[]v1.Container", "cannot restore slice from map"),
            (json!("a"), "map[string]string", "cannot restore map from string"),
            (json!(5), "string", "cannot convert int64 to string"),
            (json!(1.5), "string", "unrecognized type: string"),
            (json!("a"), "int32", "unrecognized type: int32"),
            (json!(1.5), "int32", "cannot convert float64 to int32"),
            (json!([]), "bool", "unrecognized type: bool"),
            (json!([]), "v1.PodSpec", "cannot restore struct from: slice"),
            (json!(5), "v1.Time", "json: cannot unmarshal number into Go value of type string"),
            (json!(true), "intstr.IntOrString", "json: cannot unmarshal bool into Go value of type int32"),
            (json!(1.5), "intstr.IntOrString", "json: cannot unmarshal number 1.5 into Go value of type int32"),
        ] {
            assert_eq!(cannot_convert(&value, wanted), expected);
        }
    }

    #[test]
    fn prints_as_go_does() {
        assert_eq!(print(&json!({"b": [1, null, "x"], "a": {"c": true}})), "map[a:map[c:true] b:[1 <nil> x]]");
        assert_eq!(type_name(&json!(1.5)), "float64");
        assert_eq!(json_kind(&json!([])), "array");
        for (value, expected) in [
            (json!("a"), "a"),
            (json!({"a": null}), "map[a:<nil>]"),
            (json!(null), "%!s(<nil>)"),
            (json!(5), "%!s(int64=5)"),
            (json!(true), "%!s(bool=true)"),
        ] {
            assert_eq!(print_as_text(&value), expected);
        }
    }
}
