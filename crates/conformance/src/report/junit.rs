//! The report as JUnit XML, which CI systems read: one test suite per capability.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Outcome, Report};

impl Report {
    /// The report as JUnit XML. Unsupported and skipped cases are `skipped` there.
    pub fn to_junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let (all, failed) = (self.results.len(), self.failures().count());
        let _ = writeln!(
            out,
            "<testsuites name=\"listwatch conformance\" tests=\"{all}\" failures=\"{failed}\" time=\"{:.3}\">",
            self.time.as_secs_f64()
        );
        for row in self.rows() {
            let results: Vec<_> = self.results.iter().filter(|result| result.capability == row.capability).collect();
            let counts = row.all();
            let time: Duration = results.iter().map(|result| result.time).sum();
            let _ = writeln!(
                out,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">",
                escape(&row.capability),
                counts.total(),
                counts.failed,
                counts.unsupported + counts.skipped,
                time.as_secs_f64()
            );
            for result in results {
                let _ = write!(
                    out,
                    "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                    escape(&result.capability),
                    escape(&format!("{}: {}", result.id, result.title)),
                    result.time.as_secs_f64()
                );
                match &result.outcome {
                    Outcome::Passed => out.push_str("/>\n"),
                    Outcome::Failed { step, why, exchange } => {
                        let text = format!("step {step}: {why}");
                        let detail = format!(
                            "{text}\nrule: {}\nsource: {}\n{}",
                            result.rule,
                            result.source,
                            exchange.as_deref().unwrap_or_default()
                        );
                        let _ = writeln!(
                            out,
                            "><failure type=\"{}\" message=\"{}\">{}</failure></testcase>",
                            result.level.as_str(),
                            escape(&text),
                            escape(&detail)
                        );
                    }
                    Outcome::Unsupported { why } | Outcome::Skipped { why } => {
                        let text = format!("{}: {why}", result.outcome.as_str());
                        let _ = writeln!(out, "><skipped message=\"{}\"/></testcase>", escape(&text));
                    }
                }
            }
            out.push_str("  </testsuite>\n");
        }
        out.push_str("</testsuites>\n");
        out
    }
}

/// Escapes a text for XML 1.0 and HTML. Characters that XML forbids become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            '\t' => out.push('\t'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control < ' ' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::escape;

    #[test]
    fn junit_report_escapes_markup_and_forbidden_characters() {
        assert_eq!(escape("<a b='\"'>&\u{0}\u{1b}\r\n"), "&lt;a b=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}\u{fffd}\n");
    }

    #[test]
    fn junit_report_counts_failures_and_skipped_cases() {
        let xml = example().to_junit();
        assert!(xml.contains("<testsuite name=\"core\" tests=\"2\" failures=\"1\" skipped=\"0\""), "{xml}");
        assert!(xml.contains("<skipped message=\"unsupported: the server answers with 406\"/>"), "{xml}");
        assert!(xml.contains("message=\"step 2.1: expected &lt;a&gt; &amp; &quot;b&quot;\""), "{xml}");
        assert!(!xml.contains("<script>") && !xml.contains('\u{1}'), "{xml}");
    }
}
