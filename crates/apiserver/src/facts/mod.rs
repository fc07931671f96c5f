//! What OpenAPI says of the built-in types beyond their fields: which are required, which values
//! there are, how lists and maps merge. The fields themselves are
//! [`listwatch_wire::protobuf::schema`]'s.
//!
//! `table.txt` is generated (`cargo xtask codegen`) from the definitions of Kubernetes v1.36; its head
//! explains the lines. It is kept as text: 48 KB of the binary that are not touched before somebody
//! asks, with no pointers to relocate. A line is read where its type is looked at, in about a
//! microsecond.
//!
//! The strategic merge patch of this server has a table of its own
//! (`crates/apiserver/src/write/merge_keys.rs`), in a form that is quick to walk; a test compares the two.

use std::sync::OnceLock;

use listwatch_wire::protobuf::schema::{Field, Id, Omit, Shape, Type};

const TABLE: &str = include_str!("table.txt");

/// The facts of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    line: &'static str,
}

/// What OpenAPI says of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldFacts {
    /// Every object has to have it.
    pub(crate) required: bool,
    /// `x-kubernetes-list-type`: `atomic`, `set` or `map`.
    pub(crate) list_type: Option<&'static str>,
    /// `x-kubernetes-list-map-keys`, parted by `|`; empty for none.
    keys: &'static str,
    /// `x-kubernetes-map-type`: `atomic` or `granular`.
    pub(crate) map_type: Option<&'static str>,
    /// `x-kubernetes-patch-strategy`, with `+` for a comma.
    strategy: Option<&'static str>,
    /// `x-kubernetes-patch-merge-key`.
    pub(crate) merge_key: Option<&'static str>,
    /// The values there are, parted by `|`.
    values: Option<&'static str>,
    /// The values that items may have, parted by `|`.
    each: Option<&'static str>,
    /// The default as JSON where it is not the usual one; empty for none at all.
    default: Option<&'static str>,
    /// The format where it is not the type's usual one.
    pub(crate) format: Option<&'static str>,
}

/// The facts of a message.
pub(crate) fn of(id: Id) -> Facts {
    static LINES: OnceLock<Vec<&'static str>> = OnceLock::new();
    // A line stands in the place of its message; a test looks.
    let lines = LINES.get_or_init(|| TABLE.lines().filter(|line| !line.starts_with('#')).collect());
    Facts { line: lines.get(id as usize).copied().unwrap_or_default() }
}

impl Facts {
    /// What OpenAPI calls the type, e.g. `io.k8s.api.core.v1.Pod`.
    pub(crate) fn model(self) -> String {
        let (package, name) = self.head();
        format!("{package}.{name}")
    }

    /// The package alone, e.g. `io.k8s.api.core.v1`.
    pub(crate) fn package(self) -> &'static str {
        self.head().0
    }

    /// Whether the type has `apiVersion` and `kind`.
    pub(crate) fn is_object(self) -> bool {
        self.own().any(|fact| fact == "object")
    }

    /// `x-kubernetes-map-type` of the type: `atomic` or `granular`.
    pub(crate) fn map_type(self) -> Option<&'static str> {
        self.own().find_map(|fact| fact.strip_prefix("map="))
    }

    /// The facts of a member, by its name in JSON; of one without special facts, nothing special.
    pub(crate) fn field(self, name: &str) -> FieldFacts {
        let mut fields = self.line.split("; ").skip(1);
        let own = fields.find_map(|part| {
            let rest = part.strip_prefix(name)?;
            matches!(rest.as_bytes().first(), None | Some(b'!' | b':')).then_some(rest)
        });
        own.map(FieldFacts::read).unwrap_or_default()
    }

    fn head(self) -> (&'static str, &'static str) {
        let head = self.line.split([';', ':']).next().unwrap_or_default();
        head.split_once(' ').unwrap_or_default()
    }

    fn own(self) -> impl Iterator<Item = &'static str> {
        let head = self.line.split(';').next().unwrap_or_default();
        head.split_once(':').map_or("", |(_, facts)| facts).split(',')
    }
}

impl FieldFacts {
    /// Reads what stands behind a field's name.
    fn read(text: &'static str) -> Self {
        let (mark, facts) = text.split_once(':').unwrap_or((text, ""));
        let mut read = FieldFacts { required: mark == "!", ..FieldFacts::default() };
        for (name, value) in facts.split(',').filter_map(|fact| fact.split_once('=')) {
            match name {
                "list" => read.list_type = Some(value),
                "keys" => (read.list_type, read.keys) = (Some("map"), value),
                "map" => read.map_type = Some(value),
                "patch" => read.strategy = Some(value),
                "by" => read.merge_key = Some(value),
                "enum" => read.values = Some(value),
                "each" => read.each = Some(value),
                "default" => read.default = Some(value),
                "format" => read.format = Some(value),
                other => debug_assert!(false, "the table has facts called {other}"),
            }
        }
        read
    }

