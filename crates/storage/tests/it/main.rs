//! All integration tests of this crate in one program, which is linked once.

mod conformance_notices;
mod embedded;
mod embedded_crash;
mod embedded_full;
mod embedded_upkeep;
#[cfg(feature = "etcd3")]
mod etcd;
mod memory;
mod relocate;
mod transfer;
