//! Reads protobuf documents with an independent reader, and compares them with the JSON documents.

use listwatch_json::{Map, Value, json};
use listwatch_registry::Registry;

use super::{Answer, OpenApi, V2Form, V3Form, Version2, protobuf_v3};

/// The messages of version 2. Each entry has a number, the name of a member and a type. `*` after the type is a repeated
/// field, `{T}` is a message of pairs. The name `|` replaces the message by the value of the field, and `...` adds pairs
/// to the members of the message.
const V2: &[(&str, &str)] = &[
    (
        "Document",
        "1 swagger text, 2 info Info, 3 host text, 4 basePath text, 5 schemes text*, 6 consumes text*, \
         7 produces text*, 8 paths Paths, 9 definitions {Schema}, 10 parameters {Parameter}, 11 responses {Response}, \
         12 security {Scopes}*, 13 securityDefinitions {Security}, 14 tags Tag*, 15 externalDocs Docs, 16 ... any",
    ),
    (
        "Info",
        "1 title text, 2 version text, 3 description text, 4 termsOfService text, 5 contact Contact, 6 license License, \
         7 ... any",
    ),
    ("Contact", "1 name text, 2 url text, 3 email text, 4 ... any"),
    ("License", "1 name text, 2 url text, 3 ... any"),
    ("Tag", "1 name text, 2 description text, 3 externalDocs Docs, 4 ... any"),
    ("Docs", "1 description text, 2 url text, 3 ... any"),
    ("Xml", "1 name text, 2 namespace text, 3 prefix text, 4 attribute flag, 5 wrapped flag, 6 ... any"),
    ("Scopes", "1 | text*"),
    ("Security", "1 | Basic, 2 | ApiKey, 3 | Implicit, 4 | Password, 5 | Password, 6 | AccessCode"),
    ("Basic", "1 type text, 2 description text, 3 ... any"),
    ("ApiKey", "1 type text, 2 name text, 3 in text, 4 description text, 5 ... any"),
    ("Implicit", "1 type text, 2 flow text, 3 scopes {text}, 4 authorizationUrl text, 5 description text, 6 ... any"),
    ("Password", "1 type text, 2 flow text, 3 scopes {text}, 4 tokenUrl text, 5 description text, 6 ... any"),
    (
        "AccessCode",
        "1 type text, 2 flow text, 3 scopes {text}, 4 authorizationUrl text, 5 tokenUrl text, 6 description text, \
         7 ... any",
    ),
    ("Paths", "1 ... any, 2 ... PathItem"),
    (
        "PathItem",
        "1 $ref text, 2 get Operation, 3 put Operation, 4 post Operation, 5 delete Operation, 6 options Operation, \
         7 head Operation, 8 patch Operation, 9 parameters ParametersItem*, 10 ... any",
    ),
    (
        "Operation",
        "1 tags text*, 2 summary text, 3 description text, 4 externalDocs Docs, 5 operationId text, 6 produces text*, \
         7 consumes text*, 8 parameters ParametersItem*, 9 responses Responses, 10 schemes text*, 11 deprecated flag, \
         12 security {Scopes}*, 13 ... any",
    ),
    ("ParametersItem", "1 | Parameter, 2 | Reference"),
    ("Reference", "1 $ref text, 2 description text"),
    ("Parameter", "1 | BodyParameter, 2 | NonBodyParameter"),
    ("BodyParameter", "1 description text, 2 name text, 3 in text, 4 required flag, 5 schema Schema, 6 ... any"),
    ("NonBodyParameter", "1 | HeaderParameter, 2 | FormParameter, 3 | QueryParameter, 4 | PathParameter"),
    (
        "HeaderParameter",
        "1 required flag, 2 in text, 3 description text, 4 name text, 5 type text, 6 format text, 7 items Items1, \
         8 collectionFormat text, 9 default any, 10 maximum double, 11 exclusiveMaximum flag, 12 minimum double, \
         13 exclusiveMinimum flag, 14 maxLength int, 15 minLength int, 16 pattern text, 17 maxItems int, \
         18 minItems int, 19 uniqueItems flag, 20 enum any*, 21 multipleOf double, 22 ... any",
    ),
    (
        "PathParameter",
        "1 required flag, 2 in text, 3 description text, 4 name text, 5 type text, 6 format text, 7 items Items1, \
         8 collectionFormat text, 9 default any, 10 maximum double, 11 exclusiveMaximum flag, 12 minimum double, \
         13 exclusiveMinimum flag, 14 maxLength int, 15 minLength int, 16 pattern text, 17 maxItems int, \
         18 minItems int, 19 uniqueItems flag, 20 enum any*, 21 multipleOf double, 22 ... any",
    ),
    (
        "FormParameter",
        "1 required flag, 2 in text, 3 description text, 4 name text, 5 allowEmptyValue flag, 6 type text, \
         7 format text, 8 items Items1, 9 collectionFormat text, 10 default any, 11 maximum double, \
         12 exclusiveMaximum flag, 13 minimum double, 14 exclusiveMinimum flag, 15 maxLength int, 16 minLength int, \
         17 pattern text, 18 maxItems int, 19 minItems int, 20 uniqueItems flag, 21 enum any*, 22 multipleOf double, \
         23 ... any",
    ),
    (
        "QueryParameter",
        "1 required flag, 2 in text, 3 description text, 4 name text, 5 allowEmptyValue flag, 6 type text, \
         7 format text, 8 items Items1, 9 collectionFormat text, 10 default any, 11 maximum double, \
         12 exclusiveMaximum flag, 13 minimum double, 14 exclusiveMinimum flag, 15 maxLength int, 16 minLength int, \
         17 pattern text, 18 maxItems int, 19 minItems int, 20 uniqueItems flag, 21 enum any*, 22 multipleOf double, \
         23 ... any",
    ),
    (
        "Items1",
        "1 type text, 2 format text, 3 items Items1, 4 collectionFormat text, 5 default any, 6 maximum double, \
         7 exclusiveMaximum flag, 8 minimum double, 9 exclusiveMinimum flag, 10 maxLength int, 11 minLength int, \
         12 pattern text, 13 maxItems int, 14 minItems int, 15 uniqueItems flag, 16 enum any*, 17 multipleOf double, \
         18 ... any",
    ),
    (
        "Header",
        "1 type text, 2 format text, 3 items Items1, 4 collectionFormat text, 5 default any, 6 maximum double, \
         7 exclusiveMaximum flag, 8 minimum double, 9 exclusiveMinimum flag, 10 maxLength int, 11 minLength int, \
         12 pattern text, 13 maxItems int, 14 minItems int, 15 uniqueItems flag, 16 enum any*, 17 multipleOf double, \
         18 description text, 19 ... any",
    ),
    ("Responses", "1 ... ResponseValue, 2 ... any"),
    ("ResponseValue", "1 | Response, 2 | Reference"),
    ("Response", "1 description text, 2 schema SchemaItem, 3 headers {Header}, 4 examples {any}, 5 ... any"),
    ("SchemaItem", "1 | Schema, 2 | FileSchema"),
    (
        "FileSchema",
        "1 format text, 2 title text, 3 description text, 4 default any, 5 required text*, 6 type text, \
         7 readOnly flag, 8 externalDocs Docs, 9 example any, 10 ... any",
    ),
    (
        "Schema",
        "1 $ref text, 2 format text, 3 title text, 4 description text, 5 default any, 6 multipleOf double, \
         7 maximum double, 8 exclusiveMaximum flag, 9 minimum double, 10 exclusiveMinimum flag, 11 maxLength int, \
         12 minLength int, 13 pattern text, 14 maxItems int, 15 minItems int, 16 uniqueItems flag, \
         17 maxProperties int, 18 minProperties int, 19 required text*, 20 enum any*, \
         21 additionalProperties Additional, 22 type Type, 23 items Items, 24 allOf Schema*, 25 properties {Schema}, \
         26 discriminator text, 27 readOnly flag, 28 xml Xml, 29 externalDocs Docs, 30 example any, 31 ... any",
    ),
    ("Additional", "1 | Schema, 2 | flag"),
    ("Type", "1 | text"),
    ("Items", "1 | Schema"),
];

