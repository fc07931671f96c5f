//! The clients of `listwatch-client`: reflectors, an informer with handlers, and a controller.
//!
//! Each keeps a [`Mirror`]: a copy that is made of reported changes only. A change that does not fit the copy breaks a
//! guarantee, and after the faults the copy must become equal to the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use listwatch_client::controller::{Controller, ControllerConfig, InformerSource, Outcome, Request};
use listwatch_client::informer::{Event, HandlerOptions, InformerConfig, Reason, SharedInformer};
use listwatch_client::{
    ApiResource, Change, Client, HttpListWatch, KeepJson, Notice, Object, Reflection, ReflectorConfig, Scope,
};
use listwatch_history::State;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::cluster::Connector;
use crate::objects::{Objects, state_of_json};
use crate::trace::Recorder;

/// A copy made of reported changes. Clones share the copy.
#[derive(Clone)]
pub(crate) struct Mirror {
    pub(crate) name: String,
    objects: Arc<Mutex<Objects>>,
    /// The newest revision of each object, also of those that were deleted.
    newest: Arc<Mutex<BTreeMap<String, u64>>>,
    recorder: Recorder,
}

fn seen(object: &Object) -> (u64, State) {
    (object.resource_version().parse().unwrap_or(0), state_of_json(object.json()))
}

impl Mirror {
    fn new(name: String, recorder: &Recorder) -> Self {
        Mirror { name, objects: Arc::default(), newest: Arc::default(), recorder: recorder.clone() }
    }

    /// Returns the objects of the copy.
    pub(crate) fn objects(&self) -> Objects {
        self.objects.lock().clone()
    }

    fn added(&self, object: &Object) {
        let key = object.key().as_str().to_owned();
        let is_old = self.is_old(object);
        if is_old {
            self.broken("NoTimeTravel", format!("is told that {key} is added in a state that it has seen before"));
        }
        if self.objects.lock().insert(key, seen(object)).is_some() {
            self.broken("Unique", format!("is told twice that {} is added", object.key()));
        }
    }

    fn updated(&self, old: &Object, new: &Object, may_repeat: bool) {
        self.is_old(new);
        let (key, old, new) = (new.key().as_str(), seen(old), seen(new));
        let had = self.objects.lock().insert(key.to_owned(), new.clone());
        if had.as_ref() != Some(&old) {
            self.broken("Complete", format!("had {key} as {had:?}, and is told of a change of {old:?}"));
        } else if new.0 < old.0 {
            self.broken("NoTimeTravel", format!("is told that {key} changed from {} to {}", old.0, new.0));
        } else if new.0 == old.0 && !may_repeat {
            self.broken("Unique", format!("is told twice of {key} at {}", new.0));
        }
    }

    /// Records the revision of a state. Returns whether a state of this revision or a later one was seen before.
    fn is_old(&self, object: &Object) -> bool {
        let revision = seen(object).0;
        let mut newest = self.newest.lock();
        let newest = newest.entry(object.key().as_str().to_owned()).or_default();
        let is_old = revision <= *newest;
        *newest = revision.max(*newest);
        is_old
    }

    fn deleted(&self, last: &Object) {
        self.is_old(last);
        if self.objects.lock().remove(last.key().as_str()).is_none() {
            self.broken("Complete", format!("is told of the deletion of {}, which it does not have", last.key()));
        }
    }

    fn broken(&self, guarantee: &str, evidence: String) {
        self.recorder.broken(guarantee, format!("{} {evidence}", self.name));
    }

    fn change(&self, change: &Change) {
        match change {
            Change::Added { object, .. } => self.added(object),
            Change::Updated { old, new, .. } => self.updated(old, new, false),
            Change::Deleted { last, .. } => self.deleted(last),
        }
    }

    fn event(&self, event: &Event) {
        match event {
            Event::Added { object, .. } => self.added(object),
            Event::Updated { old, new, reason } => self.updated(old, new, *reason == Reason::Resync),
            Event::Deleted { last, .. } => self.deleted(last),
            Event::Quarantined { key, .. } => self.broken("Complete", format!("cannot decode {key}")),
            Event::Synced => {}
            other => self.broken("Converging", format!("ends with {other:?}")),
        }
    }
}

fn list_watch(connector: &Connector) -> HttpListWatch {
    let resource = ApiResource {
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        ..ApiResource::default()
    };
    Client::with_transport(connector.clone(), "default").list_watch(&resource, &Scope::Cluster)
}

fn config(rng: &mut StdRng) -> ReflectorConfig {
    ReflectorConfig {
        watch_list: rng.random_bool(0.5),
        page_size: if rng.random_bool(0.5) { 3 } else { 500 },
        idle_limit: Some(Duration::from_secs(50)),
        ..ReflectorConfig::default()
    }
}

