//! Encodes a version 3 document as protobuf: the messages of `openapi.v3` (gnostic).
//!
//! All members are encoded for which `google/gnostic-models/openapiv3/OpenAPIv3.proto` has a field, except links and
//! callbacks, which no document of this server has. The field of a default value takes only numbers, flags and strings.
//! As in gnostic, another default value is an empty message.

use listwatch_json::Value;

use super::protobuf::Kind::{Any, Anys, Double, Each, Flag, Integer, Map, One, Text, Texts, Value as OfValue};
use super::protobuf::{
    Message, contact, external_docs, items, license, members, security_requirement, strings, tag, xml,
};

/// Encodes the JSON of a document as an `openapi.v3.Document` message.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.fields(
        json,
        &[
            (1, "openapi", Text),
            (2, "info", One(info)),
            (3, "servers", Each(server)),
            (4, "paths", One(paths)),
            (5, "components", One(components)),
            (6, "security", Each(security_requirement)),
            (7, "tags", Each(tag)),
            (8, "externalDocs", One(external_docs)),
        ],
    );
    out.extensions(9, json);
    out.into_bytes()
}

fn info(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "title", Text),
            (2, "description", Text),
            (3, "termsOfService", Text),
            (4, "contact", One(contact)),
            (5, "license", One(license)),
            (6, "version", Text),
        ],
    );
    out.extensions(7, value);
    out.fields(value, &[(8, "summary", Text)]);
}

fn server(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "url", Text), (2, "description", Text), (3, "variables", Map(server_variable))]);
    out.extensions(4, value);
}

fn server_variable(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "enum", Texts), (2, "default", Text), (3, "description", Text)]);
    out.extensions(4, value);
}

fn paths(out: &mut Message, value: &Value) {
    for (path, item) in members(value).filter(|(path, _)| path.starts_with('/')) {
        out.pair(1, path, |out| path_item(out, item));
    }
    out.extensions(2, value);
}

fn path_item(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "$ref", Text),
            (2, "summary", Text),
            (3, "description", Text),
            (4, "get", One(operation)),
            (5, "put", One(operation)),
            (6, "post", One(operation)),
            (7, "delete", One(operation)),
            (8, "options", One(operation)),
            (9, "head", One(operation)),
            (10, "patch", One(operation)),
            (11, "trace", One(operation)),
            (12, "servers", Each(server)),
            (13, "parameters", Each(parameter_or_reference)),
        ],
    );
    out.extensions(14, value);
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
            (6, "parameters", Each(parameter_or_reference)),
            (7, "requestBody", One(request_body_or_reference)),
            (8, "responses", One(responses)),
            (10, "deprecated", Flag),
            (11, "security", Each(security_requirement)),
            (12, "servers", Each(server)),
        ],
    );
    out.extensions(13, value);
}

fn components(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "schemas", Map(schema_or_reference)),
            (2, "responses", Map(response_or_reference)),
            (3, "parameters", Map(parameter_or_reference)),
            (4, "examples", Map(example_or_reference)),
            (5, "requestBodies", Map(request_body_or_reference)),
            (6, "headers", Map(header_or_reference)),
            (7, "securitySchemes", Map(security_scheme_or_reference)),
        ],
    );
    out.extensions(10, value);
}

/// Writes one of a message (field 1) and a reference (field 2).
fn or_reference(out: &mut Message, value: &Value, write: fn(&mut Message, &Value)) {
    match value["$ref"].is_string() {
        true => out.message(2, |out| {
            out.fields(value, &[(1, "$ref", Text), (2, "summary", Text), (3, "description", Text)]);
        }),
        false => out.message(1, |out| write(out, value)),
    }
}

fn parameter_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, parameter);
}

fn request_body_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, request_body);
}

fn response_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, response);
}

fn example_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, example);
}

fn header_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, header);
}

fn security_scheme_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, security_scheme);
}

fn schema_or_reference(out: &mut Message, value: &Value) {
    or_reference(out, value, schema);
}

fn parameter(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "name", Text),
            (2, "in", Text),
            (3, "description", Text),
            (4, "required", Flag),
            (5, "deprecated", Flag),
            (6, "allowEmptyValue", Flag),
            (7, "style", Text),
            (8, "explode", Flag),
            (9, "allowReserved", Flag),
            (10, "schema", One(schema_or_reference)),
            (11, "example", Any),
            (12, "examples", Map(example_or_reference)),
            (13, "content", Map(media_type)),
        ],
    );
    out.extensions(14, value);
}

fn header(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "description", Text),
            (2, "required", Flag),
            (3, "deprecated", Flag),
            (4, "allowEmptyValue", Flag),
            (5, "style", Text),
            (6, "explode", Flag),
            (7, "allowReserved", Flag),
            (8, "schema", One(schema_or_reference)),
            (9, "example", Any),
            (10, "examples", Map(example_or_reference)),
            (11, "content", Map(media_type)),
        ],
    );
    out.extensions(12, value);
}

