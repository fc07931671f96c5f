//! `dist`: builds the binary that is shipped, with profile-guided optimization.
//!
//! ```text
//!  build with counters ──► serve ◄── loads of a cluster, of writes, lists and watches; cases of the conformance kit
//!                            │        (over the embedded store, and over etcd)
//!                            ▼
//!                        counts of branches and calls ──► build with the counts ──► target/dist/listwatch
//!                        functions without requests ────► order of the functions in the binary ──┘
//! ```
//!
//! The counts place the code that requests run side by side, and decide what is inlined. A request of a cluster touches
//! most of the write path once, so that it mostly waits for code that is not in the cache of the processor. The functions
//! of an idle server, and then those of its start, are placed before all others ([`crate::link_order`]), so that an idle
//! server maps little code.
//! Source: <https://doc.rust-lang.org/rustc/profile-guided-optimization.html>.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::Args;
use crate::cleanup::{self, Resource};
use crate::e2e::etcd::Etcd;
use crate::e2e::server::{Server, Store};
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::link_order;
use crate::process::Run;
use crate::steps::Steps;
use crate::tools;

pub(crate) const HELP: &str = "\
Builds target/dist/listwatch for production: profile `dist`, optimized for measured requests. The command builds
the server with counters, loads it over the embedded store and over etcd (benches/load and the conformance kit), and
builds it again with the counts. It takes half an hour on two cores. The plain binary comes from
`cargo build --profile dist -p listwatch-cli`; it takes up to twice the CPU time for a write.

The compiler's `llvm-profdata` is required: `rustup component add llvm-tools`, which the command runs if the program
is missing. etcd comes from PATH or from Debian's package, below target/.

Usage: cargo xtask dist [--counts FILE]
  --counts  build with the counts of an earlier run (target/pgo/counts.profdata, with counts.functions beside it),
            and measure nothing

Examples:
  cargo xtask dist
  cargo xtask dist --counts target/pgo/counts.profdata";

/// The loads of `benches/load` whose code is counted. Writes dominate: their code is the largest, and an operator pays
/// most for them.
const LOADS: &[&[&str]] = &[
    &["cluster", "--pods", "200", "--rate", "0"],
    &["writes", "--seconds", "1"],
    &["list", "--objects", "1000", "--seconds", "0.3"],
    &["fanout", "--watchers", "100", "--http", "h1,h2", "--seconds", "1"],
    &["fanout", "--watchers", "100", "--select", "namespace,label,node", "--seconds", "1"],
];

/// The time limit of one load or of the conformance kit. The counters make the server several times as slow.
const LOAD_LIMIT: Duration = Duration::from_secs(300);

/// The time limit of the server's stop. The server writes its counts when it ends.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long a server without requests runs, to count the functions of its start.
const SHORT: Duration = Duration::from_secs(5);
/// How long a server without requests runs, to count the functions of an idle server. Most of its periods are shorter.
const IDLE: Duration = Duration::from_secs(70);

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let counts = args.value("--counts")?.map(PathBuf::from);
    args.finish("dist")?;
    let build = Build::find()?;
    let mut steps = Steps::default();
    let counts = match counts {
        Some(file) => Some(file),
        None => {
            let profdata = llvm_profdata(&build.host)?;
            let file = build.dir.join("counts.profdata");
            // After a failure, the file may have the counts of an earlier source.
            steps.run("dist", "counts of requests", || measure(&build, &profdata, &file)).then_some(file)
        }
    };
    if let Some(counts) = counts {
        steps.run("dist", "build with the counts", || {
            let built = build.server("optimized", build.with_counts("build", &counts)?)?;
            let shipped = tools::target().join("dist").join(SERVER);
            std::fs::create_dir_all(tools::target().join("dist"))?;
            std::fs::copy(built, &shipped)?;
            Ok(shipped.display().to_string())
        });
    }
    steps.finish("dist")
}

/// The file name of the server.
const SERVER: &str = if cfg!(windows) { "listwatch.exe" } else { "listwatch" };

/// The builds with counters and with counts: the same profile and target, so that the counts fit. The counts fit only
/// crates with the same features.
struct Build {
    host: String,
    /// The directory of all builds and of the counts.
    dir: PathBuf,
}

impl Build {
    fn find() -> Outcome<Self> {
        let version = Run::new("rustc").arg("-vV").text()?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or("`rustc -vV` names no host")?.to_owned();
        Ok(Self { host, dir: tools::target().join("pgo") })
    }

