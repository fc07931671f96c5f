//! Every integration test of this crate, in one program: it links once.

mod conformance_notices;
mod embedded;
mod embedded_crash;
mod embedded_full;
mod embedded_upkeep;
#[cfg(all(feature = "etcd3", feature = "conformance"))]
mod etcd;
mod memory;
mod transfer;
