//! The rule `limits`: each number in docs/limits.md equals the constant that its row names.
//!
//! A row of a table on that page ends with the constant, as `path::NAME`, and its second cell is the default. The rule
//! evaluates the constant's expression in the source and compares. An expression may have literals, `+`, `*`, `/`,
//! `<<`, `as`, `Duration::from_secs`, `Duration::from_millis`, and names of constants in the same file. The rule also
//! requires that every bound of the server's crates is on the page. A bound is a constant whose name has the form of
//! one. Bounds are in a table, or in the list of internal bounds, which no client can reach.

use std::collections::BTreeSet;

/// The page that this rule reads.
pub(super) const PAGE: &str = "docs/limits.md";

/// Crates whose bounds a client of the server can meet. Every bound in them has to be on the page.
const CRATES: &[&str] = &[
    "crates/access/",
    "crates/aggregator/",
    "crates/apiserver/",
    "crates/at-rest/",
    "crates/audit/",
    "crates/cel/",
    "crates/controllers/",
    "crates/discovery/",
    "crates/flow-control/",
    "crates/outbound/",
    "crates/policies/",
    "crates/policy-admission/",
    "crates/proxy/",
    "crates/registry/",
    "crates/schema/",
    "crates/table/",
    "crates/webhook-admission/",
    "crates/webhooks/",
    "crates/wire/",
    "crates/write/",
];

/// Parts of paths that the rule ignores: tests, and rules of single fields, which are those of kube-apiserver.
const LEFT_OUT: [&str; 7] =
    ["/tests/", "/tests.rs", "_tests.rs", "/conformance/", "/random.rs", "/rules/", "/printers/"];

/// Returns the complaints about the page, one per line, each with its line number.
///
/// `files` are all files of the tree: path from the root, and text.
pub(super) fn check(page: &str, files: &[(String, String)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut named = BTreeSet::new();
    let mut rows = 0;
    for (number, line) in page.lines().enumerate() {
        let number = number + 1;
        for reference in references(line) {
            let Some((path, name)) = reference.split_once("::") else { continue };
            named.insert((path.to_owned(), name.to_owned()));
            let Some(source) = files.iter().find(|(file, _)| file == path).map(|(_, text)| text.as_str()) else {
                complaints.push(format!("{number}: {path} does not exist"));
                continue;
            };
            let Some(constant) = constant(source, name) else {
                complaints.push(format!("{number}: {path} has no constant {name}"));
                continue;
            };
            if !line.starts_with('|') {
                continue;
            }
            rows += 1;
            let written = line.split('|').nth(2).unwrap_or_default().trim();
            match (quantity(written), constant) {
                (Some(written), Some(value)) if written == value => {}
                (_, Some(value)) => complaints.push(format!(
                    "{number}: says `{written}`, and {name} is {value} (bytes, milliseconds or a count)"
                )),
                (_, None) => complaints.push(format!("{number}: cannot evaluate the expression of {name}")),
            }
        }
    }
    if rows == 0 {
        complaints.push("1: no row of a table names a constant".to_owned());
    }
    for (path, text) in files {
        if !CRATES.iter().any(|folder| path.starts_with(folder)) || !is_production(path) {
            continue;
        }
        let production = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for name in bounds(production) {
            if !named.contains(&(path.clone(), name.to_owned())) {
                complaints.push(format!("1: `{path}::{name}` is a bound, and this page does not list it"));
            }
        }
    }
    complaints
}

/// True for source files whose bounds have to be on the page.
fn is_production(path: &str) -> bool {
    path.ends_with(".rs") && path.contains("/src/") && !LEFT_OUT.iter().any(|part| path.contains(part))
}

/// The constants that a line of the page names, as `path::NAME`.
fn references(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|code| {
        code.starts_with("crates/")
            && code.split_once(".rs::").is_some_and(|(_, name)| {
                !name.is_empty()
                    && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
            })
    })
}

/// Names of the constants in a source whose names mark a bound: `…_MAX`, `…_MIN`, `…_LIMIT…`, `…_TIMEOUT`.
fn bounds(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let (name, _) = declaration(line)?;
        let marks = ["_MAX", "_MIN", "_TIMEOUT"].iter().any(|end| name.ends_with(end)) || name.contains("_LIMIT");
        marks.then_some(name)
    })
}

/// The name and the rest of a line that declares a constant of a numeric type or a duration.
fn declaration(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (name, rest) = line.strip_prefix("const ")?.split_once(':')?;
    let kind = rest.split('=').next()?.trim();
    let numeric = ["usize", "u8", "u16", "u32", "u64", "i32", "i64", "f64", "Duration", "std::time::Duration"];
    numeric.contains(&kind).then_some((name.trim(), rest))
}

/// The value of a constant in bytes, milliseconds or as a count. The outer `None`: there is no such
/// constant; the inner one: its expression is beyond this evaluator.
fn constant(source: &str, name: &str) -> Option<Option<u128>> {
    let mut lines = source.lines();
    let (_, rest) = lines.by_ref().find_map(|line| declaration(line).filter(|(found, _)| *found == name))?;
    let (kind, expression) = rest.split_once('=')?;
    let mut expression = expression.to_owned();
    while !expression.contains(';') {
        let Some(line) = lines.next() else { return Some(None) };
        expression.push_str(line);
    }
    let expression = expression.split(';').next().unwrap_or_default();
    let scale = if kind.contains("Duration") || !name.contains("SECONDS") { 1 } else { 1_000 };
    Some(evaluate(expression.trim(), source).map(|value| value * scale))
}

