//! The report as JSON.

use serde_json::{Map, Value, json};

use super::{Counts, Outcome, Report};
use crate::suite::Level;

impl Report {
    /// The report as one JSON document, indented.
    pub fn to_json(&self) -> String {
        let results = self.results.iter().map(|result| {
            let mut one = json!({
                "id": result.id,
                "title": result.title,
                "capability": result.capability,
                "level": result.level.as_str(),
                "rule": result.rule,
                "source": result.source,
                "outcome": result.outcome.as_str(),
                "milliseconds": u64::try_from(result.time.as_millis()).unwrap_or(u64::MAX),
            });
            let extra: Map<String, Value> = match &result.outcome {
                Outcome::Passed => Map::new(),
                Outcome::Unsupported { why } | Outcome::Skipped { why } => {
                    [("why".to_owned(), json!(why))].into_iter().collect()
                }
                Outcome::Failed { step, why, exchange } => {
                    [("step", json!(step)), ("why", json!(why)), ("exchange", json!(exchange))]
                        .map(|(name, value)| (name.to_owned(), value))
                        .into_iter()
                        .collect()
                }
            };
            if let Value::Object(members) = &mut one {
                members.extend(extra);
            }
            one
        });
        let results: Vec<Value> = results.collect();
        let rows = self.rows().into_iter().map(|row| {
            json!({
                "capability": row.capability,
                "title": row.title,
                "inProfile": row.in_profile,
                "must": counts(row.must),
                "detail": counts(row.detail),
            })
        });
        let rows: Vec<Value> = rows.collect();
        let document = json!({
            "server": self.server,
            "version": self.version,
            "http": self.http,
            "profile": self.profile.id(),
            "conforms": self.conforms(),
            "seconds": self.time.as_secs_f64(),
            "must": counts(self.counts(Level::Must)),
            "detail": counts(self.counts(Level::Detail)),
            "capabilities": rows,
            "cases": results,
        });
        format!("{document:#}\n")
    }
}

fn counts(counts: Counts) -> Value {
    json!({
        "passed": counts.passed,
        "failed": counts.failed,
        "unsupported": counts.unsupported,
        "skipped": counts.skipped,
        "score": counts.score(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;

    #[test]
    fn json_report_has_every_case_with_its_outcome() {
        let document: serde_json::Value = serde_json::from_str(&example().to_json()).unwrap();
        let outcomes: Vec<&str> =
            document["cases"].as_array().unwrap().iter().map(|case| case["outcome"].as_str().unwrap()).collect();
        assert_eq!(outcomes, ["passed", "failed", "unsupported", "skipped"]);
        assert_eq!(document["conforms"], false);
        assert_eq!(document["must"]["score"], 100.0);
        assert_eq!(document["cases"][1]["step"], "2.1");
    }
}
