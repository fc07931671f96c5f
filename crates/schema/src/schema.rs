//! The compiled form of a schema, which exists while a definition is served.
//!
//! A schema is a graph of immutable nodes. Equal nodes and equal strings are shared, within a schema and between the
//! versions of a definition. Rare keywords are stored as [`Constraint`]s, so a node uses memory only for the keywords
//! that it has. Descriptions are not kept: [`mod@crate::publish`] reads the definition itself.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use listwatch_cel::format::Format;
use listwatch_cel::pattern::Matcher;
pub use listwatch_cel::{Kind, ListType};
use listwatch_json::Value;

use crate::props::{Additional, Items, ParseError, Props, RuleProps};
use crate::rules::Compiled;

/// A schema of one version of a kind, compiled once and shared by all requests.
///
/// Build it from a schema that passed [`crate::check()`]. In other schemas, unsupported parts have
/// no effect.
#[derive(Clone, Debug)]
pub struct Schema {
    pub(crate) root: Arc<Node>,
    /// The number of distinct nodes.
    nodes: usize,
}

/// A part of a schema.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) list_type: ListType,
    pub(crate) format: Format,
    pub(crate) nullable: bool,
    pub(crate) preserves: bool,
    pub(crate) embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) map_atomic: bool,
    /// Whether this node or a descendant has rules. Validation skips other branches.
    pub(crate) has_rules: bool,
    /// Whether this node or a descendant has a default.
    pub(crate) has_defaults: bool,
    /// Whether this node or a descendant is an embedded resource.
    pub(crate) has_embedded_resources: bool,
    /// Whether this node or a descendant is a list of type set or map.
    pub(crate) unique: bool,
    pub(crate) more: AdditionalProperties,
    /// Sorted by name.
    pub(crate) properties: Box<[(Arc<str>, Arc<Node>)]>,
    pub(crate) items: Option<Arc<Node>>,
    pub(crate) constraints: Box<[Constraint]>,
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub(crate) enum AdditionalProperties {
    /// The keyword is absent: unknown fields are pruned, or valid if preserved.
    #[default]
    Unset,
    Allowed(bool),
    Schema(Arc<Node>),
}

/// The keywords that only some nodes have, in the order of their checks.
#[derive(Debug)]
pub(crate) enum Constraint {
    AnyOf(Box<[Arc<Node>]>),
    OneOf(Box<[Arc<Node>]>),
    AllOf(Box<[Arc<Node>]>),
    Not(Arc<Node>),
    MaxLength(i64),
    MinLength(i64),
    Pattern(Arc<Pattern>),
    MultipleOf(f64),
    Minimum(f64, bool),
    Maximum(f64, bool),
    MinItems(i64),
    MaxItems(i64),
    UniqueItems,
    Enum(Box<[Value]>),
    MinProperties(i64),
    MaxProperties(i64),
    Required(Box<[Arc<str>]>),
    Default(Box<Value>),
    ListMapKeys(Box<[Arc<str>]>),
    Rules(Box<[Rule]>),
}

/// One entry of `x-kubernetes-validations`, compiled when it is first evaluated.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) rule: Arc<str>,
    pub(crate) message: Arc<str>,
    pub(crate) message_expression: Arc<str>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) field_path: Arc<str>,
    pub(crate) optional_old_self: bool,
    compiled: OnceLock<Box<Compiled>>,
}

impl Rule {
    /// The compiled rule; `node` is its schema.
    pub(crate) fn compiled(&self, node: &Node) -> &Compiled {
        self.compiled.get_or_init(|| Box::new(Compiled::new(self, node)))
    }
}

/// A regular expression in RE2 syntax, compiled at its first use, so that a definition without objects needs memory
/// only for the text.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) text: Arc<str>,
    compiled: OnceLock<Result<Matcher, String>>,
}

