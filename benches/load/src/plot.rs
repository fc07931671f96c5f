//! Draws bar charts as SVG: one chart per table, one bar per row.

use std::fmt::Write as _;

use crate::report::Report;

const WIDTH: usize = 900;
const LABEL_WIDTH: usize = 380;
const VALUE_WIDTH: usize = 90;
const BAR_HEIGHT: usize = 16;
const GAP: usize = 4;
const TITLE_HEIGHT: usize = 40;

/// The whole document.
pub(crate) fn svg(report: &Report) -> String {
    let charts = report.bars();
    let height: usize =
        charts.iter().map(|(_, bars)| TITLE_HEIGHT + bars.len() * (BAR_HEIGHT + GAP)).sum::<usize>() + 2 * GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut y = 0;
    for (title, bars) in charts {
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{}</text>",
            y + TITLE_HEIGHT - 14,
            escaped(&title)
        );
        y += TITLE_HEIGHT;
        let most = bars.iter().map(|(.., value)| *value).fold(f64::MIN_POSITIVE, f64::max);
        for (label, server, value) in bars {
            let width = (value / most * (WIDTH - LABEL_WIDTH - VALUE_WIDTH) as f64).max(1.0);
            let (text_y, x) = (y + BAR_HEIGHT - 4, LABEL_WIDTH);
            let name = escaped(&if label.is_empty() { server.clone() } else { format!("{label} · {server}") });
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>", x - 8);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{}\"/>",
                color(&server)
            );
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{text_y}\">{value:.2}</text>", x as f64 + width + 6.0);
            y += BAR_HEIGHT + GAP;
        }
    }
    svg + "</svg>\n"
}

/// Floors are gray, listwatch is blue, other servers are orange.
fn color(server: &str) -> &'static str {
    match server {
        _ if server.starts_with("floor") => "#b0b0b0",
        _ if server.starts_with("listwatch") => "#3465a4",
        _ => "#e08030",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_bars_are_proportional_to_the_largest_value() {
        let mut report = Report::new();
        for (server, value) in [("listwatch", 2.0), ("floor", 1.0), ("a < b", 0.5)] {
            report.add("T", &[], server, &[vec![("cpu_us_per_delivery", value)]]);
        }
        let svg = svg(&report);
        for expected in ["width=\"430.0\"", "width=\"215.0\"", "width=\"107.5\"", "a &lt; b", "T: CPU µs/event"] {
            assert!(svg.contains(expected), "{expected} in {svg}");
        }
        assert_eq!(svg.matches("<text").count(), 1 + 2 * 3);
    }
}
