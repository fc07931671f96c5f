//! Reads the CPU time and resident memory of a process from `/proc`.

use std::time::Duration;

/// The CPU time and memory of a process at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// The user and system time of all threads, in steps of a clock tick (usually 10 ms).
    pub(crate) cpu: Duration,
    /// The resident memory in KiB.
    pub(crate) rss_kib: u64,
    /// The peak of the resident memory in KiB.
    pub(crate) peak_kib: u64,
}

/// Reads the usage; `None` if there is no such process, or no `/proc`.
pub(crate) fn read(pid: u32) -> Option<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (user, system) = ticks(&stat)?;
    Some(Usage {
        cpu: Duration::from_secs_f64((user + system) as f64 / ticks_per_second() as f64),
        rss_kib: field(&status, "VmRSS:")?,
        peak_kib: field(&status, "VmHWM:")?,
    })
}

/// Resets the peak. If the system forbids it, the peak is that of the whole life of the process.
pub(crate) fn reset_peak(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// `utime` and `stime`: the 14th and 15th field, counted after the name, which may contain any
/// character.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn ticks_per_second() -> u64 {
    #[cfg(unix)]
    return rustix::param::clock_ticks_per_second();
    #[cfg(not(unix))]
    100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_parsed_if_the_process_name_has_parentheses() {
        let stat = "42 (a) b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 125 0 0 20 0 3 0 100 1 1";
        assert_eq!(ticks(stat), Some((250, 125)));
        assert_eq!(field("Name:\tx\nVmRSS:\t  1234 kB\n", "VmRSS:"), Some(1234));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn usage_of_this_process_is_not_zero() {
        let usage = read(std::process::id()).expect("a process that runs");
        assert!(usage.rss_kib > 100 && usage.peak_kib >= usage.rss_kib);
        assert!(read(u32::MAX).is_none());
    }
}
