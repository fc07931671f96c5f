//! All integration tests of this crate, in one binary to save link time.

mod https;
mod loopback;
