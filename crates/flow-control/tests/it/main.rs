//! The controller with its levels, from the outside.

mod bootstrap;
mod borrowing;
mod classification;
mod levels;
mod objects;
