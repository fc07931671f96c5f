//! Encodes a version 2 document as protobuf: the messages of `openapi.v2` (gnostic), without generated code.
//!
//! The encoder supports only the members that [`super::v2`] writes. Field numbers are those of
//! `google/gnostic-models/openapiv2/OpenAPIv2.proto`. The value of an extension is YAML text; JSON is valid YAML.

use listwatch_json::{JsonString, Map, Value};

/// Encodes the JSON of a document as an `openapi.v2.Document` message.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &json["swagger"]);
    out.message(2, |info| {
        info.text(1, &json["info"]["title"]);
        info.text(2, &json["info"]["version"]);
    });
    out.message(8, |paths| {
        for (path, item) in members(&json["paths"]) {
            paths.named(2, path, |out| path_item(out, item));
        }
    });
    out.message(9, |definitions| {
        for (name, definition) in members(&json["definitions"]) {
            definitions.named(1, name, |out| schema(out, definition));
        }
    });
    out.message(10, |parameters| {
        for (name, value) in members(&json["parameters"]) {
            parameters.named(1, name, |out| parameter(out, value));
        }
    });
    for requirement in items(&json["security"]) {
        out.message(12, |out| {
            for (name, _) in members(requirement) {
                out.named(1, name, |_| {});
            }
        });
    }
    out.message(13, |definitions| {
        for (name, value) in members(&json["securityDefinitions"]) {
            // SecurityDefinitionsItem { oneof: api_key_security = 2 }
            definitions.named(1, name, |item| {
                item.message(2, |out| {
                    out.text(1, &value["type"]);
                    out.text(2, &value["name"]);
                    out.text(3, &value["in"]);
                    out.text(4, &value["description"]);
                });
            });
        }
    });
    out.0
}

fn path_item(out: &mut Message, item: &Value) {
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if item[method].is_object() {
            out.message(field, |out| operation(out, &item[method]));
        }
    }
    for parameter in items(&item["parameters"]) {
        out.message(9, |out| parameters_item(out, parameter));
    }
}

fn operation(out: &mut Message, operation: &Value) {
    for tag in items(&operation["tags"]) {
        out.text(1, tag);
    }
    out.text(3, &operation["description"]);
    out.text(5, &operation["operationId"]);
    for media_type in items(&operation["produces"]) {
        out.text(6, media_type);
    }
    for media_type in items(&operation["consumes"]) {
        out.text(7, media_type);
    }
    for parameter in items(&operation["parameters"]) {
        out.message(8, |out| parameters_item(out, parameter));
    }
    out.message(9, |responses| {
        for (code, response) in members(&operation["responses"]) {
            // ResponseValue { oneof: response = 1 }
            responses.named(1, code, |value| {
                value.message(1, |out| {
                    out.text(1, &response["description"]);
                    if response["schema"].is_object() {
                        // SchemaItem { oneof: schema = 1 }
                        out.message(2, |item| item.message(1, |out| schema(out, &response["schema"])));
                    }
                });
            });
        }
    });
    for scheme in items(&operation["schemes"]) {
        out.text(10, scheme);
    }
    extensions(out, 13, operation);
}

/// `ParametersItem { oneof: parameter = 1, json_reference = 2 }`.
fn parameters_item(out: &mut Message, item: &Value) {
    match &item["$ref"] {
        Value::Null => out.message(1, |out| parameter(out, item)),
        reference => out.message(2, |out| out.text(1, reference)),
    }
}

/// `Parameter { oneof: body_parameter = 1, non_body_parameter = 2 }`. In the latter, query parameters have the field
/// number 3 and path parameters 4.
fn parameter(out: &mut Message, parameter: &Value) {
    let required = parameter["required"] == Value::Bool(true);
    match parameter["in"].as_str() {
        Some("body") => out.message(1, |out| {
            out.text(2, &parameter["name"]);
            out.text(3, &parameter["in"]);
            out.flag(4, required);
            out.message(5, |out| schema(out, &parameter["schema"]));
        }),
        Some("query") => out.message(2, |out| {
            out.message(3, |out| {
                out.flag(1, required);
                out.text(2, &parameter["in"]);
                out.text(3, &parameter["description"]);
                out.text(4, &parameter["name"]);
                out.text(6, &parameter["type"]);
                out.flag(20, parameter["uniqueItems"] == Value::Bool(true));
            });
        }),
        _ => out.message(2, |out| {
            out.message(4, |out| {
                out.flag(1, required);
                out.text(2, &parameter["in"]);
                out.text(3, &parameter["description"]);
                out.text(4, &parameter["name"]);
                out.text(5, &parameter["type"]);
                out.flag(19, parameter["uniqueItems"] == Value::Bool(true));
            });
        }),
    }
}