impl Pattern {
    /// The compiled expression, or its error.
    pub(crate) fn matcher(&self) -> Result<&Matcher, &str> {
        self.compiled.get_or_init(|| Matcher::compile(&self.text)).as_ref().map_err(String::as_str)
    }
}

impl Node {
    /// The schema of a named property.
    pub(crate) fn property(&self, name: &str) -> Option<&Arc<Node>> {
        let at = self.properties.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        Some(&self.properties[at].1)
    }

    /// The schema of additional properties, if there is one.
    pub(crate) fn additional_schema(&self) -> Option<&Arc<Node>> {
        match &self.more {
            AdditionalProperties::Schema(schema) => Some(schema),
            _ => None,
        }
    }

    /// The schema of a field of an object: that of the property, else that of additional
    /// properties.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Node>> {
        self.property(name).or_else(|| self.additional_schema())
    }

    pub(crate) fn default_value(&self) -> Option<&Value> {
        self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::Default(value) => Some(&**value),
            _ => None,
        })
    }

    pub(crate) fn list_map_keys(&self) -> &[Arc<str>] {
        let keys = self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::ListMapKeys(keys) => Some(&**keys),
            _ => None,
        });
        keys.unwrap_or_default()
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        let rules = self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::Rules(rules) => Some(&**rules),
            _ => None,
        });
        rules.unwrap_or_default()
    }
}

/// Shares equal parts of schemas. Create one per definition, use it for all its versions, and drop
/// it.
#[derive(Default)]
pub struct Interner {
    strings: HashSet<Arc<str>>,
    nodes: HashMap<Vec<u8>, Arc<Node>>,
    patterns: HashMap<Arc<str>, Arc<Pattern>>,
}

impl std::fmt::Debug for Interner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interner").field("strings", &self.strings.len()).field("nodes", &self.nodes.len()).finish()
    }
}

impl Schema {
    /// Compiles a schema (`spec.versions[*].schema.openAPIV3Schema`).
    ///
    /// # Errors
    /// [`ParseError`] if the JSON is not a schema or exceeds a limit.
    pub fn parse(schema: &Value) -> Result<Schema, ParseError> {
        Schema::parse_shared(schema, &mut Interner::default())
    }

    /// Parses like [`Schema::parse`], and shares equal parts with other schemas of the same
    /// interner.
    ///
    /// # Errors
    /// As [`Schema::parse`].
    pub fn parse_shared(schema: &Value, interner: &mut Interner) -> Result<Schema, ParseError> {
        Ok(Schema::compile(&Props::parse(schema, &mut Vec::new())?, interner))
    }

    /// The schema of a version without a schema: unknown fields are preserved, and every value is valid.
    pub fn preserving() -> Schema {
        let root = Node { kind: Kind::Object, preserves: true, ..Node::default() };
        Schema { root: Arc::new(root), nodes: 1 }
    }

    pub(crate) fn compile(props: &Props, interner: &mut Interner) -> Schema {
        let before = interner.nodes.len();
        let root = interner.node(props, true);
        Schema { root, nodes: (interner.nodes.len() - before).max(1) }
    }

    /// The number of nodes that this schema added to its interner, as a measure of its memory.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// The root of the schema.
    pub fn root(&self) -> NodeRef<'_> {
        NodeRef(&self.root)
    }

    /// The schema of a field of the root, such as `status`.
    pub fn field(&self, name: &str) -> Option<Schema> {
        let root = self.root.property(name)?.clone();
        Some(Schema { root, nodes: 1 })
    }
}

/// A part of a [`Schema`], for code that derives other data from it, for example the rules of a
/// merge.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a>(pub(crate) &'a Node);

impl<'a> NodeRef<'a> {
    /// The required type.
    pub fn kind(self) -> Kind {
        self.0.kind
    }

    /// True if `null` is a valid value.
    pub fn is_nullable(self) -> bool {
        self.0.nullable
    }

    /// True if unknown fields are preserved.
    pub fn preserves_unknown_fields(self) -> bool {
        self.0.preserves
    }

