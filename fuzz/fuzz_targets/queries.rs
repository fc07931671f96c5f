//! `queries`: see `crates/wire/tests/it/fuzz/targets.rs`.
#![no_main]

#[allow(dead_code, reason = "the other targets have files of their own")]
#[path = "../../crates/wire/tests/it/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::queries(data));
