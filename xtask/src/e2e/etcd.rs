//! A real etcd for the run: in a container if a Docker engine runs, else as a process.
//!
//! The image is the official one if its registry can be reached. Otherwise an image is built from an etcd binary and
//! the libraries that it is linked with.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cleanup::{self, Guard, Resource};
use crate::failure::{Outcome, ensure, fail};
use crate::process::{Background, Run};
use crate::tools;

use super::server::free_port;

/// The time limit of a connection to a registry.
const REGISTRY_PROBE: Duration = Duration::from_secs(3);
/// The time limit of an image download.
const PULL_LIMIT: Duration = Duration::from_secs(120);
/// The time limit of etcd's start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running etcd with one member, taken down when dropped.
pub(crate) struct Etcd {
    port: u16,
    from: String,
    version: String,
    pub(crate) etcdctl: PathBuf,
    // Dropped in this order: the container before its image.
    _container: Option<Guard>,
    _image: Option<Guard>,
    process: Option<Background>,
}

impl Etcd {
    /// Starts etcd as a process with its data below `dir`.
    pub(crate) fn process(bin: Option<&Path>, dir: &Path) -> Outcome<Self> {
        let bin = binary(bin)?;
        let (port, peer) = (free_port()?, free_port()?);
        let process =
            Run::new(&bin).args(flags("127.0.0.1", port, peer)).arg("--data-dir").arg(dir.join("etcd-data")).start()?;
        let etcd = Self {
            port,
            from: format!("process {}", bin.display()),
            version: String::new(),
            etcdctl: etcdctl(Some(&bin))?,
            _container: None,
            _image: None,
            process: Some(process),
        };
        match etcd.wait() {
            Ok(version) => Ok(Self { version, ..etcd }),
            Err(failure) => {
                let tail = etcd.process.as_ref().map(Background::tail).unwrap_or_default();
                fail!("{failure}: {tail}")
            }
        }
    }

