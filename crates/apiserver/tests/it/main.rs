//! All integration tests of this crate in one program, which is linked once.

mod admission;
mod budget;
mod compute;
mod crds;
mod edge;
mod fuzz;
mod parameters;
mod reads;
mod server;
mod streams;