    /// By which fields the items of a list of type `map` are the same item; none for other lists.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.split('|').filter(|key| !key.is_empty())
    }

    /// `x-kubernetes-patch-strategy`: one or two of `merge`, `replace` and `retainKeys`, by commas.
    pub(crate) fn strategy(&self) -> Option<String> {
        self.strategy.map(|strategy| strategy.replace('+', ","))
    }

    /// The values that there are; `None` where any is taken.
    pub(crate) fn values(&self) -> Option<impl Iterator<Item = &'static str> + use<>> {
        self.values.map(|values| values.split('|'))
    }

    /// The values that items may have; `None` where any is taken.
    pub(crate) fn each(&self) -> Option<impl Iterator<Item = &'static str> + use<>> {
        self.each.map(|values| values.split('|'))
    }

    /// The default, as JSON; `field` is the row of the same field. A value that Go writes even where
    /// it is zero has its zero for a default.
    pub(crate) fn default_json(&self, field: &Field) -> Option<&'static str> {
        if let Some(default) = self.default {
            return Some(default).filter(|default| !default.is_empty());
        }
        match (field.shape(), field.of(), field.omit()) {
            (Shape::One, Type::Message(_), _) => Some("{}"),
            (Shape::One, Type::String, Omit::Never) => Some("\"\""),
            (Shape::One, Type::Bool, Omit::Never) => Some("false"),
            (Shape::One, Type::Int32 | Type::Int64 | Type::Double, Omit::Never) => Some("0"),
            _ => None,
        }
    }
}

/// The members of a type as JSON has them: embedded messages are looked into.
pub(crate) fn members(id: Id) -> Vec<&'static Field> {
    let mut all = Vec::new();
    for field in id.message().fields() {
        match (field.shape(), field.of()) {
            (Shape::Inline, Type::Message(embedded)) => all.extend(members(embedded)),
            _ => all.push(field),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use listwatch_wire::protobuf::schema;

    use super::*;

    fn facts(api_version: &str, kind: &str) -> Facts {
        of(schema::message_of(api_version, kind).unwrap_or_else(|| panic!("{kind} is in the table")))
    }

    /// Every type that a kind leads to.
    fn all() -> Vec<Id> {
        let mut seen = HashSet::new();
        let mut open: Vec<Id> = schema::kinds().map(|(_, _, id)| id).collect();
        let mut found = Vec::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id as usize) {
                continue;
            }
            found.push(id);
            for field in id.message().fields() {
                if let Type::Message(of) | Type::PropsOrArray(of) | Type::PropsOrBool(of) | Type::PropsOrStrings(of) =
                    field.of()
                {
                    open.push(of);
                }
            }
        }
        found
    }

    #[test]
    fn each_message_has_its_line() {
        for id in all() {
            let facts = of(id);
            assert_eq!(facts.head().1, id.message().name(), "{id:?} has the line of another message");
            assert!(facts.package().starts_with("io.k8s."), "{id:?}: {}", facts.line);
            let known: HashSet<&str> = members(id).iter().map(|field| field.name()).collect();
            for part in facts.line.split("; ").skip(1) {
                let name = part.split(['!', ':']).next().unwrap_or_default();
                assert!(known.contains(name), "{id:?} has no field {name}");
            }
        }
    }

    #[test]
    fn defaults_are_json_and_one_of_the_values() {
        for id in all() {
            for field in members(id) {
                let facts = of(id).field(field.name());
                let Some(default) = facts.default_json(field) else { continue };
                let value: serde_json::Value = serde_json::from_str(default)
                    .unwrap_or_else(|error| panic!("{id:?} {}: {default}: {error}", field.name()));
                if let (Some(mut values), Some(text)) = (facts.values(), value.as_str().filter(|text| !text.is_empty()))
                {
                    assert!(values.any(|value| value == text), "{id:?} {}: {text} is no value of it", field.name());
                }
            }
        }
    }

    #[test]
    fn facts_of_fields_are_found_by_their_whole_name() {
        let container = of(match facts("v1", "Pod").head() {
            ("io.k8s.api.core.v1", "Pod") => Id::CoreContainer,
            other => panic!("{other:?} is not a Pod"),
        });
        assert_eq!(container.model(), "io.k8s.api.core.v1.Container");
        assert!(!container.is_object() && container.field("name").required && !container.field("image").required);
        assert_eq!(container.field("nam"), FieldFacts::default());
        assert_eq!(container.field("env").keys().collect::<Vec<_>>(), ["name"]);
        assert_eq!(container.field("envFrom").list_type, Some("atomic"));
        let ports = container.field("ports");
        assert_eq!(ports.keys().collect::<Vec<_>>(), ["containerPort", "protocol"]);
        assert_eq!((ports.list_type, ports.merge_key), (Some("map"), Some("containerPort")));
        let policy = container.field("imagePullPolicy").values().map(Iterator::collect::<Vec<_>>);
        assert_eq!(policy, Some(vec!["Always", "IfNotPresent", "Never"]));
        assert_eq!(of(Id::CorePodSpec).field("volumes").strategy().as_deref(), Some("merge,retainKeys"));
        assert_eq!(of(Id::MetaLabelSelector).map_type(), Some("atomic"));
        assert!(facts("apps/v1", "Deployment").is_object());
    }
}
