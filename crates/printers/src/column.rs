//! [`Column`]: the definition of a Table column.

use std::borrow::Cow;

use serde::Serialize;

/// A column definition of a Table (`meta.k8s.io/v1.TableColumnDefinition`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The name, which is the heading of the column.
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`: the type of the cells.
    #[serde(rename = "type")]
    pub type_: Cow<'static, str>,
    /// `name` for the column with the name of the object; else empty or an OpenAPI format.
    pub format: Cow<'static, str>,
    /// The description, which `kubectl` does not print.
    pub description: Cow<'static, str>,
    /// 0 for columns that are always shown, above 0 for columns of wide views.
    pub priority: i32,
}

impl Column {
    const fn new(name: &'static str, type_: &'static str, description: &'static str) -> Self {
        Column {
            name: Cow::Borrowed(name),
            type_: Cow::Borrowed(type_),
            format: Cow::Borrowed(""),
            description: Cow::Borrowed(description),
            priority: 0,
        }
    }

    /// A column of strings.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "string", description)
    }

    /// A column of whole numbers.
    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "integer", description)
    }

    /// A column of booleans.
    pub const fn boolean(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "boolean", description)
    }

    /// A column of times.
    pub const fn date(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "date", description)
    }

    /// A column of strings for wide views.
    pub const fn wide(name: &'static str, description: &'static str) -> Self {
        let mut column = Column::new(name, "string", description);
        column.priority = 1;
        column
    }

    /// A column with names of objects.
    pub const fn naming(name: &'static str, description: &'static str, priority: i32) -> Self {
        Column {
            name: Cow::Borrowed(name),
            type_: Cow::Borrowed("string"),
            format: Cow::Borrowed("name"),
            description: Cow::Borrowed(description),
            priority,
        }
    }
}

/// The column of names.
pub const NAME: Column = Column::naming("Name", "The name of the object, unique among its kind in its namespace.", 0);
/// The column of ages.
pub const AGE: Column = Column::text("Age", "How long ago the object was created.");
