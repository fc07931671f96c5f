//! How values of a kind merge: [`Typing`], a schema reduced to what server-side apply asks of it.
//!
//! A type says what a value may be (a scalar, a list, a map, or several of them), whether a list or
//! map is owned as one leaf (*atomic*) or part by part, and by which keys the items of a list are the
//! same item. Types are numbered within a [`Schema`], so that a type may contain itself.
//!
//! ```text
//!  Typing ─▶ Schema ─ types[root] ─ map: fields ─ "spec" ─▶ types[7] ─ map ─ "ports" ─▶ types[9] ─ list by (port, protocol)
//! ```
//!
//! The rules are those of `structured-merge-diff/v6/schema` and of `kube-openapi/pkg/schemaconv`,
//! which makes such schemas from OpenAPI.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

/// What a scalar may be. `null` passes for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A text.
    Text,
    /// An integer or a float.
    Number,
    /// A boolean.
    Flag,
    /// Any of the others.
    Any,
}

/// How the items of a list relate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The list is one leaf: whoever sets it owns all of it.
    Atomic,
    /// Items are scalars, each owned for itself, each there once.
    Set,
    /// Items are maps; two items with equal values of these fields are the same item.
    Keyed(Vec<Cow<'static, str>>),
}

/// A type within its [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

/// What is known of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// How items relate.
    pub relation: Relation,
    /// The type of the items.
    pub items: TypeId,
}

/// What a member of a built-in kind is to kube-apiserver, which holds such objects as Go structs.
///
/// Ownership is told by comparing what such a struct prints before and after a write, so what it
/// prints although nobody wrote it, and what it does not print although somebody did, decides
/// which fields a writer owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// As in the JSON: there when it is there. All fields of custom resources.
    #[default]
    Plain,
    /// Always there; when the JSON does not have it, with its zero value.
    Always(Zero),
    /// There unless it is zero (`omitempty` without a pointer): `""`, `0`, `false`, `[]`, `{}`.
    NonZero,
}

/// The zero values of Go, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// `null`: a pointer, list or map.
    Null,
    /// `{}`: a struct.
    Struct,
    /// `""`.
    Text,
    /// `0`.
    Number,
    /// `false`.
    Flag,
}

/// A member of a map that the schema knows by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The member's name.
    pub name: Cow<'static, str>,
    /// Its type.
    pub of: TypeId,
    /// What an absent member counts as where it is a key of a list's items.
    pub default: Option<Value>,
    /// When the member counts as there.
    pub presence: Presence,
}

impl Field {
    /// A field without a default that is there when it is there.
    pub fn new(name: impl Into<Cow<'static, str>>, of: TypeId) -> Self {
        Field { name: name.into(), of, default: None, presence: Presence::Plain }
    }
}

/// What is known of a map. A struct is a map with named fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    fields: Vec<Field>,
    rest: Option<TypeId>,
    atomic: bool,
}

impl Map {
    /// A map with these named fields, and members of type `rest` under any other name; without
    /// `rest` no other name is allowed. An `atomic` map is one leaf.
    ///
    /// Of two fields with the same name the first counts.
    pub fn new(mut fields: Vec<Field>, rest: Option<TypeId>, atomic: bool) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        fields.dedup_by(|later, first| later.name == first.name);
        Map { fields, rest, atomic }
    }

    /// The field of this name, if the schema knows it.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// All named fields, by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The type of members that are no named field; `None` where there are none.
    pub fn rest(&self) -> Option<TypeId> {
        self.rest
    }

    /// Is the map one leaf?
    pub fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// Has the map a name for each of its members?
    pub fn is_struct(&self) -> bool {
        self.rest.is_none() && !self.fields.is_empty()
    }

    /// The type of a member; `None` where the schema has no room for it.
    pub fn member(&self, name: &str) -> Option<TypeId> {
        self.field(name).map(|field| field.of).or(self.rest)
    }
}

/// A type: what a value may be. A type without any of the three fits nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Type {
    /// It may be a scalar.
    pub scalar: Option<Scalar>,
    /// It may be a list.
    pub list: Option<List>,
    /// It may be a map.
    pub map: Option<Map>,
}

