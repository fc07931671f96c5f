//! Tables (`meta.k8s.io/v1`), which `kubectl get` prints, and `PartialObjectMetadata`.
//!
//! ```text
//!  object bytes ──▶ TableView::new(&resource, include, version)
//!                     ├─ list(objects, meta, now)       → the body of a LIST
//!                     ├─ object(json, now)              → the body of a GET or a write
//!                     └─ event_object(json, first, now) → the `object` of a watch event, bookmarks too
//!
//!                   partial::object(json, version), partial::list(objects, meta, version)
//! ```
//!
//! All functions are pure: the result depends only on the arguments, including `now`. Columns and cells are those of
//! `pkg/printers/internalversion` ([`columns`]). A resource without printers has the columns name and creation time.
//! A custom resource has the columns in its `additionalPrinterColumns`. A field without a value shows the default
//! that Kubernetes would set.
//!
//! Status objects (errors, results of deletes) have no Table.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use listwatch_registry::Registry;
//! use listwatch_table::{Cell, IncludeObject, MetaVersion, TableView, row};
//! use time::OffsetDateTime;
//!
//! let registry = Registry::builtin();
//! let config_maps = registry.find("", "v1", "configmaps").unwrap();
//! let object = br#"{"metadata":{"name":"a","creationTimestamp":"1970-01-01T00:00:00Z"},"data":{"k":"v"}}"#;
//! let now = OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(5);
//! let cells = row(config_maps, object, now);
//! assert_eq!(cells, [Cell::Text("a".into()), Cell::Integer(1), Cell::Text("5m".into())]);
//!
//! let table = TableView::new(config_maps, IncludeObject::None, MetaVersion::V1).object(object, now);
//! assert!(table.ends_with(b"\"rows\":[{\"cells\":[\"a\",1,\"5m\"],\"object\":null}]}\n"));
//! ```
#![forbid(unsafe_code)]

mod column;
mod jsonpath;
pub mod partial;
mod row_cache;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::Status;
use time::OffsetDateTime;

use self::jsonpath::JsonPath;
use listwatch_json::Value;
use listwatch_meta::go;
use listwatch_printers::{self as printers, Printed, Printer};
pub use listwatch_printers::{Cell, Column, human_duration};
use listwatch_printers::{Json, RowClock};
use listwatch_registry::{PrinterColumn, Resource};