    /// Builds the server in a target folder of its own, and returns its path.
    fn server(&self, folder: &str, cargo: Run) -> Outcome<PathBuf> {
        cargo.args(["--package", "listwatch-cli"]).show()?;
        Ok(self.dir.join(folder).join(&self.host).join("dist").join(SERVER))
    }

    /// A command of cargo for a build with counters, which a program writes to `raw` at its end.
    fn with_counters(&self, raw: &Path) -> Run {
        self.cargo("build", "counters", &[format!("-Cprofile-generate={}", raw.display())])
    }

    /// A command of cargo for a build with counts, and with the functions of the start side by side where the linker can
    /// do that.
    fn with_counts(&self, verb: &str, counts: &Path) -> Outcome<Run> {
        ensure!(counts.is_file(), "there are no counts at {}", counts.display());
        let counts = std::path::absolute(counts)?;
        let mut flags = vec![format!("-Cprofile-use={}", counts.display())];
        let functions = functions_beside(&counts);
        if let Some(order) = link_order::flags(&self.host, &functions) {
            ensure!(functions.is_file(), "there is no {} beside the counts", functions.display());
            flags.extend(order);
        }
        Ok(self.cargo(verb, "optimized", &flags))
    }

    fn cargo(&self, verb: &str, folder: &str, flags: &[String]) -> Run {
        let (encoded, plain) = (std::env::var(ENCODED_FLAGS).ok(), std::env::var("RUSTFLAGS").unwrap_or_default());
        // With `--target`, the flags do not apply to build scripts and macros, which run during the build.
        Run::cargo()
            .args([verb, "--profile", "dist", "--target", &self.host, "--target-dir"])
            .arg(self.dir.join(folder))
            .env(ENCODED_FLAGS, flags_with(encoded, &plain, flags))
            .dir(&tools::root())
    }
}

/// `cargo bench` for a build with the counts of an earlier `cargo xtask dist`.
///
/// # Errors
/// There are no counts at this path.
pub(crate) fn bench_with_counts(counts: &Path) -> Outcome<Run> {
    Build::find()?.with_counts("bench", counts)
}

/// The variable with the path of the file to which an instrumented program writes its counts.
const COUNTS_FILE: &str = "LLVM_PROFILE_FILE";

/// The variable of the compiler's flags that takes precedence. Paths in it may contain spaces.
const ENCODED_FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";
/// The separator of flags in [`ENCODED_FLAGS`].
const FLAG_SEPARATOR: &str = "\u{1f}";

/// Adds flags to those of the environment: `encoded` is the value of [`ENCODED_FLAGS`], and `plain` that of `RUSTFLAGS`.
fn flags_with(encoded: Option<String>, plain: &str, flags: &[String]) -> String {
    let before = encoded.unwrap_or_else(|| plain.split_whitespace().collect::<Vec<_>>().join(FLAG_SEPARATOR));
    let before = Some(before).filter(|before| !before.is_empty());
    before.iter().chain(flags).map(String::as_str).collect::<Vec<_>>().join(FLAG_SEPARATOR)
}

/// The list of the functions of a start, one per line, that belongs to these counts.
fn functions_beside(counts: &Path) -> PathBuf {
    counts.with_extension("functions")
}

/// The compiler's `llvm-profdata`. A program of another version of LLVM, such as one on PATH, cannot read the counts.
fn llvm_profdata(host: &str) -> Outcome<PathBuf> {
    let sysroot = Run::new("rustc").args(["--print", "sysroot"]).text()?;
    let program = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/llvm-profdata");
    if !program.is_file() && tools::on_path("rustup").is_some() {
        Run::new("rustup").args(["component", "add", "llvm-tools"]).show()?;
    }
    ensure!(
        program.is_file(),
        "there is no {}: install the component `llvm-tools` of this compiler",
        program.display()
    );
    Ok(program)
}

/// Builds an instrumented server, runs the load on the server, and merges the profile counts.
fn measure(build: &Build, profdata: &Path, counts: &Path) -> Outcome<String> {
    let raw = build.dir.join("raw");
    match std::fs::remove_dir_all(&raw) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Failure::from(error)),
        _ => std::fs::create_dir_all(&raw)?,
    }
    let server = build.server("counters", build.with_counters(&raw))?;
    Run::cargo().args(["build", "--release", "--package", "listwatch-load"]).dir(&tools::root()).show()?;

    let work = std::env::temp_dir().join(format!("listwatch-dist-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let _removed = cleanup::guard(Resource::Directory(work.clone()));
    let etcd = Etcd::process(None, &work)?;
    let functions = start(&server, &work.join("start"), profdata)?;
    let over_etcd = Store::Etcd { url: etcd.url(), etcdctl: etcd.etcdctl.clone(), tls: None };
    for (name, store) in [("embedded", Store::Embedded), ("etcd", over_etcd)] {
        load(&server, store, &work.join(name), &raw).map_err(|failure| failure.while_doing(name))?;
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&raw)? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "profraw"));
    if files.is_empty() {
        fail!("the server wrote no counts below {}", raw.display());
    }
    Run::new(profdata).args(["merge", "--sparse", "--output"]).arg(counts).args(&files).show()?;
    std::fs::write(functions_beside(counts), functions.join("\n"))?;
    let megabytes = std::fs::metadata(counts)?.len() / 1_000_000;
    Ok(format!("{megabytes} MB of counts, {} functions of a start", functions.len()))
}