/// The messages of version 3.
const V3: &[(&str, &str)] = &[
    (
        "Document",
        "1 openapi text, 2 info Info, 3 servers Server*, 4 paths Paths, 5 components Components, 6 security {Scopes}*, \
         7 tags Tag*, 8 externalDocs Docs, 9 ... any",
    ),
    (
        "Info",
        "1 title text, 2 description text, 3 termsOfService text, 4 contact Contact, 5 license License, 6 version text, \
         7 ... any, 8 summary text",
    ),
    ("Contact", "1 name text, 2 url text, 3 email text, 4 ... any"),
    ("License", "1 name text, 2 url text, 3 ... any"),
    ("Tag", "1 name text, 2 description text, 3 externalDocs Docs, 4 ... any"),
    ("Docs", "1 description text, 2 url text, 3 ... any"),
    ("Xml", "1 name text, 2 namespace text, 3 prefix text, 4 attribute flag, 5 wrapped flag, 6 ... any"),
    ("Scopes", "1 | text*"),
    ("Server", "1 url text, 2 description text, 3 variables {Variable}, 4 ... any"),
    ("Variable", "1 enum text*, 2 default text, 3 description text, 4 ... any"),
    ("Paths", "1 ... PathItem, 2 ... any"),
    (
        "PathItem",
        "1 $ref text, 2 summary text, 3 description text, 4 get Operation, 5 put Operation, 6 post Operation, \
         7 delete Operation, 8 options Operation, 9 head Operation, 10 patch Operation, 11 trace Operation, \
         12 servers Server*, 13 parameters ParameterOr*, 14 ... any",
    ),
    (
        "Operation",
        "1 tags text*, 2 summary text, 3 description text, 4 externalDocs Docs, 5 operationId text, \
         6 parameters ParameterOr*, 7 requestBody RequestBodyOr, 8 responses Responses, 10 deprecated flag, \
         11 security {Scopes}*, 12 servers Server*, 13 ... any",
    ),
    ("Reference", "1 $ref text, 2 summary text, 3 description text"),
    ("ParameterOr", "1 | Parameter, 2 | Reference"),
    ("RequestBodyOr", "1 | RequestBody, 2 | Reference"),
    ("ResponseOr", "1 | Response, 2 | Reference"),
    ("HeaderOr", "1 | Header, 2 | Reference"),
    ("ExampleOr", "1 | Example, 2 | Reference"),
    ("SchemaOr", "1 | Schema, 2 | Reference"),
    ("SchemeOr", "1 | Scheme, 2 | Reference"),
    (
        "Components",
        "1 schemas {SchemaOr}, 2 responses {ResponseOr}, 3 parameters {ParameterOr}, 4 examples {ExampleOr}, \
         5 requestBodies {RequestBodyOr}, 6 headers {HeaderOr}, 7 securitySchemes {SchemeOr}, 10 ... any",
    ),
    (
        "Parameter",
        "1 name text, 2 in text, 3 description text, 4 required flag, 5 deprecated flag, 6 allowEmptyValue flag, \
         7 style text, 8 explode flag, 9 allowReserved flag, 10 schema SchemaOr, 11 example any, \
         12 examples {ExampleOr}, 13 content {MediaType}, 14 ... any",
    ),
    (
        "Header",
        "1 description text, 2 required flag, 3 deprecated flag, 4 allowEmptyValue flag, 5 style text, 6 explode flag, \
         7 allowReserved flag, 8 schema SchemaOr, 9 example any, 10 examples {ExampleOr}, 11 content {MediaType}, \
         12 ... any",
    ),
    ("RequestBody", "1 description text, 2 content {MediaType}, 3 required flag, 4 ... any"),
    ("Responses", "1 default ResponseOr, 2 ... ResponseOr, 3 ... any"),
    ("Response", "1 description text, 2 headers {HeaderOr}, 3 content {MediaType}, 5 ... any"),
    ("MediaType", "1 schema SchemaOr, 2 example any, 3 examples {ExampleOr}, 4 encoding {Encoding}, 5 ... any"),
    (
        "Encoding",
        "1 contentType text, 2 headers {HeaderOr}, 3 style text, 4 explode flag, 5 allowReserved flag, 6 ... any",
    ),
    ("Example", "1 summary text, 2 description text, 3 value any, 4 externalValue text, 5 ... any"),
    (
        "Scheme",
        "1 type text, 2 description text, 3 name text, 4 in text, 5 scheme text, 6 bearerFormat text, 7 flows Flows, \
         8 openIdConnectUrl text, 9 ... any",
    ),
    ("Flows", "1 implicit Flow, 2 password Flow, 3 clientCredentials Flow, 4 authorizationCode Flow, 5 ... any"),
    ("Flow", "1 authorizationUrl text, 2 tokenUrl text, 3 refreshUrl text, 4 scopes {text}, 5 ... any"),
    (
        "Schema",
        "1 nullable flag, 2 discriminator Discriminator, 3 readOnly flag, 4 writeOnly flag, 5 xml Xml, \
         6 externalDocs Docs, 7 example any, 8 deprecated flag, 9 title text, 10 multipleOf double, 11 maximum double, \
         12 exclusiveMaximum flag, 13 minimum double, 14 exclusiveMinimum flag, 15 maxLength int, 16 minLength int, \
         17 pattern text, 18 maxItems int, 19 minItems int, 20 uniqueItems flag, 21 maxProperties int, \
         22 minProperties int, 23 required text*, 24 enum any*, 25 type text, 26 allOf SchemaOr*, 27 oneOf SchemaOr*, \
         28 anyOf SchemaOr*, 29 not Schema, 30 items Items, 31 properties {SchemaOr}, 32 additionalProperties Additional, \
         33 default Default, 34 description text, 35 format text, 36 ... any",
    ),
    ("Discriminator", "1 propertyName text, 2 mapping {text}, 3 ... any"),
    ("Items", "1 | SchemaOr"),
    ("Additional", "1 | SchemaOr, 2 | flag"),
    ("Default", "1 | double, 2 | flag, 3 | text"),
];

