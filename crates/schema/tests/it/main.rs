//! All integration tests of this crate in one program, which is linked once.

mod definitions;
mod fuzz;
mod hostile;
mod laws;
mod objects;
mod rules;
