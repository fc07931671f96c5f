//! The types that determine how values of a kind merge: [`Typing`], a schema reduced to the needs
//! of server-side apply.
//!
//! A type states whether a value is a scalar, a list, a map, or one of several of these. A list or map is owned as a
//! whole (*atomic*) or field by field. The items of a list are identified by key fields. Types are numbered within a
//! [`Schema`], so that a type may contain itself.
//!
//! ```text
//!  Typing ─▶ Schema ─ types[root] ─ map: fields ─ "spec" ─▶ types[7] ─ map ─ "ports" ─▶ types[9] ─ list by (port, protocol)
//! ```
//!
//! Sources: `structured-merge-diff/v6/schema`, and `kube-openapi/pkg/schemaconv`, which converts
//! OpenAPI to such schemas.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use listwatch_json::Value;

/// The allowed types of a scalar. `null` is allowed for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A string.
    Text,
    /// An integer or a float.
    Number,
    /// A boolean.
    Flag,
    /// Any scalar.
    Any,
}

/// The identity of a list's items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The list is one leaf: its writer owns all of it.
    Atomic,
    /// Items are unique scalars, each with its own owners.
    Set,
    /// Items are maps, identified by the values of these fields.
    Keyed(Vec<Cow<'static, str>>),
}

/// A type within its [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

/// The type of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The identity of the items.
    pub relation: Relation,
    /// The type of the items.
    pub items: TypeId,
}

/// Whether kube-apiserver, which holds built-in objects as Go structs, serializes an absent or zero
/// member.
///
/// Ownership is determined by comparing the serialized structs before and after a write. So a
/// member that Go adds or omits changes the set of fields that a writer owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Serialized if the JSON has it. All fields of custom resources are of this kind.
    #[default]
    Plain,
    /// Always serialized; an absent member has the zero value.
    Always(Zero),
    /// Serialized unless it is zero (`omitempty` without a pointer): `""`, `0`, `false`, `[]`,
    /// `{}`.
    NonZero,
}

/// Go's zero values as JSON.
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

/// A named member of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The member's name.
    pub name: Cow<'static, str>,
    /// The member's type.
    pub of: TypeId,
    /// The value of an absent member that is a key of a list's items.
    pub default: Option<Value>,
    /// The condition under which the member is serialized.
    pub presence: Presence,
}

impl Field {
    /// A field without a default that is serialized if present.
    pub fn new(name: impl Into<Cow<'static, str>>, of: TypeId) -> Self {
        Field { name: name.into(), of, default: None, presence: Presence::Plain }
    }
}

/// The type of a map. A struct is a map with named fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    fields: Vec<Field>,
    rest: Option<TypeId>,
    atomic: bool,
}

impl Map {
    /// Creates a map with these named fields, and members of type `rest` under any other name. Without `rest`, other
    /// names are not allowed. An `atomic` map is one leaf.
    ///
    /// If two fields have the same name, the first is used.
    pub fn new(mut fields: Vec<Field>, rest: Option<TypeId>, atomic: bool) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        fields.dedup_by(|later, first| later.name == first.name);
        Map { fields, rest, atomic }
    }

    /// The named field, if it exists.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// All named fields, sorted by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The type of all other members; `None` if they are not allowed.
    pub fn rest(&self) -> Option<TypeId> {
        self.rest
    }

    /// Whether the map is one leaf.
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// Whether all members are named fields.
    pub(crate) fn is_struct(&self) -> bool {
        self.rest.is_none() && !self.fields.is_empty()
    }

    /// The type of a member; `None` if the schema does not allow it.
    pub fn member(&self, name: &str) -> Option<TypeId> {
        self.field(name).map(|field| field.of).or(self.rest)
    }
}

/// The allowed forms of a value. A type without any form matches no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Type {
    /// The scalar form, if allowed.
    pub scalar: Option<Scalar>,
    /// The list form, if allowed.
    pub list: Option<List>,
    /// The map form, if allowed.
    pub map: Option<Map>,
}

impl Type {
    /// Creates a type that allows only this scalar.
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
}

/// A set of types that refer to each other, made by a [`SchemaBuilder`].
#[derive(Debug)]
pub struct Schema {
    types: Vec<Type>,
}

impl Schema {
    /// The type deduced from each value: maps merge member by member, lists are atomic. Fields
    /// without a schema have this type.
    pub const DEDUCED: TypeId = TypeId(0);
    /// The type of values that are always one leaf.
    pub const UNTYPED: TypeId = TypeId(1);

    /// The type with this number.
    ///
    /// # Panics
    /// When the number belongs to another schema with more types.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }
}

/// Builds a [`Schema`].
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
    /// Creates a schema with only [`Schema::DEDUCED`] and [`Schema::UNTYPED`].
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

    /// Reserves a number for a type that is [defined](Self::define) later, so that types can
    /// contain it.
    ///
    /// # Panics
    /// When there are more than 2³² types.
    pub fn reserve(&mut self) -> TypeId {
        let id = u32::try_from(self.types.len()).expect("a schema has fewer than 2^32 types");
        self.types.push(Type::default());
        TypeId(id)
    }

    /// Defines a reserved type.
    ///
    /// # Panics
    /// When this builder did not reserve the number.
    pub fn define(&mut self, id: TypeId, of: Type) {
        self.types[id.0 as usize] = of;
    }

    /// The current definition of a type.
    ///
    /// # Panics
    /// When this builder did not issue the number.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    /// Returns the schema.
    pub fn build(self) -> Arc<Schema> {
        Arc::new(Schema { types: self.types })
    }
}

/// The type of the objects of one kind: a schema and its root type. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Typing {
    schema: Arc<Schema>,
    root: TypeId,
}

impl Typing {
    /// Creates a typing for objects of the type `root` of a schema.
    pub fn new(schema: Arc<Schema>, root: TypeId) -> Self {
        Typing { schema, root }
    }

    /// The typing of objects without a schema: maps merge member by member, lists are atomic.
    pub fn deduced() -> Self {
        static DEDUCED: LazyLock<Arc<Schema>> = LazyLock::new(|| SchemaBuilder::new().build());
        Typing { schema: Arc::clone(&DEDUCED), root: Schema::DEDUCED }
    }

    /// Returns the schema that contains the types of this typing.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The type of an object.
    pub fn root(&self) -> TypeId {
        self.root
    }

    /// Whether both have the same root in the same schema.
    pub fn is_same(&self, other: &Typing) -> bool {
        Arc::ptr_eq(&self.schema, &other.schema) && self.root == other.root
    }
}
