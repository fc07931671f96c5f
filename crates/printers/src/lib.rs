//! The Table columns of built-in kinds, and the cells of an object: what `kubectl get` shows.
//!
//! A [`Printer`] has the columns of a kind and the function that returns the cells of a row. [`Json`] reads fields from the
//! bytes of an object without a tree. A row always has the cells of wide columns. If a stored object lacks a field that has
//! a default, the cell shows the default.
//!
//! Source: `pkg/printers/internalversion/printers.go` of Kubernetes v1.36.
//!
//! # Example
//! ```
//! use listwatch_printers::{Cell, Json, NAME_AND_AGE, Printed, RowClock};
//!
//! let object = br#"{"metadata":{"name":"a","creationTimestamp":"2026-01-01T00:00:00Z"}}"#;
//! let clock = RowClock::new(time::macros::datetime!(2026-01-01 00:05 UTC));
//! let cells = (NAME_AND_AGE.cells)(Printed::new(Json::new(object), &clock));
//! assert_eq!(cells, [Cell::from("a"), Cell::from("5m")]);
//! ```
#![forbid(unsafe_code)]

mod age;
mod cell;
mod column;
mod json;
pub mod text;
pub mod workload;

pub use crate::age::{RowClock, human_duration};
pub use crate::cell::Cell;
pub use crate::column::{AGE, Column, NAME};
pub use crate::json::Json;

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
    created: Json<'a>,
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
    pub fn get(self, key: &str) -> Json<'a> {
        self.object.get(key)
    }

    /// The value at a dotted path.
    pub fn at(self, path: &str) -> Json<'a> {
        match path.split_once('.') {
            Some(("metadata", rest)) => self.metadata.at(rest),
            Some(("spec", rest)) => self.spec.at(rest),
            Some(("status", rest)) => self.status.at(rest),
            _ => self.object.at(path),
        }
    }

    /// The spec.
    pub fn spec(self) -> Json<'a> {
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

    /// The value of an annotation.
    pub fn annotation(self, name: &str) -> Json<'a> {
        self.metadata.get("annotations").get(name)
    }

    /// Whether the object has a deletion timestamp.
    pub fn is_being_deleted(self) -> bool {
        self.deleted.exists()
    }

    /// The time since the creation, as `kubectl` prints ages.
    pub fn age(self) -> String {
        self.since(self.created)
    }

    /// The time since `time`, as `kubectl` prints ages; `<unknown>` for an absent or invalid time.
    pub fn since(self, time: Json<'_>) -> String {
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

/// The printer of a Scale of a built-in kind (`printScale`). The column of names has no format.
pub static SCALE: Printer = Printer {
    columns: &[
        Column::text("Name", "The name of the object, unique among its kind in its namespace."),
        workload::DESIRED,
        Column::integer("Available", "How many pods there are."),
        AGE,
    ],
    cells: |scale| {
        let count = |replicas: Json<'_>| Cell::from(replicas.get("replicas").int().unwrap_or(0));
        vec![scale.name().into(), count(scale.spec()), count(scale.status()), scale.age().into()]
    },
};

/// The printer of kinds with the columns NAME and AGE only.
pub static NAME_AND_AGE: Printer =
    Printer { columns: &[NAME, AGE], cells: |object| vec![object.name().into(), object.age().into()] };
