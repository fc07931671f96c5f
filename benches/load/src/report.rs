//! Collects figures ([`Report`]), prints them as tables, writes them as JSON, and converts such
//! JSON to the tables and plots of the documentation.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Outcome;

/// The figures of one row on one server, in the order of the columns.
pub(crate) type Metrics = Vec<(&'static str, f64)>;

/// The headings of the columns and their numbers of decimals, by the metric's name in JSON.
const HEADINGS: &[(&str, &str, usize)] = &[
    ("cpu_us_per_delivery", "CPU µs/event", 2),
    ("cpu_us_per_write", "CPU µs/write", 0),
    ("cpu_us_per_request", "CPU µs/request", 0),
    ("cpu_ms_per_mb", "CPU ms/MB", 2),
    ("deliveries_per_s", "events/s", 0),
    ("writes_per_s", "writes/s", 0),
    ("requests", "requests", 0),
    ("share_percent", "% of requests", 1),
    ("events", "events", 0),
    ("requests_per_s", "requests/s", 0),
    ("mb_per_s", "MB/s", 0),
    ("mb_per_answer", "MB/answer", 2),
    ("ack_p50_ms", "ack→receipt p50 ms", 2),
    ("ack_p99_ms", "p99 ms", 2),
    ("start_p50_ms", "start→receipt p50 ms", 2),
    ("start_p99_ms", "p99 ms", 2),
    ("status_p50_ms", "status PATCH p50 ms", 2),
    ("status_p99_ms", "p99 ms", 2),
    ("create_p50_ms", "pod POST p50 ms", 2),
    ("create_p99_ms", "p99 ms", 2),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("max_ms", "longest ms", 2),
    ("lists_per_s", "lists/s", 0),
    ("rejected_per_s", "429/s", 0),
    ("seconds", "s until all are in sync", 2),
    ("bytes_per_event", "bytes/event", 0),
    ("ready_ms", "ready after ms", 1),
    ("ready_rss_mib", "RSS then MiB", 1),
    ("idle_rss_mib", "RSS idle MiB", 1),
    ("listed_ms", "listed after ms", 1),
    ("cpu_s", "CPU s", 2),
    ("cpu_share", "cores", 2),
    ("kib_per_watcher", "KiB/watcher", 1),
    ("established_s", "established after s", 1),
    ("cpu_ms_per_definition", "CPU ms/definition", 2),
    ("kib_per_definition", "KiB/definition", 1),
    ("definition_kib", "KiB as JSON", 1),
    ("discovery_ms", "discovery ms", 0),
    ("openapi_v3_ms", "OpenAPI v3 ms", 0),
    ("openapi_v2_ms", "OpenAPI v2 ms", 0),
    ("rss_before_mib", "RSS before MiB", 1),
    ("rss_mib", "RSS MiB", 1),
    ("peak_rss_mib", "peak RSS MiB", 1),
    ("lost", "lost", 0),
    ("duplicate", "twice", 0),
    ("misordered", "misordered", 0),
];

/// These metrics are summed over the rounds; for all others the median is used.
const SUMS: [&str; 3] = ["lost", "duplicate", "misordered"];

/// The figures of one run of the program.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// A title, and bars with label, server and value.
pub(crate) type Chart = (String, Vec<(String, String, f64)>);

/// One line of a table.
#[derive(Clone, Debug)]
struct Row {
    table: String,
    parameters: Vec<(String, String)>,
    server: String,
    metrics: Vec<(String, f64)>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Report { rows: Vec::new() }
    }

    /// Adds the figures of the rounds of one row on one server.
    pub(crate) fn add(&mut self, table: &str, parameters: &[(&str, String)], server: &str, rounds: &[Metrics]) {
        let metrics = combined(rounds).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        self.rows.push(Row { table: table.to_owned(), parameters, server: server.to_owned(), metrics });
    }

    /// Appends the rows of another run.
    pub(crate) fn append(&mut self, other: Report) {
        self.rows.extend(other.rows);
    }

    /// One metric of all rows that have it, with their servers.
    pub(crate) fn values(&self, metric: &str) -> Vec<(String, f64)> {
        let value = |row: &Row| row.metrics.iter().find(|(name, _)| name == metric).map(|(_, value)| *value);
        self.rows.iter().filter_map(|row| Some((row.server.clone(), value(row)?))).collect()
    }

    /// Keeps only these metrics; all if none is named.
    pub(crate) fn only(mut self, metrics: &[String]) -> Self {
        for row in &mut self.rows {
            row.metrics.retain(|(name, _)| metrics.is_empty() || metrics.contains(name));
        }
        self
    }

    /// True if any watcher missed an event, or received one twice or in the wrong order.
    pub(crate) fn broken(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.metrics).any(|(name, value)| SUMS.contains(&name.as_str()) && *value > 0.0)
    }

    /// Formats the tables, one per kind of load.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let mut tables: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !tables.contains(&row.table.as_str()) {
                tables.push(&row.table);
            }
        }
        for table in tables {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.table == table).collect();
            let _ = writeln!(text, "\n### {table}\n");
            write_table(&mut text, &rows);
        }
        text
    }

    /// Formats the figures as JSON, with a description of the machine.
    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let parameters: Map<_, _> =
                    row.parameters.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
                let metrics: Map<_, _> = row.metrics.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
                json!({"table": row.table, "parameters": parameters, "server": row.server, "metrics": metrics})
            })
            .collect();
        json!({"machine": machine(), "rows": rows})
    }

    /// Reads files of [`Report::json`]. The rows keep the order of the files.
    ///
    /// # Errors
    /// A file that cannot be read, or is not such JSON.
    pub(crate) fn read(files: &[impl AsRef<Path>]) -> Outcome<Self> {
        let mut report = Report::new();
        for file in files {
            let file = file.as_ref();
            let value: Value = serde_json::from_slice(&std::fs::read(file)?)?;
            let rows = value["rows"].as_array().ok_or_else(|| format!("{} has no rows", file.display()))?;
            for row in rows {
                let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                let pairs = |name: &str| row[name].as_object().into_iter().flatten();
                report.rows.push(Row {
                    table: text("table"),
                    parameters: pairs("parameters")
                        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                        .collect(),
                    server: text("server"),
                    metrics: pairs("metrics")
                        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
                        .collect(),
                });
            }
        }
        Ok(report)
    }

    /// The data of a plot: the first metric of each table.
    pub(crate) fn bars(&self) -> Vec<Chart> {
        let mut charts: Vec<Chart> = Vec::new();
        for row in &self.rows {
            let Some((name, value)) = row.metrics.first() else { continue };
            let title = format!("{}: {}", row.table, heading(name).0);
            let label: Vec<&str> = row.parameters.iter().map(|(_, value)| value.as_str()).collect();
            let bar = (label.join(", "), row.server.clone(), *value);
            match charts.iter_mut().find(|(known, _)| *known == title) {
                Some((_, bars)) => bars.push(bar),
                None => charts.push((title, vec![bar])),
            }
        }
        charts
    }
}

