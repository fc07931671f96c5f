//! Every integration test of this crate, in one program: it links once.

mod controller;
