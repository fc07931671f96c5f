//! Tests that inspect the internal state of a server while it handles requests.

mod cluster;
mod controllers;
#[cfg(feature = "serve")]
mod issuers;
mod settings;
mod tokens;
