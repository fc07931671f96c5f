//! Every integration test of this crate, in one program: it links once.

mod cbor;
mod fuzz;
mod golden;
mod protobuf;
mod websocket;
