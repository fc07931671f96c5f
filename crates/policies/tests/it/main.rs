//! All integration tests of this crate, in one binary to save link time.

mod index;
mod mutating;
mod params;
mod report;
mod support;
mod type_check;
mod validating;
