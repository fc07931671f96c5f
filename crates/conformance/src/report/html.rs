//! The report as one HTML page without scripts or references to other files.

use std::fmt::Write as _;

use super::junit::escape;
use super::{Counts, Outcome, Report, percent};

const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.cells{display:flex;flex-wrap:wrap;gap:2px}
.cells a,.cells span{width:11px;height:11px;border-radius:2px;display:block}
.passed{background:#2e9e5b}.failed{background:#d33}.unsupported{background:#9993}.skipped{background:#c90}
.out{opacity:.55}
details{margin:.4rem 0;border-left:3px solid #d33;padding-left:.8rem}
details.detail{border-color:#c90}
summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.6rem}
.legend span{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 .3rem 0 1rem}
";

impl Report {
    /// The report as one self-contained page.
    pub fn to_html(&self) -> String {
        let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
        let _ = write!(
            out,
            "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Conformance of {}</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>Conformance of {}</h1>\n",
            escape(&self.server),
            escape(&self.server)
        );
        let version = if self.version.is_empty() { "no version reported" } else { &self.version };
        let _ = writeln!(
            out,
            "<p>{}, HTTP: {}, {} cases in {:.1} s. {}</p>",
            escape(version),
            escape(&self.http),
            self.results.len(),
            self.time.as_secs_f64(),
            escape(&self.summary())
        );
        out.push_str(
            "<p class=\"legend\">Each square is a case: <span class=\"passed\"></span>passed \
             <span class=\"failed\"></span>failed <span class=\"unsupported\"></span>unsupported \
             <span class=\"skipped\"></span>skipped</p>\n",
        );
        self.matrix(&mut out);
        self.details(&mut out);
        out.push_str("</body></html>\n");
        out
    }

    fn matrix(&self, out: &mut String) {
        out.push_str(
            "<table><thead><tr><th>capability</th><th class=\"n\">must</th><th class=\"n\">detail</th>\
             <th class=\"n\">score</th><th>cases</th></tr></thead><tbody>\n",
        );
        for row in self.rows() {
            let passed = |counts: Counts| match counts.passed + counts.failed {
                0 => "–".to_owned(),
                judged => format!("{}/{judged}", counts.passed),
            };
            let class = if row.in_profile { "" } else { " class=\"out\" title=\"not in the profile\"" };
            let _ = write!(
                out,
                "<tr{class}><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td><div class=\"cells\">",
                escape(&row.title),
                passed(row.must),
                passed(row.detail),
                percent(row.all())
            );
            for result in self.results.iter().filter(|result| result.capability == row.capability) {
                let (class, id) = (result.outcome.as_str(), escape(&result.id));
                let title = escape(&format!("{}: {}", result.id, result.title));
                let _ = match result.outcome {
                    Outcome::Failed { .. } => write!(out, "<a class=\"{class}\" href=\"#{id}\" title=\"{title}\"></a>"),
                    _ => write!(out, "<span class=\"{class}\" title=\"{title}\"></span>"),
                };
            }
            out.push_str("</div></td></tr>\n");
        }
        out.push_str("</tbody></table>\n");
    }

    fn details(&self, out: &mut String) {
        let failures: Vec<_> = self.failures().collect();
        if failures.is_empty() {
            return;
        }
        let _ = writeln!(out, "<h2>{} failures</h2>", failures.len());
        for result in failures {
            let Outcome::Failed { step, why, exchange } = &result.outcome else { continue };
            let _ = write!(
                out,
                "<details class=\"{}\" id=\"{}\"><summary><b>{}</b> [{}] {}</summary>\n<p>{}<br><i>{}</i></p>\n\
                 <p>Step {}: {}</p>\n",
                result.level.as_str(),
                escape(&result.id),
                escape(&result.id),
                result.level.as_str(),
                escape(&result.title),
                escape(&result.rule),
                escape(&result.source),
                escape(step),
                escape(why)
            );
            if let Some(exchange) = exchange {
                let _ = writeln!(out, "<pre>{}</pre>", escape(exchange));
            }
            out.push_str("</details>\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;

    #[test]
    fn html_report_escapes_text_of_the_server() {
        let page = example().to_html();
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains("&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    }

    #[test]
    fn html_report_references_no_other_file() {
        let page = example().to_html();
        for reference in ["src=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("href=\"#core/b\"") && page.contains("id=\"core/b\""), "{page}");
    }
}
