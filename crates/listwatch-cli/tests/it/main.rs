//! All integration tests of this crate in one program, which is linked once.

mod kube_apiserver_cli;
mod serve_cli;
mod storage_cli;
mod watch_cli;
