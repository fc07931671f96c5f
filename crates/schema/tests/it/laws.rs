//! Property tests: invariants for all schemas and all objects.

use listwatch_json::{Map, Value, json};
use listwatch_schema::Schema;
use proptest::prelude::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..9).prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
        Just(json!(1.5)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

/// Schemas whose defaults are valid.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (0i64..4, any::<bool>(), any::<bool>()).prop_map(|(minimum, nullable, defaulted)| {
            let mut schema = json!({"type": "integer", "minimum": minimum, "nullable": nullable});
            if defaulted {
                schema["default"] = json!(minimum + 1);
            }
            schema
        }),
        (0i64..3, any::<bool>()).prop_map(|(max, defaulted)| {
            let mut schema = json!({"type": "string", "maxLength": max});
            if defaulted {
                schema["default"] = json!("");
            }
            schema
        }),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "number", "maximum": 4})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
    ];
    leaf.prop_recursive(4, 20, 4, |inner| {
        let properties = prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner.clone(), 0..4);
        prop_oneof![
            (inner.clone(), 0i64..4).prop_map(|(items, max)| json!({"type": "array", "items": items, "maxItems": max})),
            inner.prop_map(|more| json!({"type": "object", "additionalProperties": more})),
            (properties, any::<bool>(), any::<bool>()).prop_map(|(properties, preserves, required)| {
                let mut schema = json!({"type": "object"});
                if required {
                    schema["required"] = properties.keys().next().map_or(json!([]), |name| json!([name]));
                }
                schema["properties"] =
                    Value::Object(properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect());
                if preserves {
                    schema["x-kubernetes-preserve-unknown-fields"] = json!(true);
                }
                schema
            }),
        ]
    })
}

fn root(schema: Value) -> Schema {
    Schema::parse(&json!({"type": "object", "properties": {"spec": schema}})).expect("a schema")
}

/// A simple model of validation for the schemas above.
fn model(schema: &Value, value: &Value) -> bool {
    if value.is_null() {
        return schema["nullable"] == json!(true)
            || schema.get("type").is_none() && schema.get("x-kubernetes-int-or-string").is_none();
    }
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        return value.is_string() || value.is_i64();
    }
    match schema["type"].as_str() {
        Some("integer") => value.as_i64().is_some_and(|value| value >= schema["minimum"].as_i64().unwrap_or(i64::MIN)),
        Some("number") => value.as_f64().is_some_and(|value| value <= 4.0),
        Some("boolean") => value.is_boolean(),
        Some("string") => {
            value.as_str().is_some_and(|value| value.len() as i64 <= schema["maxLength"].as_i64().unwrap_or(i64::MAX))
        }
        Some("array") => value.as_array().is_some_and(|items| {
            items.len() as i64 <= schema["maxItems"].as_i64().unwrap_or(i64::MAX)
                && items.iter().all(|item| model(&schema["items"], item))
        }),
        Some("object") => value.as_object().is_some_and(|members| {
            let none = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&none);
            let required = schema["required"]
                .as_array()
                .is_none_or(|names| names.iter().all(|name| members.contains_key(name.as_str().unwrap_or_default())));
            required
                && members.iter().all(|(name, value)| {
                    match (properties.get(name), schema.get("additionalProperties")) {
                        (Some(property), _) => model(property, value),
                        (None, Some(more)) => model(more, value),
                        (None, None) => true,
                    }
                })
        }),
        _ => true,
    }
}

/// True if `whole` contains every scalar of `part` at the same path.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|whole| is_part(value, whole)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
        }
        (part, whole) => part == whole,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn validation_agrees_with_a_plain_model(schema in schemas(), value in values()) {
        let errors = root(schema.clone()).validate(&json!({"spec": value}));
        prop_assert_eq!(errors.is_empty(), model(&schema, &value), "validation says what the schema says: {:?}", errors);
    }

    #[test]
    fn pruning_twice_changes_nothing(schema in schemas(), value in values()) {
        let schema = root(schema);
        let mut object = json!({"spec": value});
        let before = object.clone();
        let unknown = schema.prune(&mut object);
        prop_assert!(is_part(&object, &before), "pruning only takes away");
        prop_assert_eq!(unknown.is_empty(), object == before, "what is taken away is said");
        let once = object.clone();
        prop_assert!(schema.prune(&mut object).is_empty(), "what was pruned is known");
        prop_assert_eq!(object, once, "pruning twice is pruning once");
    }

    #[test]
    fn defaulting_twice_changes_nothing(schema in schemas(), value in values()) {
        let schema = root(schema);
        let mut object = json!({"spec": value});
        schema.prune_nulls(&mut object);
        schema.default(&mut object);
        let once = object.clone();
        schema.prune_nulls(&mut object);
        schema.default(&mut object);
        prop_assert_eq!(object, once, "defaulting twice is defaulting once");
    }

    #[test]
    fn valid_object_stays_valid_after_defaulting(schema in schemas(), value in values()) {
        let schema = root(schema);
        let mut object = json!({"spec": value});
        if !schema.validate(&object).is_empty() {
            return Ok(());
        }
        schema.default(&mut object);
        prop_assert_eq!(schema.validate(&object), vec![], "defaults that are valid keep an object valid");
        prop_assert_eq!(schema.validate_update(&object, &object), vec![], "an update that changes nothing is valid");
        schema.prune(&mut object);
        let errors = schema.validate(&object);
        prop_assert!(errors.is_empty(), "pruning keeps an object valid: {:?}", errors);
    }

    #[test]
    fn update_without_changes_is_accepted_for_every_schema(schema in schemas(), value in values()) {
        let schema = root(schema);
        let mut object = json!({"spec": value});
        schema.prune(&mut object);
        let errors = schema.validate_update(&object, &object);
        let fresh = schema.validate(&object);
        prop_assert!(errors.len() <= fresh.len(), "an update finds no more than a creation does");
    }
}
