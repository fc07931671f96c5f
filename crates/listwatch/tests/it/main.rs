//! Every integration test of this crate, in one program: it links once.

mod examples;
mod informer_examples;
mod informers;
mod kube_apply;
mod kube_controller;
