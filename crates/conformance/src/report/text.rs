//! The report as text: a matrix, and the failures.

use std::fmt::Write as _;

use super::{Outcome, Report, percent};
use crate::suite::Level;

impl Report {
    /// The report, formatted for a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let version = if self.version.is_empty() { String::new() } else { format!(" ({})", self.version) };
        let _ = writeln!(out, "{}{version}, HTTP: {}, {:.1} s\n", self.server, self.http, self.time.as_secs_f64());
        let _ = writeln!(
            out,
            "{:<12} {:>7} {:>7} {:>7} {:>8} {:>13} {:>8}",
            "capability", "must", "detail", "failed", "score", "unsupported", "skipped"
        );
        for row in self.rows() {
            let all = row.all();
            let passed = |counts: super::Counts| format!("{}/{}", counts.passed, counts.passed + counts.failed);
            let mark = if row.in_profile { "" } else { "  (not in the profile)" };
            let _ = writeln!(
                out,
                "{:<12} {:>7} {:>7} {:>7} {:>8} {:>13} {:>8}{mark}",
                row.capability,
                passed(row.must),
                passed(row.detail),
                all.failed,
                percent(all),
                all.unsupported,
                all.skipped
            );
        }
        for result in self.failures() {
            let Outcome::Failed { step, why, exchange } = &result.outcome else { continue };
            let _ = writeln!(out, "\nFAILED {} [{}]: {}", result.id, result.level.as_str(), result.title);
            let _ = writeln!(out, "  rule:   {}\n  source: {}", result.rule.replace('\n', " "), result.source);
            let _ = writeln!(out, "  step {step}: {why}");
            for line in exchange.iter().flat_map(|text| text.lines()) {
                let _ = writeln!(out, "  | {line}");
            }
        }
        let _ = writeln!(out, "\n{}", self.summary());
        out
    }

    /// The score in one line.
    pub fn summary(&self) -> String {
        let (must, detail) = (self.counts(Level::Must), self.counts(Level::Detail));
        let verdict = if self.conforms() { "conforms" } else { "does not conform" };
        format!(
            "profile {}: {verdict}; must {} of {}, detail {} of {}, {} unsupported, {} skipped",
            self.profile.id(),
            must.passed,
            must.passed + must.failed,
            detail.passed,
            detail.passed + detail.failed,
            must.unsupported + detail.unsupported,
            must.skipped + detail.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;

    #[test]
    fn text_report_has_the_matrix_the_failures_and_the_verdict() {
        let text = example().to_text();
        assert!(text.contains("core             1/1     0/1       1   50.0 %"), "{text}");
        assert!(text.contains("FAILED core/b [detail]: title of core/b"), "{text}");
        assert!(text.contains("step 2.1: expected <a> & \"b\""), "{text}");
        let end = "profile everything: does not conform; must 1 of 1, detail 0 of 1, 1 unsupported, 1 skipped\n";
        assert!(text.ends_with(end), "{text}");
    }
}
