//! What printers are made of: columns, cells, and access to an object's bytes.

mod age;
mod cell;
mod column;
mod json;
mod printer_column;

pub use age::{human_duration, since};
pub use cell::Cell;
pub use column::{AGE, Column, NAME};
pub use json::Json;
pub use printer_column::PrinterColumn;
