//! Runs the fuzz targets on random bytes with proptest, which needs no nightly compiler. `PROPTEST_CASES=20000` runs
//! more cases.

mod targets;

use proptest::prelude::*;

/// Pieces of objects and patches. Random bytes alone rarely pass the parser.
const WORDS: [&[u8]; 56] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b" ",
    b"- ",
    b"null",
    b"1",
    b"-0.5e9",
    b"\"a\"",
    b"{}",
    b"[]",
    b"a: ",
    b"&x ",
    b"*x",
    b"|\n",
    b"{\"metadata\":{\"name\":\"m\"}",
    b",\"data\":{\"a\":\"b\"}",
    b"metadata: {name: m}\n",
    b"data:\n",
    b"\"metadata\":{",
    b"\"name\":\"d\"",
    b"\"labels\":{\"a\":null}",
    b"\"finalizers\":[\"x.io/y\"]",
    b"\"ownerReferences\":[{\"uid\":\"u\"}]",
    b"\"managedFields\":[{}]",
    b"{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"spec\":{",
    b"apiVersion: apps/v1\nkind: Deployment\n",
    b"{\"spec\":{",
    b"\"replicas\":2",
    b"\"selector\":{\"matchLabels\":{\"a\":\"b\"}}",
    b"\"template\":{\"spec\":{",
    b"\"containers\":[{\"name\":\"c\",",
    b"\"image\":\"j\"",
    b"\"ports\":[{\"containerPort\":81}]",
    b"\"env\":[{\"name\":\"x\",\"$patch\":\"delete\"}]",
    b"\"$patch\":\"replace\"",
    b"\"$retainKeys\":[\"replicas\"]",
    b"\"$setElementOrder/containers\":[{\"name\":\"d\"},{\"name\":\"c\"}]",
    b"\"$deleteFromPrimitiveList/finalizers\":[\"a\"]",
    b"}]}}}}",
    b"}}",
    b"}]",
    b"[{\"op\":\"add\",",
    b"{\"op\":\"remove\",",
    b"{\"op\":\"copy\",\"from\":\"/spec\",",
    b"{\"op\":\"move\",\"from\":\"/spec/replicas\",",
    b"{\"op\":\"test\",",
    b"\"path\":\"/spec/template/spec/containers/-\"",
    b"\"path\":\"/metadata/labels/a~1b\"",
    b",\"value\":{\"name\":\"e\",\"image\":\"i\"}",
    b"},",
    b"\xff",
];

fn input() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(&WORDS[..]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn fuzz_target_does_not_panic_on_random_bodies(input in input()) {
        for (_, target) in targets::ALL {
            target(&input);
        }
    }
}

/// Checks with valid bodies that each target accepts at least one, so that the code after the parser runs.
#[test]
fn fuzz_target_accepts_valid_bodies() {
    for body in [
        r#"{"metadata":{"name":"m"},"data":{"a":"b"}}"#,
        "metadata: {name: m}\ndata: &x {a: b}\n",
        r#"[{"op":"add","path":"/metadata/labels/x","value":"y"}]"#,
        r#"{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"d","$patch":"delete"}]}}}}"#,
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, labels: {c: d}}\n",
    ] {
        targets::ALL.iter().for_each(|(_, target)| target(body.as_bytes()));
    }
}

/// Checks that every target has a file in the fuzzer's folder.
#[test]
fn every_fuzz_target_has_a_fuzzer_file() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("the fuzzer's manifest");
    for (name, _) in targets::ALL {
        let path = format!("fuzz_targets/{name}.rs");
        let file = std::fs::read_to_string(folder.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(file.contains(&format!("targets::{name}(data)")), "{path} runs its target");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "the manifest names {path}");
    }
}
