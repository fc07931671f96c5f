//! All integration tests of this crate in one program, which is linked once.

mod cbor;
mod fuzz;
mod golden;
mod protobuf;
mod websocket;
