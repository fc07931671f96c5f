//! The typings of the built-in kinds: [`Typing::of_built_in`], a projection of
//! [`listwatch_k8s_types`].
//!
//! The projection is made once, at the first use. All kinds share one schema.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use listwatch_json::Value;
use listwatch_k8s_types::{self as types, Id, ListType, MapType, Message, Omit, Shape};

use crate::typing::{Field, Map, Presence, Relation, Scalar, Schema, SchemaBuilder, Type, TypeId, Typing, Zero};

impl Typing {
    /// The typing of a built-in kind of the table's [release](types::RELEASE). `None` for an
    /// unknown kind or version.
    pub fn of_built_in(api_version: &str, kind: &str) -> Option<Typing> {
        static KINDS: LazyLock<(Arc<Schema>, Kinds)> = LazyLock::new(project);
        let (schema, kinds) = &*KINDS;
        kinds.get(&(api_version, kind)).map(|root| Typing::new(Arc::clone(schema), *root))
    }
}

/// The root types of the kinds, by `apiVersion` and `kind`.
type Kinds = HashMap<(&'static str, &'static str), TypeId>;

/// Derives the typings of all kinds that can be applied. Lists and options cannot be applied.
fn project() -> (Arc<Schema>, Kinds) {
    let applied = |(api_version, kind, id): &(&str, &str, Id)| {
        !api_version.is_empty() && !kind.ends_with("List") && id.message().is_object()
    };
    let kinds: Vec<_> = types::kinds().filter(applied).collect();
    let keys = map_keys(kinds.iter().map(|(.., id)| *id));
    let mut builder = SchemaBuilder::new();
    let mut projection = Projection::new(&mut builder, Some(keys));
    let kinds = kinds.into_iter().map(|(api_version, kind, id)| ((api_version, kind), projection.object(id, None)));
    let kinds = kinds.collect();
    (builder.build(), kinds)
}

/// Adds `ObjectMeta`, the type of `metadata` of custom resources. A field is present if the JSON has it.
pub(crate) fn object_meta(builder: &mut SchemaBuilder) -> TypeId {
    Projection::new(builder, None).object(Id::MetaObjectMeta, None)
}

/// The key fields of all list items, as (message of the items, field name).
fn map_keys(roots: impl Iterator<Item = Id>) -> HashSet<(Id, &'static str)> {
    let (mut keys, mut seen, mut open) = (HashSet::new(), HashSet::new(), roots.collect::<Vec<_>>());
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        for field in id.message().fields() {
            if let types::Type::Message(of) = field.of() {
                keys.extend(field.map_keys().map(|key| (of, key)));
                open.push(of);
            }
        }
    }
    keys
}

struct Projection<'a> {
    builder: &'a mut SchemaBuilder,
    /// The key fields of list items, if the objects are printed by Go structs; `None` for plain JSON.
    keys: Option<HashSet<(Id, &'static str)>>,
    /// The type of each message, by the map type that a field sets; `None` if the field sets no map type.
    structs: HashMap<(Id, Option<MapType>), TypeId>,
    text: TypeId,
    number: TypeId,
    flag: TypeId,
    any: TypeId,
}

