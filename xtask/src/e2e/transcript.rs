//! Runs transcripts: text files with kubectl commands and their expected output (`transcripts/*.txt`).
//!
//! ```text
//! // a remark
//! == web.yaml                        a file of the transcript's own directory, up to the line `==`
//! kind: Pod
//! ==
//! $ kubectl get pod web -o name      a command that must succeed; `!` for one that must fail
//! pod/web                            the expected output: standard output, then standard error without the log of
//!                                    client-go's reflector
//! ~ Warning: …                       a line that this server alone adds, and kube-apiserver does not
//! > uid kubectl get pod web -o …     a command whose output is {uid} from here on
//! ```
//!
//! The transcripts were recorded with a kube-apiserver v1.36 and are valid for kubectl 1.32 to 1.36. `…` matches any
//! part of a line; alone on a line, `…` matches any lines. Several spaces inside a line match one, because the width of
//! columns varies. `{ns}` is the namespace of the transcript, `{dir}` its directory. Words are split and quoted as in a
//! shell. `NAME=value` before a command sets its environment.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::failure::{Outcome, ensure, fail};

use super::World;
use super::access::Access;

/// The environment of a transcript.
struct TranscriptRun<'a> {
    access: &'a Access,
    dir: PathBuf,
    /// The values of names in braces.
    names: Vec<(String, String)>,
}

macro_rules! transcripts {
    ($($function:ident $file:literal)*) => {$(
        pub(crate) fn $function(world: &mut World) -> Outcome<String> {
            play(world, $file, include_str!(concat!("transcripts/", $file, ".txt")))
        }
    )*};
}

transcripts! {
    get "get"
    describe "describe"
    create "create"
    change "change"
    rollout "rollout"
    nodes "nodes"
    ask "ask"
    permissions "access"
    certificates "certificates"
    cascade "cascade"
    apply "apply"
    wait "wait"
    remove "remove"
    kinds "kinds"
}

/// Runs a transcript in a new namespace, and deletes the namespace without waiting.
fn play(world: &mut World, name: &str, text: &str) -> Outcome<String> {
    let access = &world.access;
    let namespace = format!("verbs-{name}-{}", std::process::id());
    let dir = access.dir.join(&namespace);
    std::fs::create_dir_all(&dir)?;
    access.kube(&format!("create namespace {namespace}"))?;
    let names = vec![("ns".to_owned(), namespace.clone()), ("dir".to_owned(), dir.display().to_string())];
    let mut stage = TranscriptRun { access, dir, names };
    let played = stage.play(text);
    access.kube(&format!("delete namespace {namespace} --wait=false"))?;
    Ok(format!("{} commands", played?))
}

