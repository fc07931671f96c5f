//! All integration tests of this crate in one program, which is linked once.

mod conformance;
mod etcd;
mod fanout;
mod handle;
mod model;
mod overtaken;
mod scenarios;
mod soak;
mod support;
mod transactions;
