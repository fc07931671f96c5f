//! [`WebhookConfigurations`]: the webhooks of all configurations of one kind, compiled and indexed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use listwatch_json::{Value, json};
use listwatch_validation::{Object, child, text};
use listwatch_webhooks::{Webhook, WebhookIndex};
use parking_lot::Mutex;

use crate::caller::WebhookHandler;

/// The configurations of one kind, MutatingWebhookConfiguration or ValidatingWebhookConfiguration.
///
/// The caller updates the value when a stored object changes. A request reads one snapshot and does not wait for a
/// lock.
#[derive(Default)]
pub struct WebhookConfigurations {
    objects: Mutex<Objects>,
    snapshot: ArcSwap<Snapshot>,
}

#[derive(Default)]
struct Objects {
    /// The webhooks of each stored configuration, by name.
    stored: BTreeMap<String, Vec<Arc<Webhook>>>,
    /// The webhooks in this process, with their handlers.
    handled: Vec<(Arc<Webhook>, Arc<dyn WebhookHandler>)>,
}

/// An immutable snapshot of all webhooks.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) index: WebhookIndex,
    /// The handlers of webhooks in this process, by the id of the webhook.
    pub(crate) handlers: HashMap<String, Arc<dyn WebhookHandler>>,
}

impl fmt::Debug for WebhookConfigurations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfigurations").field("index", &self.snapshot.load().index).finish_non_exhaustive()
    }
}

/// A configuration that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfiguration {
    /// The bytes are not an object with a name.
    #[error("the configuration is not an object with a name")]
    Unreadable,
    /// The configuration has no webhooks, or a webhook without a name.
    #[error("the configuration needs webhooks with names")]
    NoWebhooks,
}

/// Parses a stored configuration.
fn parse(json: &[u8]) -> Result<(String, Vec<Arc<Webhook>>), InvalidConfiguration> {
    let configuration: Object = serde_json::from_slice(json).map_err(|_| InvalidConfiguration::Unreadable)?;
    let name = text(child(&configuration, "metadata"), "name").to_owned();
    if name.is_empty() {
        return Err(InvalidConfiguration::Unreadable);
    }
    Ok((name, Webhook::parse(&configuration).into_iter().map(Arc::new).collect()))
}

impl WebhookConfigurations {
    /// Creates a value without configurations.
    pub fn new() -> Self {
        WebhookConfigurations::default()
    }

    /// Adds webhooks that `handler` implements in this process. `configuration` has the form of the stored kind,
    /// without `clientConfig`; `sideEffects` is `None` and `admissionReviewVersions` is `v1` if they are absent.
    /// Webhooks are called in the order of the names of all configurations.
    ///
    /// # Errors
    /// [`InvalidConfiguration`] without a name or without webhooks.
    pub fn add_handler(
        &self,
        configuration: &Value,
        handler: Arc<dyn WebhookHandler>,
    ) -> Result<(), InvalidConfiguration> {
        let mut configuration = configuration.as_object().cloned().ok_or(InvalidConfiguration::Unreadable)?;
        if text(child(&configuration, "metadata"), "name").is_empty() {
            return Err(InvalidConfiguration::Unreadable);
        }
        let hooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
        let hooks = hooks.filter(|hooks| !hooks.is_empty()).ok_or(InvalidConfiguration::NoWebhooks)?;
        for hook in hooks {
            let hook = hook.as_object_mut().filter(|hook| !text(hook, "name").is_empty());
            let hook = hook.ok_or(InvalidConfiguration::NoWebhooks)?;
            hook.entry("sideEffects").or_insert_with(|| json!("None"));
            hook.entry("admissionReviewVersions").or_insert_with(|| json!(["v1"]));
        }
        let mut objects = self.objects.lock();
        for mut webhook in Webhook::parse(&configuration) {
            // No stored configuration has a space in its name.
            webhook.id.insert_str(0, "handler ");
            objects.handled.push((Arc::new(webhook), Arc::clone(&handler)));
        }
        self.rebuild(&objects);
        Ok(())
    }

    /// Adds or replaces a stored configuration, given as JSON.
    ///
    /// # Errors
    /// [`InvalidConfiguration::Unreadable`]. The earlier version of the configuration then remains.
    pub fn set(&self, json: &[u8]) -> Result<(), InvalidConfiguration> {
        let (name, webhooks) = parse(json)?;
        let mut objects = self.objects.lock();
        objects.stored.insert(name, webhooks);
        self.rebuild(&objects);
        Ok(())
    }