/// The form of the object in a row, in addition to the cells (`?includeObject=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// No object.
    None,
    /// A `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Parses the query parameter. An absent or empty parameter means [`IncludeObject::Metadata`].
    ///
    /// # Errors
    /// A 400 [`Status`] for an unsupported value.
    pub fn parse(value: Option<&str>) -> Result<Self, Status> {
        match value {
            None | Some("" | "Metadata") => Ok(IncludeObject::Metadata),
            Some("None") => Ok(IncludeObject::None),
            Some("Object") => Ok(IncludeObject::Object),
            Some(other) => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                 must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// The version of `meta.k8s.io` that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetaVersion {
    /// `meta.k8s.io/v1`.
    #[default]
    V1,
    /// `meta.k8s.io/v1beta1`, with the same fields.
    V1Beta1,
}

impl MetaVersion {
    /// Parses the parameter `v=` of an `Accept` clause. Returns `None` for a version without Tables.
    pub fn parse(version: &str) -> Option<Self> {
        match version {
            "v1" => Some(MetaVersion::V1),
            "v1beta1" => Some(MetaVersion::V1Beta1),
            _ => None,
        }
    }

    /// The `apiVersion` of Tables and of `PartialObjectMetadata` in this version.
    pub fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

impl From<bool> for MetaVersion {
    /// Converts a flag: `true` means `v1beta1`.
    fn from(v1beta1: bool) -> Self {
        if v1beta1 { MetaVersion::V1Beta1 } else { MetaVersion::V1 }
    }
}

/// The metadata of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListMeta {
    /// The list's resource version; empty for objects that are not stored.
    pub resource_version: String,
    /// The token of the next page, if there is one.
    pub continue_token: Option<String>,
    /// The number of objects on later pages, if it is known.
    pub remaining_item_count: Option<u64>,
}

impl ListMeta {
    /// Appends the JSON of the metadata.
    fn write(&self, out: &mut BytesMut) {
        if self.resource_version.is_empty() {
            out.put_slice(b"{}");
            return;
        }
        out.put_slice(b"{\"resourceVersion\":");
        write_text(out, &self.resource_version);
        if let Some(token) = &self.continue_token {
            out.put_slice(b",\"continue\":");
            write_text(out, token);
        }
        if let Some(count) = self.remaining_item_count {
            out.put_slice(format!(",\"remainingItemCount\":{count}").as_bytes());
        }
        out.put_u8(b'}');
    }
}

/// The columns of a resource's Table. Columns with a priority above 0 are always sent; kubectl prints them with
/// `-o wide`.
pub fn columns(resource: &Resource) -> Vec<Column> {
    Cells::of(resource).columns(resource).into_owned()
}

/// The cells of an object's row, one for each of [`columns`]. `object` is JSON.
pub fn row(resource: &Resource, object: &[u8], now: OffsetDateTime) -> Vec<Cell> {
    let stored = printable(resource, object);
    Cells::of(resource).row(Printed::new(Json::new(&stored), &RowClock::new(now)))
}

/// Returns the object in its storage version, which the printers read.
fn printable<'a>(resource: &Resource, object: &'a [u8]) -> Cow<'a, [u8]> {
    match &resource.conversion {
        Some(conversion) => Cow::Owned(conversion.to_storage_version(object).into()),
        None => Cow::Borrowed(object),
    }
}

/// The source of the cells of a resource.
enum Cells {
    Printer(&'static Printer),
    Paths(Vec<PathColumn>),
}

/// A column of a custom resource.
struct PathColumn {
    path: JsonPath,
    type_: String,
}

impl Cells {
    fn of(resource: &Resource) -> Self {
        if !resource.custom {
            return Cells::Printer(resource.builtin.map_or(&printers::DEFAULT, |kind| kind.printer));
        }
        Cells::Paths(PathColumn::all(&column::custom(resource)))
    }

    fn columns(&self, resource: &Resource) -> Cow<'static, [Column]> {
        match self {
            Cells::Printer(printer) => Cow::Borrowed(printer.columns),
            Cells::Paths(_) => Cow::Owned(column::definitions(&column::custom(resource))),
        }
    }

    fn row(&self, object: Printed<'_>) -> Vec<Cell> {
        match self {
            Cells::Printer(printer) => (printer.cells)(object),
            Cells::Paths(paths) => {
                let name = Cell::Text(object.name());
                let own = paths.iter().map(|column| column.cell(object.object(), object.clock()));
                std::iter::once(name).chain(own).collect()
            }
        }
    }
}

impl PathColumn {
    fn all(columns: &[PrinterColumn]) -> Vec<Self> {
        let parse = |column: &PrinterColumn| {
            Some(PathColumn { path: JsonPath::parse(&column.json_path)?, type_: column.type_.clone() })
        };
        columns.iter().filter_map(parse).collect()
    }

    fn cell(&self, object: Json<'_>, clock: &RowClock) -> Cell {
        let Some(value) = self.path.first(object) else { return Cell::Null };
        let cell = match self.type_.as_str() {
            // Go's templates print `nil` so.
            "string" if !value.exists() => Some(Cell::Text("<no value>".to_owned())),
            "integer" => value.int().map(Cell::Integer),
            "number" => value.float().map(Cell::Number),
            "boolean" => value.bool().map(Cell::Bool),
            "string" => Some(Cell::Text(printed(value))),
            "date" => value.text().map(|_| match value.time() {
                Some(time) => Cell::Text(clock.age(time)),
                None => Cell::Text("<invalid>".to_owned()),
            }),
            _ => None,
        };
        cell.unwrap_or(Cell::Null)
    }
}

