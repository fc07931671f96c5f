//! All integration tests of this crate in one program, which is linked once.

mod cases;
mod model;
mod nested;
mod stories;
mod story;