/// The value of a field.
enum Wire<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a varint ends");
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return number;
        }
    }
}

fn split<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (value, rest) = bytes.split_at(length);
    *bytes = rest;
    value
}

/// Decodes the fields of a message.
fn decode(mut bytes: &[u8]) -> Vec<(u64, Wire<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)),
            1 => Wire::Fixed64(split(&mut bytes, 8).try_into().unwrap()),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                Wire::Bytes(split(&mut bytes, length))
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

/// Reads a value of a type of the table.
fn read_type(table: &[(&str, &str)], of: &str, value: &Wire<'_>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match (of, value) {
        ("text", Wire::Bytes(bytes)) => json!(text(bytes)),
        ("flag", Wire::Varint(number)) => json!(*number == 1),
        ("int", Wire::Varint(number)) => json!(number.cast_signed()),
        ("double", Wire::Fixed64(bytes)) => number(f64::from_le_bytes(*bytes)),
        ("any", Wire::Bytes(bytes)) => match decode(bytes).as_slice() {
            [(2, Wire::Bytes(yaml))] => serde_json::from_slice(yaml).expect("our YAML is JSON"),
            _ => panic!("an Any has one field"),
        },
        (of, Wire::Bytes(bytes)) => match of.strip_prefix('{').and_then(|of| of.strip_suffix('}')) {
            Some(of) => {
                let pairs = decode(bytes).into_iter().map(|(number, pair)| {
                    assert_eq!(number, 1, "a message of pairs has one field");
                    read_pair(table, of, &pair)
                });
                Value::Object(pairs.collect())
            }
            None => read(table, of, bytes),
        },
        (of, _) => panic!("the wire type of {of}"),
    }
}

