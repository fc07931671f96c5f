//! A watch cache without a server: several watchers follow the settings in a store.
//!
//! `cargo run -p listwatch-cacher --example follow`

use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Delivery, Limits, ResourceConfig, Scope};
use listwatch_meta::{Key, ListOptions, ObjectShape};
use listwatch_storage::{MemoryStorage, Storage};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = MemoryStorage::new();
    let shape = Arc::new(ObjectShape::new(false, Vec::new()));
    let config = ResourceConfig {
        name: "settings".to_owned(),
        prefix: "settings".to_owned(),
        shape: shape.clone(),
        indexed_fields: Vec::new(),
        limits: Limits::default(),
    };
    let cacher = Cacher::start(store.clone(), config);

    for name in ["night", "day"] {
        let options = ListOptions { watch: true, label_selector: format!("mode={name}"), ..ListOptions::default() };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let mut watcher = cacher.watch(&Scope::All, &options.watch(&shape, false)?, deadline).await?;
        tokio::spawn(async move {
            while let Some(Delivery::Event(event)) = watcher.next().await {
                println!("{name}: {} {} at {}", event.change(), event.object().name(), event.object().revision());
            }
        });
    }

    let lamp = Key::new("settings", None, "lamp")?;
    let value = |mode: &str| format!(r#"{{"metadata":{{"name":"lamp","labels":{{"mode":"{mode}"}}}}}}"#).into();
    let first = store.create(&lamp, value("night"), None).await?;
    let second = store.update(&lamp, first, value("day"), None).await?;
    store.delete(&lamp, second).await?;

    tokio::time::sleep(Duration::from_millis(100)).await; // let the watchers print
    cacher.stop(None);
    Ok(())
}