fn combined(rounds: &[Metrics]) -> Metrics {
    let first = rounds.first().map(Vec::as_slice).unwrap_or_default();
    first
        .iter()
        .map(|(name, _)| {
            let mut values: Vec<f64> =
                rounds.iter().flatten().filter(|(other, _)| other == name).map(|(_, value)| *value).collect();
            values.sort_by(f64::total_cmp);
            let value = if SUMS.contains(name) { values.iter().sum() } else { values[values.len() / 2] };
            (*name, value)
        })
        .collect()
}

fn heading(name: &str) -> (&str, usize) {
    HEADINGS.iter().find(|(known, ..)| *known == name).map_or((name, 2), |(_, heading, decimals)| (heading, *decimals))
}

fn write_table(text: &mut String, rows: &[&Row]) {
    let mut parameters: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.parameters) {
        if !parameters.contains(&name.as_str()) {
            parameters.push(name);
        }
    }
    let metrics: Vec<&str> = HEADINGS
        .iter()
        .map(|(name, ..)| *name)
        .filter(|name| rows.iter().any(|row| row.metrics.iter().any(|(known, _)| known == name)))
        .collect();
    let head = parameters.iter().copied().chain(["server"]).chain(metrics.iter().map(|name| heading(name).0));
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
    for row in rows {
        let mut cells: Vec<String> = parameters
            .iter()
            .map(|name| {
                row.parameters.iter().find(|(known, _)| known == name).map_or(String::new(), |(_, v)| v.clone())
            })
            .collect();
        cells.push(row.server.clone());
        for name in &metrics {
            let value = row.metrics.iter().find(|(known, _)| known == name);
            cells.push(value.map_or("–".to_owned(), |(_, value)| number(*value, heading(name).1)));
        }
        lines.push(cells);
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0).max(3))
        .collect();
    for (index, line) in lines.iter().enumerate() {
        for ((column, cell), width) in line.iter().enumerate().zip(&widths) {
            let gap = " ".repeat(width - cell.chars().count());
            let _ = if column <= parameters.len() {
                write!(text, "| {cell}{gap} ")
            } else {
                write!(text, "| {gap}{cell} ")
            };
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if column <= parameters.len() { '-' } else { ':' };
                let _ = write!(text, "|{}{end}", "-".repeat(width + 1));
            }
            text.push_str("|\n");
        }
    }
}

