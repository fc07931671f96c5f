//! Runs the fuzz targets on random text with proptest, without a nightly compiler. More cases:
//! `PROPTEST_CASES=200000`.

mod targets;

use proptest::prelude::*;

/// Tokens of rules, because random bytes rarely form an expression.
const WORDS: [&str; 64] = [
    "self",
    "oldSelf",
    ".s",
    ".l",
    ".m",
    ".i",
    ".d",
    ".t",
    ".b",
    ".q",
    ".x",
    "[0]",
    "['k']",
    "[?0]",
    ".?a",
    "x",
    "1",
    "-1",
    "2u",
    "0.5",
    "'a'",
    "b'a'",
    "true",
    "null",
    "[1,2]",
    "[]",
    "{'a':1}",
    " == ",
    " != ",
    " < ",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " && ",
    " || ",
    " in ",
    " ? ",
    " : ",
    "!",
    "(",
    ")",
    ".all(x, ",
    ".exists(x, ",
    ".exists_one(x, ",
    ".map(x, ",
    ".filter(x, ",
    ".transformList(i, x, ",
    "has(self.s)",
    "size(",
    ".size()",
    ".startsWith(",
    ".matches('^a+$')",
    ".split('')",
    ".join(",
    ".substring(",
    ".replace('a', 'bb')",
    "'%s'.format([self])",
    "quantity('1Gi')",
    "url('https://a/b?c=d').getQuery()",
    "duration('1s')",
    ".getHours('UTC')",
    "\n{\"s\":\"x\"}",
];

fn input() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        9 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_fuzz_target_fails_on_random_rules(input in input()) {
        for (_, target) in targets::ALL {
            target(input.as_bytes());
        }
    }
}

/// The folder `fuzz/` has a file for every target.
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