/// A number as JSON has it: whole numbers have no fraction.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}

fn read_pair(table: &[(&str, &str)], of: &str, pair: &Wire<'_>) -> (String, Value) {
    let Wire::Bytes(bytes) = pair else { panic!("a pair is a message") };
    let (mut name, mut value) = (String::new(), Value::Null);
    for (number, field) in decode(bytes) {
        match number {
            1 => name = read_type(table, "text", &field).as_str().unwrap().to_owned(),
            2 => value = read_type(table, of, &field),
            other => panic!("field {other} of a pair"),
        }
    }
    (name, value)
}

/// Reads a message as a JSON value.
fn read(table: &[(&str, &str)], message: &str, bytes: &[u8]) -> Value {
    let (_, entries) = table.iter().find(|(name, _)| *name == message).unwrap_or_else(|| panic!("{message}"));
    let mut object = Map::new();
    let (mut replaced, mut list) = (None, Vec::new());
    let is_list = entries.starts_with("1 | ") && entries.ends_with("text*");
    for (number, value) in decode(bytes) {
        let entry = entries.split(", ").map(|entry| entry.splitn(3, ' ').collect::<Vec<_>>());
        let entry = entry.into_iter().find(|entry| entry[0] == number.to_string());
        let entry = entry.unwrap_or_else(|| panic!("{message} has no field {number}"));
        let (name, of) = (entry[1], entry[2]);
        match (name, of.strip_suffix('*')) {
            ("...", _) => {
                let (name, value) = read_pair(table, of, &value);
                object.insert(name, value);
            }
            ("|", Some(of)) => list.push(read_type(table, of, &value)),
            ("|", None) => {
                let value = read_type(table, of, &value);
                match replaced.take() {
                    None => replaced = Some(value),
                    Some(Value::Array(mut several)) => {
                        several.push(value);
                        replaced = Some(Value::Array(several));
                    }
                    Some(first) => replaced = Some(json!([first, value])),
                }
            }
            (name, Some(of)) => {
                let value = read_type(table, of, &value);
                match object.get_mut(name) {
                    Some(Value::Array(values)) => values.push(value),
                    _ => {
                        object.insert(name.to_owned(), json!([value]));
                    }
                }
            }
            (name, None) => {
                let earlier = object.insert(name.to_owned(), read_type(table, of, &value));
                assert!(earlier.is_none(), "{message}.{name} is written twice");
            }
        }
    }
    if is_list {
        return Value::Array(list);
    }
    replaced.unwrap_or(Value::Object(object))
}

