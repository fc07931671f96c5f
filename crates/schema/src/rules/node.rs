//! Implements the schema interface of `listwatch-cel` for nodes.

use std::sync::Arc;

use listwatch_cel::format::Format;
use listwatch_cel::{Kind, ListType, Schema};

use crate::schema::{Constraint, Node};

impl Node {
    /// The limit in the first constraint for which `pick` returns one.
    fn bound(&self, pick: impl Fn(&Constraint) -> Option<i64>) -> Option<u64> {
        self.constraints.iter().find_map(pick).map(|max| max.max(0) as u64)
    }
}

impl Schema for Node {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn format(&self) -> Format {
        self.format
    }

    fn is_int_or_string(&self) -> bool {
        self.int_or_string
    }

    fn is_embedded_resource(&self) -> bool {
        self.embedded
    }

    fn list_type(&self) -> ListType {
        self.list_type
    }

    fn items(&self) -> Option<&dyn Schema> {
        self.items.as_deref().map(|items| items as &dyn Schema)
    }

    fn property(&self, name: &str) -> Option<&dyn Schema> {
        Node::property(self, name).map(|property| &**property as &dyn Schema)
    }

    fn has_properties(&self) -> bool {
        !self.properties.is_empty()
    }

    fn additional_properties(&self) -> Option<&dyn Schema> {
        self.additional_schema().map(|more| &**more as &dyn Schema)
    }

    fn required(&self) -> &[Arc<str>] {
        let required = self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::Required(names) => Some(&**names),
            _ => None,
        });
        required.unwrap_or_default()
    }

    fn has_default(&self) -> bool {
        self.default_value().is_some()
    }

    fn max_length(&self) -> Option<u64> {
        self.bound(|constraint| match constraint {
            Constraint::MaxLength(max) => Some(*max),
            _ => None,
        })
    }

    fn max_items(&self) -> Option<u64> {
        self.bound(|constraint| match constraint {
            Constraint::MaxItems(max) => Some(*max),
            _ => None,
        })
    }

    fn max_properties(&self) -> Option<u64> {
        self.bound(|constraint| match constraint {
            Constraint::MaxProperties(max) => Some(*max),
            _ => None,
        })
    }

    fn enum_bytes_max(&self) -> Option<usize> {
        self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::Enum(values) => values.iter().filter_map(|value| value.as_str()).map(str::len).max(),
            _ => None,
        })
    }
}
