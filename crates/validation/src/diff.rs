//! A unified diff of the lines of two values, for errors (`apimachinery/pkg/util/diff`).

use std::ops::Range;

use listwatch_json::Value;
use serde::Serialize as _;

/// The number of unchanged lines around a difference.
const CONTEXT_LINES: usize = 3;
/// The largest number of differing lines of either version for which the shortest diff is computed.
/// More lines are shown as one replacement.
const ALIGNED_LINES_MAX: usize = 200;
/// The maximum size of a diff, in bytes. A longer diff is truncated.
const DIFF_BYTES_MAX: usize = 16 * 1024;

/// The lines of a value in Go's indented JSON.
fn lines(value: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    // JSON values always serialize.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter));
    String::from_utf8_lossy(&out).lines().map(str::to_owned).collect()
}

/// A range of old lines that a range of new lines replaces.
type Change = (Range<usize>, Range<usize>);

fn changes(old: &[String], new: &[String]) -> Vec<Change> {
    let begin = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - begin;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(old, new)| old == new).count();
    let (a, b) = (begin..old.len() - end, begin..new.len() - end);
    if a.is_empty() && b.is_empty() {
        return Vec::new();
    }
    if a.len() > ALIGNED_LINES_MAX || b.len() > ALIGNED_LINES_MAX {
        return vec![(a, b)];
    }
    // The longest common subsequence of the differing part.
    let (a_lines, b_lines) = (&old[a.clone()], &new[b.clone()]);
    let width = b_lines.len() + 1;
    let mut lengths = vec![0u16; (a_lines.len() + 1) * width];
    for i in (0..a_lines.len()).rev() {
        for j in (0..b_lines.len()).rev() {
            lengths[i * width + j] = if a_lines[i] == b_lines[j] {
                lengths[(i + 1) * width + j + 1] + 1
            } else {
                lengths[(i + 1) * width + j].max(lengths[i * width + j + 1])
            };
        }
    }
    let mut found: Vec<Change> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a_lines.len() || j < b_lines.len() {
        if i < a_lines.len() && j < b_lines.len() && a_lines[i] == b_lines[j] {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let (from_i, from_j) = (i, j);
        while i < a_lines.len() || j < b_lines.len() {
            if i < a_lines.len() && j < b_lines.len() && a_lines[i] == b_lines[j] {
                break;
            }
            let drops =
                i < a_lines.len() && (j == b_lines.len() || lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]);
            if drops { i += 1 } else { j += 1 }
        }
        found.push((begin + from_i..begin + i, begin + from_j..begin + j));
    }
    found
}

/// Returns the unified diff of two values.
pub fn unified(old: &Value, new: &Value) -> String {
    let (old, new) = (lines(old), lines(new));
    let mut hunks: Vec<Vec<Change>> = Vec::new();
    for change in changes(&old, &new) {
        match hunks.last_mut() {
            Some(hunk) if hunk.last().is_some_and(|last| change.0.start - last.0.end <= 2 * CONTEXT_LINES) => {
                hunk.push(change);
            }
            _ => hunks.push(vec![change]),
        }
    }
    let mut out = String::new();
    for hunk in hunks {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let before = CONTEXT_LINES.min(first.0.start);
        let after = CONTEXT_LINES.min(old.len() - last.0.end);
        let header = |start: usize, end: usize| match end - start {
            1 => format!("{}", start + 1),
            0 => format!("{start},0"),
            length => format!("{},{length}", start + 1),
        };
        let old_range = header(first.0.start - before, last.0.end + after);
        let new_range = header(first.1.start - before, last.1.end + after);
        out.push_str(&format!("@@ -{old_range} +{new_range} @@\n"));
        let mut shown = |sign: char, lines: &[String]| {
            for line in lines {
                out.push(sign);
                out.push_str(line);
                out.push('\n');
            }
        };
        let mut at = first.0.start - before;
        for (removed, added) in &hunk {
            shown(' ', &old[at..removed.start]);
            shown('-', &old[removed.clone()]);
            shown('+', &new[added.clone()]);
            at = removed.end;
        }
        shown(' ', &old[at..at + after]);
        if out.len() > DIFF_BYTES_MAX {
            let mut end = DIFF_BYTES_MAX;
            while !out.is_char_boundary(end) {
                end -= 1;
            }
            out.truncate(end);
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn unified_diff_has_three_lines_of_context() {
        let value = |a: i64, z: i64| json!({"a": a, "b": 0, "c": 0, "d": 0, "e": 0, "f": 0, "g": 0, "h": 0, "z": z});
        assert_eq!(unified(&value(1, 1), &value(1, 1)), "");
        let first = "@@ -1,5 +1,5 @@\n {\n- \"a\": 1,\n+ \"a\": 2,\n  \"b\": 0,\n  \"c\": 0,\n  \"d\": 0,\n";
        assert_eq!(unified(&value(1, 1), &value(2, 1)), first);
        let both = unified(&value(1, 1), &value(2, 2));
        assert_eq!(both.matches("@@ -").count(), 2, "{both}");
        let long = |text: &str| Value::from((0..5_000).map(|at| format!("{text}{at}")).collect::<Vec<_>>());
        assert!(unified(&long("a"), &long("b")).len() <= DIFF_BYTES_MAX);
    }
}
