//! [`Printer`]: the Table columns of a built-in kind, and the cells of an object.
//!
//! A row always has the cells of wide columns. If a stored object lacks a field that has a default, the cell shows the
//! default.
//!
//! Source: `pkg/printers/internalversion/printers.go` of Kubernetes v1.36.

pub(crate) mod text;
pub(crate) mod workload;

use crate::table::{AGE, Cell, Column, Json, NAME, RowClock};

/// The Table columns and cells of a kind.
pub struct Printer {
    /// The columns, in order.
    pub columns: &'static [Column],
    /// Returns the cells of a row, one for each column.
    pub cells: fn(Printed<'_>) -> Vec<Cell>,
}

/// An object whose row is printed. One pass finds `metadata`, `spec` and `status`, and one pass the members of
/// `metadata` that every row needs.
#[derive(Clone, Copy)]
pub struct Printed<'a> {
    object: Json<'a>,
    metadata: Json<'a>,
    name: Json<'a>,
    pub(crate) created: Json<'a>,
    deleted: Json<'a>,
    spec: Json<'a>,
    status: Json<'a>,
    clock: &'a RowClock,
}

impl<'a> Printed<'a> {
    /// Scans an object. `clock` prints its ages.
    pub fn new(object: Json<'a>, clock: &'a RowClock) -> Self {
        let [metadata, spec, status] = object.get_all(["metadata", "spec", "status"]);
        let [name, created, deleted] = metadata.get_all(["name", "creationTimestamp", "deletionTimestamp"]);
        Printed { object, metadata, name, created, deleted, spec, status, clock }
    }

    /// The whole object.
    pub fn object(self) -> Json<'a> {
        self.object
    }

    /// The metadata.
    pub fn metadata(self) -> Json<'a> {
        self.metadata
    }

    /// Returns a top-level member. [`Printed::metadata`], [`Printed::spec`] and [`Printed::status`] are faster for
    /// these three members.
    pub(crate) fn get(self, key: &str) -> Json<'a> {
        self.object.get(key)
    }

    /// The value at a dotted path.
    pub(crate) fn at(self, path: &str) -> Json<'a> {
        match path.split_once('.') {
            Some(("metadata", rest)) => self.metadata.at(rest),
            Some(("spec", rest)) => self.spec.at(rest),
            Some(("status", rest)) => self.status.at(rest),
            _ => self.object.at(path),
        }
    }

    pub(crate) fn spec(self) -> Json<'a> {
        self.spec
    }

    /// The status.
    pub fn status(self) -> Json<'a> {
        self.status
    }

    /// The name of the object.
    pub fn name(self) -> String {
        self.name.string()
    }

    pub(crate) fn annotation(self, name: &str) -> Json<'a> {
        self.metadata.get("annotations").get(name)
    }

    pub(crate) fn is_being_deleted(self) -> bool {
        self.deleted.exists()
    }

    pub(crate) fn age(self) -> String {
        self.since(self.created)
    }

    pub(crate) fn since(self, time: Json<'_>) -> String {
        self.clock.age_or_unknown(time.time())
    }

    /// The clock that prints ages.
    pub fn clock(self) -> &'a RowClock {
        self.clock
    }
}

/// The printer of kinds that define no printer (`rest.NewDefaultTableConvertor`).
pub static DEFAULT: Printer = Printer {
    columns: &[NAME, Column::date("Created At", "When the object was created, RFC 3339.")],
    cells: |object| vec![object.name().into(), object.created.string().into()],
};

pub(crate) static NAME_AND_AGE: Printer =
    Printer { columns: &[NAME, AGE], cells: |object| vec![object.name().into(), object.age().into()] };
