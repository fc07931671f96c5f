//! Encodes a version 2 document as protobuf: the messages of `openapi.v2` (gnostic).
//!
//! Documents of extension servers may have members that [`super::v2`] does not write. All members are encoded for which
//! `google/gnostic-models/openapiv2/OpenAPIv2.proto` has a field.

use listwatch_json::Value;

use super::protobuf::Kind::{Any, Anys, Double, Each, Flag, Integer, Map, One, Text, Texts, Value as OfValue};
use super::protobuf::{
    Field, Message, contact, external_docs, items, license, members, named_anys, security_requirement, strings, tag,
    xml,
};

/// Encodes the JSON of a document as an `openapi.v2.Document` message.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.fields(
        json,
        &[
            (1, "swagger", Text),
            (2, "info", One(info)),
            (3, "host", Text),
            (4, "basePath", Text),
            (5, "schemes", Texts),
            (6, "consumes", Texts),
            (7, "produces", Texts),
            (8, "paths", One(paths)),
            (9, "definitions", Map(schema)),
            (10, "parameters", Map(parameter)),
            (11, "responses", Map(response)),
            (12, "security", Each(security_requirement)),
            (13, "securityDefinitions", Map(security_definition)),
            (14, "tags", Each(tag)),
            (15, "externalDocs", One(external_docs)),
        ],
    );
    out.extensions(16, json);
    out.into_bytes()
}

fn info(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "title", Text),
            (2, "version", Text),
            (3, "description", Text),
            (4, "termsOfService", Text),
            (5, "contact", One(contact)),
            (6, "license", One(license)),
        ],
    );
    out.extensions(7, value);
}

fn paths(out: &mut Message, value: &Value) {
    out.extensions(1, value);
    for (path, item) in members(value).filter(|(path, _)| path.starts_with('/')) {
        out.pair(2, path, |out| path_item(out, item));
    }
}

fn path_item(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "$ref", Text),
            (2, "get", One(operation)),
            (3, "put", One(operation)),
            (4, "post", One(operation)),
            (5, "delete", One(operation)),
            (6, "options", One(operation)),
            (7, "head", One(operation)),
            (8, "patch", One(operation)),
            (9, "parameters", Each(parameters_item)),
        ],
    );
    out.extensions(10, value);
}

fn operation(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "tags", Texts),
            (2, "summary", Text),
            (3, "description", Text),
            (4, "externalDocs", One(external_docs)),
            (5, "operationId", Text),
            (6, "produces", Texts),
            (7, "consumes", Texts),
            (8, "parameters", Each(parameters_item)),
            (9, "responses", One(responses)),
            (10, "schemes", Texts),
            (11, "deprecated", Flag),
            (12, "security", Each(security_requirement)),
        ],
    );
    out.extensions(13, value);
}

fn responses(out: &mut Message, value: &Value) {
    for (code, value) in members(value).filter(|(code, _)| !code.starts_with("x-")) {
        out.pair(1, code, |out| match value["$ref"].is_string() {
            true => out.message(2, |out| reference(out, value)),
            false => out.message(1, |out| response(out, value)),
        });
    }
    out.extensions(2, value);
}

fn response(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "description", Text),
            (2, "schema", One(schema_item)),
            (3, "headers", Map(header)),
            (4, "examples", One(named_anys)),
        ],
    );
    out.extensions(5, value);
}

/// `SchemaItem`: one of `schema` and `file_schema`.
fn schema_item(out: &mut Message, value: &Value) {
    if value["type"] != "file" {
        return out.message(1, |out| schema(out, value));
    }
    out.message(2, |out| {
        out.fields(
            value,
            &[
                (1, "format", Text),
                (2, "title", Text),
                (3, "description", Text),
                (4, "default", Any),
                (5, "required", Texts),
                (6, "type", Text),
                (7, "readOnly", Flag),
                (8, "externalDocs", One(external_docs)),
                (9, "example", Any),
            ],
        );
        out.extensions(10, value);
    });
}

fn reference(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "$ref", Text), (2, "description", Text)]);
}

/// `ParametersItem`: one of `parameter` and `json_reference`.
fn parameters_item(out: &mut Message, value: &Value) {
    match value["$ref"].is_string() {
        true => out.message(2, |out| reference(out, value)),
        false => out.message(1, |out| parameter(out, value)),
    }
}

/// `Parameter`: one of `body_parameter` and `non_body_parameter`. The latter is one of four messages.
fn parameter(out: &mut Message, value: &Value) {
    // The number of the message, and of the field `type` in the message.
    let (number, first) = match value["in"].as_str() {
        Some("body") => {
            return out.message(1, |out| {
                out.fields(
                    value,
                    &[
                        (1, "description", Text),
                        (2, "name", Text),
                        (3, "in", Text),
                        (4, "required", Flag),
                        (5, "schema", One(schema)),
                    ],
                );
                out.extensions(6, value);
            });
        }
        Some("header") => (1, 5),
        Some("formData") => (2, 6),
        Some("query") => (3, 6),
        _ => (4, 5),
    };
    let common: [Field; 4] = [(1, "required", Flag), (2, "in", Text), (3, "description", Text), (4, "name", Text)];
    out.message(2, |out| {
        out.message(number, |out| {
            out.fields(value, &common);
            if first == 6 {
                out.fields(value, &[(5, "allowEmptyValue", Flag)]);
            }
            primitive(out, value, first);
            out.extensions(first + 17, value);
        });
    });
}