/// Starts a reflector.
pub(crate) fn start_reflector(number: usize, connector: &Connector, recorder: &Recorder, seed: u64) -> Mirror {
    let mut rng = StdRng::seed_from_u64(seed);
    let mirror = Mirror::new(format!("reflector{number}"), recorder);
    let mut reflection = Reflection::new(list_watch(connector), config(&mut rng)).seeded(seed);
    let copy = mirror.clone();
    tokio::spawn(async move {
        loop {
            match reflection.next().await {
                Notice::Changes(changes) => {
                    changes.iter().for_each(|change| copy.change(change));
                    let snapshot = reflection.notice_snapshot();
                    if snapshot.len() != copy.objects.lock().len() {
                        copy.broken("Converging", format!("has a snapshot of {} objects", snapshot.len()));
                    }
                }
                Notice::Quarantined { key, .. } => copy.broken("Complete", format!("cannot decode {key}")),
                _ => {}
            }
        }
    });
    mirror
}

/// Starts an informer with a fast, a slow and a late handler.
pub(crate) fn start_informer(connector: &Connector, recorder: &Recorder, seed: u64) -> Vec<Mirror> {
    let mut rng = StdRng::seed_from_u64(seed);
    let informer_config = InformerConfig { reflector: config(&mut rng), ..InformerConfig::named("configmaps") };
    let reflection = Reflection::new(list_watch(connector), informer_config.reflector).seeded(seed);
    let informer: SharedInformer<Object> = SharedInformer::over::<_, KeepJson>(reflection, "configmaps");
    let mirror = |name: &str| Mirror::new(format!("handler-{name}"), recorder);
    let (fast, slow, late) = (mirror("fast"), mirror("slow"), mirror("late"));
    handle(&informer, &fast, 0, rng.random());
    handle(&informer, &slow, 1_000, rng.random());
    if let Err(error) = informer.start() {
        fast.broken("Converging", format!("does not start: {error}"));
    }
    let (join, mirror, seed) = (Duration::from_millis(rng.random_range(0..20_000)), late.clone(), rng.random());
    tokio::spawn(async move {
        tokio::time::sleep(join).await;
        handle(&informer, &mirror, 20, seed);
        // The informer lives as long as its handles.
        std::future::pending::<()>().await;
        drop(informer);
    });
    vec![fast, slow, late]
}

/// Adds a handler that takes up to `ms_max` milliseconds for an event.
fn handle(informer: &SharedInformer<Object>, mirror: &Mirror, ms_max: u64, seed: u64) {
    let (mirror, rng) = (mirror.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
    let name = mirror.name.clone();
    let handler = informer.on(HandlerOptions::named(&name), move |event| {
        let ms = if ms_max == 0 { 0 } else { rng.lock().random_range(0..=ms_max) };
        mirror.event(&event);
        async move {
            if ms > 0 {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
        }
    });
    // The handler lives as long as its handle.
    tokio::spawn(async move {
        handler.ended().await;
        drop(handler);
    });
}

/// The processed states of a controller: the state of each object at its last reconcile.
#[derive(Clone)]
pub(crate) struct Processed {
    states: Arc<Mutex<BTreeMap<String, Option<State>>>>,
}

impl Processed {
    /// The first object whose last reconcile did not see its final state.
    pub(crate) fn missing(&self, expected: &Objects) -> Option<String> {
        let states = self.states.lock();
        let unseen = expected.iter().find(|(object, (_, state))| states.get(*object) != Some(&Some(state.clone())));
        let undeleted = states.iter().find(|(object, state)| state.is_some() && !expected.contains_key(*object));
        let unseen = unseen.map(|(object, _)| object.clone());
        unseen.or_else(|| undeleted.map(|(object, _)| object.clone()))
    }
}

/// Starts a controller with three workers. Reconciles take time, fail and request to be repeated.
pub(crate) fn start_controller(connector: &Connector, recorder: &Recorder, seed: u64) -> Processed {
    let mut rng = StdRng::seed_from_u64(seed);
    let informer = SharedInformer::new(
        list_watch(connector),
        InformerConfig { reflector: config(&mut rng), ..InformerConfig::named("controlled") },
    );
    let controller_config = ControllerConfig { workers: 3, ..ControllerConfig::new("controller") };
    let controller = Controller::new(controller_config, InformerSource::new(&informer, "controller"));
    let processed = Processed { states: Arc::default() };
    let (states, running) = (Arc::clone(&processed.states), Arc::new(Mutex::new(BTreeSet::new())));
    let (rng, recorder) = (Arc::new(Mutex::new(rng)), recorder.clone());
    let _ = informer.start();
    let handle = controller.start(move |request: Request| {
        let (states, running) = (Arc::clone(&states), Arc::clone(&running));
        let (rng, recorder) = (Arc::clone(&rng), recorder.clone());
        async move {
            let key = request.key().as_str().to_owned();
            if !running.lock().insert(key.clone()) {
                recorder.broken("Processed", format!("two workers reconcile {key} at once"));
            }
            let state = request.object().map(|object| seen(&object).1);
            let (ms, fails) = {
                let mut rng = rng.lock();
                (rng.random_range(0..200), rng.random_bool(0.1))
            };
            tokio::time::sleep(Duration::from_millis(ms)).await;
            running.lock().remove(&key);
            if fails {
                return Err("injected");
            }
            states.lock().insert(key, state);
            Ok(Outcome::Done)
        }
    });
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop((handle, informer));
    });
    processed
}
