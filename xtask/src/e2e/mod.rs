//! `e2e`: tests the built server with real clients.
//!
//! A run has the same scenarios once per store (embedded, then etcd). kubectl applies the shop of
//! examples/manifests, watches it, and changes it by every kind of command. The server is killed in
//! between and receives invalid input. At the end, its objects are compared with the model. This
//! module uses only the server's flags and the Kubernetes API, not its code.

mod access;
mod bad_input;
mod changes;
mod clients;
mod cluster;
mod crds;
pub(crate) mod etcd;
mod etcd_cluster;
mod exchange;
mod faults;
mod kube_rs;
mod looks;
mod model;
mod operators;
mod our_watch;
mod plugins;
mod restart;
pub(crate) mod server;
mod starts;
mod transcript;
mod watching;

use std::path::PathBuf;
use std::time::Instant;

use crate::args::Args;
use crate::cleanup::{self, Guard, Resource};
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::process::{Background, Run};
use crate::steps::Steps;
use crate::tools;
use access::Access;
pub(crate) use cluster::ClusterOptions;
use etcd::Etcd;
use model::Model;
pub(crate) use operators::OperatorOptions;
use server::{Server, Store};

pub(crate) const HELP: &str = "\
Starts a real etcd and the built server, and drives the server with real kubectl and curl: first on
the embedded store, then on etcd. Prints a table of scenarios; leaves no process, container, image
or directory behind, also after a failure or Ctrl-C. Takes a few minutes at most, builds included.

Usage: cargo xtask e2e [FLAGS]
  --etcd HOW          container: in Docker Engine (an image that can be pulled, else one built here
                      from an etcd binary of this machine or of Debian's etcd-server package)
                      binary: as a process; none: the embedded store only
                      [default: container if a Docker engine responds, else binary]
  --etcd-image IMAGE  the image to run [default: registry.k8s.io/etcd:3.6.8-0]
  --etcd-bin FILE     the etcd binary to run, or to build the image from
  --server-bin FILE   a listwatch binary that is built already
  --release           build and drive the release build
  --only TEXT         only the scenarios whose name contains TEXT (and those they depend on)
  --keep              keep the working directory, with every log
  --against FILE      drive another API server by its kubeconfig (with a bearer token): a real
                      kube-apiserver, to verify the expectations
  --kube-rs DIR       instead of the scenarios: build the example programs of kube-rs in DIR, a
                      checkout of its repository, and run them unchanged, over TLS and against a
                      server in process. The build takes some minutes and needs OpenSSL's headers
                      (Debian: libssl-dev), so this is no part of `cargo xtask test`
  --cluster           instead of the scenarios: upstream's kube-controller-manager, kube-scheduler,
                      hollow kubelets and hollow kube-proxy on the server, first on the embedded
                      store, then on etcd (as a process). Fails if a binary is missing
  --kubernetes-bin DIR  the directory of kube-controller-manager, kube-scheduler and kubemark
                      [default: $LISTWATCH_KUBERNETES_BIN]
  --against-apiserver the same on the kube-apiserver of that directory, with its own etcd; compares
                      the final states and prints CPU time and memory of all servers. With
                      --operator, suites are compared test by test
  --nodes N           hollow kubelets [default: 4]
  --cycle PODS        with --cluster, instead of its scenarios: the components create, schedule, run and
                      delete these pods; prints CPU time per request of each server, and the requests
  --exchange          instead of the scenarios: the kube-apiserver of --kubernetes-bin writes every kind
                      into an etcd and listwatch serves it, then the other way round; plain and
                      encrypted. Each object must read the same, and be stored in the same bytes
  --operator NAME     instead of the scenarios: a public operator with webhooks of its own.
                      cert-manager, jobset or lws: installs it, runs its programs, uses its webhooks
                      suite: runs compiled envtest suites with the server in place of kube-apiserver
  --manifests PATH    what the operator is installed from: a YAML file or a kustomization directory
                      (can be given several times; applied in order)
  --operator-bin DIR  the directory of the operator's programs, under their upstream names
                      (cert-manager: controller, webhook, cainjector; jobset, lws: manager)
  --suite DIR=FILE    with `--operator suite`: a test program made by `go test -c`, and the directory
                      of its package, where it runs (can be given several times)
  --suite-args ARGS   arguments of the test programs [default: -test.v]
  --store STORE       embedded or etcd [default: embedded; suites always run on etcd]

  --faults            instead of the scenarios: breaks etcd (one and three members) and the server under
                      load, and compares what every client saw with etcd's own history. With --etcd
                      container on a network of their own, with --etcd binary as processes
  --seed N            the seed of the clients' random decisions, for --faults [default: 1]
  --list              lists the scenarios of --faults

Examples:
  cargo xtask e2e
  cargo xtask e2e --faults --only leader --keep
  cargo xtask e2e --etcd none --only watch
  cargo xtask e2e --etcd container --etcd-image quay.io/coreos/etcd:v3.5.21
  cargo xtask e2e --etcd binary --etcd-bin ~/bin/etcd
  cargo xtask e2e --against ~/.kube/test-cluster
  cargo xtask e2e --kube-rs ~/src/kube
  cargo xtask e2e --cluster --kubernetes-bin ~/kubernetes/bin --release --against-apiserver
  cargo xtask e2e --cluster --kubernetes-bin ~/kubernetes/bin --nodes 10 --cycle 300 --against-apiserver
  cargo xtask e2e --exchange --kubernetes-bin ~/kubernetes/bin
  cargo xtask e2e --operator lws --manifests ~/lws/config/default --operator-bin ~/lws/bin
  cargo xtask e2e --operator suite --suite ~/lws/test/integration/webhooks=/tmp/webhooks.test \\
      --kubernetes-bin ~/kubernetes/bin --against-apiserver";

/// The image that runs if its registry can be reached: the etcd of Kubernetes 1.36.
const ETCD_IMAGE: &str = "registry.k8s.io/etcd:3.6.8-0";

/// The kind of the etcd of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EtcdFrom {
    /// A container if a Docker engine responds, else a process.
    #[default]
    Auto,
    Container,
    Binary,
    None,
}

