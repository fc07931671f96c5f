//! All integration tests of this crate in one program, which is linked once.

mod admission;
mod aggregation;
mod at_rest;
mod budget;
mod compute;
mod crds;
mod edge;
mod fairness;
mod fuel;
mod fuzz;
mod kubelets;
mod nodes;
mod parameters;
mod rbac;
mod reads;
mod second_versions;
mod server;
mod streams;
mod unenforced;
