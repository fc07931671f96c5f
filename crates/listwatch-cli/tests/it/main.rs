//! All integration tests of this crate in one program, which is linked once.

mod storage_cli;
mod watch_cli;