impl<'a> Projection<'a> {
    fn new(builder: &'a mut SchemaBuilder, keys: Option<HashSet<(Id, &'static str)>>) -> Self {
        let mut scalar = |of| builder.add(Type::scalar(of));
        let (text, number, flag, any) =
            (scalar(Scalar::Text), scalar(Scalar::Number), scalar(Scalar::Flag), scalar(Scalar::Any));
        Projection { builder, keys, structs: HashMap::new(), text, number, flag, any }
    }

    /// Converts a message to a map with named fields. `of` overrides the map type of the message.
    fn object(&mut self, id: Id, of: Option<MapType>) -> TypeId {
        if let Some(known) = self.structs.get(&(id, of)) {
            return *known;
        }
        let made = self.builder.reserve();
        self.structs.insert((id, of), made);
        let message = id.message();
        let mut fields: Vec<Field> = message.members().iter().map(|field| self.field(id, field)).collect();
        if message.is_object() {
            let named = |name| Field { presence: Presence::NonZero, ..Field::new(name, self.text) };
            fields.extend(["apiVersion", "kind"].map(named));
        }
        let is_atomic = of.or(message.map_type()) == Some(MapType::Atomic);
        let rest = fields.is_empty().then_some(Schema::DEDUCED);
        self.builder.define(made, Type::map(Map::new(fields, rest, is_atomic)));
        made
    }

    fn field(&mut self, id: Id, field: &'static types::Field) -> Field {
        let one = self.value(id.message(), field);
        let of = match (field.shape(), field.list_type()) {
            (Shape::Repeated, of) => {
                let relation = match of {
                    Some(ListType::Map) => Relation::Keyed(field.map_keys().map(Cow::Borrowed).collect()),
                    Some(ListType::Set) => Relation::Set,
                    Some(ListType::Atomic) | None => Relation::Atomic,
                };
                self.builder.add(Type::list(relation, one))
            }
            (Shape::Map, _) => {
                let is_atomic = field.map_type() == Some(MapType::Atomic);
                self.builder.add(Type::map(Map::new(Vec::new(), Some(one), is_atomic)))
            }
            _ => one,
        };
        let Some(keys) = &self.keys else { return Field::new(field.name(), of) };
        // A default counts only for an absent key of an item.
        let default = field.default_json().filter(|_| keys.contains(&(id, field.name())));
        let default: Option<Value> = default.and_then(|json| serde_json::from_str(json).ok());
        Field { presence: presence(field), default, ..Field::new(field.name(), of) }
    }

    /// The type of a field's value, of each item or of each member.
    fn value(&mut self, message: &Message, field: &'static types::Field) -> TypeId {
        match field.of() {
            types::Type::String | types::Type::Bytes => self.text,
            types::Type::Bool => self.flag,
            types::Type::Int32 | types::Type::Int64 | types::Type::Double => self.number,
            types::Type::Time | types::Type::MicroTime | types::Type::Quantity => self.any,
            types::Type::Message(of) => {
                let is_struct = matches!(field.shape(), Shape::One | Shape::Pointer);
                self.object(of, field.map_type().filter(|_| is_struct))
            }
            types::Type::Strings => {
                let text = self.text;
                self.builder.add(Type::list(Relation::Atomic, text))
            }
            // Custom resources are plain JSON: `fieldsV1` is deduced.
            types::Type::Raw if self.keys.is_none() => Schema::DEDUCED,
            // `metav1.FieldsV1` is a map; `runtime.RawExtension` can be anything.
            types::Type::Raw if message.name() == Id::MetaManagedFieldsEntry.message().name() => {
                self.builder.add(Type::map(Map::new(Vec::new(), Some(Schema::DEDUCED), false)))
            }
            types::Type::Raw if message.package() != Id::ExtensionJSONSchemaProps.message().package() => {
                Schema::UNTYPED
            }
            // OpenAPI has no type for these.
            types::Type::Raw
            | types::Type::IntOrString
            | types::Type::PropsOrBool(_)
            | types::Type::PropsOrArray(_)
            | types::Type::PropsOrStrings(_) => Schema::DEDUCED,
        }
    }
}

