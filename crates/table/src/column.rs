//! Defines the columns of custom resources.

use std::borrow::Cow;

use listwatch_printers::{AGE, Column, NAME};

use listwatch_registry::{PrinterColumn, Resource};

use super::jsonpath::JsonPath;

/// The columns of a custom resource, without the name. The default is one column with the age.
///
/// The columns end before the first path that cannot be parsed (apiextensions-apiserver
/// `pkg/registry/customresource/tableconvertor`, `New`).
pub(super) fn custom(resource: &Resource) -> Cow<'_, [PrinterColumn]> {
    let columns = &resource.printer_columns;
    if !columns.is_empty() {
        let valid = columns.iter().take_while(|column| JsonPath::parse(&column.json_path).is_some()).count();
        return Cow::Borrowed(columns.get(..valid).unwrap_or_default());
    }
    Cow::Owned(vec![age()])
}

/// The columns of the Scale of a custom resource, without the name. The paths are those of the Scale. Source:
/// `getScaleColumnsForVersion` in `apiextensions-apiserver/pkg/apiserver/helpers.go`.
pub(super) fn custom_scale() -> [PrinterColumn; 3] {
    [
        column("Desired", "integer", "How many replicas there should be.", ".spec.replicas"),
        column("Available", "integer", "How many replicas there are.", ".status.replicas"),
        age(),
    ]
}

fn age() -> PrinterColumn {
    column("Age", "date", &AGE.description, ".metadata.creationTimestamp")
}

fn column(name: &str, type_: &str, description: &str, json_path: &str) -> PrinterColumn {
    PrinterColumn {
        name: name.to_owned(),
        type_: type_.to_owned(),
        format: String::new(),
        description: description.to_owned(),
        priority: 0,
        json_path: json_path.to_owned(),
    }
}

/// The column of names, followed by the given columns of a custom resource.
pub(super) fn definitions(own: &[PrinterColumn]) -> Vec<Column> {
    let described = |column: &PrinterColumn| match column.description.as_str() {
        "" => format!("Custom resource definition column (in JSONPath format): {}", column.json_path),
        own => own.to_owned(),
    };
    let columns = own.iter().map(|column| Column {
        name: Cow::Owned(column.name.clone()),
        type_: Cow::Owned(column.type_.clone()),
        format: Cow::Owned(column.format.clone()),
        description: Cow::Owned(described(column)),
        priority: column.priority,
    });
    std::iter::once(NAME).chain(columns).collect()
}