/// The text of a value as `JSONPath.PrintResults` writes it (`client-go/util/jsonpath/jsonpath.go`): an object or a list
/// as Go's JSON, any other value as `fmt.Fprint`.
fn printed(value: Json<'_>) -> String {
    if let Some(text) = value.text() {
        return text.into_owned();
    }
    match serde_json::from_slice(value.raw()) {
        Ok(tree @ (Value::Object(_) | Value::Array(_))) => go::json(&tree),
        Ok(scalar) => go::print(&scalar),
        Err(_) => String::from_utf8_lossy(value.raw()).into_owned(),
    }
}

/// The bytes after the last row or item of a LIST.
pub const TAIL: &[u8] = b"]}\n";

/// Writes the Tables of one response or watch, with fixed columns, `includeObject` and version.
pub struct TableView {
    resource: Arc<Resource>,
    cells: Cells,
    /// The JSON of `columnDefinitions`.
    definitions: Vec<u8>,
    include: IncludeObject,
    version: MetaVersion,
    /// Whether the rows show Scales of the resource instead of its objects.
    is_scale: bool,
}

impl std::fmt::Debug for TableView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableView({}, {:?})", self.resource.plural, self.include)
    }
}

impl TableView {
    /// Creates the view of a resource for one response or watch.
    pub fn new(resource: &Arc<Resource>, include: IncludeObject, version: MetaVersion) -> Self {
        let cells = Cells::of(resource);
        let definitions = serde_json::to_vec(&cells.columns(resource)).expect("columns serialize");
        TableView { resource: Arc::clone(resource), cells, definitions, include, version, is_scale: false }
    }

    /// Creates the view of a Scale of a resource. All built-in kinds share one printer, and all custom resources share
    /// the columns of the paths of a Scale.
    pub fn of_scale(resource: &Arc<Resource>, include: IncludeObject, version: MetaVersion) -> Self {
        let (cells, columns): (_, Cow<'static, [Column]>) = if resource.custom {
            let columns = column::custom_scale();
            (Cells::Paths(PathColumn::all(&columns)), Cow::Owned(column::definitions(&columns)))
        } else {
            (Cells::Printer(&printers::SCALE), Cow::Borrowed(printers::SCALE.columns))
        };
        let definitions = serde_json::to_vec(&columns).expect("columns serialize");
        TableView { resource: Arc::clone(resource), cells, definitions, include, version, is_scale: true }
    }

