//! What is told on standard error while a watch runs: [`Story`], from the reflector's notices to
//! sentences. Pure: the time comes in, lines go out.
//!
//! A reader learns why nothing comes (loading, and how far; the server is away, and since when), and
//! after a gap how old what they saw had become. When all is well nothing is said.

use std::time::{Duration, Instant};

use listwatch_client::{Problem, ReflectorState};

/// How often the loading of the initial state is told where lines stay.
const LOADING_EVERY: Duration = Duration::from_secs(5);

/// How often a line that is drawn over is drawn.
const LOADING_REDRAW: Duration = Duration::from_millis(200);

/// See the [module](self).
pub(super) struct Story {
    /// The lines go to a terminal: progress is one line, drawn over.
    terminal: bool,
    /// Nothing is told but errors.
    quiet: bool,
    begun: Instant,
    synced: bool,
    /// A line is on the terminal that will be drawn over.
    drawn: bool,
    told_loading: Option<Instant>,
    /// Since when the copy may be behind.
    behind_since: Option<Instant>,
    last_problem: Option<Problem>,
    reconnects: u32,
}

impl Story {
    pub(super) fn new(terminal: bool, quiet: bool, now: Instant) -> Self {
        Story {
            terminal,
            quiet,
            begun: now,
            synced: false,
            drawn: false,
            told_loading: None,
            behind_since: None,
            last_problem: None,
            reconnects: 0,
        }
    }

    /// Something went wrong.
    pub(super) fn problem(&mut self, now: Instant, problem: &Problem) {
        self.behind_since.get_or_insert(now);
        self.last_problem = Some(problem.clone());
    }

    /// The state changed.
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

    /// A whole state of this many objects was put in place.
    pub(super) fn synced(&mut self, now: Instant, objects: usize) -> Option<String> {
        if std::mem::replace(&mut self.synced, true) {
            return self.line(format!("listed again: {}", counted(objects)));
        }
        self.behind_since = None;
        let took = seconds(now.saturating_duration_since(self.begun));
        self.line(format!("{}, loaded in {took}; watching", counted(objects)))
    }

    /// Time passed while the initial state loads.
    pub(super) fn tick(&mut self, now: Instant, state: &ReflectorState) -> Option<String> {
        if self.synced || self.quiet {
            return None;
        }
        let (every, last) = if self.terminal {
            (LOADING_REDRAW, self.told_loading)
        } else {
            (LOADING_EVERY, Some(self.told_loading.unwrap_or(self.begun)))
        };
        if last.is_some_and(|last| now.saturating_duration_since(last) < every)
            || matches!(state, ReflectorState::BackingOff { .. })
        {
            return None;
        }
        self.told_loading = Some(now);
        let text = state.describe(now);
        if self.terminal {
            self.drawn = true;
            return Some(format!("\r\u{1b}[K# {text}"));
        }
        Some(format!("# {text}\n"))
    }

    /// Makes room for other output on the same terminal.
    pub(super) fn clear(&mut self) -> Option<String> {
        std::mem::take(&mut self.drawn).then(|| "\r\u{1b}[K".to_owned())
    }

    /// A line that is told unless nothing is to be.
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
    fn a_gap_is_told_with_its_length() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut story = Story::new(false, false, start);
        assert_eq!(story.synced(at(2_500), 3).as_deref(), Some("# 3 objects, loaded in 2.5 s; watching\n"));
        assert_eq!(story.state(at(2_500), &ReflectorState::Watching { since: at(2_500) }), None, "all is well");
        story.problem(at(9_000), &away());
        let waiting = |until| ReflectorState::BackingOff { problem: away(), attempts: 1, until };
        assert_eq!(
            story.state(at(9_000), &waiting(at(9_800))).as_deref(),
            Some("# no connection to the server: refused; trying again in 0.8 s\n")
        );
        assert_eq!(
            story.state(at(12_000), &waiting(at(15_000))).as_deref(),
            Some("# no connection to the server: refused; what is shown is 3.0 s old; trying again in 3.0 s\n")
        );
        let told = story.state(at(140_000), &ReflectorState::Watching { since: at(140_000) });
        assert_eq!(
            told.as_deref(),
            Some(
                "# watching again (reconnect 1), the view was up to 2 min 11 s behind after: no connection to the server: refused\n"
            )
        );
        assert_eq!(story.state(at(141_000), &ReflectorState::Watching { since: at(141_000) }), None);
        assert_eq!(story.synced(at(150_000), 4).as_deref(), Some("# listed again: 4 objects\n"));
    }

    #[test]
    fn loading_is_one_line_on_a_terminal_and_few_elsewhere() {
        let start = Instant::now();
        let listing = ReflectorState::Listing { page: 3, items: 1_000, since: start };
        let mut story = Story::new(false, false, start);
        let told: Vec<u64> =
            (0..60).filter(|n| story.tick(start + Duration::from_millis(n * 200), &listing).is_some()).collect();
        assert_eq!(told, [25, 50], "every five seconds");
        let mut story = Story::new(true, false, start);
        let drawn = story.tick(start, &listing).unwrap();
        assert_eq!(drawn, "\r\u{1b}[K# listing: waiting for page 3, 1000 items so far, for 0 s");
        assert_eq!(story.tick(start, &listing), None, "not more often than can be seen");
        let synced = story.synced(start, 1_200).unwrap();
        assert_eq!(synced, "\r\u{1b}[K# 1200 objects, loaded in 0.0 s; watching\n", "the line is drawn over");
        assert_eq!(story.clear(), None);
    }

    #[test]
    fn quiet_is_quiet() {
        let start = Instant::now();
        let mut story = Story::new(true, true, start);
        assert_eq!(story.tick(start, &ReflectorState::Starting), None);
        assert_eq!(story.synced(start, 1), None);
        story.problem(start, &away());
        assert_eq!(story.state(start, &ReflectorState::Watching { since: start }), None);
    }
}
