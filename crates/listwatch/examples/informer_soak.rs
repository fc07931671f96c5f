//! A soak test of informers under faults. Objects are written while connections are cut and frozen,
//! versions expire, bookmarks are lost, and namespaces and handlers come and go. At the end every
//! handler's copy must equal the server's state.
//!
//! ```text
//! cargo run --release -p listwatch --example informer_soak -- --kubeconfig FILE --seconds 600
//! ```
//!
//! Runs against any API server, with permission to create namespaces and ConfigMaps. Prints the
//! memory once per minute (Linux). Fails if the last quarter needed more memory than the second
//! one, plus a tenth and [`SLACK_MIB`]. Other flags: `--writes` (per second), `--objects` and
//! `--seed`.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use listwatch::client::informer::{
    Event, Handler, HandlerOptions, InformerConfig, InformerKey, Policy, Remaining, Shards, SharedInformer,
    SharedInformerFactory,
};
use listwatch::client::{
    Client, Config, Json, KeepJson, ListStream, ListWatch, Problem, Projection, ReflectorConfig, Scope, Stored,
    WatchStream,
};
use listwatch::meta::{ListOptions, Status};
use listwatch::wire::EventKind;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The additional memory that the last quarter may need beyond a tenth, in MiB. The addition allows
/// for memory that the allocator keeps.
pub(crate) const SLACK_MIB: f64 = 4.0;

const NAMESPACES: [&str; 3] = ["soak-informer-a", "soak-informer-b", "soak-informer-c"];
const LABEL: &str = "soak=informer";

const WRITERS: u64 = 4;

/// Time after the last fault within which every copy must converge.
const HEALING: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) seconds: u64,
    pub(crate) writes_per_second: u64,
    pub(crate) objects: u64,
    pub(crate) seed: u64,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut plan = Plan { kubeconfig: PathBuf::new(), seconds: 60, writes_per_second: 100, objects: 200, seed: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or("a flag without a value")?;
        match flag.as_str() {
            "--kubeconfig" => plan.kubeconfig = value.into(),
            "--seconds" => plan.seconds = value.parse()?,
            "--writes" => plan.writes_per_second = value.parse()?,
            "--objects" => plan.objects = value.parse()?,
            "--seed" => plan.seed = value.parse()?,
            other => return Err(format!("no flag {other}").into()),
        }
    }
    if plan.kubeconfig.as_os_str().is_empty() {
        return Err("usage: informer_soak --kubeconfig FILE [--seconds N] [--writes N] [--objects N] [--seed N]".into());
    }
    println!("{}", run(plan).await?);
    Ok(())
}

