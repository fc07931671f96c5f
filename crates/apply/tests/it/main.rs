//! Every integration test of this crate, in one program: it links once.

mod cases;
mod model;
mod nested;
mod stories;
mod story;
