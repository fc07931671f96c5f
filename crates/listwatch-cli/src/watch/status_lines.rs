//! [`StatusLines`]: converts notices of the reflector to lines on standard error. The time is an argument, so that all
//! functions are pure.
//!
//! The lines report why no changes arrive: the initial list is loading, or the server has been unreachable for some
//! time. After a gap, a line reports the length of the gap. A healthy watch prints no line.

use std::time::{Duration, Instant};

use listwatch_client::{Problem, ReflectorState};

/// The interval between progress lines in a log.
const LOADING_EVERY: Duration = Duration::from_secs(5);

/// The interval between redraws of the progress line on a terminal.
const LOADING_REDRAW: Duration = Duration::from_millis(200);

/// The state of the status lines of one watch.
pub(super) struct StatusLines {
    /// Whether the output is a terminal, on which progress is one line that is redrawn.
    terminal: bool,
    /// Whether only errors are printed.
    quiet: bool,
    begun: Instant,
    synced: bool,
    /// Whether the terminal shows a progress line at present.
    drawn: bool,
    last_loading_line: Option<Instant>,
    /// The time since which the local copy may be stale; `None` if the copy is current.
    behind_since: Option<Instant>,
    last_problem: Option<Problem>,
    reconnects: u32,
}

impl StatusLines {
    pub(super) fn new(terminal: bool, quiet: bool, now: Instant) -> Self {
        StatusLines {
            terminal,
            quiet,
            begun: now,
            synced: false,
            drawn: false,
            last_loading_line: None,
            behind_since: None,
            last_problem: None,
            reconnects: 0,
        }
    }

    /// Records a problem of the connection.
    pub(super) fn problem(&mut self, now: Instant, problem: &Problem) {
        self.behind_since.get_or_insert(now);
        self.last_problem = Some(problem.clone());
    }

    /// Reports a new state of the reflector.
    pub(super) fn state(&mut self, now: Instant, state: &ReflectorState) -> Option<String> {
        match state {
            ReflectorState::BackingOff { problem, until, .. } => {
                let since = *self.behind_since.get_or_insert(now);
                let wait = until.saturating_duration_since(now).as_secs_f64();
                let behind = match now.saturating_duration_since(since) {
                    lag if self.synced && lag >= Duration::from_secs(1) => {
                        format!("; what is shown is {} old", seconds(lag))
                    }
                    _ => String::new(),
                };
                self.line(format!("{problem}{behind}; trying again in {wait:.1} s"))
            }
            ReflectorState::Watching { .. } if self.synced => {
                let since = self.behind_since.take()?;
                self.reconnects += 1;
                let reason = self.last_problem.take().map(|problem| format!(" after: {problem}")).unwrap_or_default();
                let gap = seconds(now.saturating_duration_since(since));
                let times = self.reconnects;
                self.line(format!("watching again (reconnect {times}), the view was up to {gap} behind{reason}"))
            }
            _ => None,
        }
    }

    /// Reports a complete list of this many objects.
    pub(super) fn synced(&mut self, now: Instant, objects: usize) -> Option<String> {
        if std::mem::replace(&mut self.synced, true) {
            return self.line(format!("listed again: {}", counted(objects)));
        }
        self.behind_since = None;
        let took = seconds(now.saturating_duration_since(self.begun));
        self.line(format!("{}, loaded in {took}; watching", counted(objects)))
    }

    /// Reports progress of the initial list.
    pub(super) fn tick(&mut self, now: Instant, state: &ReflectorState) -> Option<String> {
        if self.synced || self.quiet {
            return None;
        }
        let (every, last) = if self.terminal {
            (LOADING_REDRAW, self.last_loading_line)
        } else {
            (LOADING_EVERY, Some(self.last_loading_line.unwrap_or(self.begun)))
        };
        if last.is_some_and(|last| now.saturating_duration_since(last) < every)
            || matches!(state, ReflectorState::BackingOff { .. })
        {
            return None;
        }
        self.last_loading_line = Some(now);
        let text = state.describe(now);
        if self.terminal {
            self.drawn = true;
            return Some(format!("\r\u{1b}[K# {text}"));
        }
        Some(format!("# {text}\n"))
    }

