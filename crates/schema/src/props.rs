//! `JSONSchemaProps` as sent, with everything that the checks require. These values exist only
//! during a check; [`crate::Schema`] is the compiled form.

use std::collections::BTreeMap;

use listwatch_json::{Map, Value};
use listwatch_meta::go::{self, json_kind};

use crate::limits::{SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX};

/// A JSON value cannot be read as a schema. The client is at fault (400 or 422).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A member has the wrong type.
    #[error("json: cannot unmarshal {found} into Go struct field JSONSchemaProps.{path} of type {expected}")]
    Type {
        /// The dotted path of the member from the root of the schema.
        path: String,
        /// The JSON type of the value.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// The schema nests deeper than [`SCHEMA_DEPTH_MAX`].
    #[error("the schema nests deeper than {SCHEMA_DEPTH_MAX} levels")]
    TooDeep,
    /// The schema consists of more schemas than [`SCHEMA_NODES_MAX`].
    #[error("the schema consists of more than {SCHEMA_NODES_MAX} schemas")]
    TooLarge,
}

/// A schema as the client sent it, before compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Props {
    pub(crate) id: String,
    pub(crate) schema: String,
    pub(crate) reference: Option<String>,
    pub(crate) description: bool,
    pub(crate) title: bool,
    pub(crate) external_docs: bool,
    pub(crate) example: bool,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) default: Option<Value>,
    pub(crate) nullable: bool,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: String,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) unique_items: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) enumeration: Vec<Value>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) required: Vec<String>,
    pub(crate) items: Option<Items>,
    pub(crate) all_of: Vec<Props>,
    pub(crate) one_of: Vec<Props>,
    pub(crate) any_of: Vec<Props>,
    pub(crate) not: Option<Box<Props>>,
    pub(crate) properties: BTreeMap<String, Props>,
    pub(crate) additional: Option<Additional>,
    pub(crate) pattern_properties: bool,
    pub(crate) dependencies: bool,
    pub(crate) additional_items: bool,
    pub(crate) definitions: bool,
    pub(crate) preserve_unknown_fields: Option<bool>,
    pub(crate) embedded_resource: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_map_keys: Vec<String>,
    pub(crate) list_type: Option<String>,
    pub(crate) map_type: Option<String>,
    pub(crate) rules: Vec<RuleProps>,
}

/// `items`: one schema, or the number of schemas in a list. The check of the definition rejects lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Items {
    One(Box<Props>),
    Many(usize),
}

/// `additionalProperties`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Additional {
    Allowed(bool),
    Schema(Box<Props>),
}

/// One entry of `x-kubernetes-validations` as the client sent it, before compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RuleProps {
    pub(crate) rule: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    pub(crate) reason: Option<String>,
    pub(crate) field_path: String,
    pub(crate) optional_old_self: Option<bool>,
}

impl Props {
    /// Parses a schema. Paths of members that schemas do not have are appended to `unknown`.
    pub(crate) fn parse(schema: &Value, unknown: &mut Vec<String>) -> Result<Props, ParseError> {
        let mut reader = Reader { path: Vec::new(), depth: 0, nodes: 0, unknown };
        let mut props = Props::default();
        reader.schema(schema, &mut props)?;
        Ok(props)
    }

    /// The schema of items, if there is exactly one.
    pub(crate) fn items(&self) -> Option<&Props> {
        match &self.items {
            Some(Items::One(items)) => Some(items),
            _ => None,
        }
    }

    /// The schema of additional properties, if there is one.
    pub(crate) fn additional_schema(&self) -> Option<&Props> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// True if the predicate holds for this schema or for one below, those of `allOf` and similar keywords included
    /// (`SchemaHas`).
    pub(crate) fn any(&self, is: &impl Fn(&Props) -> bool) -> bool {
        let junctors = self.not.as_deref().into_iter().chain(&self.all_of).chain(&self.any_of).chain(&self.one_of);
        let below = self.items().into_iter().chain(self.properties.values()).chain(self.additional_schema());
        is(self) || junctors.chain(below).any(|props| props.any(is))
    }

    /// True if the schema preserves unknown fields.
    pub(crate) fn preserves(&self) -> bool {
        self.preserve_unknown_fields == Some(true)
    }

    /// True if `anyOf` is exactly "integer or string", as code generators write it.
    pub(crate) fn is_int_or_string_any_of(&self) -> bool {
        is_int_or_string(&self.any_of)
    }