/// Formats a number with thousands separators.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    fraction.map_or(format!("{sign}{grouped}"), |fraction| format!("{sign}{grouped}.{fraction}"))
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |(_, name)| name);
    let now = time::OffsetDateTime::now_utc();
    json!({
        "cpu": cpu,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
        "date": now.date().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_with_thousands_separators() {
        for (value, decimals, text) in [
            (0.0, 0, "0"),
            (999.4, 0, "999"),
            (1234.567, 2, "1,234.57"),
            (1_234_567.0, 0, "1,234,567"),
            (-1500.0, 1, "-1,500.0"),
        ] {
            assert_eq!(number(value, decimals), text);
        }
    }

    #[test]
    fn report_combines_rounds_by_median_or_sum() {
        let round = |cpu, lost| vec![("cpu_us_per_delivery", cpu), ("lost", lost)];
        let rounds = [round(3.0, 1.0), round(1.0, 0.0), round(2.0, 2.0)];
        assert_eq!(combined(&rounds), round(2.0, 3.0));
        assert_eq!(combined(&[]), Metrics::new());
    }

    #[test]
    fn report_json_round_trips_and_is_plotted() {
        let mut report = Report::new();
        let parameters = [("watchers", "1000".to_owned())];
        report.add("Fan-out", &parameters, "listwatch", &[vec![("cpu_us_per_delivery", 1.5), ("lost", 0.0)]]);
        report.add("Fan-out", &parameters, "floor", &[vec![("cpu_us_per_delivery", 1.25)]]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), report.json().to_string()).unwrap();
        let again = Report::read(&[file.path()]).unwrap();
        assert_eq!(again.markdown(), report.markdown());
        assert!(!again.broken());
        assert!(!Report::read(&[file.path()]).unwrap().only(&["lost".to_owned()]).markdown().contains("CPU"));
        let markdown = "\n### Fan-out\n\n\
            | watchers | server    | CPU µs/event | lost |\n\
            |----------|-----------|-------------:|-----:|\n\
            | 1000     | listwatch |         1.50 |    0 |\n\
            | 1000     | floor     |         1.25 |    – |\n";
        assert_eq!(again.markdown(), markdown);
        let bars =
            vec![("1000".to_owned(), "listwatch".to_owned(), 1.5), ("1000".to_owned(), "floor".to_owned(), 1.25)];
        assert_eq!(again.bars(), [("Fan-out: CPU µs/event".to_owned(), bars)]);
    }
}