impl Type {
    /// A scalar.
    pub fn scalar(scalar: Scalar) -> Self {
        Type { scalar: Some(scalar), ..Type::default() }
    }

    /// A list.
    pub fn list(relation: Relation, items: TypeId) -> Self {
        Type { list: Some(List { relation, items }), ..Type::default() }
    }

    /// A map.
    pub fn map(map: Map) -> Self {
        Type { map: Some(map), ..Type::default() }
    }

    /// The same type with its map, or else its list, made one leaf, or made no leaf.
    #[must_use]
    pub fn with_atomicity(mut self, atomic: bool) -> Self {
        if let Some(map) = &mut self.map {
            map.atomic = atomic;
        } else if let Some(list) = &mut self.list
            && atomic
        {
            list.relation = Relation::Atomic;
        }
        self
    }
}

/// A set of types that refer to each other. Made by a [`SchemaBuilder`].
#[derive(Debug)]
pub struct Schema {
    types: Vec<Type>,
}

impl Schema {
    /// The type that is read off each value: maps part by part, lists as one leaf. What a field
    /// without a schema has.
    pub const DEDUCED: TypeId = TypeId(0);
    /// The type of anything that is one leaf, however deep.
    pub const UNTYPED: TypeId = TypeId(1);

    /// The type with this number.
    ///
    /// # Panics
    /// When the number is of another schema that has more types.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }
}

/// Makes a [`Schema`].
#[derive(Debug)]
pub struct SchemaBuilder {
    types: Vec<Type>,
}

impl Default for SchemaBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl SchemaBuilder {
    /// A schema that knows [`Schema::DEDUCED`] and [`Schema::UNTYPED`].
    pub fn new() -> Self {
        let any = |map: Map| Type {
            scalar: Some(Scalar::Any),
            list: Some(List { relation: Relation::Atomic, items: Schema::UNTYPED }),
            map: Some(map),
        };
        let deduced = any(Map::new(Vec::new(), Some(Schema::DEDUCED), false));
        let untyped = any(Map::new(Vec::new(), Some(Schema::UNTYPED), true));
        SchemaBuilder { types: vec![deduced, untyped] }
    }

    /// Adds a type.
    pub fn add(&mut self, of: Type) -> TypeId {
        let id = self.reserve();
        self.types[id.0 as usize] = of;
        id
    }

    /// A number for a type that is [defined](Self::define) later, so that types can contain it.
    ///
    /// # Panics
    /// Above 2³² types.
    pub fn reserve(&mut self) -> TypeId {
        let id = u32::try_from(self.types.len()).expect("a schema has fewer than 2^32 types");
        self.types.push(Type::default());
        TypeId(id)
    }

    /// Says what a reserved type is.
    ///
    /// # Panics
    /// When the number was not given by this builder.
    pub fn define(&mut self, id: TypeId, of: Type) {
        self.types[id.0 as usize] = of;
    }

    /// What is known of a type so far.
    ///
    /// # Panics
    /// When the number was not given by this builder.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    /// The schema.
    pub fn build(self) -> Arc<Schema> {
        Arc::new(Schema { types: self.types })
    }
}

/// The type of the objects of one kind: a schema and where in it to begin. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Typing {
    schema: Arc<Schema>,
    root: TypeId,
}

impl Typing {
    /// Objects of the type `root` of a schema.
    pub fn new(schema: Arc<Schema>, root: TypeId) -> Self {
        Typing { schema, root }
    }

    /// Objects without a schema: every map merges part by part, every list is one leaf.
    pub fn deduced() -> Self {
        static DEDUCED: LazyLock<Arc<Schema>> = LazyLock::new(|| SchemaBuilder::new().build());
        Typing { schema: Arc::clone(&DEDUCED), root: Schema::DEDUCED }
    }

    /// The types.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The type of an object.
    pub fn root(&self) -> TypeId {
        self.root
    }

    /// Do both begin at the same type of the same schema?
    pub fn is_same(&self, other: &Typing) -> bool {
        Arc::ptr_eq(&self.schema, &other.schema) && self.root == other.root
    }
}
