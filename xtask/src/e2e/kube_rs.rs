//! `--kube-rs`: runs the unchanged example programs of kube-rs' repository as stories (`kube_rs/stories.txt`). A story
//! starts an example and changes objects with kubectl. The example must print and do the same as on a cluster. The
//! stories run over TLS against `listwatch serve`, then over HTTP against a server inside another process
//! (`crates/listwatch/examples/in_process.rs`).
//!
//! ```text
//! // a remark
//! == pods.yaml                       a file that every story finds in its directory, up to the line `==`
//! kind: Pod
//! ==
//! * pod_watcher                      a story, in a namespace of its own; a row of the table
//! start WATCHLIST=1 pod_watcher      starts an example; the example must not end by itself before the story does
//! says saw a                         the example prints a line with this text after the last kubectl command
//! kubectl apply -f {dir}/pods.yaml   must succeed; runs in the folder of the examples
//! sh test -e file                    a shell command, which must succeed; kubectl is on the PATH
//! home                               from here on, programs run in the story's directory
//! ends                               the example ends with code 0
//! stops                              the example is sent SIGTERM, and ends with code 0
//! kill                               the example still runs, and is killed
//! - pod_exec, pod_cp: why            examples that are not run, and why: rows as well
//! ```
//!
//! `{dir}` is the directory of the story, `{ns}` the namespace, and `{sources}` the folder of the examples. Words are
//! split and quoted as in a shell.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Outcome, ensure, fail};
use crate::process::{Background, Run};
use crate::steps::Steps;
use crate::tools;

use super::Options;
use super::server::{Server, Store};
use super::transcript::words;

const STORIES: &str = include_str!("kube_rs/stories.txt");

/// The features besides the default ones, for `crd_derive_cel` and `custom_client_tls`.
const FEATURES: &str = "cel,openssl-tls";

/// The time limit of an expected line. The slowest example reads its copy every 15 seconds.
const LINE_LIMIT: Duration = Duration::from_secs(30);

/// The time limit of kubectl. The results that kubectl waits for take at most 15 seconds.
const KUBECTL_LIMIT: Duration = Duration::from_secs(25);

/// A part of the stories file.
#[derive(Debug, PartialEq)]
enum Part {
    /// A story: its name, and its steps in order.
    Story(&'static str, Vec<(Step, &'static str)>),
    /// An example that is not run, and the reason.
    NotRun(&'static str, &'static str),
    /// A file, by name and content.
    File(&'static str, String),
}

/// The instruction of one line of a story.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Start,
    Says,
    Kubectl,
    Sh,
    Home,
    Ends,
    Stops,
    Kill,
}

/// Parses the stories file.
fn parts(text: &'static str) -> Outcome<Vec<Part>> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        let step = match mark {
            "" | "//" => continue,
            "==" => {
                let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "==").collect();
                parts.push(Part::File(rest, body.join("\n") + "\n"));
                continue;
            }
            "*" => {
                parts.push(Part::Story(rest, Vec::new()));
                continue;
            }
            "-" => {
                let Some((names, why)) = rest.split_once(": ") else { fail!("no reason: {line}") };
                parts.extend(names.split(", ").map(|name| Part::NotRun(name, why)));
                continue;
            }
            "start" => Step::Start,
            "says" => Step::Says,
            "kubectl" => Step::Kubectl,
            "sh" => Step::Sh,
            "home" => Step::Home,
            "ends" => Step::Ends,
            "stops" => Step::Stops,
            "kill" => Step::Kill,
            _ => fail!("no line of a story: {line}"),
        };
        let Some(Part::Story(_, steps)) = parts.last_mut() else { fail!("in no story: {line}") };
        steps.push((step, rest));
    }
    Ok(parts)
}

/// The environment variables, the name and the arguments of an example.
type Command = (Vec<(String, String)>, String, Vec<String>);