    /// True if the value is a whole object with its own `apiVersion`, `kind` and `metadata`.
    pub fn is_embedded_resource(self) -> bool {
        self.0.embedded
    }

    /// True if both integers and strings are valid.
    pub fn is_int_or_string(self) -> bool {
        self.0.int_or_string
    }

    /// The value of `x-kubernetes-list-type`, which controls merging and uniqueness.
    pub fn list_type(self) -> ListType {
        self.0.list_type
    }

    /// The keys that identify the items of a list of type map.
    pub fn list_map_keys(self) -> impl Iterator<Item = &'a str> {
        self.0.list_map_keys().iter().map(AsRef::as_ref)
    }

    /// True if an object is replaced as a whole (`x-kubernetes-map-type: atomic`).
    pub fn is_map_atomic(self) -> bool {
        self.0.map_atomic
    }

    /// The named properties, sorted by name.
    pub fn properties(self) -> impl Iterator<Item = (&'a str, NodeRef<'a>)> {
        self.0.properties.iter().map(|(name, node)| (name.as_ref(), NodeRef(node)))
    }

    /// The schema of a property.
    pub fn property(self, name: &str) -> Option<NodeRef<'a>> {
        self.0.property(name).map(|node| NodeRef(node))
    }

    /// The schema of items.
    pub fn items(self) -> Option<NodeRef<'a>> {
        self.0.items.as_deref().map(NodeRef)
    }

    /// The schema of additional properties.
    pub fn additional_properties(self) -> Option<NodeRef<'a>> {
        self.0.additional_schema().map(|node| NodeRef(node))
    }

    /// The default value.
    pub fn default_value(self) -> Option<&'a Value> {
        self.0.default_value()
    }

    /// True if both are the same node in memory, so that derived data applies to both.
    pub fn is_same(self, other: NodeRef<'_>) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Interner {
    fn string(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.strings.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.strings.insert(text.clone());
        text
    }

    fn pattern(&mut self, text: &str) -> Arc<Pattern> {
        let text = self.string(text);
        let fresh = || Arc::new(Pattern { text: text.clone(), compiled: OnceLock::new() });
        self.patterns.entry(text.clone()).or_insert_with(fresh).clone()
    }

    /// Compiles a schema. `structural` is false below `allOf`, `anyOf`, `oneOf` and `not`.
    fn node(&mut self, props: &Props, structural: bool) -> Arc<Node> {
        let mut node = Node {
            kind: Kind::parse(&props.kind),
            list_type: match props.list_type.as_deref() {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map,
                _ => ListType::Atomic,
            },
            format: Format::parse(&props.format, &props.kind, props.int_or_string),
            nullable: props.nullable,
            preserves: props.preserves(),
            embedded: props.embedded_resource,
            int_or_string: props.int_or_string,
            map_atomic: props.map_type.as_deref() == Some("atomic"),
            ..Node::default()
        };
        let properties: Vec<_> =
            props.properties.iter().map(|(name, props)| (self.string(name), self.node(props, structural))).collect();
        node.properties = properties.into();
        node.items = match &props.items {
            Some(Items::One(items)) => Some(self.node(items, structural)),
            _ => None,
        };
        node.more = match &props.additional {
            None => AdditionalProperties::Unset,
            Some(Additional::Allowed(allowed)) => AdditionalProperties::Allowed(*allowed),
            Some(Additional::Schema(schema)) => AdditionalProperties::Schema(self.node(schema, structural)),
        };
        node.constraints = self.constraints(props, structural);
        let below = || {
            let more = node.additional_schema().into_iter();
            node.properties.iter().map(|(_, node)| node).chain(node.items.iter()).chain(more)
        };
        // A structural schema has no rules below `allOf`, `anyOf`, `oneOf` and `not`.
        let has_rules = structural && (!props.rules.is_empty() || below().any(|node| node.has_rules));
        let has_defaults = below().any(|node| node.default_value().is_some() || node.has_defaults);
        let has_embedded_resources = node.embedded || below().any(|node| node.has_embedded_resources);
        let unique = node.list_type != ListType::Atomic || below().any(|node| node.unique);
        (node.has_rules, node.has_defaults, node.has_embedded_resources, node.unique) =
            (has_rules, has_defaults, has_embedded_resources, unique);
        self.share(node)
    }

    fn nodes(&mut self, props: &[Props]) -> Box<[Arc<Node>]> {
        props.iter().map(|props| self.node(props, false)).collect()
    }

    fn constraints(&mut self, props: &Props, structural: bool) -> Box<[Constraint]> {
        let mut constraints = Vec::new();
        let strings = |this: &mut Self, texts: &[String]| -> Box<[Arc<str>]> {
            texts.iter().map(|text| this.string(text)).collect()
        };
        if !props.any_of.is_empty() {
            constraints.push(Constraint::AnyOf(self.nodes(&props.any_of)));
        }
        if !props.one_of.is_empty() {
            constraints.push(Constraint::OneOf(self.nodes(&props.one_of)));
        }
        if !props.all_of.is_empty() {
            constraints.push(Constraint::AllOf(self.nodes(&props.all_of)));
        }
        if let Some(not) = &props.not {
            constraints.push(Constraint::Not(self.node(not, false)));
        }
        constraints.extend(props.max_length.map(Constraint::MaxLength));
        constraints.extend(props.min_length.map(Constraint::MinLength));
        if !props.pattern.is_empty() {
            constraints.push(Constraint::Pattern(self.pattern(&props.pattern)));
        }
        constraints.extend(props.multiple_of.map(Constraint::MultipleOf));
        constraints.extend(props.minimum.map(|bound| Constraint::Minimum(bound, props.exclusive_minimum)));
        constraints.extend(props.maximum.map(|bound| Constraint::Maximum(bound, props.exclusive_maximum)));
        constraints.extend(props.min_items.map(Constraint::MinItems));
        constraints.extend(props.max_items.map(Constraint::MaxItems));
        constraints.extend(props.unique_items.then_some(Constraint::UniqueItems));
        if !props.enumeration.is_empty() {
            constraints.push(Constraint::Enum(props.enumeration.clone().into()));
        }
        constraints.extend(props.min_properties.map(Constraint::MinProperties));
        constraints.extend(props.max_properties.map(Constraint::MaxProperties));
        if !props.required.is_empty() {
            constraints.push(Constraint::Required(strings(self, &props.required)));
        }
        if let Some(default) = &props.default {
            constraints.push(Constraint::Default(Box::new(default.clone())));
        }
        if !props.list_map_keys.is_empty() {
            constraints.push(Constraint::ListMapKeys(strings(self, &props.list_map_keys)));
        }
        if structural && !props.rules.is_empty() {
            constraints.push(Constraint::Rules(props.rules.iter().map(|rule| self.rule(rule)).collect()));
        }
        constraints.into()
    }

    fn rule(&mut self, rule: &RuleProps) -> Rule {
        Rule {
            rule: self.string(&rule.rule),
            message: self.string(&rule.message),
            message_expression: self.string(&rule.message_expression),
            reason: rule.reason.as_ref().map(|reason| self.string(reason)),
            field_path: self.string(&rule.field_path),
            optional_old_self: rule.optional_old_self == Some(true),
            compiled: OnceLock::new(),
        }
    }

    /// Returns the existing equal node, or adds this one.
    fn share(&mut self, node: Node) -> Arc<Node> {
        let key = node.key();
        self.nodes.entry(key).or_insert_with(|| Arc::new(node)).clone()
    }
}