/// Evaluates an expression by splitting it at its loosest operator.
fn evaluate(expression: &str, source: &str) -> Option<u128> {
    let expression = expression.trim();
    for operator in ["<<", "+", "*", "/"] {
        // From the right, so that the left operand is evaluated first.
        if let Some((left, right)) = split_outside_parentheses(expression, operator) {
            let (left, right) = (evaluate(left, source)?, evaluate(right, source)?);
            return match operator {
                "<<" => left.checked_shl(u32::try_from(right).ok()?),
                "+" => left.checked_add(right),
                "*" => left.checked_mul(right),
                _ => left.checked_div(right),
            };
        }
    }
    if let Some((value, _)) = expression.split_once(" as ") {
        return evaluate(value, source);
    }
    for (call, scale) in [("Duration::from_secs(", 1_000), ("Duration::from_millis(", 1)] {
        if let Some(argument) = expression.trim_start_matches("std::time::").strip_prefix(call) {
            return evaluate(argument.strip_suffix(')')?, source)?.checked_mul(scale);
        }
    }
    if let Some(inner) = expression.strip_prefix('(') {
        return evaluate(inner.strip_suffix(')')?, source);
    }
    match expression {
        "u16::MAX" => return Some(u16::MAX.into()),
        "i32::MAX" => return Some(i32::MAX as u128),
        "u32::MAX" => return Some(u32::MAX.into()),
        _ => {}
    }
    let digits = expression.replace('_', "");
    if let Ok(number) = digits.parse() {
        return Some(number);
    }
    let is_name = expression.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    if is_name && !expression.is_empty() { constant(source, expression)? } else { None }
}

fn split_outside_parentheses<'a>(expression: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
    let mut depth = 0;
    for at in (0..expression.len()).rev() {
        match expression.as_bytes()[at] {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ if depth == 0 && expression[at..].starts_with(operator) => {
                return Some((&expression[..at], &expression[at + operator.len()..]));
            }
            _ => {}
        }
    }
    None
}

/// A number as the page writes it: `3 MiB`, `60 s`, `1,000`, `10,000 levels`. Bytes, milliseconds or a count.
fn quantity(text: &str) -> Option<u128> {
    let mut words = text.split_whitespace();
    let number: u128 = words.next()?.replace(',', "").parse().ok()?;
    let scale = match words.next().unwrap_or_default() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "days" => 86_400_000,
        _ => 1,
    };
    number.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
pub(crate) const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
const SHIFTED_MAX: usize = 3 << 19;
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE_MIN: std::time::Duration = std::time::Duration::from_millis(20);
pub const YEAR_SECONDS_MAX: u64 = 365 * 24 * 3600;
const SUM_MAX: usize = 253 + 63 +
    SHIFTED_MAX;
const KEY_BYTES_MAX: usize = u16::MAX as usize;
const NAME: &str = \"_MAX\";
#[cfg(test)]
mod tests {
    const IN_TESTS_MAX: usize = 1;
}
";

    fn complaints(page: &str) -> Vec<String> {
        check(page, &[("crates/wire/src/a.rs".to_owned(), SOURCE.to_owned())])
    }

    fn row(value: &str, name: &str) -> String {
        format!("| what | {value} | – | text | `crates/wire/src/a.rs::{name}` |\n")
    }

    fn all_rows() -> String {
        [
            ("3 MiB", "BODY_BYTES_MAX"),
            ("1,572,864 bytes", "SHIFTED_MAX"),
            ("60 s", "WAIT_TIMEOUT"),
            ("20 ms", "PAUSE_MIN"),
            ("365 days", "YEAR_SECONDS_MAX"),
            ("1573180", "SUM_MAX"),
            ("65535", "KEY_BYTES_MAX"),
        ]
        .map(|(value, name)| row(value, name))
        .concat()
    }

    #[test]
    fn limits_page_with_equal_numbers_passes() {
        assert_eq!(complaints(&all_rows()), Vec::<String>::new());
    }

    #[test]
    fn limits_page_with_another_number_is_rejected() {
        let page = all_rows().replace("60 s", "61 s");
        assert_eq!(complaints(&page), ["3: says `61 s`, and WAIT_TIMEOUT is 60000 (bytes, milliseconds or a count)"]);
    }

    #[test]
    fn limits_page_without_a_bound_of_the_source_is_rejected() {
        let page = all_rows().replace(&row("20 ms", "PAUSE_MIN"), "");
        assert_eq!(
            complaints(&page),
            ["1: `crates/wire/src/a.rs::PAUSE_MIN` is a bound, and this page does not list it"]
        );
        let listed = format!("{page}\n- `crates/wire/src/a.rs::PAUSE_MIN`: pause between two tries.\n");
        assert_eq!(complaints(&listed), Vec::<String>::new());
    }

    #[test]
    fn limits_page_that_names_a_missing_constant_is_rejected() {
        let page = format!("{}{}", all_rows(), row("1", "GONE_MAX"));
        assert_eq!(complaints(&page), ["8: crates/wire/src/a.rs has no constant GONE_MAX"]);
    }
}