/// The options of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) etcd: EtcdFrom,
    pub(crate) etcd_image: Option<String>,
    pub(crate) etcd_bin: Option<PathBuf>,
    pub(crate) server_bin: Option<PathBuf>,
    pub(crate) release: bool,
    pub(crate) only: Option<String>,
    pub(crate) keep: bool,
    pub(crate) against: Option<PathBuf>,
    pub(crate) kube_rs: Option<PathBuf>,
    pub(crate) cluster: Option<ClusterOptions>,
    pub(crate) operator: Option<OperatorOptions>,
}

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let etcd = match args.value("--etcd")?.as_deref() {
        None => EtcdFrom::Auto,
        Some("container") => EtcdFrom::Container,
        Some("binary") => EtcdFrom::Binary,
        Some("none") => EtcdFrom::None,
        Some(other) => fail!("--etcd is container, binary or none, not {other}"),
    };
    if args.flag("--list") {
        faults::list();
        return Ok(());
    }
    let faults_seed = match (args.flag("--faults"), args.value("--seed")?) {
        (true, Some(seed)) => Some(seed.parse().map_err(|_| format!("--seed is not a number: {seed}"))?),
        (true, None) => Some(1),
        (false, None) => None,
        (false, Some(_)) => fail!("--seed goes with --faults"),
    };
    let exchange = args.flag("--exchange");
    let exchange_bin = if exchange { args.value("--kubernetes-bin")?.map(PathBuf::from) } else { None };
    // First, since it shares flags with `--cluster`.
    let operator = OperatorOptions::read(&mut args)?;
    let options = Options {
        etcd,
        etcd_image: args.value("--etcd-image")?,
        etcd_bin: args.value("--etcd-bin")?.map(PathBuf::from),
        server_bin: args.value("--server-bin")?.map(PathBuf::from),
        release: args.flag("--release"),
        only: args.value("--only")?,
        keep: args.flag("--keep"),
        against: args.value("--against")?.map(PathBuf::from),
        kube_rs: args.value("--kube-rs")?.map(PathBuf::from),
        cluster: ClusterOptions::read(&mut args)?,
        operator,
    };
    args.finish("e2e")?;
    ensure!(
        options.cluster.is_none() || (options.kube_rs.is_none() && options.against.is_none()),
        "--cluster starts servers of its own: neither --kube-rs nor --against goes with it"
    );
    ensure!(
        options.kube_rs.is_none() || options.against.is_none(),
        "--kube-rs drives servers of its own, not --against"
    );
    ensure!(
        options.operator.is_none()
            || (options.cluster.is_none() && options.kube_rs.is_none() && options.against.is_none()),
        "--operator starts servers of its own: none of --cluster, --kube-rs and --against goes with it"
    );
    if let Some(seed) = faults_seed {
        return faults::steps(&options, seed)?.finish("e2e --faults");
    }
    if exchange {
        return exchange::steps(&options, exchange_bin.as_deref())?.finish("e2e --exchange");
    }
    steps(options)?.finish("e2e")
}