/// Runs the soak test and returns its figures.
pub(crate) async fn run(plan: Plan) -> Outcome<String> {
    let kubeconfig = kube::config::Kubeconfig::read_from(&plan.kubeconfig)?;
    let direct = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
    let direct = kube::Client::try_from(direct)?;
    prepare(&direct).await?;

    let faults = Faults::default();
    let mut config = Config::load(Some(&plan.kubeconfig), None)?;
    config.server = proxy(&config.server, faults.clone()).await?;
    let client = Client::new(config)?;
    let resource = client.discover("configmaps").await?;
    let reflector = ReflectorConfig {
        type_name: Some(resource.type_name()),
        // A frozen HTTP/1.1 connection is detected only by its silence.
        idle_limit: Some(Duration::from_secs(5)),
        ..ReflectorConfig::default()
    };
    let config = |name: &str| InformerConfig { name: name.to_owned(), reflector: reflector.clone() };
    let faulty = |scope: &Scope, bookmarks: bool| Faulty {
        inner: Arc::new(client.list_watch(&resource, scope).labels(LABEL)),
        faults: faults.clone(),
        bookmarks,
    };

    let whole = SharedInformer::new(faulty(&Scope::Cluster, true), config("whole"));
    let typed = SharedInformer::with_decoder(faulty(&Scope::Cluster, false), config("typed"), Json::<ConfigMap>::new());
    let open = {
        let (client, resource, faults) = (client.clone(), resource.clone(), faults.clone());
        move |name: &str| {
            let list_watch = client.list_watch(&resource, &Scope::Namespace(name.to_owned())).labels(LABEL);
            Faulty { inner: Arc::new(list_watch), faults: faults.clone(), bookmarks: true }
        }
    };
    let names = NAMESPACES.map(str::to_owned);
    let namespaces = SharedInformer::over_namespaces(names, open, config("namespaces"), KeepJson);
    let factory = SharedInformerFactory::new(&client, reflector.clone());
    let key = InformerKey::new(resource.clone()).labels(LABEL);
    let shards = factory.informer(&key.clone().shards(Shards::Split(2)));
    let without = Projection::everything().without(["metadata.managedFields"]);
    let slim = factory.informer(&key.clone().metadata_only().projection(without));

    let block = Policy::Block { changes_max: 64, timeout: Duration::from_secs(2) };
    let mirror = Policy::DropAndResync { objects_max: 20 };
    let mut copies = vec![
        Mirror::of(&whole, HandlerOptions::named("quick"), 0),
        Mirror::of(&whole, HandlerOptions::named("slow").resync(Duration::from_secs(30)), 20),
        Mirror::of(&whole, HandlerOptions::named("each").policy(block), 1),
        Mirror::of(&whole, HandlerOptions::named("mirror").policy(mirror), 10),
        Mirror::of(&typed, HandlerOptions::named("typed"), 0),
        Mirror::of(&namespaces, HandlerOptions::named("namespaces"), 0),
        Mirror::of(&shards, HandlerOptions::named("shards"), 0),
        Mirror::of(&slim, HandlerOptions::named("metadata"), 0),
    ];
    whole.start()?;
    typed.start()?;
    namespaces.start()?;
    factory.start()?;

    let (stop, stopped) = watch::channel(false);
    let written = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let pause = Duration::from_secs_f64(WRITERS as f64 / plan.writes_per_second.max(1) as f64);
        let (direct, stopped, written, objects) = (direct.clone(), stopped.clone(), written.clone(), plan.objects);
        let seed = plan.seed * 1000 + writer;
        tasks.spawn(async move { write(&direct, seed, objects, pause, stopped, &written).await });
    }
    let begun = Instant::now();
    let mut random = Random(plan.seed);
    let mut rss = Vec::new();
    let mut late: Vec<(Instant, Mirror)> = Vec::new();
    let mut counts = BTreeMap::<&str, u64>::new();
    let end = begun + Duration::from_secs(plan.seconds);
    let mut second = 0;
    while Instant::now() < end {
        second += 1;
        sleep(Duration::from_secs(1)).await;
        rss.push(rss_mib());
        let mut happened = |what: &'static str| *counts.entry(what).or_default() += 1;
        match random.below(12) {
            0 | 1 => {
                happened("cuts");
                faults.network.send_modify(|network| network.cuts += 1);
            }
            2 => {
                happened("frozen");
                faults.network.send_modify(|network| network.freezes += 1);
            }
            3 => {
                happened("410s");
                faults.expire.store(true, Relaxed);
                faults.network.send_modify(|network| network.cuts += 1);
            }
            4 => {
                happened("late handlers");
                let copy = Mirror::of(&whole, HandlerOptions::named("late"), random.below(30));
                late.push((Instant::now() + Duration::from_secs(20), copy));
            }
            5 => {
                happened("namespaces out and in");
                let name = NAMESPACES[usize::try_from(random.below(3))?];
                namespaces.remove_part(name).await;
                sleep(Duration::from_millis(random.below(2_000))).await;
                namespaces.add_part(name).await;
            }
            6 if random.below(4) == 0 => {
                happened("stops and starts");
                // A busy handler continues with its queue.
                let _busy = typed.stop(Duration::from_secs(1)).await;
                typed.start()?;
            }
            _ => {}
        }
        let now = Instant::now();
        for (_, copy) in late.extract_if(.., |(until, _)| *until < now) {
            copy.check()?;
            copy.handler.remove().await;
        }
        for copy in &copies {
            copy.check()?;
        }
        if second % 60 == 0 {
            let lags: Vec<String> = copies.iter().map(Mirror::lag).collect();
            println!(
                "{:>4} s: RSS {:.1} MiB, {} writes; {counts:?}; {}",
                begun.elapsed().as_secs(),
                rss_mib(),
                written.load(Relaxed),
                lags.join(", ")
            );
        }
    }
    stop.send_replace(true);
    while let Some(writer) = tasks.join_next().await {
        writer??;
    }
    faults.expire.store(false, Relaxed);
    copies.extend(late.into_iter().map(|(_, copy)| copy));

    let healing = Instant::now();
    let truth = loop {
        // The server may be restarting.
        match truth(&direct).await {
            Ok(truth) => break truth,
            Err(error) if healing.elapsed() > HEALING => return Err(error),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    };
    for copy in &copies {
        while let Some(difference) = copy.difference(&truth) {
            copy.check()?;
            if healing.elapsed() > HEALING {
                return Err(
                    format!("broke converging: {} is not what the server holds: {difference}", copy.name).into()
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    let healed = healing.elapsed();
    let events: u64 = copies.iter().map(|copy| copy.told.load(Relaxed)).sum();
    let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    let (early, last) = (most(&rss[rss.len() / 4..rss.len() / 2]), most(&rss[rss.len() * 3 / 4..]));
    clean_up(&direct, &truth).await;
    if last > early * 1.1 + SLACK_MIB {
        return Err(format!("memory grew: {early:.1} MiB in the second quarter, {last:.1} MiB in the last").into());
    }
    Ok(format!(
        "{} s, {} writes, {counts:?}: {} handlers were told {events} events and know the {} objects {:.1} s after the \
         end; RSS {early:.1} MiB in the second quarter, {last:.1} MiB in the last",
        plan.seconds,
        written.load(Relaxed),
        copies.len(),
        truth.len(),
        healed.as_secs_f64()
    ))
}

/// The objects by key: uid and version.
type Objects = BTreeMap<String, (String, String)>;

/// A handler that keeps a copy and checks that its events are a legal history.
struct Mirror {
    name: String,
    objects: Arc<Mutex<Objects>>,
    broken: Arc<Mutex<Option<String>>>,
    told: Arc<AtomicU64>,
    handler: Box<dyn AnyHandler>,
}

impl Mirror {
    fn of<S: Stored>(informer: &SharedInformer<S>, options: HandlerOptions, millis: u64) -> Self {
        let name = options.name.clone();
        let objects: Arc<Mutex<Objects>> = Arc::default();
        let broken: Arc<Mutex<Option<String>>> = Arc::default();
        let told: Arc<AtomicU64> = Arc::default();
        let (into, note, count) = (objects.clone(), broken.clone(), told.clone());
        let handler = informer.on(options, move |event| {
            count.fetch_add(1, Relaxed);
            if let Err(why) = apply(&mut into.lock().unwrap_or_else(PoisonError::into_inner), &event) {
                note.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
            }
            async move {
                if millis > 0 {
                    sleep(Duration::from_millis(millis)).await;
                }
            }
        });
        Mirror { name, objects, broken, told, handler: Box::new(handler) }
    }

    fn check(&self) -> Outcome<()> {
        match &*self.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(format!("broke legal history: {}: {why}", self.name).into()),
            None => Ok(()),
        }
    }

    fn lag(&self) -> String {
        format!("{} {}", self.name, self.handler.lag())
    }

    /// Compares the copy with the server's state. Returns the first difference, if there is one.
    fn difference(&self, truth: &Objects) -> Option<String> {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = truth.iter().find(|(key, object)| objects.get(*key) != Some(object));
        let extra = objects.iter().find(|(key, _)| !truth.contains_key(*key));
        wrong
            .map(|(key, object)| format!("{key} is {object:?}, known as {:?}", objects.get(key)))
            .or_else(|| extra.map(|(key, object)| format!("{key} is gone, known as {object:?}")))
    }
}

fn apply<S: Stored>(objects: &mut Objects, event: &Event<S>) -> Result<(), String> {
    let of = |object: &S| (object.uid().into_owned(), object.resource_version().into_owned());
    let told = || format!("{event:?}");
    match event {
        Event::Added { object, .. } => match objects.insert(object.key().to_string(), of(object)) {
            Some(before) => Err(format!("{} after {before:?}", told())),
            None => Ok(()),
        },
        Event::Updated { old, new, .. } => {
            let before = objects.insert(new.key().to_string(), of(new));
            let follows = before.as_ref() == Some(&of(old)) && old.uid() == new.uid();
            if follows { Ok(()) } else { Err(format!("{} after {before:?}", told())) }
        }
        Event::Deleted { last, .. } => match objects.remove(last.key().as_str()) {
            Some((uid, _)) if uid == last.uid() => Ok(()),
            before => Err(format!("{} after {before:?}", told())),
        },
        Event::Reset => {
            objects.clear();
            Ok(())
        }
        Event::Quarantined { .. } | Event::Synced | Event::Stopped(_) => Ok(()),
    }
}

/// A handler for any type of stored object.
#[async_trait]
trait AnyHandler: Send + Sync {
    async fn remove(&self);
    fn lag(&self) -> String;
}

#[async_trait]
impl<S: Stored> AnyHandler for Handler<S> {
    async fn remove(&self) {
        Handler::remove(self, Remaining::Drop).await;
    }

    fn lag(&self) -> String {
        let lag = Handler::lag(self);
        format!("{} waiting, {:.1} s", lag.waiting, lag.age.as_secs_f64())
    }
}

/// The injected faults.
#[derive(Clone, Default)]
struct Faults {
    network: watch::Sender<Network>,
    /// Whether the next watch is rejected with `410 Expired`.
    expire: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Default)]
struct Network {
    cuts: u64,
    freezes: u64,
}

/// A TCP proxy in front of the server that cuts connections, and freezes them: they stay open
/// without data. Returns the proxy's address.
async fn proxy(server: &http::Uri, faults: Faults) -> Outcome<http::Uri> {
    let authority = server.authority().ok_or("a server without an address")?;
    let port = authority.port_u16().unwrap_or(443);
    let upstream = format!("{}:{port}", authority.host());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let scheme = server.scheme_str().unwrap_or("https");
    let own = format!("{scheme}://127.0.0.1:{}{}", listener.local_addr()?.port(), server.path()).parse()?;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (upstream, mut network) = (upstream.clone(), faults.network.subscribe());
            let before = *network.borrow_and_update();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(upstream).await else { return };
                let is_cut = |network: &Network| network.cuts != before.cuts;
                let hit = |network: &Network| is_cut(network) || network.freezes != before.freezes;
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = network.wait_for(hit) => {}
                }
                // Frozen: both sockets stay open and silent until the next cut.
                let _ = network.wait_for(is_cut).await;
            });
        }
    });
    Ok(own)
}