fn request_body(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "description", Text), (2, "content", Map(media_type)), (3, "required", Flag)]);
    out.extensions(4, value);
}

fn responses(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "default", One(response_or_reference))]);
    for (code, value) in members(value).filter(|(code, _)| *code != "default" && !code.starts_with("x-")) {
        out.pair(2, code, |out| response_or_reference(out, value));
    }
    out.extensions(3, value);
}

fn response(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[(1, "description", Text), (2, "headers", Map(header_or_reference)), (3, "content", Map(media_type))],
    );
    out.extensions(5, value);
}

fn media_type(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "schema", One(schema_or_reference)),
            (2, "example", Any),
            (3, "examples", Map(example_or_reference)),
            (4, "encoding", Map(encoding)),
        ],
    );
    out.extensions(5, value);
}

fn encoding(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "contentType", Text),
            (2, "headers", Map(header_or_reference)),
            (3, "style", Text),
            (4, "explode", Flag),
            (5, "allowReserved", Flag),
        ],
    );
    out.extensions(6, value);
}

fn example(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "summary", Text), (2, "description", Text), (3, "value", Any), (4, "externalValue", Text)]);
    out.extensions(5, value);
}

fn security_scheme(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "type", Text),
            (2, "description", Text),
            (3, "name", Text),
            (4, "in", Text),
            (5, "scheme", Text),
            (6, "bearerFormat", Text),
            (7, "flows", One(oauth_flows)),
            (8, "openIdConnectUrl", Text),
        ],
    );
    out.extensions(9, value);
}

fn oauth_flows(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "implicit", One(oauth_flow)),
            (2, "password", One(oauth_flow)),
            (3, "clientCredentials", One(oauth_flow)),
            (4, "authorizationCode", One(oauth_flow)),
        ],
    );
    out.extensions(5, value);
}

fn oauth_flow(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[(1, "authorizationUrl", Text), (2, "tokenUrl", Text), (3, "refreshUrl", Text), (4, "scopes", One(strings))],
    );
    out.extensions(5, value);
}

fn schema(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "nullable", Flag),
            (2, "discriminator", One(discriminator)),
            (3, "readOnly", Flag),
            (4, "writeOnly", Flag),
            (5, "xml", One(xml)),
            (6, "externalDocs", One(external_docs)),
            (7, "example", Any),
            (8, "deprecated", Flag),
            (9, "title", Text),
            (10, "multipleOf", Double),
            (11, "maximum", Double),
            (12, "exclusiveMaximum", Flag),
            (13, "minimum", Double),
            (14, "exclusiveMinimum", Flag),
            (15, "maxLength", Integer),
            (16, "minLength", Integer),
            (17, "pattern", Text),
            (18, "maxItems", Integer),
            (19, "minItems", Integer),
            (20, "uniqueItems", Flag),
            (21, "maxProperties", Integer),
            (22, "minProperties", Integer),
            (23, "required", Texts),
            (24, "enum", Anys),
            (25, "type", Text),
            (26, "allOf", Each(schema_or_reference)),
            (27, "oneOf", Each(schema_or_reference)),
            (28, "anyOf", Each(schema_or_reference)),
            (29, "not", One(schema)),
            (30, "items", OfValue(schema_items)),
            (31, "properties", Map(schema_or_reference)),
            (32, "additionalProperties", OfValue(additional_properties)),
            (33, "default", OfValue(default_value)),
            (34, "description", Text),
            (35, "format", Text),
        ],
    );
    out.extensions(36, value);
}

fn discriminator(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "propertyName", Text), (2, "mapping", One(strings))]);
    out.extensions(3, value);
}

/// `ItemsItem`: one schema or several.
fn schema_items(out: &mut Message, value: &Value) {
    match value {
        Value::Array(_) => items(value).iter().for_each(|one| out.message(1, |out| schema_or_reference(out, one))),
        one => out.message(1, |out| schema_or_reference(out, one)),
    }
}

/// `AdditionalPropertiesItem`: one of `schema_or_reference` and `boolean`.
fn additional_properties(out: &mut Message, value: &Value) {
    match value {
        Value::Bool(allowed) => out.boolean(2, *allowed),
        value => out.message(1, |out| schema_or_reference(out, value)),
    }
}

/// `DefaultType`: one of `number`, `boolean` and `string`.
fn default_value(out: &mut Message, value: &Value) {
    match value {
        Value::Bool(flag) => out.boolean(2, *flag),
        Value::String(text) => out.bytes(3, text.as_bytes()),
        value => {
            if let Some(number) = value.as_f64() {
                out.fixed64(1, number);
            }
        }
    }
}