/// Runs all scenarios and returns the rows. An error only if the run cannot begin.
pub(crate) fn steps(mut options: Options) -> Outcome<Steps> {
    let start = Instant::now();
    if let Some(wanted) = options.cluster.take() {
        return cluster::steps(&options, &wanted);
    }
    if let Some(wanted) = options.operator.take() {
        return operators::steps(&options, &wanted);
    }
    let mut steps = Steps::default();
    let kubectl = tools::find_or_fetch("kubectl", "kubernetes-client")?;
    let curl = tools::curl()?;
    let dir = WorkDir::new(options.keep)?;
    println!(
        "kubectl {} and {}",
        version(Run::new(&kubectl).args(["version", "--client"])),
        version(Run::new(&curl).arg("-V"))
    );

    if let Some(checkout) = options.kube_rs.take() {
        kube_rs::run(&checkout, options, &kubectl, &dir.path, &mut steps);
        return Ok(steps);
    }
    if let Some(kubeconfig) = options.against.take() {
        let access = Access::from_kubeconfig(&kubeconfig, &kubectl, &curl, &dir.path.join("against"))?;
        let world = World::new(access, None, options);
        world.run("against", &mut steps);
        return Ok(steps);
    }
    if options.server_bin.is_none() {
        options.server_bin = Some(build(options.release)?);
    }
    let etcd = match options.etcd {
        EtcdFrom::Auto if tools::docker_engine() => EtcdFrom::Container,
        EtcdFrom::Auto => {
            println!("no Docker engine responds: etcd runs as a process");
            EtcdFrom::Binary
        }
        chosen => chosen,
    };

    let on_store = |name: &'static str, store: Store, steps: &mut Steps| -> Outcome<()> {
        let bin = options.server_bin.clone().ok_or("no server binary")?;
        let mut server = None;
        let started = steps.run(name, "start", || {
            let (running, note) = Server::start(&bin, store, &dir.path.join(name))?;
            server = Some(running);
            Ok(note)
        });
        if let (true, Some(server)) = (started, server) {
            let access = Access::from_kubeconfig(&server.kubeconfig(), &kubectl, &curl, &dir.path.join(name))?;
            World::new(access, Some(server), options.clone()).run(name, steps);
        }
        Ok(())
    };
    on_store("embedded", Store::Embedded, &mut steps)?;
    if etcd == EtcdFrom::None {
        steps.skip("etcd", "all of it", "as asked by --etcd none");
    } else {
        let mut running = None;
        steps.run("etcd", "start etcd", || {
            let image = options.etcd_image.as_deref();
            let started = match etcd {
                EtcdFrom::Container => Etcd::container(image, ETCD_IMAGE, options.etcd_bin.as_deref(), &dir.path)?,
                _ => Etcd::process(options.etcd_bin.as_deref(), &dir.path)?,
            };
            let note = started.describe();
            running = Some(started);
            Ok(note)
        });
        if let Some(etcd) = running {
            on_store("etcd", Store::Etcd { url: etcd.url(), etcdctl: etcd.etcdctl.clone(), tls: None }, &mut steps)?;
        }
    }
    steps.run("", "refused starts", || starts::refused(options.server_bin.as_deref(), &dir.path));
    println!("the whole run took {}", crate::steps::seconds(start.elapsed()));
    Ok(steps)
}

fn version(run: Run) -> String {
    let text = run.output().map(|output| output.text()).unwrap_or_default();
    text.lines().next().unwrap_or("of unknown version").to_owned()
}

