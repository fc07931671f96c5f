//! Defines the columns of custom resources.

use std::borrow::Cow;

use listwatch_kinds::table::{AGE, Column, NAME};

use listwatch_registry::{PrinterColumn, Resource};

/// The columns of a custom resource, without the name. The default is one column with the age.
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