/// The functions of a start without requests and of an idle server, in the order in which they are placed.
fn start(bin: &Path, dir: &Path, profdata: &Path) -> Outcome<Vec<String>> {
    let short = counts_without_requests(bin, &dir.join("short"), profdata, SHORT)?;
    let idle = counts_without_requests(bin, &dir.join("idle"), profdata, IDLE)?;
    let functions = link_order::order(&short, &idle);
    ensure!(!functions.is_empty(), "the start of the server counted no function");
    Ok(functions)
}

/// Starts a server with counters and stops it after `duration` without a request. Returns the listing of its counts.
fn counts_without_requests(bin: &Path, dir: &Path, profdata: &Path, duration: Duration) -> Outcome<String> {
    std::fs::create_dir_all(dir)?;
    let (raw, merged) = (dir.join("start.profraw"), dir.join("start.profdata"));
    let (mut server, _) =
        Server::start_with(bin, Store::Embedded, &dir.join("server"), vec![(COUNTS_FILE, raw.clone())])?;
    std::thread::sleep(duration);
    stop(&mut server)?;
    // A sparse profile has only functions that ran.
    Run::new(profdata).args(["merge", "--sparse", "--output"]).arg(&merged).arg(&raw).show()?;
    Run::new(profdata).args(["show", "--all-functions", "--counts"]).arg(&merged).text()
}

/// Stops a server with counters, which writes its counts.
fn stop(server: &mut Server) -> Outcome<()> {
    let code = server.terminate(STOP_LIMIT)?;
    ensure!(code == Some(0), "the server ended with {code:?}: {}", server.tail());
    Ok(())
}

/// Loads a server with counters on one store.
fn load(bin: &Path, store: Store, dir: &Path, raw: &Path) -> Outcome<()> {
    let environment = vec![(COUNTS_FILE, raw.join("%p.profraw"))];
    let (mut server, _) = Server::start_with(bin, store, dir, environment.clone())?;
    let program = tools::target().join("release").join(format!("load{}", std::env::consts::EXE_SUFFIX));
    for arguments in LOADS {
        Run::new(&program)
            .args(*arguments)
            .args(["--rounds", "1", "--no-floor", "--name", "listwatch", "--kubeconfig"])
            .arg(server.kubeconfig())
            .limit(LOAD_LIMIT)
            .show()?;
    }
    // The kit reaches code that the loads do not reach. Its exit code is ignored: other tests judge the cases.
    let kit = Run::new(bin).args(["conformance", "--kubeconfig"]).arg(server.kubeconfig()).limit(LOAD_LIMIT);
    let kit = environment.iter().fold(kit, |kit, (name, value)| kit.env(name, value)).output()?;
    ensure!(kit.status.is_some(), "the conformance kit did not end within {LOAD_LIMIT:?}");
    stop(&mut server)
}

#[cfg(test)]
mod tests {
    use super::{LOADS, flags_with};

    #[test]
    fn every_counted_load_is_a_load_of_the_load_program() {
        let program = std::fs::read_to_string(crate::tools::root().join("benches/load/src/main.rs")).unwrap();
        for load in LOADS {
            assert!(program.contains(&format!("\nmod {};", load[0])), "benches/load has no load `{}`", load[0]);
        }
    }

    #[test]
    fn flags_with_spaces_are_added_behind_the_flags_of_the_environment() {
        let flags = ["-Cprofile-use=/my files/counts".to_owned(), "-Clink-arg=-s".to_owned()];
        let ours = "-Cprofile-use=/my files/counts\u{1f}-Clink-arg=-s";
        assert_eq!(flags_with(None, "", &flags), ours);
        assert_eq!(flags_with(None, " -Ca  -Cb ", &flags), format!("-Ca\u{1f}-Cb\u{1f}{ours}"));
        assert_eq!(flags_with(Some("-Cc d".to_owned()), "-Ca", &flags), format!("-Cc d\u{1f}{ours}"));
    }
}
