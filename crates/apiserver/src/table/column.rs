//! [`Column`]: the heading of a Table column.

use std::borrow::Cow;

use serde::Serialize;

use crate::registry::{PrinterColumn, Resource};

/// A column definition of a Table (`meta.k8s.io/v1.TableColumnDefinition`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The heading.
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`: the type of the cells.
    #[serde(rename = "type")]
    pub type_: Cow<'static, str>,
    /// `name` for the column that names the object; mostly empty.
    pub format: Cow<'static, str>,
    /// What the column shows.
    pub description: Cow<'static, str>,
    /// 0 is always shown, 1 only in wide views.
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

    pub(super) const fn text(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "string", description)
    }

    pub(super) const fn integer(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "integer", description)
    }

    pub(super) const fn boolean(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "boolean", description)
    }

    pub(super) const fn date(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "date", description)
    }

    /// Shown only in wide views.
    pub(super) const fn wide(name: &'static str, description: &'static str) -> Self {
        let mut column = Column::new(name, "string", description);
        column.priority = 1;
        column
    }

    /// Holds the name of an object.
    pub(super) const fn naming(name: &'static str, description: &'static str, priority: i32) -> Self {
        Column {
            name: Cow::Borrowed(name),
            type_: Cow::Borrowed("string"),
            format: Cow::Borrowed("name"),
            description: Cow::Borrowed(description),
            priority,
        }
    }
}

pub(super) const NAME: Column =
    Column::naming("Name", "The name of the object, unique among its kind in its namespace.", 0);
pub(super) const AGE: Column = Column::text("Age", "How long ago the object was created.");

/// The columns that a custom resource shows besides its name: its own, or its age when it has none
/// (the default that a definition gets).
pub(super) fn custom(resource: &Resource) -> Cow<'_, [PrinterColumn]> {
    if !resource.printer_columns.is_empty() {
        return Cow::Borrowed(&resource.printer_columns);
    }
    Cow::Owned(vec![PrinterColumn {
        name: "Age".to_owned(),
        type_: "date".to_owned(),
        format: String::new(),
        description: AGE.description.into_owned(),
        priority: 0,
        json_path: ".metadata.creationTimestamp".to_owned(),
    }])
}

/// All columns of a custom resource.
pub(super) fn of_custom(resource: &Resource) -> Vec<Column> {
    let described = |column: &PrinterColumn| match column.description.as_str() {
        "" => format!("Custom resource definition column (in JSONPath format): {}", column.json_path),
        own => own.to_owned(),
    };
    let own = custom(resource);
    let columns = own.iter().map(|column| Column {
        name: Cow::Owned(column.name.clone()),
        type_: Cow::Owned(column.type_.clone()),
        format: Cow::Owned(column.format.clone()),
        description: Cow::Owned(described(column)),
        priority: column.priority,
    });
    std::iter::once(NAME).chain(columns).collect()
}
