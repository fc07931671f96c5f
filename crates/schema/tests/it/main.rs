//! Every integration test of this crate, in one program: it links once.

mod definitions;
mod fuzz;
mod hostile;
mod laws;
mod objects;
mod rules;