/// Whether Go serializes a field when it is absent or zero.
fn presence(field: &types::Field) -> Presence {
    match (field.shape(), field.of(), field.omit()) {
        (Shape::One, types::Type::Time | types::Type::MicroTime, Omit::Zero) => Presence::NonZero,
        (Shape::One, types::Type::Time | types::Type::MicroTime | types::Type::Raw, _) => Presence::Always(Zero::Null),
        (Shape::One, types::Type::Message(_), _) => Presence::Always(Zero::Struct),
        (Shape::One, types::Type::IntOrString, _) => Presence::Always(Zero::Number),
        (Shape::One, types::Type::Quantity, _) => Presence::Always(Zero::Text),
        (Shape::Pointer, _, Omit::Empty | Omit::Zero) => Presence::Plain,
        (_, _, Omit::Empty | Omit::Zero) => Presence::NonZero,
        (Shape::One, types::Type::String, Omit::Never) => Presence::Always(Zero::Text),
        (Shape::One, types::Type::Bool, Omit::Never) => Presence::Always(Zero::Flag),
        (Shape::One, types::Type::Int32 | types::Type::Int64 | types::Type::Double, Omit::Never) => {
            Presence::Always(Zero::Number)
        }
        (_, _, Omit::Never) => Presence::Always(Zero::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typing::List;

    /// The type at a path of names; `[]` stands for the items of a list.
    fn at<'a>(typing: &'a Typing, path: &str) -> &'a Type {
        let schema = typing.schema();
        path.split('.').filter(|step| !step.is_empty()).fold(schema.get(typing.root()), |of, step| match step {
            "[]" => schema.get(of.list.as_ref().expect(path).items),
            name => schema.get(of.map.as_ref().expect(path).member(name).expect(path)),
        })
    }

    fn check(api_version: &str, kind: &str, path: &str, expected: &str) {
        let typing = Typing::of_built_in(api_version, kind).unwrap();
        let of = at(&typing, path);
        let found = match (&of.list, &of.map, of.scalar) {
            (Some(_), Some(_), _) => "anything".to_owned(),
            (Some(list), ..) => match &list.relation {
                Relation::Atomic => "list".to_owned(),
                Relation::Set => "set".to_owned(),
                Relation::Keyed(keys) => format!("by {}", keys.join(",")),
            },
            (_, Some(map), _) if map.is_atomic() => "one leaf".to_owned(),
            (_, Some(_), _) => "map".to_owned(),
            (.., scalar) => format!("{scalar:?}"),
        };
        assert_eq!(found, expected, "{kind} {path}");
    }

    #[test]
    fn built_in_kinds_merge_by_their_list_type_and_map_type_markers() {
        check("v1", "ConfigMap", "data", "map");
        check("v1", "ConfigMap", "metadata.finalizers", "set");
        check("v1", "ConfigMap", "metadata.ownerReferences", "by uid");
        check("v1", "ConfigMap", "metadata.ownerReferences.[]", "one leaf");
        check("v1", "Service", "spec.ports", "by port,protocol");
        check("v1", "Service", "spec.ports.[].targetPort", "anything");
        check("v1", "Service", "spec.selector", "one leaf");
        check("v1", "Service", "status.conditions", "by type");
        check("v1", "Pod", "spec.containers", "by name");
        check("v1", "Pod", "spec.containers.[].ports", "by containerPort,protocol");
        check("v1", "Pod", "spec.containers.[].resources.limits.cpu", "Some(Any)");
        check("v1", "Pod", "spec.tolerations", "list");
        check("v1", "Pod", "spec.volumes.[].configMap.items", "list");
        check("v1", "Pod", "spec.nodeSelector", "one leaf");
        check("apps/v1", "Deployment", "spec.selector", "one leaf");
        check(
            "apps/v1",
            "Deployment",
            "spec.template.spec.topologySpreadConstraints",
            "by topologyKey,whenUnsatisfiable",
        );
        check("apps/v1", "StatefulSet", "spec.volumeClaimTemplates", "list");
        check("batch/v1", "CronJob", "spec.jobTemplate.spec.template.spec.containers.[].env", "by name");
        check("discovery.k8s.io/v1", "EndpointSlice", "endpoints", "list");
        check("apiextensions.k8s.io/v1", "CustomResourceDefinition", "spec.versions", "list");
        check("autoscaling/v1", "Scale", "spec.replicas", "Some(Number)");
        assert!(
            Typing::of_built_in("v1", "Deployment").is_none() && Typing::of_built_in("example.com/v1", "X").is_none()
        );
    }

    #[test]
    fn built_in_fields_are_omitted_as_in_go() {
        let presence = |api_version: &str, kind: &str, path: &str, field: &str| {
            let typing = Typing::of_built_in(api_version, kind).unwrap();
            at(&typing, path).map.as_ref().unwrap().field(field).unwrap().presence
        };
        assert_eq!(presence("apps/v1", "Deployment", "", "status"), Presence::Always(Zero::Struct));
        assert_eq!(presence("apps/v1", "Deployment", "spec", "replicas"), Presence::Plain);
        assert_eq!(presence("apps/v1", "Deployment", "spec", "paused"), Presence::NonZero);
        assert_eq!(presence("v1", "Pod", "spec", "containers"), Presence::Always(Zero::Null));
        assert_eq!(presence("v1", "Pod", "spec.containers.[]", "name"), Presence::Always(Zero::Text));
    }

    /// Visits all types once, and fails with the types that apply cannot use.
    #[test]
    fn list_keys_are_scalar_fields_of_the_items() {
        let (schema, kinds) = project();
        let mut open: Vec<(String, TypeId)> = kinds.iter().map(|((_, kind), id)| (kind.to_string(), *id)).collect();
        let mut seen = HashSet::new();
        let mut disagreements = Vec::new();
        while let Some((path, id)) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let of = schema.get(id);
            if of.scalar.is_none() && of.list.is_none() && of.map.is_none() {
                disagreements.push(format!("{path} fits nothing"));
            }
            if let Some(List { relation: Relation::Keyed(keys), items }) = &of.list {
                let item = schema.get(*items).map.as_ref();
                for key in keys {
                    let field = item.and_then(|item| item.field(key));
                    if field.is_none_or(|field| schema.get(field.of).scalar.is_none()) {
                        disagreements.push(format!("{path}: the items have no scalar {key}"));
                    }
                }
            }
            let items = of.list.iter().map(|list| ("[]", list.items));
            let fields = of.map.iter().flat_map(|map| map.fields().iter().map(|field| (&*field.name, field.of)));
            let rest = of.map.iter().filter_map(|map| map.rest().map(|rest| ("*", rest)));
            open.extend(items.chain(fields).chain(rest).map(|(step, id)| (format!("{path}.{step}"), id)));
        }
        assert!(disagreements.is_empty(), "lists merge by fields that exist:\n  {}", disagreements.join("\n  "));
        assert!(seen.len() > 800, "{} types", seen.len());
    }
}
