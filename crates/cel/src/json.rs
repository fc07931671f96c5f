//! Converts values to JSON, for the patches of mutating admission policies (`cel/mutation/dynamic/objects.go`).

use base64::Engine as _;
use listwatch_json::{Map, Value as Json};
use serde_json::Number;
use time::format_description::well_known::Rfc3339;

use crate::eval::EvalError;
use crate::value::{Steps, Val};

/// A value without a form in JSON.
fn unsupported(value: &Val<'_>) -> EvalError {
    EvalError::new(format!("unsupported conversion of a value of type {} to JSON", value.type_name()))
}

/// Converts a value. Each nested value takes a step, because values can share their parts.
pub(crate) fn to_json(value: &Val<'_>, steps: &mut Steps) -> Result<Json, EvalError> {
    let taken = match value {
        Val::JsonList(items, _) => items.iter().all(|item| steps.take_json(item)),
        Val::JsonMap(members, ..) => {
            members.iter().all(|(name, value)| steps.take_text(name.len()) && steps.take_json(value))
        }
        Val::Text(text) => steps.take(1) && steps.take_text(text.len()),
        Val::Bytes(bytes) => steps.take(1) && steps.take_text(bytes.len()),
        _ => steps.take(1),
    };
    if !taken {
        return Err(EvalError::Limit);
    }
    Ok(match value {
        Val::Null => Json::Null,
        Val::Bool(value) => Json::Bool(*value),
        Val::Int(value) => Json::from(*value),
        Val::Uint(value) => Json::from(*value),
        Val::Double(value) => Json::Number(Number::from_f64(*value).ok_or_else(|| unsupported(&Val::Double(*value)))?),
        Val::Text(text) => Json::from(text.as_ref()),
        Val::Bytes(bytes) => Json::from(base64::engine::general_purpose::STANDARD.encode(bytes)),
        Val::Duration(span) => Json::from(format!("{}s", listwatch_meta::go::float(*span as f64 / 1e9))),
        Val::Timestamp(at) => Json::from(at.format(&Rfc3339).map_err(|_| unsupported(value))?),
        Val::List(items) => Json::Array(items.iter().map(|item| to_json(item, steps)).collect::<Result<_, _>>()?),
        Val::Map(map) | Val::Struct(_, map) => {
            let mut members = Map::new();
            for (key, value) in &map.entries {
                let Val::Text(key) = key else {
                    let ty = key.type_name();
                    return Err(EvalError::new(format!("map key is of type {ty}, not string")));
                };
                if !steps.take_text(key.len()) {
                    return Err(EvalError::Limit);
                }
                members.insert(key.to_string(), to_json(value, steps)?);
            }
            Json::Object(members)
        }
        Val::JsonList(items, _) => Json::Array(items.to_vec()),
        Val::JsonMap(members, ..) => Json::Object((*members).clone()),
        other => return Err(unsupported(other)),
    })
}

/// Adds the objects whose type is not the path of their field. `path` is the expected type of `value`.
pub(crate) fn check_object_types(value: &Val<'_>, path: &str, steps: &mut Steps, found: &mut Vec<String>) {
    if !steps.take(1) {
        return;
    }
    match value {
        Val::Struct(name, fields) => {
            if *name != path {
                found.push(format!(
                    "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
                ));
            }
            for (field, value) in &fields.entries {
                let Val::Text(field) = field else { continue };
                check_object_types(value, &format!("{path}.{field}"), steps, found);
            }
        }
        // Lists and maps have no part in the path.
        Val::List(items) => items.iter().for_each(|item| check_object_types(item, path, steps, found)),
        Val::Map(map) => map.entries.iter().for_each(|(_, value)| check_object_types(value, path, steps, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::{AdmissionVariables, ResultType, Value, compile_expression};

    /// The value of an expression with patch types over `object`, as JSON.
    fn check(source: &str, expected: Result<listwatch_json::Value, &str>) {
        let object = json!({"a": {"b": [1, "x"]}, "n": null});
        let expression = compile_expression(source, &AdmissionVariables::new(), true, ResultType::Any).unwrap();
        let value = expression.evaluate([("object", Value::json(&object, None, false))], 10_000).result;
        let found = value.and_then(|value| value.to_json(1_000)).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{source}");
    }

    #[test]
    fn cel_values_are_converted_to_json_by_type() {
        check(
            "Object{spec: Object.spec{replicas: 1, names: ['a']}}",
            Ok(json!({"spec": {"replicas": 1, "names": ["a"]}})),
        );
        check("Object{metadata: Object.metadata{labels: {'a': 'b'}}}", Ok(json!({"metadata": {"labels": {"a": "b"}}})));
        check("Object{?a: optional.none(), ?b: optional.of(1)}", Ok(json!({"b": 1})));
        check("object", Ok(json!({"a": {"b": [1, "x"]}, "n": null})));
        check(
            "[object.a.b, [1.5], null, b'a', timestamp('2020-01-01T00:00:00Z')]",
            Ok(json!([[1, "x"], [1.5], null, "YQ==", "2020-01-01T00:00:00Z"])),
        );
        check("{1: 'a'}", Err("map key is of type int, not string"));
        check("[quantity('1')]", Err("unsupported conversion of a value of type kubernetes.Quantity to JSON"));
        check("jsonpatch.escapeKey('k8s.io/my~label')", Ok(json!("k8s.io~1my~0label")));
    }

    #[test]
    fn value_with_shared_parts_is_converted_to_json_within_the_limit() {
        let doubled = |times| (0..times).fold("[1]".to_owned(), |inner, _| format!("[{inner}].map(x, [x, x])"));
        for (times, expected) in [(5, true), (40, false)] {
            let expression =
                compile_expression(&doubled(times), &AdmissionVariables::new(), true, ResultType::Any).unwrap();
            let value = expression.evaluate([], 100_000).result.unwrap();
            assert_eq!(value.to_json(10_000).is_ok(), expected);
        }
    }

    #[test]
    fn object_type_must_match_the_path_of_its_field() {
        let check = |source: &str, expected: &str| {
            let expression = compile_expression(source, &AdmissionVariables::new(), true, ResultType::Any).unwrap();
            let value = expression.evaluate([], 10_000).result.unwrap();
            let found = value.check_object_types(1_000).map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(found, expected, "{source}");
        };
        check("Object{spec: Object.spec{template: Object.spec.template{}}}", "");
        check("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'a'}]}}", "");
        check(
            "Object{spec: Object.spec{selector: Object.spec.wrong{}}}",
            "unexpected type name \"Object.spec.wrong\", expected \"Object.spec.selector\", which matches field name path from root Object type",
        );
    }
}