    /// Creates the body of a LIST, with a final newline.
    pub fn list<'a>(&self, objects: impl IntoIterator<Item = &'a [u8]>, meta: &ListMeta, now: OffsetDateTime) -> Bytes {
        let mut out = self.head(meta);
        for (position, object) in objects.into_iter().enumerate() {
            if position > 0 {
                out.put_u8(b',');
            }
            self.write_row(&mut out, object, now);
        }
        out.put_slice(TAIL);
        out.freeze()
    }

    /// Returns the bytes before the first row of a LIST, for callers that stream the rows. Such a caller then appends
    /// each row with [`TableView::write_row`], and finally [`TAIL`].
    pub fn head(&self, meta: &ListMeta) -> BytesMut {
        self.begin(|out| meta.write(out), true)
    }

    /// Creates the body with one object, with a final newline.
    pub fn object(&self, object: &[u8], now: OffsetDateTime) -> Bytes {
        let mut out = self.single(object, true, now);
        out.put_u8(b'\n');
        out.freeze()
    }

    /// Creates the `object` of a watch event or bookmark: a Table with one row, without a newline. Only the `first`
    /// event of a stream has column definitions.
    pub fn event_object(&self, object: &[u8], first: bool, now: OffsetDateTime) -> Bytes {
        self.single(object, first, now).freeze()
    }

    fn single(&self, object: &[u8], headers: bool, now: OffsetDateTime) -> BytesMut {
        let version = Json::new(object).at("metadata.resourceVersion").string();
        let meta = ListMeta { resource_version: version, ..ListMeta::default() };
        let mut out = self.begin(|out| meta.write(out), headers);
        self.write_row(&mut out, object, now);
        out.put_slice(b"]}");
        out
    }

    fn begin(&self, metadata: impl FnOnce(&mut BytesMut), headers: bool) -> BytesMut {
        let mut out = BytesMut::with_capacity(self.definitions.len() + 512);
        out.put_slice(b"{\"kind\":\"Table\",\"apiVersion\":\"");
        out.put_slice(self.version.api_version().as_bytes());
        out.put_slice(b"\",\"metadata\":");
        metadata(&mut out);
        out.put_slice(b",\"columnDefinitions\":");
        out.put_slice(if headers { &self.definitions } else { b"null" });
        out.put_slice(b",\"rows\":[");
        out
    }

    /// Appends the row of an object. `object` is JSON. The caller separates rows by commas.
    pub fn write_row(&self, out: &mut BytesMut, object: &[u8], now: OffsetDateTime) {
        self.write_row_at(out, object, &RowClock::new(now));
    }

    fn write_row_at(&self, out: &mut BytesMut, object: &[u8], clock: &RowClock) {
        let printed = Printed::new(Json::new(object), clock);
        // A Scale is always `autoscaling/v1`.
        let stored = if self.is_scale { Cow::Borrowed(object) } else { printable(&self.resource, object) };
        let cells = match stored {
            // The scan of the object is the most expensive part of a row.
            Cow::Borrowed(_) => self.cells.row(printed),
            Cow::Owned(stored) => self.cells.row(Printed::new(Json::new(&stored), clock)),
        };
        out.put_slice(b"{\"cells\":[");
        for (position, cell) in cells.iter().enumerate() {
            if position > 0 {
                out.put_u8(b',');
            }
            write_cell(out, cell);
        }
        out.put_u8(b']');
        if let Some((reason, message)) = self.completed(printed) {
            let condition = format!(
                r#","conditions":[{{"type":"Completed","status":"True","reason":"{reason}","message":"{message}"}}]"#
            );
            out.put_slice(condition.as_bytes());
        }
        out.put_slice(b",\"object\":");
        match self.include {
            IncludeObject::Object => out.put_slice(object),
            IncludeObject::None if !ends_initial_events(printed) => out.put_slice(b"null"),
            IncludeObject::None | IncludeObject::Metadata => {
                partial::write(out, printed.metadata().raw(), self.version);
            }
        }
        out.put_u8(b'}');
    }

    /// Returns the condition of a completed pod, which clients show in gray.
    fn completed(&self, object: Printed<'_>) -> Option<(&'static str, &'static str)> {
        if !(self.resource.group.is_empty() && self.resource.plural == "pods") {
            return None;
        }
        match object.status().get("phase").text()?.as_ref() {
            "Succeeded" => Some(("Succeeded", "The pod has completed successfully.")),
            "Failed" => Some(("Failed", "The pod failed.")),
            _ => None,
        }
    }
}

/// Whether a bookmark ends the initial events. The annotation of such a bookmark is sent for every `includeObject`.
fn ends_initial_events(object: Printed<'_>) -> bool {
    object.metadata().get("annotations").get("k8s.io/initial-events-end").is("true")
}

fn write_cell(out: &mut BytesMut, cell: &Cell) {
    match cell {
        Cell::Text(text) => write_text(out, text),
        Cell::Integer(number) => out.put_slice(number.to_string().as_bytes()),
        // JSON has no infinite numbers, so they become `null`.
        Cell::Number(number) if number.is_finite() => out.put_slice(number.to_string().as_bytes()),
        Cell::Bool(flag) => out.put_slice(if *flag { b"true" } else { b"false" }),
        Cell::Number(_) | Cell::Null => out.put_slice(b"null"),
    }
}

fn write_text(out: &mut BytesMut, text: &str) {
    serde_json::to_writer(out.writer(), text).expect("a text serializes into memory");
}
