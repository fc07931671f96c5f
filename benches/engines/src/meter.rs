//! Reads figures of this process and of a directory from the system (Linux; zeros elsewhere).

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Clock ticks per second in `/proc/self/stat`: 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The user and system time of this process.
pub(crate) fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses, which may contain spaces.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Duration::from_secs_f64(ticks / TICKS_PER_SECOND)
}

fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

/// The number of bytes that this process caused to be written to storage.
pub(crate) fn written_bytes() -> u64 {
    field("/proc/self/io", "write_bytes:")
}

/// The resident memory in MiB.
pub(crate) fn rss_mib() -> f64 {
    field("/proc/self/status", "VmRSS:") as f64 / 1_024.0
}

/// The total length of all files below `dir` in MiB.
pub(crate) fn disk_mib(dir: &Path) -> f64 {
    fn bytes(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .map(|entry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => bytes(&entry.path()),
                Ok(meta) => meta.len(),
                Err(_) => 0,
            })
            .sum()
    }
    bytes(dir) as f64 / 1_048_576.0
}

/// The times at these quantiles, in milliseconds.
pub(crate) fn percentiles_ms<const N: usize>(mut times: Vec<Duration>, shares: [f64; N]) -> [f64; N] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1) as f64;
    shares.map(|share| times.get((last * share).round() as usize).map_or(0.0, |time| time.as_secs_f64() * 1e3))
}