/// Parses the command of a `start` line.
fn command(line: &str) -> Outcome<Command> {
    let mut words = words(line)?.into_iter().peekable();
    let is_setting = |word: &String| word.split_once('=').is_some_and(|(name, _)| name == name.to_uppercase());
    let mut settings = Vec::new();
    while let Some(word) = words.next_if(is_setting) {
        settings.extend(word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    let Some(program) = words.next() else { fail!("no example is named: start {line}") };
    Ok((settings, program, words.collect()))
}

/// The examples that the stories start.
fn started(parts: &[Part]) -> Outcome<BTreeSet<String>> {
    let stories = parts.iter().filter_map(|part| if let Part::Story(_, steps) = part { Some(steps) } else { None });
    stories.flatten().filter(|(step, _)| *step == Step::Start).map(|(_, line)| Ok(command(line)?.1)).collect()
}

/// A checkout of kube-rs with its examples built.
struct Examples {
    parts: Vec<Part>,
    /// The folder of the sources and manifests.
    sources: PathBuf,
    built: PathBuf,
}

impl Examples {
    /// Builds the examples that the stories start, in the checkout's own target folder. An error if the checkout has an
    /// example that the stories file does not mention.
    fn build(checkout: &Path, only: Option<&str>) -> Outcome<(Self, String)> {
        let mut parts = parts(STORIES)?;
        let checkout = checkout.canonicalize().map_err(|error| Failure::from(error).while_doing(checkout.display()))?;
        let (sources, target) = (checkout.join("examples"), checkout.join("target"));
        let started = started(&parts)?;
        let mut known: BTreeSet<&str> = started.iter().map(String::as_str).collect();
        known.extend(parts.iter().filter_map(|part| if let Part::NotRun(name, _) = part { Some(*name) } else { None }));
        for entry in std::fs::read_dir(&sources)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let mentioned = path.extension().is_none_or(|extension| extension != "rs") || known.contains(name);
            ensure!(mentioned, "xtask/src/e2e/kube_rs/stories.txt says nothing about {}", path.display());
        }
        let chosen = |part: &Part| match part {
            Part::Story(name, _) => only.is_none_or(|only| name.contains(only)),
            Part::NotRun(..) | Part::File(..) => true,
        };
        parts.retain(chosen);
        let started = self::started(&parts)?;
        ensure!(!started.is_empty(), "no story has the name {}", only.unwrap_or_default());
        Run::cargo()
            .args(["build", "--package", "kube-examples", "--features", FEATURES])
            .args(started.iter().flat_map(|name| ["--example", name]))
            .env("CARGO_TARGET_DIR", &target)
            // Debug information of many examples would take much space.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .dir(&checkout)
            .show()?;
        let manifest = std::fs::read_to_string(checkout.join("Cargo.toml"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = ")).unwrap_or("of unknown version");
        let note = format!("{} programs of kube-rs {}", started.len(), version.trim_matches('"'));
        Ok((Self { parts, sources, built: target.join("debug/examples") }, note))
    }

    /// Runs every story whose name contains `only`, each as a row of `group`. `is_well` checks the server after each
    /// story.
    fn play(
        &self,
        group: &'static str,
        only: Option<&str>,
        world: &ServerAccess<'_>,
        steps: &mut Steps,
        mut is_well: impl FnMut() -> Outcome<()>,
    ) {
        for (number, part) in self.parts.iter().enumerate() {
            match *part {
                Part::NotRun(name, why) if only.is_none_or(|only| name.contains(only)) => steps.skip(group, name, why),
                Part::Story(name, ref story) if only.is_none_or(|only| name.contains(only)) => {
                    steps.run(group, name, || {
                        let mut stage = StoryRun::new(self, world, format!("story-{number}"))?;
                        let played = stage.play(story).and_then(|()| is_well());
                        // Also after a failure, so that the next story does not see the objects of this one.
                        let cleaned = stage.clean();
                        played.and(cleaned).map(|()| format!("{} steps", story.len()))
                    });
                }
                Part::File(..) | Part::NotRun(..) | Part::Story(..) => {}
            }
        }
    }
}

/// The access to a server, and a directory for files of the run.
struct ServerAccess<'a> {
    kubectl: &'a Path,
    kubeconfig: &'a Path,
    dir: &'a Path,
}

/// The environment of one story.
struct StoryRun<'a> {
    examples: &'a Examples,
    kubectl: &'a Path,
    dir: PathBuf,
    namespace: String,
    running: Option<Background>,
    /// Whether programs run in the story's directory instead of the folder of the examples.
    home: bool,
    /// The number of lines of the running example before the last kubectl command.
    mark: usize,
}

impl<'a> StoryRun<'a> {
    /// Creates a namespace, and a directory with a kubeconfig and the files of the stories.
    fn new(examples: &'a Examples, world: &ServerAccess<'a>, namespace: String) -> Outcome<Self> {
        let dir = world.dir.join(&namespace);
        std::fs::create_dir_all(&dir)?;
        std::fs::copy(world.kubeconfig, dir.join("kubeconfig"))?;
        let stage = Self { examples, kubectl: world.kubectl, dir, namespace, running: None, home: false, mark: 0 };
        for part in &examples.parts {
            if let Part::File(name, content) = part {
                std::fs::write(stage.dir.join(name), stage.filled(content))?;
            }
        }
        stage.kubectl("config set-context --current --namespace={ns}")?;
        stage.kubectl("create namespace {ns}")?;
        Ok(stage)
    }

    fn clean(&mut self) -> Outcome<()> {
        drop(self.running.take());
        self.kubectl("delete namespace {ns} --timeout=20s").map(drop)
    }

    fn play(&mut self, story: &[(Step, &str)]) -> Outcome<()> {
        for (step, text) in story {
            self.step(*step, text).map_err(|failure| {
                let said = self.running.as_ref().map(|running| format!("\n{}", running.tail())).unwrap_or_default();
                Failure::from(format!("{failure}{said}"))
            })?;
        }
        self.runs_on()
    }

    fn step(&mut self, step: Step, text: &str) -> Outcome<()> {
        match step {
            Step::Start => {
                self.runs_on()?;
                let (settings, program, args) = command(&self.filled(text))?;
                let file = self.examples.built.join(format!("{program}{}", std::env::consts::EXE_SUFFIX));
                let run = self.own(Run::new(file)).args(args).env("RUST_LOG", "info").env("NO_COLOR", "1");
                let run = settings.iter().fold(run, |run, (name, value)| run.env(name, value));
                self.running = Some(run.start()?);
                self.mark = 0;
            }
            Step::Kubectl => {
                self.mark = self.running.as_ref().map_or(0, |running| running.lines.count());
                self.kubectl(text)?;
            }
            Step::Sh => {
                self.mark = self.running.as_ref().map_or(0, |running| running.lines.count());
                let path = std::env::var_os("PATH").unwrap_or_default();
                let bin = self.kubectl.parent().map(Path::to_owned).unwrap_or_default();
                let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)));
                let path = path.map_err(|error| Failure::from(error.to_string()))?;
                self.own(Run::new("sh"))
                    .args(["-ec", &self.filled(text)])
                    .env("PATH", path)
                    .limit(LINE_LIMIT)
                    .text()?;
            }
            Step::Home => self.home = true,
            Step::Says => {
                let (text, mark, start) = (self.filled(text), self.mark, Instant::now());
                let running = self.running()?;
                // The output is read once more after the end, because the last lines can arrive later.
                let mut last = false;
                while running.lines.wait(mark, Duration::from_millis(50), |line| line.contains(&text)).is_none() {
                    ensure!(!last, "`{}` has ended and did not say `{text}`", running.line());
                    ensure!(start.elapsed() < LINE_LIMIT, "`{}` does not say `{text}`", running.line());
                    last = !running.running();
                }
            }
            Step::Ends => {
                let status = self.running()?.wait(LINE_LIMIT)?;
                ensure!(status.success(), "it ended with {status}");
                self.running = None;
            }
            Step::Stops => {
                let status = self.running()?.terminate(LINE_LIMIT)?;
                ensure!(status.success(), "asked to stop, it ended with {status}");
                self.running = None;
            }
            Step::Kill => self.runs_on()?,
        }
        Ok(())
    }

    /// Kills an example that the story does not end. An error if the example has ended by itself.
    fn runs_on(&mut self) -> Outcome<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        ensure!(running.running(), "`{}` ended by itself:\n{}", running.line(), running.tail());
        Ok(())
    }

    fn running(&mut self) -> Outcome<&mut Background> {
        self.running.as_mut().ok_or_else(|| Failure::from("no example runs at this point of the story"))
    }

    fn kubectl(&self, line: &str) -> Outcome<String> {
        self.own(Run::new(self.kubectl)).args(words(&self.filled(line))?).limit(KUBECTL_LIMIT).text()
    }

    /// Prepares a program of this story: sets the kubeconfig, and the folder of the examples.
    fn own(&self, run: Run) -> Run {
        run.env("KUBECONFIG", self.dir.join("kubeconfig"))
            .env("HOME", &self.dir)
            .env("TMPDIR", &self.dir)
            .dir(if self.home { &self.dir } else { &self.examples.sources })
    }

    fn filled(&self, text: &str) -> String {
        let text = text.replace("{dir}", &self.dir.display().to_string()).replace("{ns}", &self.namespace);
        text.replace("{sources}", &self.examples.sources.display().to_string())
    }
}