impl TranscriptRun<'_> {
    /// Runs the commands and returns their number. An error has all differences.
    fn play(&mut self, text: &str) -> Outcome<usize> {
        let (mut commands, mut wrong) = (0, String::new());
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((mark, rest)) = line.split_once(' ') else {
                ensure!(line.is_empty(), "no line of a transcript: {line}");
                continue;
            };
            match mark {
                "//" => {}
                "==" => {
                    let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "==").collect();
                    std::fs::write(self.dir.join(rest), self.filled(&body.join("\n")) + "\n")?;
                }
                ">" => {
                    let Some((name, command)) = rest.split_once(' ') else { fail!("no command: {line}") };
                    let said = self.run(command)?.0;
                    self.names.push((name.to_owned(), said.trim().to_owned()));
                }
                "$" | "!" => {
                    commands += 1;
                    let mut wanted = Vec::new();
                    while let Some(line) = lines.next_if(|line| !begins(line)) {
                        wanted.push(self.filled(line));
                    }
                    while wanted.last().is_some_and(|line| line.trim().is_empty()) {
                        wanted.pop();
                    }
                    let (said, well) = self.run(rest)?;
                    let said: Vec<&str> = said.trim_end().lines().collect();
                    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
                    if well != (mark == "$") {
                        let ended = if well { "ends well" } else { "fails" };
                        let _ = writeln!(wrong, "{line}\n  {ended}, and says\n    {}", said.join("\n    "));
                    } else if !matches(&wanted, &said) {
                        let (wanted, said) = (wanted.join("\n    "), said.join("\n    "));
                        let _ = writeln!(wrong, "{line}\n  says\n    {said}\n  wanted\n    {wanted}");
                    }
                }
                _ => fail!("no line of a transcript: {line}"),
            }
        }
        ensure!(wrong.is_empty(), "{wrong}");
        Ok(commands)
    }

    /// Replaces names in braces by their values.
    fn filled(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    /// Runs a command. Returns its output and whether it ends with code 0.
    fn run(&self, command: &str) -> Outcome<(String, bool)> {
        let mut words = words(&self.filled(command))?.into_iter().peekable();
        let mut settings = Vec::new();
        let is_setting = |word: &String| word.split_once('=').is_some_and(|(name, _)| name == name.to_uppercase());
        while let Some(word) = words.next_if(is_setting) {
            settings.extend(word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        ensure!(words.next().as_deref() == Some("kubectl"), "only kubectl has transcripts: {command}");
        let namespace = self.filled("--namespace={ns}");
        let run = self.access.kubectl(std::iter::once(namespace).chain(words));
        let run = settings.iter().fold(run, |run, (name, value)| run.env(name, value));
        let output = run.output()?;
        Ok((output.text() + &without_reflector_log(&output.stderr), output.success()))
    }
}

/// Removes the log lines of client-go's reflector. It warns of a watch that ends within a second without an event. How
/// long the watch of a `kubectl wait --timeout=2s` lasts depends on the speed of the host.
fn without_reflector_log(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.contains(" reflector.go:")).collect()
}

/// Whether a line begins a new command or file.
fn begins(line: &str) -> bool {
    ["$ ", "! ", "> ", "== ", "// "].iter().any(|mark| line.starts_with(mark))
}

/// Whether the output lines match the expected lines.
fn matches(wanted: &[&str], said: &[&str]) -> bool {
    match wanted.split_first() {
        None => said.is_empty(),
        Some((&"…", rest)) => (0..=said.len()).any(|skipped| matches(rest, &said[skipped..])),
        Some((first, rest)) if first.starts_with("~ ") => {
            let added = said.split_first().filter(|(line, _)| line_matches(&first[2..], line));
            matches(rest, added.map_or(said, |(_, more)| more))
        }
        Some((first, rest)) => {
            said.split_first().is_some_and(|(line, more)| line_matches(first, line) && matches(rest, more))
        }
    }
}

fn line_matches(wanted: &str, said: &str) -> bool {
    let (wanted, said) = (single_spaced(wanted), single_spaced(said));
    let mut parts = wanted.split('…');
    let Some(mut rest) = said.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.trim_end().ends_with(last.trim_end())
}

/// Reduces several spaces to one, except the indentation.
fn single_spaced(line: &str) -> String {
    let indentation = line.len() - line.trim_start_matches(' ').len();
    " ".repeat(indentation) + &line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits a command line into words at spaces outside of quotes.
pub(super) fn words(line: &str) -> Outcome<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), character) if open == character => quote = None,
            (None, ' ') => words.extend(word.take()),
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    ensure!(quote.is_none(), "a quote is not closed: {line}");
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::{matches, without_reflector_log, words};

    #[test]
    fn transcript_lines_match_with_wildcards_and_optional_lines() {
        let check = |wanted: &str, said: &str, expected: bool| {
            let (wanted, said) = (wanted.lines().collect::<Vec<_>>(), said.lines().collect::<Vec<_>>());
            assert_eq!(matches(&wanted, &said), expected, "{wanted:?} and {said:?}");
        };
        check("NAME  AGE\nweb  …", "NAME   AGE\nweb    3s", true);
        check("a …, b … c", "a 1, b 2 c", true);
        check("a …, b … c", "a 1, b 2 d", false);
        check("a", "a b", false);
        check("  a", " a", false);
        check("…\nlast", "first\nsecond\nlast", true);
        check("first\n…", "first", true);
        check("first\n…", "second", false);
        check("", "", true);
        check("a\n~ b …\nc", "a\nb 1\nc", true);
        check("a\n~ b …\nc", "a\nc", true);
        check("a\n~ b …\nc", "a\nd\nc", false);
        check("", "more", false);
        check("pod \"a\" deleted…", "pod \"a\" deleted from default namespace", true);
        check("IP:", "IP:   ", true);
    }

    #[test]
    fn reflector_log_is_removed_from_standard_error() {
        let check = |stderr: &str, expected: &str| assert_eq!(without_reflector_log(stderr), expected, "{stderr}");
        let warning = "W0105 08:00:00.000000   17 reflector.go:492] watch ended with: very short watch\n";
        check("error: timed out\n", "error: timed out\n");
        check(&format!("{warning}error: timed out\n"), "error: timed out\n");
        check(&format!("Warning: a\n{warning}"), "Warning: a\n");
    }

    #[test]
    fn command_words_are_split_as_in_a_shell() {
        let check = |line: &str, expected: &[&str]| assert_eq!(words(line).unwrap(), expected, "{line}");
        check("get pods  -o name", &["get", "pods", "-o", "name"]);
        check("E=\"sed -e s/a/b/\" edit 'a \"b\" c' ''", &["E=sed -e s/a/b/", "edit", "a \"b\" c", ""]);
        check("-o 'go-template={{len .items}}'", &["-o", "go-template={{len .items}}"]);
        assert!(words("a 'b").is_err());
    }
}
