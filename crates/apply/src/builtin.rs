//! How the built-in kinds of Kubernetes merge, from a table of facts: [`Typing::of_built_in`].
//!
//! The table (`builtin/types.txt`) says its own origin and form. It is read once, when the first kind
//! is asked for; all kinds then share one schema.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::typing::{Field, Map, Presence, Relation, Scalar, Schema, SchemaBuilder, Type, TypeId, Typing, Zero};

const TABLE: &str = include_str!("builtin/types.txt");

impl Typing {
    /// The typing of a built-in kind, as Kubernetes v1.36 has it. `None` for a kind that is not one,
    /// or not in this version.
    pub fn of_built_in(api_version: &str, kind: &str) -> Option<Typing> {
        static KINDS: LazyLock<HashMap<(&str, &str), Typing>> = LazyLock::new(|| read(TABLE));
        KINDS.get(&(api_version, kind)).cloned()
    }
}

/// Reads the table. It is ours and tested whole, so what cannot be read is passed over.
fn read(table: &'static str) -> HashMap<(&'static str, &'static str), Typing> {
    let mut reader = Reader { builder: SchemaBuilder::new(), named: HashMap::new(), views: Vec::new() };
    let lines = || table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut kinds = Vec::new();
    for line in lines() {
        match *line.splitn(4, ' ').collect::<Vec<_>>() {
            ["kind", api_version, kind, of] => kinds.push((api_version, kind, of)),
            [name, ..] => {
                let id = reader.builder.reserve();
                reader.named.insert(name, id);
            }
            [] => {}
        }
    }
    for line in lines().filter(|line| !line.starts_with("kind ")) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (form, fields) = rest.split_once(' ').unwrap_or((rest, ""));
        let of = if form == "=" {
            let (id, _) = reader.of(fields);
            reader.builder.get(id).clone()
        } else {
            let fields = fields.split(' ').filter_map(|field| reader.field(field)).collect();
            Type::map(Map::new(fields, None, form == "{!"))
        };
        let id = reader.named[name];
        reader.builder.define(id, of);
    }
    // Types that are another one as one leaf, or part by part, once all of those are there.
    for (view, of, atomic) in std::mem::take(&mut reader.views) {
        let of = reader.builder.get(of).clone().with_atomicity(atomic);
        reader.builder.define(view, of);
    }
    let named = reader.named;
    let schema = reader.builder.build();
    let typing = |of: &str| Some(Typing::new(Arc::clone(&schema), *named.get(of)?));
    kinds.into_iter().filter_map(|(api_version, kind, of)| Some(((api_version, kind), typing(of)?))).collect()
}

struct Reader {
    builder: SchemaBuilder,
    named: HashMap<&'static str, TypeId>,
    /// Types that are views of another: itself, the other, one leaf or not.
    views: Vec<(TypeId, TypeId, bool)>,
}

impl Reader {
    /// `name:of`, then when it is there, then its default.
    fn field(&mut self, text: &'static str) -> Option<Field> {
        let (name, rest) = text.split_once(':')?;
        let (of, rest) = self.of(rest);
        let (presence, default) = rest.split_once('=').unwrap_or((rest, ""));
        let presence = match presence {
            "?" => Presence::NonZero,
            "%n" => Presence::Always(Zero::Null),
            "%o" => Presence::Always(Zero::Struct),
            "%s" => Presence::Always(Zero::Text),
            "%0" => Presence::Always(Zero::Number),
            "%f" => Presence::Always(Zero::Flag),
            _ => Presence::Plain,
        };
        let default: Option<Value> = serde_json::from_str(default).ok();
        Some(Field { presence, default, ..Field::new(name, of) })
    }

    /// A type at the beginning of a text, and what follows it.
    fn of(&mut self, text: &'static str) -> (TypeId, &'static str) {
        let (first, rest) = text.split_at(usize::from(!text.is_empty()));
        let scalar = match first {
            "s" => Scalar::Text,
            "n" => Scalar::Number,
            "b" => Scalar::Flag,
            "u" => Scalar::Any,
            "*" => return (Schema::UNTYPED, rest),
            "@" => return self.named_type(rest),
            "L" => return self.list(Relation::Atomic, rest),
            "S" => return self.list(Relation::Set, rest),
            "K" => {
                let (keys, rest) = rest.trim_start_matches('(').split_once(')').unwrap_or_default();
                return self.list(Relation::Keyed(keys.split(',').map(Cow::Borrowed).collect()), rest);
            }
            "M" => {
                let (atomic, rest) = rest.strip_prefix('!').map_or((false, rest), |rest| (true, rest));
                let (members, rest) = self.of(rest);
                return (self.builder.add(Type::map(Map::new(Vec::new(), Some(members), atomic))), rest);
            }
            _ => return (Schema::DEDUCED, rest),
        };
        (self.builder.add(Type::scalar(scalar)), rest)
    }

    fn list(&mut self, relation: Relation, rest: &'static str) -> (TypeId, &'static str) {
        let (items, rest) = self.of(rest);
        (self.builder.add(Type::list(relation, items)), rest)
    }

    fn named_type(&mut self, text: &'static str) -> (TypeId, &'static str) {
        let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '.').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let of = self.named.get(name).copied().unwrap_or(Schema::DEDUCED);
        let atomic = match rest.as_bytes().first() {
            Some(b'!') => true,
            Some(b'+') => false,
            _ => return (of, rest),
        };
        let view = self.builder.reserve();
        self.views.push((view, of, atomic));
        (view, &rest[1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn built_in_kinds_merge_as_their_markers_say() {
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
    fn what_go_prints_is_known() {
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

    #[test]
    fn every_line_of_the_table_is_read() {
        let kinds = read(TABLE);
        assert_eq!(kinds.len(), TABLE.lines().filter(|line| line.starts_with("kind ")).count());
        let schema = kinds.values().next().unwrap().clone();
        // A type that nothing defines fits nothing; whatever is reachable is defined.
        let mut open: Vec<TypeId> = kinds.values().map(Typing::root).collect();
        let mut seen = std::collections::HashSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let of = schema.schema().get(id);
            assert!(of.scalar.is_some() || of.list.is_some() || of.map.is_some(), "{id:?} is not defined");
            open.extend(of.list.iter().map(|list| list.items));
            open.extend(of.map.iter().flat_map(|map| map.fields().iter().map(|field| field.of).chain(map.rest())));
        }
        assert!(seen.len() > 2000, "{} types", seen.len());
        assert!(
            TABLE.lines().all(|line| !line.contains("= ") || line.starts_with('#') || line.split(' ').count() == 3)
        );
    }
}
