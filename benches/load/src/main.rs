//! Loads a Kubernetes API server and prints the cost: `load fanout`, `list`, `storm`, `writes`, `idle`, `churn`,
//! `leases`, `fairness`, `cluster`, `cold`, `definitions`, `replicas`, and `aims` for all target figures of listwatch.
//! The server is any API server, given by kubeconfig or by URL, token and CA, or a listwatch binary to start. Each
//! figure is shown with the floor of the same run: hyper and rustls that send the same bytes without a list-watch.
//!
//! The program is not a correctness test, but each watcher checks that its events are complete, in
//! ascending order, and unique.

mod aims;
mod chunked;
mod churn;
mod cluster;
mod cold;
mod definitions;
mod fairness;
mod fanout;
mod floor;
mod h2;
mod http;
mod idle;
mod leases;
mod list;
mod objects;
mod plot;
mod replicas;
mod report;
mod run;
mod storm;
mod tally;
mod target;
mod usage;
mod watch;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::report::Report;
use crate::run::Common;

/// An error ends the program and is printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of most functions.
type Outcome<T> = Result<T, Failure>;

/// Loads a Kubernetes API server, and shows the floor of HTTP and TLS beside each figure
#[derive(Debug, Parser)]
#[command(name = "load", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    load: Load,
    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  load fanout --serve target/dist/listwatch
      starts it, opens 100 and then 1,000 watches, writes as fast as they can take it
  load fanout --watchers 100 --rate 100 --serve target/dist/listwatch --kubeconfig kube --pid 4711
      latency at 100 writes/s, side by side with a running server whose process is 4711
  load list --server https://10.0.0.1:6443 --ca ca.crt --token-file token
  load cold --objects 150000 --serve target/dist/listwatch --store embedded
      how long it takes to start on a full store
  load cluster --nodes 10 --pods 300 --rate 30 --serve target/dist/listwatch --store embedded
      the requests of a cluster's components, without the components
  load aims --serve target/dist/listwatch
      what listwatch wants to reach, and what is seen
  load tables fanout.json list.json
      the tables of earlier runs (--json) as Markdown; `load plot` draws them";

#[derive(Debug, Subcommand)]
enum Load {
    Fanout(fanout::Fanout),
    List(list::Lists),
    Storm(storm::Storm),
    Writes(writes::Writes),
    Idle(idle::Idle),
    Churn(churn::Churn),
    Leases(leases::Leases),
    Fairness(fairness::Fairness),
    Cluster(cluster::Cluster),
    Cold(cold::Cold),
    Definitions(definitions::Definitions),
    Replicas(replicas::Replicas),
    Aims(aims::Aims),
    #[command(hide = true)]
    Floor(floor::Floor),
    /// Print tables of earlier runs as Markdown
    Tables {
        /// Only these columns, by their names in the JSON
        #[arg(long, value_delimiter = ',')]
        metrics: Vec<String>,

        /// Files written by --json
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print a chart of earlier runs as SVG
    Plot {
        /// Files written by --json
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(run(cli)));
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Outcome<ExitCode> {
    allow_many_connections();
    let report = match cli.load {
        Load::Floor(floor) => return floor.run().await.map(|()| ExitCode::SUCCESS),
        Load::Tables { files, metrics } => {
            print!("{}", Report::read(&files)?.only(&metrics).markdown());
            return Ok(ExitCode::SUCCESS);
        }
        Load::Plot { files } => {
            print!("{}", plot::svg(&Report::read(&files)?));
            return Ok(ExitCode::SUCCESS);
        }
        Load::Fanout(load) => load.run(&cli.common).await?,
        Load::List(load) => load.run(&cli.common).await?,
        Load::Storm(load) => load.run(&cli.common).await?,
        Load::Writes(load) => load.run(&cli.common).await?,
        Load::Idle(load) => load.run(&cli.common).await?,
        Load::Churn(load) => load.run(&cli.common).await?,
        Load::Leases(load) => load.run(&cli.common).await?,
        Load::Fairness(load) => load.run(&cli.common).await?,
        Load::Cluster(load) => load.run(&cli.common).await?,
        Load::Cold(load) => load.run(&cli.common).await?,
        Load::Definitions(load) => load.run(&cli.common).await?,
        Load::Replicas(load) => load.run(&cli.common).await?,
        // The future contains those of all loads.
        Load::Aims(load) => Box::pin(load.run(&cli.common)).await?,
    };
    print!("{}", report.markdown());
    if let Some(path) = &cli.common.json {
        std::fs::write(path, serde_json::to_string_pretty(&report.json())? + "\n")?;
    }
    if report.broken() {
        eprintln!("load: events were lost, came twice or in the wrong order");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Each HTTP/1.1 watch is a connection on both sides. Started servers inherit the limit.
fn allow_many_connections() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // If the limit cannot be raised, connections will fail with an error.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