    /// Clears the progress line before other output.
    pub(super) fn clear(&mut self) -> Option<String> {
        std::mem::take(&mut self.drawn).then(|| "\r\u{1b}[K".to_owned())
    }

    /// Formats a line, unless only errors are printed.
    pub(super) fn line(&mut self, text: String) -> Option<String> {
        if self.quiet {
            return None;
        }
        Some(format!("{}# {text}\n", self.clear().unwrap_or_default()))
    }
}

fn counted(objects: usize) -> String {
    if objects == 1 { "1 object".to_owned() } else { format!("{objects} objects") }
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> Problem {
        Problem::disconnected("refused")
    }

    #[test]
    fn reconnect_reports_the_length_of_the_gap() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut status_lines = StatusLines::new(false, false, start);
        assert_eq!(status_lines.synced(at(2_500), 3).as_deref(), Some("# 3 objects, loaded in 2.5 s; watching\n"));
        assert_eq!(status_lines.state(at(2_500), &ReflectorState::Watching { since: at(2_500) }), None, "all is well");
        status_lines.problem(at(9_000), &away());
        let waiting = |until| ReflectorState::BackingOff { problem: away(), attempts: 1, until };
        assert_eq!(
            status_lines.state(at(9_000), &waiting(at(9_800))).as_deref(),
            Some("# no connection to the server: refused; trying again in 0.8 s\n")
        );
        assert_eq!(
            status_lines.state(at(12_000), &waiting(at(15_000))).as_deref(),
            Some("# no connection to the server: refused; what is shown is 3.0 s old; trying again in 3.0 s\n")
        );
        let line = status_lines.state(at(140_000), &ReflectorState::Watching { since: at(140_000) });
        assert_eq!(
            line.as_deref(),
            Some(
                "# watching again (reconnect 1), the view was up to 2 min 11 s behind after: no connection to the server: refused\n"
            )
        );
        assert_eq!(status_lines.state(at(141_000), &ReflectorState::Watching { since: at(141_000) }), None);
        assert_eq!(status_lines.synced(at(150_000), 4).as_deref(), Some("# listed again: 4 objects\n"));
    }

    #[test]
    fn loading_progress_redraws_one_line_on_a_terminal_and_logs_at_an_interval() {
        let start = Instant::now();
        let listing = ReflectorState::Listing { page: 3, items: 1_000, since: start };
        let mut status_lines = StatusLines::new(false, false, start);
        let line: Vec<u64> =
            (0..60).filter(|n| status_lines.tick(start + Duration::from_millis(n * 200), &listing).is_some()).collect();
        assert_eq!(line, [25, 50], "every five seconds");
        let mut status_lines = StatusLines::new(true, false, start);
        let drawn = status_lines.tick(start, &listing).unwrap();
        assert_eq!(drawn, "\r\u{1b}[K# listing: waiting for page 3, 1000 items so far, for 0 s");
        assert_eq!(status_lines.tick(start, &listing), None, "not more often than can be seen");
        let synced = status_lines.synced(start, 1_200).unwrap();
        assert_eq!(synced, "\r\u{1b}[K# 1200 objects, loaded in 0.0 s; watching\n", "the line is drawn over");
        assert_eq!(status_lines.clear(), None);
    }

    #[test]
    fn quiet_watch_prints_only_errors() {
        let start = Instant::now();
        let mut status_lines = StatusLines::new(true, true, start);
        assert_eq!(status_lines.tick(start, &ReflectorState::Starting), None);
        assert_eq!(status_lines.synced(start, 1), None);
        status_lines.problem(start, &away());
        assert_eq!(status_lines.state(start, &ReflectorState::Watching { since: start }), None);
    }
}
