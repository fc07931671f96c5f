//! Runs the kit against servers of this process: right ones, and deliberately wrong ones.

mod faulty;
mod ours;
mod world;