    /// Starts etcd in a container of `image`, of `default` if its registry can be reached, or of an image built here.
    pub(crate) fn container(image: Option<&str>, default: &str, bin: Option<&Path>, dir: &Path) -> Outcome<Self> {
        ensure!(tools::docker_engine(), "no Docker engine answers; `--etcd binary` runs etcd as a process");
        let (image, built) = match (image, bin) {
            (Some(image), _) => {
                have_image(image)?;
                (image.to_owned(), None)
            }
            (None, None)
                if have_image(default).map_err(|why| println!("     {why}; building an image here")).is_ok() =>
            {
                (default.to_owned(), None)
            }
            (None, bin) => {
                let (image, guard) = build_image(&binary(bin)?, &dir.join("image"))?;
                (image, Some(guard))
            }
        };
        let port = free_port()?;
        let name = format!("listwatch-e2e-{}", std::process::id());
        let container = cleanup::guard(Resource::Container(name.clone()));
        Run::new("docker")
            .args(["run", "--detach", "--name", &name, "--publish", &format!("127.0.0.1:{port}:2379")])
            .args(["--entrypoint", "etcd", &image])
            .args(flags("0.0.0.0", 2379, 2380))
            .args(["--data-dir", "/tmp/etcd"])
            .limit(Duration::from_secs(60))
            .text()?;
        let etcd = Self {
            port,
            from: format!("container of {image}"),
            version: String::new(),
            etcdctl: etcdctl(bin)?,
            _container: Some(container),
            _image: built,
            process: None,
        };
        match etcd.wait() {
            Ok(version) => Ok(Self { version, ..etcd }),
            Err(failure) => {
                let logs = Run::new("docker").args(["logs", "--tail", "10", &name]).output()?;
                fail!("{failure}: {}", logs.said())
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn describe(&self) -> String {
        format!("etcd {} in a {}", self.version, self.from)
    }

    /// CPU time and memory, if etcd runs as a process.
    pub(crate) fn usage(&self) -> Option<super::cluster::Usage> {
        super::cluster::Usage::of_process(self.process.as_ref()?.id())
    }

    /// Waits until etcd responds. Returns its version.
    fn wait(&self) -> Outcome<String> {
        let start = Instant::now();
        loop {
            let status =
                ctl(&self.etcdctl, &self.url()).args(["endpoint", "status", "--write-out", "json"]).output()?;
            if status.success() {
                let status: serde_json::Value = serde_json::from_slice(&status.stdout)?;
                return Ok(status[0]["Status"]["version"].as_str().unwrap_or("of unknown version").to_owned());
            }
            if start.elapsed() > START_LIMIT {
                fail!("etcd did not answer within {START_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Runs etcdctl with the v3 API on one endpoint.
pub(crate) fn ctl(etcdctl: &Path, url: &str) -> Run {
    let run = Run::new(etcdctl).env("ETCDCTL_API", "3").args(["--endpoints", url]);
    run.limit(Duration::from_secs(60))
}

fn flags(host: &str, port: u16, peer: u16) -> Vec<String> {
    let client = format!("http://{host}:{port}");
    let peer = format!("http://127.0.0.1:{peer}");
    let flag = |name: &str, value: &str| [format!("--{name}"), value.to_owned()];
    [
        flag("name", "default"),
        flag("listen-client-urls", &client),
        flag("advertise-client-urls", &client),
        flag("listen-peer-urls", &peer),
        flag("initial-advertise-peer-urls", &peer),
        flag("initial-cluster", &format!("default={peer}")),
    ]
    .concat()
}

pub(crate) fn binary(named: Option<&Path>) -> Outcome<PathBuf> {
    match named {
        Some(named) => {
            ensure!(named.is_file(), "there is no etcd at {}", named.display());
            Ok(named.to_owned())
        }
        None => tools::find_or_fetch("etcd", "etcd-server"),
    }
}

/// The etcdctl beside the named etcd, else any.
pub(crate) fn etcdctl(etcd: Option<&Path>) -> Outcome<PathBuf> {
    let beside = etcd.and_then(Path::parent).map(|dir| dir.join("etcdctl")).filter(|file| file.is_file());
    beside.map_or_else(|| tools::find_or_fetch("etcdctl", "etcd-client"), Ok)
}

/// Pulls the image if the engine lacks it. An error has the reason.
pub(crate) fn have_image(image: &str) -> Outcome<()> {
    let inspect = Run::new("docker").args(["image", "inspect", image]).limit(Duration::from_secs(10));
    if inspect.output()?.success() {
        return Ok(());
    }
    let registry = match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) => host,
        _ => "registry-1.docker.io",
    };
    let address = if registry.contains(':') { registry.to_owned() } else { format!("{registry}:443") };
    // Name resolution has no time limit, so it runs on another thread.
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut addresses = address.to_socket_addrs().into_iter().flatten();
        // The receiver is gone if the result is late.
        let _ = answer.send(addresses.any(|address| TcpStream::connect_timeout(&address, REGISTRY_PROBE).is_ok()));
    });
    if answered.recv_timeout(REGISTRY_PROBE) != Ok(true) {
        fail!("{registry} cannot be reached from here");
    }
    println!("     pulling {image}");
    let pull = Run::new("docker").args(["pull", "--quiet", image]).limit(PULL_LIMIT).output()?;
    ensure!(pull.success(), "{image} cannot be had: {}", pull.said());
    Ok(())
}

/// Builds an image with one etcd binary and the libraries that the binary needs.
pub(crate) fn build_image(bin: &Path, stage: &Path) -> Outcome<(String, Guard)> {
    let put = |from: &Path, to: &Path| -> Outcome<()> {
        let to = stage.join(to.strip_prefix("/").unwrap_or(to));
        std::fs::create_dir_all(to.parent().unwrap_or(stage))?;
        std::fs::copy(from, to)?; // follows links, keeps the mode
        Ok(())
    };
    put(bin, Path::new("usr/local/bin/etcd"))?;
    std::fs::create_dir_all(stage.join("tmp"))?;
    // ldd fails for a static binary, which needs no libraries.
    let libraries = Run::new("ldd").arg(bin).output()?.text();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        put(Path::new(library), Path::new(library))?;
    }
    let archive = stage.with_extension("tar");
    Run::new("tar").arg("-cf").arg(&archive).arg("-C").arg(stage).arg(".").text()?;
    let tag = format!("listwatch-e2e/etcd:built-{}", std::process::id());
    let guard = cleanup::guard(Resource::Image(tag.clone()));
    Run::new("docker").arg("import").arg(&archive).arg(&tag).limit(Duration::from_secs(60)).text()?;
    println!("     built {tag} from {}", bin.display());
    Ok((tag, guard))
}
