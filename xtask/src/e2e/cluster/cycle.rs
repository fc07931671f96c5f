//! `--cycle PODS`: the cost of the whole life of pods. The components create, schedule, run and delete the pods of
//! three Deployments; CPU time of the server and requests by type are counted from before the first to after the last.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::failure::{Outcome, ensure};
use crate::steps::seconds;

use super::usage::Usage;
use super::{Cluster, ScenarioResult, deployment, items, rolled_out};

/// The time limit until all pods run, and until all are gone. kube-controller-manager writes 20 times a second.
const LIMIT: Duration = Duration::from_secs(300);
/// The time for the components to finish their work after a start.
const SETTLE: Duration = Duration::from_secs(10);
/// The interval at which the remaining objects are polled.
const POLL: Duration = Duration::from_millis(500);
const NAMESPACE: &str = "cycle";
const DEPLOYMENTS: usize = 3;
/// The counters of the events of watches: that of kube-apiserver, and that of listwatch.
const WATCH_EVENTS: [&str; 2] = ["apiserver_watch_events_total{", "listwatch_watch_events_queued_total{"];
/// The number of request types that the table shows.
const TYPES_SHOWN: usize = 24;

/// The cost of a cycle on one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cost {
    cpu: Duration,
    etcd_cpu: Option<Duration>,
    took: Duration,
    /// The resident memory at the end, in bytes.
    resident: u64,
    /// Completed requests by verb, resource and subresource. Open watches are not included.
    requests: BTreeMap<String, u64>,
    watch_events: u64,
}

impl Cost {
    fn requests(&self) -> u64 {
        self.requests.values().sum()
    }

