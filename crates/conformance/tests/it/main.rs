//! Runs the conformance cases against listwatch, and against deliberately faulty servers.

mod faulty;
mod ours;
mod world;
