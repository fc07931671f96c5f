//! CPU time and memory of a process, as counted by the kernel (`proc(5)`). `None` on other systems than Linux.

use std::time::Duration;

/// The resource usage of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Resident memory now, in bytes.
    pub(crate) resident: u64,
    /// The largest resident memory so far, in bytes.
    pub(crate) resident_peak: u64,
}

impl Usage {
    /// Reads the usage of a process that runs.
    pub(crate) fn of_process(id: u32) -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).ok();
        Self::parse(&read("stat")?, &read("status")?)
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The command in parentheses may hold spaces: fields are counted after it. utime and stime are the fields
        // 14 and 15 of the line, in hundredths of a second (USER_HZ is 100 on all platforms of Linux that Rust's
        // tier 1 lists).
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        let memory = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
        };
        Some(Self {
            cpu: Duration::from_millis(ticks * 10),
            resident: memory("VmRSS:")?,
            resident_peak: memory("VmHWM:")?,
        })
    }

    /// The usage of a process that followed this one: CPU time adds up, the larger peak stays.
    pub(crate) fn followed_by(self, next: Self) -> Self {
        Self {
            cpu: self.cpu + next.cpu,
            resident: next.resident,
            resident_peak: self.resident_peak.max(next.resident_peak),
        }
    }
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes / (1024 * 1024);
        write!(
            f,
            "{:.1} s CPU, {} MiB resident, {} MiB at most",
            self.cpu.as_secs_f64(),
            mib(self.resident),
            mib(self.resident_peak)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Usage;
    use std::time::Duration;

    #[test]
    fn process_usage_is_parsed_from_proc_files() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100 1 1 1";
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let usage = Usage::parse(stat, status).unwrap();
        assert_eq!(usage, Usage { cpu: Duration::from_secs(3), resident: 1 << 20, resident_peak: 2 << 20 });
        assert_eq!(usage.to_string(), "3.0 s CPU, 1 MiB resident, 2 MiB at most");
        let next = Usage { cpu: Duration::from_secs(1), resident: 5, resident_peak: 6 };
        let both = usage.followed_by(next);
        assert_eq!(both, Usage { cpu: Duration::from_secs(4), resident: 5, resident_peak: 2 << 20 });
    }
}
