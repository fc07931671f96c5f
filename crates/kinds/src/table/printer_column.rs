//! [`PrinterColumn`]: a column of a custom resource.

/// A column of a Table view that is read from the object by a path
/// (`spec.versions[].additionalPrinterColumns[]` of a CustomResourceDefinition).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// The OpenAPI format of the type, mostly empty.
    pub format: String,
    /// What the column shows.
    pub description: String,
    /// 0 is always shown, more only in wide views.
    pub priority: i32,
    /// Where the value is, in Kubernetes' JSON path form, e.g. `.spec.replicas`.
    pub json_path: String,
}