fn build(release: bool) -> Outcome<PathBuf> {
    let profile = if release { ("release", &["--release"][..]) } else { ("debug", &[][..]) };
    Run::cargo().args(["build", "--package", "listwatch-cli"]).args(profile.1).dir(&tools::root()).show()?;
    let file = tools::target().join(profile.0).join(format!("listwatch{}", std::env::consts::EXE_SUFFIX));
    ensure!(file.is_file(), "the build made no {}", file.display());
    Ok(file)
}

/// The directory of the run, which is removed at its end.
struct WorkDir {
    path: PathBuf,
    guard: Option<Guard>,
}

impl WorkDir {
    fn new(keep: bool) -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("listwatch-e2e-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        if keep {
            println!("working directory, kept: {}", path.display());
            return Ok(Self { path, guard: None });
        }
        Ok(Self { guard: Some(cleanup::guard(Resource::Directory(path.clone()))), path })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        drop(self.guard.take());
    }
}

/// The run on one store: access to the server, the server process (unless `--against`), and the
/// model of its objects.
struct World {
    access: Access,
    server: Option<Server>,
    model: Model,
    /// `kubectl get pods -A -w`, open since before the first object was applied.
    pods: Option<Background>,
    options: Options,
}

/// One row of the table.
struct Scenario {
    name: &'static str,
    needs: Needs,
    run: fn(&mut World) -> Outcome<String>,
}

/// The requirement of a scenario.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Any API server. If this scenario fails, the run ends.
    First,
    /// Any API server. Later scenarios depend on this one, so `--only` keeps it.
    Base,
    /// Any API server.
    Any,
    /// Any API server, but only once: the result does not depend on the store.
    Verbs,
    /// A server that this run has started.
    OwnServer,
    /// A server of this run, on etcd.
    Etcd,
}

const fn scenario(name: &'static str, needs: Needs, run: fn(&mut World) -> Outcome<String>) -> Scenario {
    Scenario { name, needs, run }
}

/// The scenarios in order. Later scenarios use objects of earlier ones.
const SCENARIOS: &[Scenario] = &[
    scenario("namespaces at start", Needs::Any, looks::first_namespaces),
    scenario("credentials", Needs::Any, looks::credentials),
    scenario("discovery", Needs::Any, looks::discovery),
    scenario("watch before apply", Needs::Base, watching::open_pods_watch),
    scenario("apply -R", Needs::First, changes::apply),
    scenario("apply again", Needs::Any, changes::apply_again),
    scenario("watch saw the pods", Needs::Any, watching::pods_were_seen),
    scenario("get all -A", Needs::Any, looks::get_all),
    scenario("get each kind", Needs::Any, looks::get_each_kind),
    scenario("columns", Needs::Any, looks::columns),
    scenario("selectors", Needs::Any, looks::selectors),
    scenario("watch prints at once", Needs::Any, watching::prints_at_once),
    scenario("watch over HTTP/1.1", Needs::Any, watching::over_http1),
    scenario("watch over HTTP/2", Needs::Any, watching::over_http2),
    scenario("listwatch watch", Needs::OwnServer, watching::our_client),
    scenario("listwatch watch diffs", Needs::OwnServer, our_watch::prints_diffs),
    scenario("listwatch watch --once", Needs::OwnServer, our_watch::once),
    scenario("curl pages", Needs::Any, clients::curl_pages),
    scenario("curl resumes", Needs::Any, clients::curl_resumes),
    scenario("kube-rs", Needs::Any, clients::kube_rs),
    scenario("Python lists", Needs::Any, clients::python_lists),
    scenario("Python pages", Needs::Any, clients::python_pages),
    scenario("Python watches", Needs::Any, clients::python_watches),
    scenario("Python resumes", Needs::Any, clients::python_resumes),
    scenario("Python writes", Needs::Verbs, clients::python_writes),
    scenario("Python patches", Needs::Verbs, clients::python_patches),
    scenario("Python reads YAML", Needs::Verbs, clients::python_creates_from_yaml),
    scenario("WebSocket watches", Needs::Any, clients::websocket_watches),
    scenario("protobuf is protobuf", Needs::Any, clients::python_decodes_protobuf),
    scenario("CRDs of operators", Needs::Any, crds::operators),
    scenario("label, annotate", Needs::Base, changes::label_and_annotate),
    scenario("edit", Needs::Base, changes::edit),
    scenario("patch (strategic)", Needs::Base, changes::patch_strategic),
    scenario("patch (merge)", Needs::Base, changes::patch_merge),
    scenario("patch (json)", Needs::Base, changes::patch_json),
    scenario("scale", Needs::Base, changes::scale),
    scenario("apply a change", Needs::Base, changes::apply_change),
    scenario("create, run", Needs::Base, changes::create),
    scenario("SIGKILL and restart", Needs::OwnServer, restart::kill_and_restart),
    scenario("SIGKILL while writing", Needs::OwnServer, restart::kill_while_writing),
    scenario("kubectl get", Needs::Verbs, transcript::get),
    scenario("kubectl describe", Needs::Verbs, transcript::describe),
    scenario("kubectl create", Needs::Verbs, transcript::create),
    scenario("kubectl apply, patch, edit", Needs::Verbs, transcript::change),
    scenario("kubectl apply --server-side", Needs::Verbs, transcript::apply),
    scenario("kubectl rollout, wait", Needs::Verbs, transcript::rollout),
    scenario("kubectl watch, wait, events", Needs::Verbs, transcript::wait),
    scenario("kubectl delete, conflicts", Needs::Verbs, transcript::remove),
    scenario("kubectl drain", Needs::Verbs, transcript::nodes),
    scenario("kubectl delete --cascade", Needs::OwnServer, transcript::cascade),
    scenario("kubectl explain, auth", Needs::Verbs, transcript::ask),
    scenario("kubectl auth, certificate, --as", Needs::Verbs, transcript::permissions),
    scenario("client certificates", Needs::OwnServer, transcript::certificates),
    scenario("kubectl and a kind of one's own", Needs::Verbs, transcript::kinds),
    scenario("delete", Needs::Base, changes::delete),
    scenario("delete a namespace", Needs::OwnServer, changes::delete_namespace),
    scenario("bad input", Needs::Any, bad_input::requests),
    scenario("admission plugins", Needs::Any, plugins::admit),
    scenario("broken connections", Needs::Any, bad_input::connections),
    scenario("etcdctl reads the objects", Needs::Etcd, restart::etcdctl_reads),
    scenario("two servers, one etcd", Needs::Etcd, restart::two_servers),
    scenario("final state", Needs::Base, changes::final_state),
    scenario("stop", Needs::OwnServer, restart::stop),
];