    /// True if the first entry of `allOf` is exactly "integer or string".
    pub(crate) fn is_int_or_string_all_of(&self) -> bool {
        self.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of))
    }
}

fn is_int_or_string(any_of: &[Props]) -> bool {
    let only = |props: &Props, kind: &str| *props == Props { kind: kind.to_owned(), ..Props::default() };
    matches!(any_of, [first, second] if only(first, "integer") && only(second, "string"))
}

struct Reader<'a> {
    path: Vec<String>,
    depth: usize,
    nodes: usize,
    unknown: &'a mut Vec<String>,
}

impl Reader<'_> {
    /// Parses a schema in place, so that nested schemas are not copied on the stack.
    fn schema(&mut self, value: &Value, props: &mut Props) -> Result<(), ParseError> {
        self.nodes += 1;
        if self.nodes > SCHEMA_NODES_MAX {
            return Err(ParseError::TooLarge);
        }
        if self.depth > SCHEMA_DEPTH_MAX {
            return Err(ParseError::TooDeep);
        }
        self.depth += 1;
        let members = match value {
            Value::Object(members) => Some(members),
            Value::Null => None,
            other => return Err(self.wrong(other, "v1.JSONSchemaProps")),
        };
        for (name, value) in members.into_iter().flatten() {
            // A null member keeps Go's zero value. Nulls of `enum` and `default` are inside the
            // value.
            if value.is_null() {
                continue;
            }
            self.path.push(name.as_str().to_owned());
            self.member(props, name, value)?;
            self.path.pop();
        }
        self.depth -= 1;
        Ok(())
    }

    fn member(&mut self, props: &mut Props, name: &str, value: &Value) -> Result<(), ParseError> {
        match name {
            "id" => props.id = self.string(value)?,
            "$schema" => props.schema = self.string(value)?,
            "$ref" => props.reference = Some(self.string(value)?),
            "description" => props.description = !self.text(value)?.is_empty(),
            "title" => props.title = !self.text(value)?.is_empty(),
            "externalDocs" => {
                self.object(value, "v1.ExternalDocumentation")?;
                props.external_docs = true;
            }
            "example" => props.example = true,
            "type" => props.kind = self.string(value)?,
            "format" => props.format = self.string(value)?,
            "default" => {
                // A definition of an earlier release may contain `1.0`.
                let mut default = value.clone();
                go::round_trip_numbers(&mut default);
                props.default = Some(default);
            }
            "nullable" => props.nullable = self.boolean(value)?,
            "maximum" => props.maximum = Some(self.float(value)?),
            "exclusiveMaximum" => props.exclusive_maximum = self.boolean(value)?,
            "minimum" => props.minimum = Some(self.float(value)?),
            "exclusiveMinimum" => props.exclusive_minimum = self.boolean(value)?,
            "maxLength" => props.max_length = Some(self.integer(value)?),
            "minLength" => props.min_length = Some(self.integer(value)?),
            "pattern" => props.pattern = self.string(value)?,
            "maxItems" => props.max_items = Some(self.integer(value)?),
            "minItems" => props.min_items = Some(self.integer(value)?),
            "uniqueItems" => props.unique_items = self.boolean(value)?,
            "multipleOf" => props.multiple_of = Some(self.float(value)?),
            "enum" => props.enumeration = self.array(value, "[]v1.JSON")?.clone(),
            "maxProperties" => props.max_properties = Some(self.integer(value)?),
            "minProperties" => props.min_properties = Some(self.integer(value)?),
            "required" => props.required = self.strings(value)?,
            "items" => {
                let items = match value {
                    Value::Array(items) => {
                        self.list(value)?;
                        Items::Many(items.len())
                    }
                    value => Items::One(self.boxed(value)?),
                };
                props.items = Some(items);
            }
            "allOf" => props.all_of = self.list(value)?,
            "oneOf" => props.one_of = self.list(value)?,
            "anyOf" => props.any_of = self.list(value)?,
            "not" => props.not = Some(self.boxed(value)?),
            "properties" => props.properties = self.map(value)?,
            "additionalProperties" => {
                let additional = match value {
                    Value::Bool(allowed) => Additional::Allowed(*allowed),
                    value => Additional::Schema(self.boxed(value)?),
                };
                props.additional = Some(additional);
            }
            "patternProperties" => props.pattern_properties = !self.map(value)?.is_empty(),
            "dependencies" => {
                self.object(value, "v1.JSONSchemaDependencies")?;
                props.dependencies = true;
            }
            "additionalItems" => props.additional_items = true,
            "definitions" => props.definitions = !self.map(value)?.is_empty(),
            "x-kubernetes-preserve-unknown-fields" => props.preserve_unknown_fields = Some(self.boolean(value)?),
            "x-kubernetes-embedded-resource" => props.embedded_resource = self.boolean(value)?,
            "x-kubernetes-int-or-string" => props.int_or_string = self.boolean(value)?,
            "x-kubernetes-list-map-keys" => props.list_map_keys = self.strings(value)?,
            "x-kubernetes-list-type" => props.list_type = Some(self.string(value)?),
            "x-kubernetes-map-type" => props.map_type = Some(self.string(value)?),
            "x-kubernetes-validations" => props.rules = self.rules(value)?,
            _ => self.unknown.push(self.path.join(".")),
        }
        Ok(())
    }

    fn boxed(&mut self, value: &Value) -> Result<Box<Props>, ParseError> {
        let mut props = Box::<Props>::default();
        self.schema(value, &mut props)?;
        Ok(props)
    }

    fn rules(&mut self, value: &Value) -> Result<Vec<RuleProps>, ParseError> {
        let mut rules = Vec::new();
        for value in self.array(value, "[]v1.ValidationRule")? {
            let mut rule = RuleProps::default();
            for (name, value) in self.object(value, "v1.ValidationRule")? {
                if value.is_null() {
                    continue;
                }
                self.path.push(name.as_str().to_owned());
                match name.as_str() {
                    "rule" => rule.rule = self.string(value)?,
                    "message" => rule.message = self.string(value)?,
                    "messageExpression" => rule.message_expression = self.string(value)?,
                    "reason" => rule.reason = Some(self.string(value)?),
                    "fieldPath" => rule.field_path = self.string(value)?,
                    "optionalOldSelf" => rule.optional_old_self = Some(self.boolean(value)?),
                    _ => self.unknown.push(self.path.join(".")),
                }
                self.path.pop();
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn list(&mut self, value: &Value) -> Result<Vec<Props>, ParseError> {
        let mut schemas = Vec::new();
        for (index, value) in self.array(value, "[]v1.JSONSchemaProps")?.iter().enumerate() {
            self.path.push(index.to_string());
            schemas.push(Props::default());
            if let Some(schema) = schemas.last_mut() {
                self.schema(value, schema)?;
            }
            self.path.pop();
        }
        Ok(schemas)
    }

    fn map(&mut self, value: &Value) -> Result<BTreeMap<String, Props>, ParseError> {
        let mut schemas = BTreeMap::new();
        for (name, value) in self.object(value, "map[string]v1.JSONSchemaProps")? {
            self.path.push(name.as_str().to_owned());
            self.schema(value, schemas.entry(name.as_str().to_owned()).or_default())?;
            self.path.pop();
        }
        Ok(schemas)
    }

    fn text<'v>(&self, value: &'v Value) -> Result<&'v str, ParseError> {
        value.as_str().ok_or_else(|| self.wrong(value, "string"))
    }

    fn string(&self, value: &Value) -> Result<String, ParseError> {
        self.text(value).map(str::to_owned)
    }

    fn strings(&self, value: &Value) -> Result<Vec<String>, ParseError> {
        self.array(value, "[]string")?.iter().map(|value| self.string(value)).collect()
    }

    fn boolean(&self, value: &Value) -> Result<bool, ParseError> {
        value.as_bool().ok_or_else(|| self.wrong(value, "bool"))
    }

    fn integer(&self, value: &Value) -> Result<i64, ParseError> {
        value.as_i64().ok_or_else(|| self.wrong(value, "int64"))
    }

    fn float(&self, value: &Value) -> Result<f64, ParseError> {
        value.as_f64().ok_or_else(|| self.wrong(value, "float64"))
    }

    fn array<'v>(&self, value: &'v Value, expected: &'static str) -> Result<&'v Vec<Value>, ParseError> {
        value.as_array().ok_or_else(|| self.wrong(value, expected))
    }

    fn object<'v>(&self, value: &'v Value, expected: &'static str) -> Result<&'v Map, ParseError> {
        value.as_object().ok_or_else(|| self.wrong(value, expected))
    }

    fn wrong(&self, found: &Value, expected: &'static str) -> ParseError {
        let found = json_kind(found);
        ParseError::Type { path: self.path.join("."), found, expected }
    }
}
