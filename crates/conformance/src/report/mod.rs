//! [`Report`]: the outcome of each case, and the score, as text, JSON, JUnit XML or one HTML page.

mod html;
mod json;
mod junit;
mod text;

use std::time::Duration;

use crate::suite::{Capability, Level, Profile};

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step met its expectations.
    Passed,
    /// A step did not meet its expectations.
    Failed {
        /// The number of the step, such as `2`. Inside of `repeat` and `parallel`, the inner numbers follow, such as
        /// `2.1`.
        step: String,
        /// The expected and the found value.
        why: String,
        /// The request and the response.
        exchange: Option<String>,
    },
    /// The server does not support the capability.
    Unsupported {
        /// The reason, such as the code of a response.
        why: String,
    },
    /// The run cannot perform an action that the case needs, or the rule does not apply to the server.
    Skipped {
        /// The reason.
        why: String,
    },
}

impl Outcome {
    /// `passed`, `failed`, `unsupported` or `skipped`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed { .. } => "failed",
            Outcome::Unsupported { .. } => "unsupported",
            Outcome::Skipped { .. } => "skipped",
        }
    }
}

/// One case and its outcome.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The id of the case.
    pub id: String,
    /// The case's title.
    pub title: String,
    /// The case's capability.
    pub capability: String,
    /// The rule that the case tests.
    pub rule: String,
    /// The source of the rule.
    pub source: String,
    /// The importance of the case.
    pub level: Level,
    /// The outcome of the case.
    pub outcome: Outcome,
    /// The duration of the case.
    pub time: Duration,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The server's URL.
    pub server: String,
    /// The `gitVersion` that the server reports; may be empty.
    pub version: String,
    /// The HTTP version of the run.
    pub http: String,
    /// The profile whose capabilities the server is expected to support.
    pub profile: Profile,
    /// The capabilities in the order of the report.
    pub capabilities: Vec<Capability>,
    /// The results of the cases, in the order of the suite.
    pub results: Vec<CaseResult>,
    /// The duration of the run.
    pub time: Duration,
}

/// Numbers of cases by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of passed cases.
    pub passed: usize,
    /// The number of failed cases.
    pub failed: usize,
    /// The number of cases whose capability the server does not support.
    pub unsupported: usize,
    /// The number of cases that were skipped.
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed { .. } => self.failed += 1,
            Outcome::Unsupported { .. } => self.unsupported += 1,
            Outcome::Skipped { .. } => self.skipped += 1,
        }
    }

    /// The number of all cases.
    pub fn total(self) -> usize {
        self.passed + self.failed + self.unsupported + self.skipped
    }

    /// The share of passed cases among those that passed or failed, in percent with one decimal; `None` without any.
    pub fn score(self) -> Option<f64> {
        let judged = self.passed + self.failed;
        // Rounded down, so that 100 % means that nothing failed.
        (judged > 0).then(|| (self.passed as f64 * 1000.0 / judged as f64).floor() / 10.0)
    }
}

/// A row of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The capability's id.
    pub capability: String,
    /// The capability's title.
    pub title: String,
    /// Whether the profile includes the capability.
    pub in_profile: bool,
    /// The counts of the cases of level `must`.
    pub must: Counts,
    /// The counts of the cases of level `detail`.
    pub detail: Counts,
}

impl Row {
    /// Adds the counts of both levels.
    pub fn all(&self) -> Counts {
        let (a, b) = (self.must, self.detail);
        Counts {
            passed: a.passed + b.passed,
            failed: a.failed + b.failed,
            unsupported: a.unsupported + b.unsupported,
            skipped: a.skipped + b.skipped,
        }
    }
}

impl Report {
    /// The matrix: one row per capability that has cases in this run.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.capabilities.iter().map(|capability| {
            let mut row = Row {
                capability: capability.id().to_owned(),
                title: capability.title().to_owned(),
                in_profile: self.profile.includes(capability.id()),
                must: Counts::default(),
                detail: Counts::default(),
            };
            for result in self.results.iter().filter(|result| result.capability == capability.id()) {
                let counts = if result.level == Level::Must { &mut row.must } else { &mut row.detail };
                counts.add(&result.outcome);
            }
            row
        });
        rows.filter(|row| row.all().total() > 0).collect()
    }

    /// Counts the cases of one level, in the profile's capabilities.
    pub fn counts(&self, level: Level) -> Counts {
        let mut counts = Counts::default();
        for result in self.results.iter().filter(|result| result.level == level) {
            if self.profile.includes(&result.capability) {
                counts.add(&result.outcome);
            }
        }
        counts
    }

    /// Whether no case of level `must` in the profile's capabilities failed or was unsupported, and at least one
    /// passed. Skipped cases do not count.
    pub fn conforms(&self) -> bool {
        let must = self.counts(Level::Must);
        must.failed == 0 && must.unsupported == 0 && must.passed > 0
    }

    /// The failed cases, in the order of the suite.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| matches!(result.outcome, Outcome::Failed { .. }))
    }
}

/// Formats the score as a percentage.
fn percent(counts: Counts) -> String {
    counts.score().map_or("–".to_owned(), |score| format!("{score:.1} %"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::suite::Suite;

    /// A report with one case of each outcome.
    pub(crate) fn example() -> Report {
        let suite = Suite::bundled().expect("valid cases");
        let failed = Outcome::Failed {
            step: "2.1".to_owned(),
            why: "expected <a> & \"b\"".to_owned(),
            exchange: Some("GET /api\n\n</pre><script>alert(1)</script>\u{1}".to_owned()),
        };
        let outcomes = [
            ("core/a", "core", Level::Must, Outcome::Passed),
            ("core/b", "core", Level::Detail, failed),
            ("cbor/c", "cbor", Level::Must, Outcome::Unsupported { why: "the server answers with 406".to_owned() }),
            ("expiry/d", "expiry", Level::Must, Outcome::Skipped { why: "no compaction".to_owned() }),
        ];
        let results = outcomes.map(|(id, capability, level, outcome)| CaseResult {
            id: id.to_owned(),
            title: format!("title of {id}"),
            capability: capability.to_owned(),
            rule: "a rule".to_owned(),
            source: "a source".to_owned(),
            level,
            outcome,
            time: Duration::from_millis(12),
        });
        Report {
            server: "https://127.0.0.1:6443".to_owned(),
            version: "v1.36.2".to_owned(),
            http: "any".to_owned(),
            profile: suite.profile("everything").expect("the profile").clone(),
            capabilities: suite.capabilities().to_vec(),
            results: results.to_vec(),
            time: Duration::from_secs(3),
        }
    }

    #[test]
    fn server_with_an_unsupported_capability_of_the_profile_does_not_conform() {
        let mut report = example();
        assert!(!report.conforms(), "cbor is in the profile");
        report.results.retain(|result| result.capability != "cbor");
        assert!(report.conforms(), "details and skipped cases do not matter");
        report.results[0].outcome = Outcome::Failed { step: "1".into(), why: String::new(), exchange: None };
        assert!(!report.conforms());
    }

    #[test]
    fn score_counts_only_passed_and_failed_cases() {
        let counts = Counts { passed: 2, failed: 1, unsupported: 5, skipped: 7 };
        assert_eq!(counts.score(), Some(66.6));
        assert_eq!(Counts { passed: 2999, failed: 1, ..Counts::default() }.score(), Some(99.9));
        assert_eq!(Counts::default().score(), None);
    }
}
