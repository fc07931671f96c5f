//! All integration tests of this crate in one program, which is linked once.

mod index;
mod mutating;
mod params;
mod report;
mod support;
mod type_check;
mod validating;