fn schema(out: &mut Message, schema: &Value) {
    out.text(1, &schema["$ref"]);
    out.text(2, &schema["format"]);
    out.text(3, &schema["title"]);
    out.text(4, &schema["description"]);
    if let Some(value) = schema.get("default") {
        out.message(5, |any| any.yaml(value));
    }
    for (field, name) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        out.double(field, &schema[name]);
    }
    for (field, name) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        out.flag(field, schema[name] == Value::Bool(true));
    }
    out.text(13, &schema["pattern"]);
    for (field, name) in [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ] {
        out.number(field, &schema[name]);
    }
    for name in items(&schema["required"]) {
        out.text(19, name);
    }
    for value in items(&schema["enum"]) {
        out.message(20, |any| any.yaml(value));
    }
    // AdditionalPropertiesItem { oneof: schema = 1, boolean = 2 }
    match schema.get("additionalProperties") {
        Some(Value::Bool(allowed)) => out.message(21, |item| item.boolean(2, *allowed)),
        Some(value) => out.message(21, |item| item.message(1, |out| self::schema(out, value))),
        None => {}
    }
    if schema["type"].is_string() {
        out.message(22, |item| item.text(1, &schema["type"]));
    }
    // ItemsItem { repeated schema = 1 }
    if let Some(value) = schema.get("items") {
        out.message(23, |item| item.message(1, |out| self::schema(out, value)));
    }
    if schema["properties"].is_object() {
        out.message(25, |properties| {
            for (name, property) in members(&schema["properties"]) {
                properties.named(1, name, |out| self::schema(out, property));
            }
        });
    }
    if let Value::Object(_) = &schema["externalDocs"] {
        out.message(29, |docs| {
            docs.text(1, &schema["externalDocs"]["description"]);
            docs.text(2, &schema["externalDocs"]["url"]);
        });
    }
    if let Some(value) = schema.get("example") {
        out.message(30, |any| any.yaml(value));
    }
    extensions(out, 31, schema);
}

/// Writes members that begin with `x-`, each as a `NamedAny { name = 1, value = 2: Any { yaml = 2 } }`.
fn extensions(out: &mut Message, field: u32, of: &Value) {
    for (name, value) in members(of) {
        if name.starts_with("x-") {
            out.named(field, name, |any| any.yaml(value));
        }
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&JsonString, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A protobuf message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        const LENGTH_DELIMITED: u64 = 2;
        self.varint(u64::from(field) << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a string. proto3 omits empty and absent strings.
    fn text(&mut self, field: u32, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    /// Writes the field `yaml = 2` of an `Any`.
    fn yaml(&mut self, value: &Value) {
        self.bytes(2, format!("{value}\n").as_bytes());
    }

    /// Writes a value of a oneof, which proto3 writes even if it is false.
    fn boolean(&mut self, field: u32, value: bool) {
        self.varint(u64::from(field) << 3);
        self.0.push(u8::from(value));
    }

    /// Writes an integer. proto3 omits zero. A number with a fraction is rounded toward zero.
    fn number(&mut self, field: u32, value: &Value) {
        let whole = value.as_i64().or_else(|| value.as_f64().map(|number| number as i64));
        if let Some(number) = whole.filter(|number| *number != 0) {
            self.varint(u64::from(field) << 3);
            self.varint(number.cast_unsigned());
        }
    }

    /// Writes a floating point number. proto3 omits zero.
    fn double(&mut self, field: u32, value: &Value) {
        const FIXED64: u64 = 1;
        if let Some(number) = value.as_f64().filter(|number| *number != 0.0) {
            self.varint(u64::from(field) << 3 | FIXED64);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn flag(&mut self, field: u32, flag: bool) {
        if flag {
            self.varint(u64::from(field) << 3);
            self.0.push(1);
        }
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// Writes a name and a message, which is the form of every map in these messages.
    fn named(&mut self, field: u32, name: &str, write: impl FnOnce(&mut Message)) {
        self.message(field, |out| {
            out.bytes(1, name.as_bytes());
            out.message(2, write);
        });
    }
}
