//! All integration tests of this crate in one program, which is linked once.

mod convergence;
mod driver;
mod fake;
mod http;
mod informer;
mod informer_lifecycle;
mod network;
mod reflection;
mod reflector_rules;
mod slow_handlers;
mod views;