    /// CPU time per request, in µs. This time includes the delivery of watch events.
    fn per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests().max(1) as f64
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} s CPU, {} requests, {} watch events, {:.0} µs a request, {} MiB resident, {}",
            self.cpu.as_secs_f64(),
            self.requests(),
            self.watch_events,
            self.per_request(),
            self.resident / (1024 * 1024),
            seconds(self.took)
        )?;
        match self.etcd_cpu {
            Some(cpu) => write!(f, "; its etcd {:.2} s CPU", cpu.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// The counters of a server's `/metrics`.
#[derive(Debug, Default, PartialEq)]
struct Counters {
    requests: BTreeMap<String, u64>,
    watch_events: u64,
}

impl Counters {
    fn read(cluster: &Cluster) -> Outcome<Self> {
        Ok(Self::parse(&cluster.access.kube("get --raw /metrics")?))
    }

    fn parse(text: &str) -> Self {
        let mut counters = Self::default();
        for line in text.lines() {
            let Some((series, count)) = line.rsplit_once(' ') else { continue };
            let count = count.parse::<f64>().unwrap_or_default() as u64;
            if series.starts_with("apiserver_request_total{") {
                let label = |name: &str| {
                    let from = series.find(&format!("{name}=\""))? + name.len() + 2;
                    series[from..].split('"').next().filter(|value| !value.is_empty())
                };
                let resource = label("resource").unwrap_or("(none)");
                let subresource = label(",subresource").or(label("{subresource")).map(|name| format!("/{name}"));
                let name =
                    format!("{} {resource}{}", label("verb").unwrap_or_default(), subresource.unwrap_or_default());
                *counters.requests.entry(name).or_default() += count;
            } else if WATCH_EVENTS.iter().any(|name| series.starts_with(name)) {
                counters.watch_events += count;
            }
        }
        counters
    }
}

/// Runs one cycle and returns its cost.
pub(crate) fn run(
    cluster: &mut Cluster,
    pods: usize,
    etcd: impl Fn() -> Option<Usage>,
) -> Outcome<(ScenarioResult, Cost)> {
    let replicas = pods.div_ceil(DEPLOYMENTS);
    ensure!(replicas > 0, "--cycle needs at least one pod");
    std::thread::sleep(SETTLE);
    let counted = Counters::read(cluster)?;
    let (before, etcd_before, start) = (cluster.server.usage(), etcd(), Instant::now());

    cluster.namespace(NAMESPACE)?;
    let names: Vec<String> = (0..DEPLOYMENTS).map(|index| format!("web-{index}")).collect();
    let list: Vec<_> = names.iter().map(|name| deployment(NAMESPACE, name, replicas, super::workloads::OLD)).collect();
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": list}))?;
    for name in &names {
        let words = format!("deployment {name} -n {NAMESPACE}");
        cluster.until("all pods run", LIMIT, &words, |found| rolled_out(found, replicas))?;
    }
    let running = start.elapsed();
    cluster.access.kube(&format!("delete deployments --all -n {NAMESPACE} --wait=false"))?;
    // A list of one pod, which costs the server little.
    let left = format!("get --raw /api/v1/namespaces/{NAMESPACE}/pods?limit=1");
    while !items(&serde_json::from_str(&cluster.access.kube(&left)?)?).is_empty() {
        ensure!(start.elapsed() < running + LIMIT, "pods are left {LIMIT:?} after the deletion");
        std::thread::sleep(POLL);
    }
    let took = start.elapsed();

    let (after, etcd_after, ended) = (cluster.server.usage(), etcd(), Counters::read(cluster)?);
    let mut requests = ended.requests;
    for (name, count) in &mut requests {
        *count -= counted.requests.get(name).copied().unwrap_or_default().min(*count);
    }
    requests.retain(|_, count| *count > 0);
    cluster.leave(NAMESPACE)?;
    let cost = Cost {
        cpu: after.cpu.saturating_sub(before.cpu),
        etcd_cpu: etcd_before.zip(etcd_after).map(|(before, after)| after.cpu.saturating_sub(before.cpu)),
        took,
        resident: after.resident,
        requests,
        watch_events: ended.watch_events.saturating_sub(counted.watch_events),
    };
    let note = format!("{} pods ran after {}: {cost}", replicas * DEPLOYMENTS, seconds(running));
    Ok((ScenarioResult { note, state: json!({"pods": replicas * DEPLOYMENTS}) }, cost))
}

/// Prints the costs of all servers, and their requests by type.
pub(crate) fn report(costs: &[(&str, Cost)]) {
    println!("\n── one cycle ──");
    for (server, cost) in costs {
        println!("{server:<10} {cost}");
    }
    let mut types: Vec<&String> = costs.iter().flat_map(|(_, cost)| cost.requests.keys()).collect();
    let most = |name: &str| costs.iter().filter_map(|(_, cost)| cost.requests.get(name)).max().copied();
    types.sort_by_key(|name| (std::cmp::Reverse(most(name)), name.as_str()));
    types.dedup();
    println!("\n{:<44}{}", "requests", costs.iter().map(|(server, _)| format!("{server:>10}")).collect::<String>());
    for name in types.iter().take(TYPES_SHOWN) {
        let counts = costs.iter().map(|(_, cost)| cost.requests.get(*name).copied().unwrap_or_default());
        println!("{name:<44}{}", counts.map(|count| format!("{count:>10}")).collect::<String>());
    }
    let rest = types.len().saturating_sub(TYPES_SHOWN);
    if rest > 0 {
        println!("and {rest} types with fewer requests");
    }
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn requests_are_counted_by_verb_resource_and_subresource() {
        let text = r#"# HELP apiserver_request_total Counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 7
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 1
apiserver_request_total{code="200",component="",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 2
apiserver_watch_events_total{group="",kind="Pod",version="v1"} 30
other{verb="GET"} 5
"#;
        let counters = Counters::parse(text);
        let expected = [("GET (none)//readyz".to_owned(), 2), ("PATCH pods/status".to_owned(), 8)];
        assert_eq!(counters.requests.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(counters.watch_events, 30);
    }
}