/// Removes the values that proto3 omits: empty texts and lists, false and zero. Values of any type are kept.
fn without_proto3_defaults(value: &mut Value) {
    match value {
        Value::Object(members) => {
            let keeps = |name: &str| {
                name.starts_with("x-") || ["default", "enum", "example", "additionalProperties"].contains(&name)
            };
            members.retain(|name, value| {
                let is_omitted = match value {
                    Value::String(text) => text.is_empty(),
                    Value::Bool(flag) => !*flag,
                    Value::Number(number) => number.as_f64() == Some(0.0),
                    Value::Array(values) => values.is_empty() && name.as_str() != "BearerToken",
                    Value::Null | Value::Object(_) => false,
                };
                keeps(name) || !is_omitted
            });
            members.iter_mut().filter(|(name, _)| !keeps(name)).for_each(|(_, value)| without_proto3_defaults(value));
        }
        Value::Array(values) => values.iter_mut().for_each(without_proto3_defaults),
        _ => {}
    }
}

/// The path and the values of the first difference.
fn difference(path: &str, found: &Value, expected: &Value) -> Option<String> {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let names = found.keys().chain(expected.keys());
            names.into_iter().find_map(|name| {
                let (found, expected) = (found.get(name), expected.get(name));
                difference(&format!("{path}/{name}"), found.unwrap_or(&Value::Null), expected.unwrap_or(&Value::Null))
            })
        }
        _ => (found != expected).then(|| format!("{path}: {found} instead of {expected}")),
    }
}

