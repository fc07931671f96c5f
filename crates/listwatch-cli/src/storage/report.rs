//! Progress on standard error, and figures in readable units.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use listwatch_storage::transfer::{Phase, Progress};

/// The interval between redraws of the progress line on a terminal.
const REDRAW: Duration = Duration::from_millis(100);

/// The interval between progress lines in a log.
const LINE: Duration = Duration::from_secs(10);

/// The width of the progress bar, in characters.
const BAR: u64 = 24;

/// Reports progress on standard error: one line that is redrawn on a terminal, or a line per interval in a log. Short
/// operations print nothing.
#[derive(Debug)]
pub(super) struct ProgressLine {
    terminal: bool,
    phase: Option<Phase>,
    began: Instant,
    shown: Instant,
    drawn: bool,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        ProgressLine { terminal: std::io::stderr().is_terminal(), phase: None, began: now, shown: now, drawn: false }
    }

    /// Records progress, and prints it if the interval has passed.
    pub(super) fn step(&mut self, progress: Progress) {
        let now = Instant::now();
        if self.phase != Some(progress.phase) {
            self.clear();
            (self.phase, self.began, self.shown) = (Some(progress.phase), now, now);
        }
        if now - self.shown < if self.terminal { REDRAW } else { LINE } {
            return;
        }
        self.shown = now;
        let line = line(progress, now - self.began, self.terminal);
        let mut out = std::io::stderr().lock();
        // Standard error may be closed; the operation continues.
        let _ = if self.terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
        self.drawn = self.terminal;
    }

    /// Removes the progress line, so that other output can follow.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(progress: Progress, elapsed: Duration, progress_line: bool) -> String {
    let Progress { phase, done, total } = progress;
    let what = match phase {
        Phase::Read => "reading",
        Phase::Check => "checking",
        Phase::Clock => "raising the revision",
        Phase::Write => "writing",
        Phase::Compare => "comparing",
    };
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let of = total.map(|total| format!(" of {}", count(total.max(done)))).unwrap_or_default();
    let left = total
        .filter(|total| *total > done && done > 0)
        .map(|total| format!(", {} left", seconds(Duration::from_secs_f64((total - done) as f64 / rate.max(0.001)))));
    let drawn = total.filter(|total| progress_line && *total > 0).map(|total| {
        let filled = (done.min(total) * BAR / total) as usize;
        format!("[{}{}] ", "#".repeat(filled), ".".repeat(BAR as usize - filled))
    });
    let (drawn, left) = (drawn.unwrap_or_default(), left.unwrap_or_default());
    format!("{what:<10} {drawn}{}{of}, {}/s{left}", count(done), count(rate as u64))
}

/// Formats a number with separators: `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (location, digit) in digits.chars().enumerate() {
        if location > 0 && (digits.len() - location).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of bytes in decimal units: `1.5 MB`.
pub(super) fn bytes(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{number} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// Formats a duration in seconds or minutes.
pub(super) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        whole @ 10..120 => format!("{whole} s"),
        whole @ 120..7200 => format!("{} min", whole / 60),
        whole => format!("{} h", whole / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_formats_counts_bytes_and_durations_with_units() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), expected);
        }
        for (number, expected) in
            [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (163_840_000, "163.8 MB"), (5_000_000_000_000, "5.0 TB")]
        {
            assert_eq!(bytes(number), expected);
        }
        for (millis, expected) in [(40, "0.0 s"), (9_940, "9.9 s"), (75_000, "75 s"), (600_000, "10 min")] {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn progress_line_has_rate_and_remaining_time() {
        let check = |phase, done, total, progress_line, expected: &str| {
            assert_eq!(line(Progress { phase, done, total }, Duration::from_secs(2), progress_line), expected);
        };
        check(Phase::Write, 500, Some(1_000), false, "writing    500 of 1,000, 250/s, 2.0 s left");
        check(
            Phase::Write,
            500,
            Some(1_000),
            true,
            "writing    [############............] 500 of 1,000, 250/s, 2.0 s left",
        );
        check(Phase::Check, 7, None, true, "checking   7, 3/s");
        check(Phase::Read, 12, Some(10), true, "reading    [########################] 12 of 12, 6/s");
    }
}