/// Builds the examples of the checkout, and runs the stories over TLS and in process.
pub(super) fn run(checkout: &Path, options: Options, kubectl: &Path, dir: &Path, steps: &mut Steps) {
    let mut built = None;
    steps.run("kube-rs", "build", || {
        let (examples, note) = Examples::build(checkout, options.only.as_deref())?;
        built = Some(examples);
        Ok(note)
    });
    let Some(examples) = built else { return };
    let only = options.only.as_deref();

    let (own, mut started) = (dir.join("tls"), None);
    steps.run("TLS", "start", || {
        let bin = options.server_bin.map_or_else(|| super::build(options.release), Ok)?;
        let (server, note) = Server::start(&bin, Store::Embedded, &own)?;
        started = Some(server);
        Ok(note)
    });
    if let Some(mut server) = started {
        let way = ServerAccess { kubectl, kubeconfig: &server.kubeconfig(), dir: &own };
        examples.play("TLS", only, &way, steps, || {
            ensure!(server.running() && server.panicked().is_none(), "the server is not well:\n{}", server.tail());
            Ok(())
        });
    }

    let (own, mut started) = (dir.join("in-process"), None);
    let kubeconfig = own.join("kubeconfig");
    steps.run("HTTP", "start in process", || {
        std::fs::create_dir_all(&own)?;
        // Built as a part of the workspace, so that dependencies are not built again.
        Run::cargo().args(["build", "--workspace", "--example", "in_process"]).dir(&tools::root()).show()?;
        let file = tools::target().join("debug/examples").join(format!("in_process{}", std::env::consts::EXE_SUFFIX));
        let process = Run::new(file).arg(&kubeconfig).start()?;
        let line = process.lines.wait(0, LINE_LIMIT, |line| line.contains("http://"));
        let line = line.ok_or_else(|| format!("it does not say where it serves:\n{}", process.tail()))?;
        started = Some(process);
        Ok(line.text)
    });
    if let Some(mut process) = started {
        let way = ServerAccess { kubectl, kubeconfig: &kubeconfig, dir: &own };
        examples.play("HTTP", only, &way, steps, || {
            let panicked = process.lines.all().iter().any(|line| line.text.contains("panicked at"));
            ensure!(process.running() && !panicked, "the server is not well:\n{}", process.tail());
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, STORIES, Step, command, parts, started};

    #[test]
    fn kube_rs_stories_are_parsed() {
        let parts = parts(STORIES).unwrap();
        assert!(started(&parts).unwrap().len() > 30);
        for part in parts {
            let Part::Story(name, steps) = part else { continue };
            assert!(steps.iter().any(|(step, _)| *step == Step::Start), "{name} starts no example");
            let looked = |step: &Step| matches!(step, Step::Says | Step::Ends | Step::Stops);
            assert!(steps.iter().any(|(step, _)| looked(step)), "{name} expects nothing");
        }
    }

    #[test]
    fn invalid_story_line_is_an_error() {
        for text in ["* a\nsay b", "says b", "- pod_exec", "== f\nbody\n==\nends"] {
            assert!(parts(text).is_err(), "{text:?}");
        }
        assert!(command("A=1").is_err());
    }

    #[test]
    fn start_line_is_split_into_variables_program_and_arguments() {
        let (settings, program, args) = command("A='b c' kubectl get -l x=y").unwrap();
        assert_eq!(settings, [("A".to_owned(), "b c".to_owned())]);
        assert_eq!((program.as_str(), args.join(" ").as_str()), ("kubectl", "get -l x=y"));
    }
}