impl World {
    fn new(access: Access, server: Option<Server>, options: Options) -> Self {
        Self { access, server, model: Model::default(), pods: None, options }
    }

    fn run(mut self, group: &'static str, steps: &mut Steps) {
        for scenario in SCENARIOS {
            let on_etcd = self.server.as_ref().is_some_and(|server| matches!(server.store, Store::Etcd { .. }));
            let chosen = matches!(scenario.needs, Needs::First | Needs::Base)
                || self.options.only.as_deref().is_none_or(|only| scenario.name.contains(only));
            let possible = match scenario.needs {
                Needs::First | Needs::Base | Needs::Any => true,
                Needs::Verbs => !on_etcd,
                Needs::OwnServer => self.server.is_some(),
                Needs::Etcd => on_etcd,
            };
            if chosen && possible {
                let well = steps.run(group, scenario.name, || {
                    let note = (scenario.run)(&mut self)?;
                    self.server_is_well()?;
                    Ok(note)
                });
                if !well && (scenario.needs == Needs::First || !self.revive()) {
                    break;
                }
            }
        }
    }

    /// An error if the server has ended or panicked.
    fn server_is_well(&mut self) -> Outcome<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        if let Some(line) = server.panicked() {
            fail!("the server panicked: {line}");
        }
        Ok(())
    }

    /// Starts a new server process after a failure if the old one has ended. Returns whether a
    /// server runs.
    fn revive(&mut self) -> bool {
        let Some(server) = &mut self.server else { return true };
        if server.running() {
            return true;
        }
        println!("     the server has ended; its last lines:\n{}", server.tail());
        server.restart().map_err(|failure: Failure| println!("     and cannot be restarted: {failure}")).is_ok()
    }

    /// The server process of this run.
    fn server(&mut self) -> Outcome<&mut Server> {
        self.server.as_mut().ok_or_else(|| Failure::from("this scenario needs a server of its own"))
    }
}