impl Node {
    /// The identity of a node as bytes. Equal children and strings are already shared, so the key
    /// contains only their addresses. The interner keeps the children and strings alive.
    fn key(&self) -> Vec<u8> {
        let mut key = Key(Vec::with_capacity(64));
        let flags = [
            self.nullable,
            self.preserves,
            self.embedded,
            self.int_or_string,
            self.map_atomic,
            self.has_rules,
            self.has_defaults,
            self.has_embedded_resources,
            self.unique,
        ];
        key.0.extend([self.kind as u8, self.list_type as u8, self.format as u8]);
        key.0.extend(flags.map(u8::from));
        match &self.more {
            AdditionalProperties::Unset => key.0.push(0),
            AdditionalProperties::Allowed(allowed) => key.0.push(1 + u8::from(*allowed)),
            AdditionalProperties::Schema(node) => key.node(3, node),
        }
        match &self.items {
            None => key.0.push(0),
            Some(items) => key.node(1, items),
        }
        key.number(self.properties.len() as u64);
        for (name, node) in &self.properties {
            key.text(name);
            key.node(0, node);
        }
        for constraint in &self.constraints {
            key.constraint(constraint);
        }
        key.0
    }
}

struct Key(Vec<u8>);

impl Key {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn tagged(&mut self, tag: u8, number: u64) {
        self.0.push(tag);
        self.number(number);
    }