    /// Removes a stored configuration.
    pub fn remove(&self, name: &str) {
        let mut objects = self.objects.lock();
        objects.stored.remove(name);
        self.rebuild(&objects);
    }

    /// Replaces all stored configurations, given as names and JSON. Returns the names of the configurations that cannot
    /// be parsed.
    pub fn replace<'a>(&self, configurations: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<&'a str> {
        let mut unreadable = Vec::new();
        let mut stored = BTreeMap::new();
        for (name, json) in configurations {
            match parse(json) {
                Ok((name, webhooks)) => {
                    stored.insert(name, webhooks);
                }
                Err(_) => unreadable.push(name),
            }
        }
        let mut objects = self.objects.lock();
        objects.stored = stored;
        self.rebuild(&objects);
        unreadable
    }

    /// Returns a snapshot of the current webhooks.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Whether there are no webhooks.
    pub(crate) fn is_empty(&self) -> bool {
        self.snapshot.load().index.is_empty()
    }

    fn rebuild(&self, objects: &Objects) {
        let stored = objects.stored.values().flatten().cloned();
        let handled = objects.handled.iter().map(|(webhook, _)| Arc::clone(webhook));
        let handlers = objects.handled.iter().map(|(webhook, handler)| (webhook.id.clone(), Arc::clone(handler)));
        let snapshot = Snapshot { index: WebhookIndex::new(stored.chain(handled)), handlers: handlers.collect() };
        self.snapshot.store(Arc::new(snapshot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(name: &str, hooks: &[&str]) -> Vec<u8> {
        let hooks: Vec<Value> = hooks.iter().map(|hook| json!({"name": hook})).collect();
        json!({"metadata": {"name": name}, "webhooks": hooks}).to_string().into_bytes()
    }

    fn names(configurations: &WebhookConfigurations) -> Vec<String> {
        let snapshot = configurations.snapshot();
        snapshot.index.webhooks().iter().map(|hook| format!("{} {}", hook.configuration, hook.name)).collect()
    }

    #[test]
    fn snapshot_orders_webhooks_by_the_name_of_their_configuration() {
        let all = WebhookConfigurations::new();
        assert!(all.is_empty());
        all.set(&configuration("b", &["z.b.c", "a.b.c"])).unwrap();
        all.set(&configuration("a", &["x.b.c"])).unwrap();
        let old = all.snapshot();
        let own = json!({"metadata": {"name": "aa"}, "webhooks": [{"name": "own.b.c"}]});
        all.add_handler(&own, Arc::new(|_: Value| async { json!({}) })).unwrap();
        assert_eq!(names(&all), ["a x.b.c", "aa own.b.c", "b z.b.c", "b a.b.c"]);
        assert_eq!(old.index.webhooks().len(), 3, "a request keeps its snapshot");
        all.remove("b");
        assert_eq!(names(&all), ["a x.b.c", "aa own.b.c"]);
        let (c, broken) = (configuration("c", &["y.b.c"]), b"[]".to_vec());
        assert_eq!(all.replace([("c", &c[..]), ("d", &broken[..])]), ["d"]);
        assert_eq!(names(&all), ["aa own.b.c", "c y.b.c"]);
        assert!(all.set(b"{}").is_err());
    }

    #[test]
    fn handler_configuration_without_a_name_or_webhooks_is_rejected() {
        let all = WebhookConfigurations::new();
        let check = |configuration: Value, expected: InvalidConfiguration| {
            let handler = Arc::new(|_: Value| async { json!({}) });
            assert_eq!(all.add_handler(&configuration, handler), Err(expected), "{configuration}");
        };
        check(json!([]), InvalidConfiguration::Unreadable);
        check(json!({"webhooks": [{"name": "a.b.c"}]}), InvalidConfiguration::Unreadable);
        check(json!({"metadata": {"name": "a"}}), InvalidConfiguration::NoWebhooks);
        check(json!({"metadata": {"name": "a"}, "webhooks": [{}]}), InvalidConfiguration::NoWebhooks);
        assert!(all.is_empty());
    }
}
