//! The parts of printers: columns, cells, and lazy access to the JSON of an object.

mod age;
mod cell;
mod column;
mod json;

pub use age::{human_duration, since};
pub use cell::Cell;
pub use column::{AGE, Column, NAME};
pub use json::Json;