/// A [`ListWatch`] whose versions expire at random, and whose bookmarks may be lost.
#[derive(Clone)]
struct Faulty {
    inner: Arc<dyn ListWatch>,
    faults: Faults,
    bookmarks: bool,
}

#[async_trait]
impl ListWatch for Faulty {
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem> {
        self.inner.list(options).await
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        if options.send_initial_events.is_none() && self.faults.expire.swap(false, Relaxed) {
            return Err(Problem::refused(Status::failure(410, "Expired", "too old resource version, on purpose")));
        }
        let events = self.inner.watch(options).await?;
        if self.bookmarks {
            return Ok(events);
        }
        Ok(events
            .map(|batch| {
                batch.map(|mut events| {
                    events.retain(|event| event.kind != EventKind::Bookmark);
                    events
                })
            })
            .boxed())
    }
}

/// A small random generator with a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

async fn write(
    client: &kube::Client,
    seed: u64,
    objects: u64,
    pause: Duration,
    stopped: watch::Receiver<bool>,
    written: &AtomicU64,
) -> Outcome<()> {
    let mut random = Random(seed);
    while !*stopped.borrow() {
        sleep(pause).await;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACES[usize::try_from(random.below(3))?]);
        let name = format!("m{}", random.below(objects.div_ceil(3).max(1)));
        let data = serde_json::json!({"n": random.below(1_000_000).to_string(), "text": "x".repeat(900)});
        let done = match random.below(10) {
            0 | 1 => maps.delete(&name, &DeleteParams::default()).await.map(drop),
            2..=4 => {
                let map = serde_json::from_value(serde_json::json!({
                    "metadata": {"name": name, "labels": {"soak": "informer"}}, "data": data,
                }))?;
                maps.create(&PostParams::default(), &map).await.map(drop)
            }
            _ => {
                let patch = Patch::Merge(serde_json::json!({"data": data}));
                maps.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            }
        };
        // The object may not exist, may exist already, or the server may be down; all of this is
        // expected.
        written.fetch_add(u64::from(done.is_ok()), Relaxed);
    }
    Ok(())
}

async fn prepare(client: &kube::Client) -> Outcome<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in NAMESPACES {
        let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": name}}))?;
        match namespaces.create(&PostParams::default(), &namespace).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn truth(client: &kube::Client) -> Outcome<Objects> {
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let list = maps.list(&ListParams::default().labels(LABEL)).await?;
    let of = |map: ConfigMap| {
        let meta = map.metadata;
        let text = Option::unwrap_or_default;
        let key = format!("{}/{}", text(meta.namespace), text(meta.name));
        (key, (text(meta.uid), text(meta.resource_version)))
    };
    Ok(list.items.into_iter().map(of).collect())
}

/// Removes the written objects. Failures are ignored.
async fn clean_up(client: &kube::Client, truth: &Objects) {
    for key in truth.keys() {
        if let Some((namespace, name)) = key.split_once('/') {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let _ = maps.delete(name, &DeleteParams::default()).await;
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in NAMESPACES {
        let _ = namespaces.delete(name, &DeleteParams::default()).await;
    }
}

/// The resident memory of this process in MiB; 0 if the system does not report it.
fn rss_mib() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or_default();
    pages * 4096.0 / f64::from(1 << 20)
}
