//! The common part of all loads: rounds, servers in turn, and the floor ([`Common`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Outcome;
use crate::report::{Metrics, Report};
use crate::target::{Launch, Servers, Target};
use crate::usage::Usage;

/// The flags of every load.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    servers: Servers,

    /// Duration of each measurement per round, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = seconds, global = true)]
    pub(crate) seconds: Duration,

    /// Number of rounds with all servers in turn; the median is shown
    #[arg(long, default_value_t = 3, global = true)]
    rounds: usize,

    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Common {
    /// Starts the servers to measure.
    pub(crate) fn start(&self) -> Outcome<Vec<Arc<Target>>> {
        Ok(self.servers.start()?.into_iter().map(Arc::new).collect())
    }

    /// The binary to start, for loads that start it more than once.
    pub(crate) fn launch(&self) -> Outcome<Launch> {
        self.servers.launch()
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.max(1)
    }

    /// The same options with another store of the started server.
    pub(crate) fn with_store(&self, store: &str) -> Self {
        Common { servers: self.servers.with_store(store), ..self.clone() }
    }

    /// The same options without the floor.
    pub(crate) fn without_floor(&self) -> Self {
        Common { servers: self.servers.without_floor(), ..self.clone() }
    }

    /// The same options with one round.
    pub(crate) fn once(&self) -> Self {
        Common { rounds: 1, ..self.clone() }
    }

    /// Measures one row. Each round measures every server, and then the floor with the first
    /// server's size of an event. `measure` receives the first server's figures when it measures
    /// the floor.
    pub(crate) async fn row(
        &self,
        report: &mut Report,
        table: &str,
        parameters: &[(&str, String)],
        targets: &[Arc<Target>],
        coalesced: bool,
        measure: impl AsyncFn(&Arc<Target>, Option<&Metrics>) -> Outcome<Metrics>,
    ) -> Outcome<()> {
        let mut all = targets.to_vec();
        let mut figures: Vec<Vec<Metrics>> = vec![Vec::new(); all.len()];
        let what: Vec<&str> = parameters.iter().map(|(_, value)| value.as_str()).collect();
        for round in 0..self.rounds() {
            let mut index = 0;
            while index < all.len() {
                let target = all[index].clone();
                eprintln!("{table} {}: {}, round {}", what.join(" "), target.name, round + 1);
                let like = figures[0].last().filter(|_| target.floor).cloned();
                figures[index].push(measure(&target, like.as_ref()).await?);
                index += 1;
                if round == 0 && index == targets.len() {
                    let bytes = figures[0][0].iter().find(|(name, _)| *name == "bytes_per_event");
                    let bytes = bytes.map_or(1_650, |(_, bytes)| *bytes as usize);
                    for floor in self.servers.floors(bytes, coalesced)? {
                        all.push(Arc::new(floor));
                        figures.push(Vec::new());
                    }
                }
            }
        }
        for (target, rounds) in all.iter().zip(&figures) {
            report.add(table, parameters, &target.name, rounds);
        }
        Ok(())
    }
}

/// The value at a quantile; NaN if there are no values.
pub(crate) fn percentile(values: &mut [f64], part: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let index = ((values.len() - 1) as f64 * part).round() as usize;
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

/// The cost of requests with these times in ms: from the server's usage before and after them, and
/// their total time in seconds.
pub(crate) fn per_request(usage: Option<(Usage, Usage)>, times: &mut [f64], took: f64) -> Metrics {
    let count = times.len() as f64;
    let mut metrics = Metrics::new();
    if let Some((before, after)) = usage {
        metrics.push(("cpu_us_per_request", (after.cpu - before.cpu).as_secs_f64() * 1e6 / count));
        metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
    }
    metrics.push(("requests_per_s", count / took));
    metrics.push(("p50_ms", percentile(times, 0.5)));
    metrics.push(("p99_ms", percentile(times, 0.99)));
    metrics
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentile_sorts_its_values() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert_eq!(percentile(&mut values, 0.5), 3.0);
        assert_eq!(percentile(&mut values, 1.0), 5.0);
        assert!(percentile(&mut [], 0.5).is_nan());
    }
}
