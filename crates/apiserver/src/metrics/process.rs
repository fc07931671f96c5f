//! The metrics of the process, with the names of Prometheus' process collector, which kube-apiserver registers
//! (`client_golang/prometheus/process_collector_procfsenabled.go`). They are read from `/proc` at each scrape. Systems
//! other than Linux have none.

use std::fs;

use super::Text;

/// The units of times in `/proc` per second (`USER_HZ`), the same on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the metrics; empty if the system has no `/proc`. Reading them takes up to milliseconds.
pub(crate) fn process_text() -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).ok();
    let files = || Some([read("self/stat")?, read("stat")?, read("self/status")?, read("self/limits")?]);
    let Some([stat, system, status, limits]) = files() else { return String::new() };
    let mut out = Text::default();
    let mut write = |name: &'static str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            out.family(name, kind, help);
            out.sample("", value);
        }
    };
    let [cpu, start, virtual_bytes] = stat_values(&stat, &system);
    write("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu);
    write("process_max_fds", "gauge", "Maximum number of open file descriptors.", max_fds(&limits));
    write("process_open_fds", "gauge", "Number of open file descriptors.", open_fds());
    write("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident_bytes(&status));
    write("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", start);
    write("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", virtual_bytes);
    out.out
}

/// Returns the CPU time and the start of the process in seconds, and the size of its memory in bytes, from
/// `/proc/self/stat` and `/proc/stat` (`proc_pid_stat(5)`).
fn stat_values(stat: &str, system: &str) -> [Option<f64>; 3] {
    // The name of the program may contain spaces and parentheses. The state behind it is the third field.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let boot = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND);
    let start = boot.zip(field(22)).map(|(boot, ticks)| boot + ticks / TICKS_PER_SECOND);
    [cpu, start, field(23)]
}

/// Returns the resident memory from `/proc/self/status`, which has it in KiB.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Returns the soft limit from `/proc/self/limits`. As in Prometheus, no limit is the largest number of 64 bits.
fn max_fds(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        soft => soft.parse().ok(),
    }
}

/// Returns the number of open files. Linux has the number as the size of the folder since version 6.2.
fn open_fds() -> Option<f64> {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER).ok()?.len() {
        0 => Some(fs::read_dir(FOLDER).ok()?.count() as f64),
        known => Some(known as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_the_files_of_proc() {
        let stat =
            "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 12345 4096000 321 18446744073709551615";
        let system = "cpu  1 2 3\nbtime 1700000000\nprocesses 9\n";
        assert_eq!(stat_values(stat, system), [Some(3.0), Some(1_700_000_123.45), Some(4_096_000.0)]);
        assert_eq!(stat_values("", ""), [None; 3]);
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096  files\n";
        assert_eq!(max_fds(limits), Some(1024.0));
        assert_eq!(max_fds("Max open files  unlimited  unlimited  files"), Some(u64::MAX as f64));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_process_has_all_metrics() {
        let text = process_text();
        for name in [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
        ] {
            let sample = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value: f64 = sample.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap();
            assert!(value > 0.0 || name == "process_cpu_seconds_total", "{name}");
        }
    }
}
