//! Runs the fuzzer's targets on random bytes with proptest, without a nightly compiler. For more
//! cases: `PROPTEST_CASES=200000`.

mod targets;

use proptest::prelude::*;

/// Fragments of valid inputs, because random bytes alone rarely pass the first check.
const WORDS: [&[u8]; 62] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\\u00e4",
    b"null",
    b"1",
    b"-0.5e9",
    b"{}",
    b"\"items\":[",
    b"\"metadata\":{",
    b"\"name\":\"a\"",
    b"\"type\":\"ADDED\"",
    b"\"object\":",
    b"\"spec\":",
    b"\"containers\":[{",
    b"\n",
    b" ",
    b"=",
    b"&",
    b"!=",
    b"==",
    b" in (a,b)",
    b" notin (",
    b")",
    b"!a",
    b"a/b",
    b"%20",
    b"%",
    b"watch=1",
    b"resourceVersion=",
    b"resourceVersionMatch=Exact",
    b"limit=",
    b"continue=",
    b"sendInitialEvents=true",
    b"labelSelector=",
    b"fieldSelector=metadata.name%3D",
    b"timeoutSeconds=",
    b"application/json",
    b"*/*",
    b";q=0.5",
    b";as=Table;v=v1;g=meta.k8s.io",
    b"application/vnd.kubernetes.protobuf",
    b"application/cbor",
    b";stream=watch",
    b"\x00\x00\x00\x05",
    b"\x0a\x02",
    b"\x12\x04",
    b"\x08\x01",
    b"\xd9\xd9\xf7",
    b"\xa2\x44type\x45ADDED\x46object\xa0",
    b"\x82",
    b"\xbf\x41a",
    b"\xff",
    b"\xc1\x1a",
    b"\x81\x05Hello",
    b"\x81\x85\x01\x02\x03\x04",
    b"\x88\x02\x03\xe8",
];

fn input() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(&WORDS[..]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_fuzz_target_fails_on_random_input(input in input()) {
        for (_, target) in targets::ALL {
            target(&input);
        }
    }
}

/// Every target has its file in the fuzzer's folder.
#[test]
fn every_target_has_its_fuzzer_file() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("the fuzzer's manifest");
    for (name, _) in targets::ALL {
        let path = format!("fuzz_targets/{name}.rs");
        let file = std::fs::read_to_string(folder.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(file.contains(&format!("targets::{name}(data)")), "{path} runs its target");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "the manifest names {path}");
    }
}
