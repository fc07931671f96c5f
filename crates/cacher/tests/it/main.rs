//! Every integration test of this crate, in one program: it links once.

mod conformance;
mod etcd;
mod fanout;
mod model;
mod overtaken;
mod scenarios;
mod soak;
mod support;
mod transactions;
