//! Steps with a name, a time and a result, and the table at the end.

use std::time::{Duration, Instant};

use crate::failure::{Failure, Outcome};

/// The number of lines of a failure that are repeated below the table.
const DETAIL_LINES_MAX: usize = 40;

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The step succeeded. Holds the note for the table.
    Well(String),
    /// The step was not run. Holds the reason.
    Skipped(String),
    /// The step failed. Holds the error text.
    Failed(String),
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) ended: Ended,
}

/// The results of the steps that have ended.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
}

impl Steps {
    /// Runs a step, prints the result and continues after a failure. The text of an `Ok` is a note
    /// for the table.
    pub(crate) fn run(
        &mut self,
        group: &'static str,
        name: &'static str,
        step: impl FnOnce() -> Outcome<String>,
    ) -> bool {
        let start = Instant::now();
        let ended = match step() {
            Ok(note) => Ended::Well(note),
            Err(failure) => Ended::Failed(failure.to_string()),
        };
        let well = !matches!(ended, Ended::Failed(_));
        self.push(Row { group, name, took: start.elapsed(), ended });
        well
    }

    /// Records a step that is not run.
    pub(crate) fn skip(&mut self, group: &'static str, name: &'static str, why: impl Into<String>) {
        self.push(Row { group, name, took: Duration::ZERO, ended: Ended::Skipped(why.into()) });
    }

    fn push(&mut self, row: Row) {
        println!("{}", line(&row, false));
        self.rows.push(row);
    }

    /// Appends the rows of another run.
    pub(crate) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }

    /// Prints the table, and below it again why steps failed, because a log may keep only its end. An error with the
    /// failed steps, if any failed.
    pub(crate) fn finish(self, what: &str) -> Outcome<()> {
        println!("\n── {what} ──");
        for row in &self.rows {
            println!("{}", line(row, true));
        }
        let failed = |row: &&Row| matches!(row.ended, Ended::Failed(_));
        for row in self.rows.iter().filter(failed) {
            if let Some(details) = details(row) {
                println!("\n── {} {} ──\n{details}\n", row.group, row.name);
            }
        }
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        let bad: Vec<_> = self.rows.iter().filter(failed).map(|row| format!("{} {}", row.group, row.name)).collect();
        println!("{} steps in {}, {} failed", self.rows.len(), seconds(total), bad.len());
        if bad.is_empty() { Ok(()) } else { Err(Failure::from(format!("{what}: failed: {}", bad.join(", ")))) }
    }
}

/// The text of a failure behind its first line, which the table shows: its first [`DETAIL_LINES_MAX`] lines.
fn details(row: &Row) -> Option<String> {
    let Ended::Failed(why) = &row.ended else { return None };
    let lines: Vec<_> = why.trim_end().lines().skip(1).take(DETAIL_LINES_MAX).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn line(row: &Row, short: bool) -> String {
    let (mark, note) = match &row.ended {
        Ended::Well(note) => ("ok  ", note),
        Ended::Skipped(why) => ("skip", why),
        Ended::Failed(why) => ("FAIL", why),
    };
    let note = if short { note.lines().next().unwrap_or_default() } else { note.trim_end() };
    let text = format!("{mark} {:>8}  {:<9} {:<28} {note}", seconds(row.took), row.group, row.name);
    text.trim_end().to_owned()
}

/// A duration as a table shows it: milliseconds below a second, seconds above.
pub(crate) fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else if time < Duration::from_secs(120) {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::{DETAIL_LINES_MAX, Ended, Row, Steps, details, seconds};
    use std::time::Duration;

    #[test]
    fn failed_step_is_named_in_the_result_and_later_steps_run() {
        let mut steps = Steps::default();
        assert!(steps.run("a", "fine", || Ok(String::new())));
        assert!(!steps.run("b", "broken", || Err("no".into())));
        steps.skip("c", "absent", "nothing to do");
        assert_eq!(steps.finish("run").unwrap_err().to_string(), "run: failed: b broken");
    }

    #[test]
    fn details_of_a_failure_are_repeated_up_to_their_limit() {
        let row = |ended| Row { group: "a", name: "b", took: Duration::ZERO, ended };
        let failed = |text: &str| details(&row(Ended::Failed(text.to_owned())));
        assert_eq!(failed("expected one line:\n- a\n+ b\n").as_deref(), Some("- a\n+ b"));
        assert_eq!(failed("one line"), None);
        assert_eq!(details(&row(Ended::Well("a\nb".to_owned()))), None);
        let long = "x\n".repeat(DETAIL_LINES_MAX + 10);
        assert_eq!(failed(&long).expect("details").lines().count(), DETAIL_LINES_MAX);
    }

    #[test]
    fn durations_are_formatted_with_their_unit() {
        for (millis, text) in [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (125_000, "2 min 5 s")] {
            assert_eq!(seconds(Duration::from_millis(millis)), text);
        }
    }
}
