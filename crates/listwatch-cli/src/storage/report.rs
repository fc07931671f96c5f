//! What people are told: progress on standard error, figures that can be read.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use listwatch_storage::transfer::{Phase, Progress};

/// On a terminal the line is drawn anew this often.
const REDRAW: Duration = Duration::from_millis(100);

/// Where lines are kept (a log), one is written this often.
const LINE: Duration = Duration::from_secs(10);

/// The bar's width in characters.
const BAR: u64 = 24;

/// Progress on standard error: a bar that is drawn over itself on a terminal, a line now and then
/// elsewhere. What is done within a moment shows nothing.
#[derive(Debug)]
pub(super) struct Bar {
    terminal: bool,
    phase: Option<Phase>,
    began: Instant,
    shown: Instant,
    drawn: bool,
}

impl Bar {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Bar { terminal: std::io::stderr().is_terminal(), phase: None, began: now, shown: now, drawn: false }
    }

    /// Takes a step.
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
        // Somebody who closed standard error does not want to know.
        let _ = if self.terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
        self.drawn = self.terminal;
    }

    /// Removes the bar, before something else is printed.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(progress: Progress, elapsed: Duration, bar: bool) -> String {
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
    let drawn = total.filter(|total| bar && *total > 0).map(|total| {
        let filled = (done.min(total) * BAR / total) as usize;
        format!("[{}{}] ", "#".repeat(filled), ".".repeat(BAR as usize - filled))
    });
    let (drawn, left) = (drawn.unwrap_or_default(), left.unwrap_or_default());
    format!("{what:<10} {drawn}{}{of}, {}/s{left}", count(done), count(rate as u64))
}

/// 1234567 as 1,234,567.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as people read them, in powers of ten as disks have them.
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

/// A time as people read it.
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
    fn numbers_are_readable() {
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
    fn a_line_tells_how_far_it_is() {
        let check = |phase, done, total, bar, expected: &str| {
            assert_eq!(line(Progress { phase, done, total }, Duration::from_secs(2), bar), expected);
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
