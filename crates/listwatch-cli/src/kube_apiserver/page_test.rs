//! Compares `docs/drop-in.md` with the table of flags.

use std::fmt::Write as _;

use super::flags::{FLAGS, Flag, Support};

const PAGE: &str = include_str!("../../../../docs/drop-in.md");
/// The first lines of the table. The table extends to the end of the page.
const HEADER: &str = "| flag | default | here | effect |\n|---|---|---|---|\n";

fn row(flag: &Flag) -> String {
    let default = if flag.default.is_empty() { "–".to_owned() } else { format!("`{}`", flag.default) };
    let unless = |values: &[&str]| match values {
        [] => String::new(),
        values => format!(", unless `{}`", values.join("`, `")),
    };
    let here = match flag.support {
        Support::Honored => "honored".to_owned(),
        Support::Ignored(values) => format!("ignored{}", unless(values)),
        Support::Unenforced(values) => format!("**not enforced**{}", unless(values)),
        Support::Refused => "**refused**".to_owned(),
    };
    format!("| `--{}` | {default} | {here} | {} |\n", flag.name, flag.note)
}

#[test]
fn flag_page_has_the_flag_table_of_the_program() {
    let mut expected = HEADER.to_owned();
    FLAGS.iter().for_each(|flag| expected.push_str(&row(flag)));
    let at = PAGE.find(HEADER).expect("docs/drop-in.md has a table of flags");
    let found = &PAGE[at..];
    let mut differences = String::new();
    for line in expected.lines().filter(|line| !found.lines().any(|found| found == *line)) {
        let _ = writeln!(differences, "missing: {line}");
    }
    for line in found.lines().filter(|line| !expected.lines().any(|expected| expected == *line)) {
        let _ = writeln!(differences, "too much: {line}");
    }
    assert!(differences.is_empty(), "docs/drop-in.md and flags.rs differ:\n{differences}");
    assert_eq!(found, expected, "the rows of docs/drop-in.md are in the order of flags.rs");
}

#[test]
fn flag_page_states_the_number_of_flags() {
    let count = |is: fn(&Support) -> bool| FLAGS.iter().filter(|flag| is(&flag.support)).count();
    let sentence = format!(
        "Of the {} flags of kube-apiserver 1.36, {} are honored, {} are ignored with a warning, {} are not enforced and {} is refused.",
        FLAGS.len(),
        count(|support| matches!(support, Support::Honored)),
        count(|support| matches!(support, Support::Ignored(_))),
        count(|support| matches!(support, Support::Unenforced(_))),
        count(|support| matches!(support, Support::Refused)),
    );
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&sentence), "docs/drop-in.md lacks: {sentence}");
}
