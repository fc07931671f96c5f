//! `fairness`: the duration of lease renewals while other clients list all objects.
//!
//! The leases belong to users of two priority levels: controllers (`leader-election`) and kubelets (`node-high`). The
//! clients that list are ordinary users (`global-default`). All of them are impersonated with the administrator's
//! credential, so that any server can be loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};

use crate::Outcome;
use crate::http::{Client, Extras, Http, Identity};
use crate::leases;
use crate::objects::{Objects, Select, create_if_absent};
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::target::Target;

/// The time for the clients to reach their full rate before renewals are measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// Renew leases while clients list everything: the time of a renewal without and with them
#[derive(Debug, clap::Args)]
pub(crate) struct Fairness {
    /// Number of clients that list all objects without a pause
    #[arg(long, value_delimiter = ',', default_value = "0,200")]
    listers: Vec<usize>,

    /// Number of users of these clients
    #[arg(long, default_value_t = 1)]
    users: usize,

    /// Number of objects in a list
    #[arg(long, default_value_t = 5_000)]
    objects: usize,

    /// Size of an object in KiB as it is written
    #[arg(long, default_value_t = 1)]
    kib: usize,

    /// Number of leases, half of controllers and half of nodes. Each has a connection
    #[arg(long, default_value_t = 20)]
    leases: usize,

    /// Renewals of a lease per second
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
}

impl Fairness {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.without_floor().start()?;
        let objects = Objects { count: self.objects, kib: self.kib, select: Select::Label, groups: 10 };
        for target in &targets {
            eprintln!("{}: making {} objects", target.name, objects.count);
            objects.make(target).await?;
            grant(target).await?;
        }
        for &listers in &self.listers {
            let parameters = [
                ("listers", listers.to_string()),
                ("users", self.users.to_string()),
                ("objects", self.objects.to_string()),
                ("renewals/s", format!("{:.0}", self.rate * self.leases as f64)),
            ];
            let measure = async |target: &Arc<Target>, _: Option<&Metrics>| {
                self.measure(target, objects.collection(), listers, common.seconds).await
            };
            common.without_floor().row(&mut report, "Fairness", &parameters, &targets, false, measure).await?;
        }
        Ok(report)
    }

    async fn measure(
        &self,
        target: &Arc<Target>,
        collection: &'static str,
        listers: usize,
        duration: Duration,
    ) -> Outcome<Metrics> {
        let storm = Storm::begin(target, collection, listers, self.users.max(1));
        tokio::time::sleep(WARM_UP).await;
        let (lists, rejections) = storm.counts();
        let (before, begun) = (target.usage(), Instant::now());
        // The renewals have a thread of their own: they wait for the server, and not for the other clients of this
        // program.
        let (renewed, leases, rate) = (target.clone(), self.leases, self.rate);
        let renewals = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(renew_all(&renewed, leases, rate, duration))
        });
        let renewals = tokio::task::spawn_blocking(move || renewals.join());
        let mut times = renewals.await?.map_err(|_| "the renewals panicked")??;
        let took = begun.elapsed().as_secs_f64();
        let after = target.usage();
        let (lists, rejections) = (storm.counts().0 - lists, storm.counts().1 - rejections);
        storm.end().await?;
        let mut metrics = vec![
            ("writes_per_s", times.len() as f64 / took),
            ("p50_ms", percentile(&mut times, 0.5)),
            ("p99_ms", percentile(&mut times, 0.99)),
            ("max_ms", percentile(&mut times, 1.0)),
            ("lists_per_s", lists as f64 / took),
            ("rejected_per_s", rejections as f64 / took),
        ];
        if let Some((before, after)) = before.zip(after) {
            metrics.push(("cpu_share", (after.cpu - before.cpu).as_secs_f64() / took));
            metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
        }
        Ok(metrics)
    }
}

/// The clients that list everything.
struct Storm {
    clients: tokio::task::JoinSet<Outcome<()>>,
    is_over: Arc<AtomicBool>,
    lists: Arc<AtomicU64>,
    rejections: Arc<AtomicU64>,
}