fn assert_equal(table: &[(&str, &str)], protobuf: &[u8], mut expected: Value) {
    without_proto3_defaults(&mut expected);
    assert_eq!(difference("", &read(table, "Document", protobuf), &expected), None);
}

pub(super) fn assert_v2_forms_are_equal(openapi: &OpenApi) {
    let (_, protobuf) = openapi.version2().in_form(V2Form::Protobuf);
    let (_, json) = openapi.version2().in_form(V2Form::Json);
    assert_eq!(json.etag, protobuf.etag, "one document, one ETag");
    assert_equal(V2, &protobuf.body, serde_json::from_slice(&json.body).unwrap());
}

#[test]
fn v2_protobuf_of_built_in_kinds_has_all_members_of_the_json() {
    assert_v2_forms_are_equal(&OpenApi::new(&Registry::builtin(), None));
}

#[test]
fn v2_protobuf_of_an_extension_server_has_all_members_of_the_json() {
    let schema = json!({
        "$ref": "#/definitions/A", "format": "f", "title": "t", "description": "d", "default": {"a": [1]},
        "multipleOf": 0.5, "maximum": 7, "exclusiveMaximum": true, "minimum": -1.5, "exclusiveMinimum": true,
        "maxLength": 300, "minLength": 1, "pattern": "^a", "maxItems": 3, "minItems": 2, "uniqueItems": true,
        "maxProperties": 5, "minProperties": 4, "required": ["a", "b"], "enum": ["x", 1, null, false],
        "additionalProperties": false, "type": ["string", "null"],
        "items": [{"type": "string"}, {"type": "integer"}],
        "allOf": [{"$ref": "#/definitions/A"}, {"readOnly": true}],
        "properties": {"a": {"type": "string", "readOnly": true, "default": ""},
            "b": {"additionalProperties": {"allOf": [{"type": "string"}]}, "items": {"type": "string"}}},
        "discriminator": "kind", "readOnly": true,
        "xml": {"name": "n", "namespace": "s", "prefix": "p", "attribute": true, "wrapped": true, "x-xml": 1},
        "externalDocs": {"description": "d", "url": "u", "x-docs": {}}, "example": [1], "x-schema": {"a": null},
    });
    let primitive = json!({
        "type": "array", "format": "f", "items": {"type": "string", "enum": ["a"], "items": {"maximum": 1.5}},
        "collectionFormat": "csv", "default": 0, "maximum": 9, "exclusiveMaximum": true, "minimum": 1,
        "exclusiveMinimum": true, "maxLength": 4, "minLength": 3, "pattern": "p", "maxItems": 2, "minItems": 1,
        "uniqueItems": true, "enum": [false], "multipleOf": 2.5, "x-primitive": "y",
    });
    let with = |more: Value| {
        let mut value = primitive.clone();
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    let parameter = |place: &str| with(json!({"name": place, "in": place, "required": true, "description": "d"}));
    let may_be_empty = |place: &str| {
        let mut value = parameter(place);
        value["allowEmptyValue"] = json!(true);
        value
    };
    let operation = json!({
        "tags": ["t"], "summary": "s", "description": "d", "externalDocs": {"url": "u"}, "operationId": "o",
        "produces": ["a"], "consumes": ["b"], "schemes": ["https"], "deprecated": true,
        "security": [{"BearerToken": [], "oauth": ["read", "write"]}, {}], "x-operation": [1],
        "parameters": [
            {"name": "body", "in": "body", "required": true, "description": "d", "schema": schema, "x-body": 1},
            {"$ref": "#/parameters/p"}, parameter("header"), parameter("path"), may_be_empty("query"),
            may_be_empty("formData"),
        ],
        "responses": {
            "200": {"description": "OK", "schema": schema, "headers": {"h": with(json!({"description": "d"}))},
                "examples": {"application/json": {"a": 1}}, "x-response": 1},
            "201": {"description": "file", "schema": {"type": "file", "format": "f", "title": "t", "description": "d",
                "default": 1, "required": ["a"], "readOnly": true, "externalDocs": {"url": "u"}, "example": 1,
                "x-file": 1}},
            "default": {"$ref": "#/responses/r"}, "x-responses": 1,
        },
    });
    let document = json!({
        "swagger": "2.0", "host": "h", "basePath": "/b", "schemes": ["https"], "consumes": ["c"], "produces": ["p"],
        "info": {"title": "t", "version": "v", "description": "d", "termsOfService": "s", "x-info": 1,
            "contact": {"name": "n", "url": "u", "email": "e", "x-contact": 1},
            "license": {"name": "n", "url": "u", "x-license": 1}},
        "paths": {"x-paths": 1, "/a": {"$ref": "r", "get": operation, "put": operation, "post": operation,
            "delete": operation, "options": operation, "head": operation, "patch": operation,
            "parameters": [may_be_empty("formData"), {"$ref": "#/parameters/p", "description": "d"}], "x-item": 1}},
        "definitions": {"A": schema, "": {"type": "object"}},
        "parameters": {"p": may_be_empty("query")},
        "responses": {"r": {"description": "d"}},
        "security": [{"BearerToken": []}],
        "securityDefinitions": {
            "basic": {"type": "basic", "description": "d", "x-basic": 1},
            "key": {"type": "apiKey", "name": "n", "in": "header", "description": "d", "x-key": 1},
            "implicit": {"type": "oauth2", "flow": "implicit", "scopes": {"a": "b"}, "authorizationUrl": "u",
                "description": "d", "x-flow": 1},
            "password": {"type": "oauth2", "flow": "password", "scopes": {"a": "b"}, "tokenUrl": "u",
                "description": "d", "x-flow": 1},
            "application": {"type": "oauth2", "flow": "application", "scopes": {"a": "b"}, "tokenUrl": "u",
                "description": "d", "x-flow": 1},
            "accessCode": {"type": "oauth2", "flow": "accessCode", "scopes": {"a": "b"}, "authorizationUrl": "u",
                "tokenUrl": "t", "description": "d", "x-flow": 1},
        },
        "tags": [{"name": "n", "description": "d", "externalDocs": {"url": "u"}, "x-tag": 1}],
        "externalDocs": {"description": "d", "url": "u"}, "x-document": {"a": 1},
    });
    let of = document.clone();
    let version2 = Version2::new(move || of.clone());
    let (_, protobuf) = version2.in_form(V2Form::Protobuf);
    assert_equal(V2, &protobuf.body, document);
}

#[test]
fn v3_protobuf_of_built_in_kinds_has_all_members_of_the_json() {
    let openapi = OpenApi::new(&Registry::builtin(), None);
    for path in openapi.version3().documents.keys() {
        let Answer::Document { document, .. } = openapi.v3(path, None) else { panic!("{path} is served") };
        let json = serde_json::from_slice(&document.encode(V3Form::Json)).unwrap();
        assert_eq!(document.kept(V3Form::Protobuf), None, "{path}");
        let protobuf = document.encode(V3Form::Protobuf);
        assert_eq!(document.kept(V3Form::Protobuf), Some(&protobuf), "{path}");
        assert_equal(V3, &protobuf, json);
    }
}

#[test]
fn v3_protobuf_of_a_custom_schema_has_all_members_of_the_json() {
    let reference = json!({"$ref": "#/components/schemas/A", "summary": "s", "description": "d"});
    let schema = json!({
        "nullable": true, "readOnly": true, "writeOnly": true, "deprecated": true, "title": "t", "description": "d",
        "discriminator": {"propertyName": "p", "mapping": {"a": "b"}, "x-discriminator": 1},
        "xml": {"name": "n"}, "externalDocs": {"url": "u"}, "example": {"a": [1]}, "multipleOf": 0.5, "maximum": 7,
        "exclusiveMaximum": true, "minimum": -1.5, "exclusiveMinimum": true, "maxLength": 300, "minLength": 1,
        "pattern": "^a", "maxItems": 3, "minItems": 2, "uniqueItems": true, "maxProperties": 5, "minProperties": 4,
        "required": ["a"], "enum": ["x", 1, null, false], "type": "object", "format": "f", "x-schema": {"a": null},
        "allOf": [reference, {"type": "string"}], "oneOf": [{"type": "string"}], "anyOf": [reference],
        "not": {"type": "string"}, "items": {"type": "string", "default": "x"},
        "properties": {"a": reference, "b": {"default": 0}, "c": {"default": false}, "d": {"default": {}}},
        "additionalProperties": {"additionalProperties": false, "default": 1.5},
    });
    let content = json!({"a/b": {"schema": schema, "example": 1, "examples": {"e": {"summary": "s", "value": [1]}},
        "encoding": {"a": {"contentType": "c", "headers": {"h": reference}, "style": "s", "explode": true}}}});
    let parameter = json!({"name": "n", "in": "query", "description": "d", "required": true, "deprecated": true,
        "allowEmptyValue": true, "style": "s", "explode": true, "allowReserved": true, "schema": reference,
        "example": 1, "examples": {"e": reference}, "content": content, "x-parameter": 1});
    let mut header = parameter.clone();
    header.as_object_mut().unwrap().retain(|name, _| *name != "name" && *name != "in");
    let body = json!({"description": "d", "content": content, "required": true, "x-body": 1});
    let response = json!({"description": "d", "headers": {"h": header}, "content": content, "x-response": 1});
    let server = json!({"url": "u", "description": "d", "variables": {"v": {"enum": ["a"], "default": "a"}}});
    let operation = json!({"tags": ["t"], "summary": "s", "description": "d", "externalDocs": {"url": "u"},
        "operationId": "o", "parameters": [parameter, reference], "requestBody": body, "deprecated": true,
        "responses": {"default": reference, "200": response, "x-responses": 1}, "security": [{"BearerToken": []}],
        "servers": [server], "x-operation": [1]});
    let flow = json!({"authorizationUrl": "a", "tokenUrl": "t", "refreshUrl": "r", "scopes": {"a": "b"}});
    let document = json!({
        "openapi": "3.0.0", "info": {"title": "t", "version": "v", "summary": "s"}, "servers": [server],
        "paths": {"/a": {"$ref": "r", "summary": "s", "description": "d", "get": operation, "put": operation,
            "post": operation, "delete": operation, "options": operation, "head": operation, "patch": operation,
            "trace": operation, "servers": [server], "parameters": [reference], "x-item": 1}},
        "components": {"schemas": {"A": schema, "B": reference}, "responses": {"r": response},
            "parameters": {"p": parameter}, "examples": {"e": reference}, "requestBodies": {"b": body},
            "headers": {"h": reference}, "x-components": 1,
            "securitySchemes": {"s": {"type": "oauth2", "description": "d", "name": "n", "in": "header",
                "scheme": "s", "bearerFormat": "b", "openIdConnectUrl": "u", "flows": {"implicit": flow,
                    "password": flow, "clientCredentials": flow, "authorizationCode": flow}}}},
        "security": [{"BearerToken": []}], "tags": [{"name": "n"}], "externalDocs": {"url": "u"}, "x-document": 1,
    });
    assert_equal(V3, &protobuf_v3::document(&document), document);
}
