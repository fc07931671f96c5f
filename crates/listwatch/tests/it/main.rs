//! All integration tests of this crate in one program, which is linked once.

mod examples;
mod informer_examples;
mod informers;
mod kube_apply;
mod kube_controller;