/// Writes the description of a value that is not an object. Five messages have these fields in this order. `first` is the
/// number of `type`.
fn primitive(out: &mut Message, value: &Value, first: u32) {
    const MEMBERS: [(&str, super::protobuf::Kind); 17] = [
        ("type", Text),
        ("format", Text),
        ("items", One(primitives_items)),
        ("collectionFormat", Text),
        ("default", Any),
        ("maximum", Double),
        ("exclusiveMaximum", Flag),
        ("minimum", Double),
        ("exclusiveMinimum", Flag),
        ("maxLength", Integer),
        ("minLength", Integer),
        ("pattern", Text),
        ("maxItems", Integer),
        ("minItems", Integer),
        ("uniqueItems", Flag),
        ("enum", Anys),
        ("multipleOf", Double),
    ];
    for (number, (name, kind)) in (first..).zip(MEMBERS) {
        out.fields(value, &[(number, name, kind)]);
    }
}

fn primitives_items(out: &mut Message, value: &Value) {
    primitive(out, value, 1);
    out.extensions(18, value);
}

fn header(out: &mut Message, value: &Value) {
    primitive(out, value, 1);
    out.fields(value, &[(18, "description", Text)]);
    out.extensions(19, value);
}

fn schema(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "$ref", Text),
            (2, "format", Text),
            (3, "title", Text),
            (4, "description", Text),
            (5, "default", Any),
            (6, "multipleOf", Double),
            (7, "maximum", Double),
            (8, "exclusiveMaximum", Flag),
            (9, "minimum", Double),
            (10, "exclusiveMinimum", Flag),
            (11, "maxLength", Integer),
            (12, "minLength", Integer),
            (13, "pattern", Text),
            (14, "maxItems", Integer),
            (15, "minItems", Integer),
            (16, "uniqueItems", Flag),
            (17, "maxProperties", Integer),
            (18, "minProperties", Integer),
            (19, "required", Texts),
            (20, "enum", Anys),
            (21, "additionalProperties", OfValue(additional_properties)),
            (22, "type", OfValue(types)),
            (23, "items", OfValue(schema_items)),
            (24, "allOf", Each(schema)),
            (25, "properties", Map(schema)),
            (26, "discriminator", Text),
            (27, "readOnly", Flag),
            (28, "xml", One(xml)),
            (29, "externalDocs", One(external_docs)),
            (30, "example", Any),
        ],
    );
    out.extensions(31, value);
}

/// `AdditionalPropertiesItem`: one of `schema` and `boolean`.
fn additional_properties(out: &mut Message, value: &Value) {
    match value {
        Value::Bool(allowed) => out.boolean(2, *allowed),
        value => out.message(1, |out| schema(out, value)),
    }
}

/// `TypeItem`: one type or several.
fn types(out: &mut Message, value: &Value) {
    match value {
        Value::Array(several) => several.iter().for_each(|one| out.text(1, one)),
        one => out.text(1, one),
    }
}

/// `ItemsItem`: one schema or several.
fn schema_items(out: &mut Message, value: &Value) {
    match value {
        Value::Array(_) => items(value).iter().for_each(|one| out.message(1, |out| schema(out, one))),
        one => out.message(1, |out| schema(out, one)),
    }
}

/// `SecurityDefinitionsItem`: one of six messages. The fields of the four kinds of OAuth have the same order.
fn security_definition(out: &mut Message, value: &Value) {
    let (number, fields): (u32, &[&'static str]) = match (value["type"].as_str(), value["flow"].as_str()) {
        (Some("basic"), _) => (1, &["type", "description"]),
        (Some("oauth2"), Some("implicit")) => (3, &["type", "flow", "scopes", "authorizationUrl", "description"]),
        (Some("oauth2"), Some("password")) => (4, &["type", "flow", "scopes", "tokenUrl", "description"]),
        (Some("oauth2"), Some("application")) => (5, &["type", "flow", "scopes", "tokenUrl", "description"]),
        (Some("oauth2"), _) => (6, &["type", "flow", "scopes", "authorizationUrl", "tokenUrl", "description"]),
        _ => (2, &["type", "name", "in", "description"]),
    };
    out.message(number, |out| {
        let mut next = 1;
        for name in fields {
            let kind = if *name == "scopes" { One(strings) } else { Text };
            out.fields(value, &[(next, name, kind)]);
            next += 1;
        }
        out.extensions(next, value);
    });
}