impl Storm {
    fn begin(target: &Arc<Target>, collection: &'static str, listers: usize, users: usize) -> Self {
        let mut storm = Storm {
            clients: tokio::task::JoinSet::new(),
            is_over: Arc::default(),
            lists: Arc::default(),
            rejections: Arc::default(),
        };
        for lister in 0..listers {
            let (target, is_over) = (target.clone(), storm.is_over.clone());
            let (lists, rejections) = (storm.lists.clone(), storm.rejections.clone());
            storm.clients.spawn(async move {
                let identity = Identity { user: format!("lister-{}", lister % users), groups: &["load:listers"] };
                let mut client = Client::connect(&target, Http::H1).await?.with_identity(identity);
                while !is_over.load(Ordering::Relaxed) {
                    match client.drain_any(collection).await? {
                        StatusCode::OK => lists.fetch_add(1, Ordering::Relaxed),
                        // As client-go, which obeys `Retry-After`.
                        StatusCode::TOO_MANY_REQUESTS => {
                            rejections.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_secs(1)).await;
                            continue;
                        }
                        status => return Err(format!("a list: {status}").into()),
                    };
                }
                Ok(())
            });
        }
        storm
    }

    /// The complete and the rejected lists.
    fn counts(&self) -> (u64, u64) {
        (self.lists.load(Ordering::Relaxed), self.rejections.load(Ordering::Relaxed))
    }

    async fn end(mut self) -> Outcome<()> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client??;
        }
        Ok(())
    }
}

/// Renews each lease at the given rate. Returns the durations of the renewals in ms. A duration begins when the renewal
/// is due, so a delay by an earlier renewal counts.
async fn renew_all(target: &Arc<Target>, leases: usize, rate: f64, duration: Duration) -> Outcome<Vec<f64>> {
    let versions = leases::make(target, leases, leases).await?;
    let begun = Instant::now();
    let until = begun + duration;
    let mut renewals = tokio::task::JoinSet::new();
    for (lease, versions) in versions.into_iter().enumerate() {
        let target = target.clone();
        let mut version = *versions.first().ok_or("a client without a lease")?;
        renewals.spawn(async move {
            let mut client = Client::connect(&target, Http::H1).await?.with_identity(owner(lease));
            let mut times = Vec::new();
            // The leases are not renewed all at once.
            let offset = lease as f64 / (rate * leases as f64);
            for turn in 0.. {
                let due = begun + Duration::from_secs_f64(offset + f64::from(turn) / rate);
                if due >= until {
                    break;
                }
                tokio::time::sleep_until(due.into()).await;
                version = leases::renew(&mut client, lease, version).await?;
                times.push(due.elapsed().as_secs_f64() * 1e3);
            }
            Outcome::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(of_lease) = renewals.join_next().await {
        times.extend(of_lease??);
    }
    Ok(times)
}

/// The user that renews a lease: a controller or a kubelet.
fn owner(lease: usize) -> Identity {
    match lease % 2 {
        0 => Identity { user: "system:kube-controller-manager".to_owned(), groups: &["load:lease-owners"] },
        _ => Identity { user: format!("system:node:node-{lease}"), groups: &["system:nodes", "load:lease-owners"] },
    }
}

/// Grants the permissions that the users of this load need.
async fn grant(target: &Target) -> Outcome<()> {
    let mut client = Client::connect(target, Http::H1).await?;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (name, group, rule) in [
        ("load-listers", "load:listers", r#"{"apiGroups":["*"],"resources":["*"],"verbs":["get","list","watch"]}"#),
        (
            "load-lease-owners",
            "load:lease-owners",
            r#"{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["*"]}"#,
        ),
    ] {
        let role = format!(r#"{{"metadata":{{"name":"{name}"}},"rules":[{rule}]}}"#);
        let binding = format!(
            r#"{{"metadata":{{"name":"{name}"}},
            "subjects":[{{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"{group}"}}],
            "roleRef":{{"kind":"ClusterRole","apiGroup":"rbac.authorization.k8s.io","name":"{name}"}}}}"#
        );
        create_if_absent(&mut client, &format!("{rbac}/clusterroles"), role.into()).await?;
        create_if_absent(&mut client, &format!("{rbac}/clusterrolebindings"), binding.into()).await?;
    }
    // The authorizer learns of the bindings from its watch.
    let mut lister = Client::connect(target, Http::H1)
        .await?
        .with_identity(Identity { user: "lister-0".to_owned(), groups: &["load:listers"] });
    for _ in 0..1_000 {
        let (status, _) = lister.request(Method::GET, "/api/v1/configmaps?limit=1", Extras::default()).await?;
        if status.is_success() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the users of this load may not list".into())
}
