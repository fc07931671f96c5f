//! Prints every change of the pods of a cluster. The watch survives restarts of the server, lost
//! connections and expired versions. An unchanged object is never printed twice.
//!
//! ```text
//! cargo run -p listwatch-client --example watch_pods -- --kubeconfig admin.kubeconfig
//! ```

use std::path::PathBuf;
use std::time::Instant;

use listwatch_client::{Change, Client, Config, Notice, Object, Reflection, ReflectorConfig, Scope};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kubeconfig = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--kubeconfig"), Some(path)) => Some(PathBuf::from(path)),
        (None, _) => None,
        _ => return Err("usage: watch_pods [--kubeconfig FILE]".into()),
    };
    let client = Client::new(Config::load(kubeconfig.as_deref(), None)?)?;
    let pods = client.discover("pods").await?;
    let config = ReflectorConfig { type_name: Some(pods.type_name()), ..ReflectorConfig::default() };
    let mut reflection = Reflection::new(client.list_watch(&pods, &Scope::Cluster), config);
    loop {
        match reflection.next().await {
            Notice::Changes(changes) => changes.iter().for_each(print),
            Notice::Synced => eprintln!("# {} pods", reflection.store().snapshot().len()),
            Notice::State(state) => eprintln!("# {}", state.describe(Instant::now())),
            Notice::Problem(_) => {} // the state that follows says it
            Notice::Skipped { reason, key } => eprintln!("# passed over {key}: {reason:?}"),
            Notice::Quarantined { key, entry } => eprintln!("# cannot be read: {key} {entry:?}"),
        }
    }
}

fn print(change: &Change) {
    let line = |word: &str, object: &Object| println!("{word} {} {}", object.key(), object.resource_version());
    match change {
        Change::Added { object, .. } => line("+", object),
        Change::Updated { new, .. } => line("~", new),
        Change::Deleted { last, .. } => line("-", last),
    }
}
