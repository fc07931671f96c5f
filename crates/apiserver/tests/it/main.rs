//! Every integration test of this crate, in one program: it links once.

mod budget;
mod compute;
mod crds;
mod edge;
mod fuzz;
mod parameters;
mod reads;
mod server;
mod streams;
