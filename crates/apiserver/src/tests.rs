//! Tests that inspect the internal state of a server while it handles requests.

mod controllers;
mod settings;
mod tokens;
