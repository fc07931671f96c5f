//! Runs other programs: with a time limit, or in the background with their output line by line.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cleanup::{self, Guard, Resource};
use crate::failure::{Failure, Outcome, fail};

/// The interval of checks whether a child process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A program to run, with its arguments, environment and limits.
#[derive(Clone)]
pub(crate) struct Run {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    input: Vec<u8>,
    limit: Option<Duration>,
}

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

impl Output {
    /// Whether the program ended by itself with code 0.
    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Both outputs for an error text, cut at 1,000 characters.
    pub(crate) fn said(&self) -> String {
        let all = format!("{}\n{}", self.text().trim(), self.stderr.trim());
        let mut all = all.trim().to_owned();
        if let Some((cut, _)) = all.char_indices().nth(1_000) {
            all.truncate(cut);
            all.push_str(" […]");
        }
        all
    }
}

impl Run {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            envs: Vec::new(),
            dir: None,
            input: Vec::new(),
            limit: None,
        }
    }

    /// The cargo that runs this xtask.
    pub(crate) fn cargo() -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Sets the bytes of standard input. By default, standard input is empty.
    pub(crate) fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Sets the time after which the program is killed.
    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The command line.
    pub(crate) fn line(&self) -> String {
        let quote = |word: &OsString| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+%".contains(c);
            if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
        };
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program).to_owned();
        std::iter::once(&program).chain(&self.args).map(quote).collect::<Vec<_>>().join(" ")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.envs.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    fn spawn(&self, command: &mut Command) -> Outcome<(Child, Guard)> {
        let child = command.spawn().map_err(|error| Failure::from(error).while_doing(self.line()))?;
        let guard = cleanup::guard(Resource::Process(child.id()));
        Ok((child, guard))
    }

    /// Prints the command and runs it on the terminal. An error unless the program ends in time
    /// with code 0.
    pub(crate) fn show(self) -> Outcome<()> {
        println!("$ {}", self.line());
        let (mut child, guard) = self.spawn(self.command().stdin(Stdio::null()))?;
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let mut in_time = true;
        if let Some(deadline) = deadline {
            while child.try_wait()?.is_none() && in_time {
                std::thread::sleep(POLL_INTERVAL);
                in_time = Instant::now() < deadline;
            }
            if !in_time {
                child.kill()?;
            }
        }
        let status = child.wait();
        guard.forget();
        let status = status?;
        if !in_time {
            fail!("`{}` did not end within {:?}", self.line(), self.limit.unwrap_or_default());
        }
        if !status.success() {
            fail!("`{}` ended with {status}", self.line());
        }
        Ok(())
    }

    /// Runs the program to its end, or to the limit, and returns its output. An error only if the
    /// program cannot be started.
    pub(crate) fn output(self) -> Outcome<Output> {
        let start = Instant::now();
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, guard) = self.spawn(&mut command)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            let input = &self.input;
            scope.spawn(move || {
                // A program that does not want all of its input closes the pipe early.
                stdin.map(|mut stdin| stdin.write_all(input));
            });
            let stdout = scope.spawn(|| read_to_end(stdout));
            let stderr = scope.spawn(|| read_to_end(stderr));
            let mut status = None;
            while status.is_none() && self.limit.is_none_or(|limit| start.elapsed() < limit) {
                status = child.try_wait()?;
                if status.is_none() {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            if status.is_none() {
                child.kill()?;
            }
            child.wait()?;
            guard.forget();
            let elapsed = start.elapsed();
            let stdout = stdout.join().unwrap_or_default();
            let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
            Ok(Output { status, stdout, stderr, elapsed })
        })
    }

    /// Returns the standard output. An error with both outputs unless the program ends in time with
    /// code 0.
    pub(crate) fn text(self) -> Outcome<String> {
        let line = self.line();
        let output = self.output()?;
        match output.status {
            Some(status) if status.success() => Ok(output.text()),
            Some(status) => Err(format!("`{line}` ended with {status}: {}", output.said()).into()),
            None => Err(format!("`{line}` did not end within {:?}: {}", output.elapsed, output.said()).into()),
        }
    }

    /// Starts the program in the background. Dropping the handle kills the program.
    pub(crate) fn start(self) -> Outcome<Background> {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, guard) = self.spawn(&mut command)?;
        let lines = Lines::default();
        let streams = [
            child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ];
        for stream in streams.into_iter().flatten() {
            let lines = lines.clone();
            std::thread::spawn(move || lines.read(stream));
        }
        Ok(Background { line: self.line(), child, guard: Some(guard), lines })
    }
}

