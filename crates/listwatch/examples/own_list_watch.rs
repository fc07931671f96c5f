//! A custom source of objects for an informer: any implementation of `ListWatch`.
//!
//! The source of this example is a table in memory. The source must fulfill the contract of an API
//! server. A list has a version. A watch from a version delivers every later change, or fails with
//! 410.
//!
//! ```text
//! cargo run -p listwatch --example own_list_watch
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use listwatch::client::informer::{Event, HandlerOptions, InformerConfig};
use listwatch::client::{
    ListItem, ListStream, ListWatch, Problem, RawObject, ReflectorConfig, SharedInformer, WatchStream, WatchedEvent,
};
use listwatch::meta::ListOptions;
use listwatch::wire::{EventKind, ListMeta};
use tokio::sync::watch;

/// A time limit far above the duration of the example.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sensors with their last measured values.
#[derive(Clone)]
struct Sensors {
    table: Arc<Mutex<Table>>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    values: BTreeMap<String, RawObject>,
    history: Vec<WatchedEvent>,
}

impl Sensors {
    fn new() -> Self {
        Sensors { table: Arc::default(), version: watch::Sender::new(1) }
    }

    /// Records a value. The history begins at version 1, so version `n` is event `n - 2`.
    fn measure(&self, sensor: &str, value: i32) -> Result<(), Box<dyn Error>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let version = *self.version.borrow() + 1;
        let json = serde_json::json!({
            "metadata": {"name": sensor, "uid": sensor, "resourceVersion": version.to_string()},
            "value": value,
        });
        let object = RawObject::new(json.to_string().into())?;
        let old = table.values.insert(sensor.to_owned(), object.clone());
        let kind = if old.is_some() { EventKind::Modified } else { EventKind::Added };
        table.history.push(WatchedEvent { kind, object });
        self.version.send_replace(version);
        Ok(())
    }
}

#[async_trait]
impl ListWatch for Sensors {
    async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = table.values.values().cloned().collect();
        let end = ListMeta { resource_version: self.version.borrow().to_string(), ..ListMeta::default() };
        Ok(Box::pin(stream::iter([Ok(ListItem::Objects(objects)), Ok(ListItem::End(end))])))
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        let from: u64 = options.resource_version.as_str().parse().unwrap_or(1);
        let start = (self.clone(), self.version.subscribe(), from);
        Ok(Box::pin(stream::unfold(start, |(sensors, mut version, from)| async move {
            // The table holds the sender, so there is no error.
            let newest = *version.wait_for(|version| *version > from).await.ok()?;
            let table = sensors.table.lock().unwrap_or_else(PoisonError::into_inner);
            let events = table.history.iter().skip(usize::try_from(from - 1).ok()?).cloned().collect();
            drop(table);
            Some((Ok(events), (sensors, version, newest)))
        })))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let sensors = Sensors::new();
    sensors.measure("kitchen", 21)?;
    // The table supports no WatchList and never loses its history.
    let reflector = ReflectorConfig { watch_list: false, check_server: false, ..ReflectorConfig::default() };
    let informer = SharedInformer::new(sensors.clone(), InformerConfig { name: "sensors".to_owned(), reflector });
    let mut events = informer.stream(HandlerOptions::named("print"));
    informer.start()?;
    informer.wait_until_synced(TIMEOUT).await?;
    sensors.measure("cellar", 12)?;
    sensors.measure("kitchen", 22)?;
    let mut told = Vec::new();
    while told.len() < 4 {
        let event = tokio::time::timeout(TIMEOUT, events.next()).await?.ok_or("the stream ended")?;
        told.push(match &event {
            Event::Synced => "synced".to_owned(),
            event => format!("{:?} {:?}", event.object(), event.reason()),
        });
    }
    println!("{}", told.join("\n"));
    assert!(told[0].starts_with("Some(kitchen@"), "{told:?}");
    Ok(())
}