    fn node(&mut self, tag: u8, node: &Arc<Node>) {
        self.tagged(tag, Arc::as_ptr(node) as usize as u64);
    }

    fn nodes(&mut self, tag: u8, nodes: &[Arc<Node>]) {
        self.tagged(tag, nodes.len() as u64);
        nodes.iter().for_each(|node| self.node(0, node));
    }

    fn text(&mut self, text: &Arc<str>) {
        self.number(Arc::as_ptr(text).cast::<u8>() as usize as u64);
    }

    fn texts(&mut self, tag: u8, texts: &[Arc<str>]) {
        self.tagged(tag, texts.len() as u64);
        texts.iter().for_each(|text| self.text(text));
    }

    fn value(&mut self, tag: u8, value: &Value) {
        let text = value.to_string();
        self.tagged(tag, text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn constraint(&mut self, constraint: &Constraint) {
        match constraint {
            Constraint::AnyOf(nodes) => self.nodes(10, nodes),
            Constraint::OneOf(nodes) => self.nodes(11, nodes),
            Constraint::AllOf(nodes) => self.nodes(12, nodes),
            Constraint::Not(node) => self.node(13, node),
            Constraint::MaxLength(bound) => self.tagged(14, *bound as u64),
            Constraint::MinLength(bound) => self.tagged(15, *bound as u64),
            Constraint::Pattern(pattern) => self.tagged(16, Arc::as_ptr(pattern) as usize as u64),
            Constraint::MultipleOf(factor) => self.tagged(17, factor.to_bits()),
            Constraint::Minimum(bound, exclusive) => self.tagged(18 + u8::from(*exclusive), bound.to_bits()),
            Constraint::Maximum(bound, exclusive) => self.tagged(20 + u8::from(*exclusive), bound.to_bits()),
            Constraint::MinItems(bound) => self.tagged(22, *bound as u64),
            Constraint::MaxItems(bound) => self.tagged(23, *bound as u64),
            Constraint::UniqueItems => self.0.push(24),
            Constraint::Enum(values) => {
                self.tagged(25, values.len() as u64);
                values.iter().for_each(|value| self.value(0, value));
            }
            Constraint::MinProperties(bound) => self.tagged(26, *bound as u64),
            Constraint::MaxProperties(bound) => self.tagged(27, *bound as u64),
            Constraint::Required(names) => self.texts(28, names),
            Constraint::Default(value) => self.value(29, value),
            Constraint::ListMapKeys(names) => self.texts(30, names),
            Constraint::Rules(rules) => {
                self.tagged(31, rules.len() as u64);
                for rule in rules {
                    for text in [&rule.rule, &rule.message, &rule.message_expression, &rule.field_path] {
                        self.text(text);
                    }
                    self.texts(u8::from(rule.optional_old_self), rule.reason.as_slice());
                }
            }
        }
    }
}