fn read_to_end(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The bytes before a read error are kept, because they help in error texts.
    stream.map(|mut stream| stream.read_to_end(&mut bytes));
    bytes
}

/// One line of a program in the background.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) text: String,
}

/// The lines that a program has written to its two streams so far, in order of arrival.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Vec<Line>>, Condvar)>);

impl Lines {
    fn read(&self, stream: impl Read) {
        for text in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&text).trim_end_matches('\r').to_owned();
            let line = Line { at: Instant::now(), text };
            self.0.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            self.0.1.notify_all();
        }
    }

    /// The number of lines; a mark for [`wait`](Self::wait).
    pub(crate) fn count(&self) -> usize {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// All lines.
    pub(crate) fn all(&self) -> Vec<Line> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the first line at or after the mark `since` that `wanted` accepts. Waits for it up
    /// to `limit`.
    pub(crate) fn wait(&self, since: usize, limit: Duration, wanted: impl Fn(&str) -> bool) -> Option<Line> {
        let deadline = Instant::now() + limit;
        let mut lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = since;
        loop {
            if let Some(line) = lines.iter().skip(seen).find(|line| wanted(&line.text)) {
                return Some(line.clone());
            }
            seen = lines.len().max(since);
            let left = deadline.checked_duration_since(Instant::now())?;
            lines = self.0.1.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A program in the background.
pub(crate) struct Background {
    line: String,
    child: Child,
    guard: Option<Guard>,
    pub(crate) lines: Lines,
}

impl Background {
    /// The command line.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program still runs.
    pub(crate) fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the program has ended.
    pub(crate) fn wait(&mut self, limit: Duration) -> Outcome<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                fail!("`{}` did not end within {limit:?}", self.line);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends SIGTERM and waits until the program has ended.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Outcome<ExitStatus> {
        Run::new("sh").args(["-c", &format!("kill -TERM {}", self.id())]).text()?;
        self.wait(limit)
    }

    /// Sends SIGKILL and waits until the program has ended.
    pub(crate) fn kill(&mut self) {
        // Both fail only for a child that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(guard) = self.guard.take() {
            guard.forget();
        }
    }

    /// The last 12 lines of the output, for an error text.
    pub(crate) fn tail(&self) -> String {
        let lines = self.lines.all();
        let last = lines.iter().skip(lines.len().saturating_sub(12));
        last.map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::Run;
    use std::time::Duration;

    fn sh(script: &str) -> Run {
        Run::new("sh").args(["-c", script])
    }

    #[test]
    fn run_returns_output_and_status_and_passes_input() {
        let output = sh("cat; echo bad >&2; exit 3").input("good").output().unwrap();
        assert_eq!((output.text().as_str(), output.stderr.as_str()), ("good", "bad\n"));
        assert_eq!(output.status.and_then(|status| status.code()), Some(3));
        let error = sh("echo why >&2; exit 3").text().unwrap_err().to_string();
        assert!(error.starts_with("`sh -c 'echo why >&2; exit 3'` ended with") && error.ends_with("why"), "{error}");
    }

    #[test]
    fn hanging_program_is_killed_at_the_limit() {
        let output = Run::new("sleep").arg("60").limit(Duration::from_millis(20)).output().unwrap();
        assert!(output.status.is_none() && output.elapsed < Duration::from_secs(30));
        let error = Run::new("sleep").arg("60").limit(Duration::from_millis(20)).show().unwrap_err().to_string();
        assert_eq!(error, "`sleep 60` did not end within 20ms");
    }

    #[test]
    fn lines_of_a_background_program_are_available_while_it_runs() {
        let mut child = sh("echo one; echo two >&2; echo three; exec sleep 60").start().unwrap();
        let limit = Duration::from_secs(20);
        for wanted in ["one", "two", "three"] {
            assert!(child.lines.wait(0, limit, |line| line == wanted).is_some(), "no line {wanted}");
        }
        assert!(child.lines.wait(0, Duration::from_millis(1), |line| line == "four").is_none());
        assert!(child.running());
        child.kill();
        assert!(!child.running());
    }
}
