//! The parts of printers: columns, cells, and lazy access to the JSON of an object.

mod age;
mod cell;
mod column;
mod json;

pub use age::{RowClock, human_duration};
pub use cell::Cell;
pub use column::{AGE, Column, NAME};
pub use json::Json;
