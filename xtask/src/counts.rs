//! `bench counts`: counts the instructions of every hot path and compares them with the baseline in
//! the tree.
//!
//! Each path runs twice under valgrind's counter: with the number of turns that the path names, and
//! with twice that number. The difference is the cost of the turns, without start and end of the
//! program. The cost of the start varies by some hundred thousand instructions (random keys of maps, ages of
//! objects). A path above its baseline is therefore counted three times, and so is each new baseline; the
//! median counts. With another compiler than the baseline's, the figures are shown but not compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::Args;
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::process::Run;
use crate::tools;

/// The increase above the baseline that is still accepted, in percent.
const TOLERANCE_PERCENT: u64 = 5;

/// The time limit of a run under valgrind.
const RUN_MAX: Duration = Duration::from_secs(300);

const HELP: &str = "\
Counts the instructions of each hot path with valgrind, which is fetched if it is missing, and compares
them with benches/counts/baseline.txt. More than 5 % above the baseline is a failure; such a path is counted
three times, and the median is compared. With another compiler than the baseline's, the figures are shown but
not compared.

Usage: cargo xtask bench counts [--only NAME] [--accept]
  --only     one path; without it all of them
  --accept   writes the median of three counts into the baseline (explain the change in the commit)";

/// One path as the program lists it.
struct HotPath {
    name: String,
    turns: u64,
    turn: String,
}

/// The baseline: the compiler and the processor, and the instructions per turn of each path.
#[derive(Debug, Default, PartialEq)]
struct Baseline {
    compiler: String,
    counts: Vec<(String, u64)>,
}

/// The comparison of a path with the baseline.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// Within the tolerance.
    Same,
    /// Below the baseline by more than the tolerance: update the baseline.
    Better,
    /// Above the baseline by more than the tolerance.
    Worse,
    /// The baseline has no line for the path.
    New,
}

/// Runs `cargo xtask bench counts`.
pub(crate) fn run(mut args: Args) -> Outcome<()> {
    if args.flag("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let (only, accept) = (args.value("--only")?, args.flag("--accept"));
    args.finish("bench counts")?;
    ensure!(!(accept && only.is_some()), "--accept writes the whole baseline: leave --only out");
    println!("{}", compare(only.as_deref(), accept)?);
    Ok(())
}

/// Counts, prints the table, and returns the result in one line.
pub(crate) fn compare(only: Option<&str>, accept: bool) -> Outcome<String> {
    let file = tools::root().join("benches/counts/baseline.txt");
    let baseline = Baseline::parse(&std::fs::read_to_string(&file).unwrap_or_default())?;
    let valgrind = Valgrind::find()?;
    Run::cargo()
        .args(["build", "--quiet", "--profile", "counts", "--package", "listwatch-counts"])
        .dir(&tools::root())
        .show()?;
    let program = tools::target().join("counts/counts");
    let paths: Vec<HotPath> = list(&program)?.into_iter().filter(|path| only.is_none_or(|o| o == path.name)).collect();
    ensure!(!paths.is_empty(), "there is no path `{}`", only.unwrap_or_default());

    let compiler = compiler()?;
    let judged = baseline.compiler == compiler;
    let mut counted = Baseline { compiler, counts: Vec::new() };
    let mut worse = Vec::new();
    println!("{:<16} {:>14} {:>14} {:>8}  a turn is", "path", "baseline", "now", "change");
    for path in paths {
        let before = baseline.get(&path.name);
        let mut count = valgrind.per_turn(&program, &path)?;
        if accept || judged && verdict(before, count) == Verdict::Worse {
            let again = [valgrind.per_turn(&program, &path)?, valgrind.per_turn(&program, &path)?];
            println!("{:<16} counted three times: {count}, {}, {}", path.name, again[0], again[1]);
            count = median([count, again[0], again[1]]);
        }
        let change = before.map_or(String::new(), |before| format!("{:+.1} %", percent(before, count)));
        let was = before.map_or("-".to_owned(), |before| before.to_string());
        println!("{:<16} {was:>14} {count:>14} {change:>8}  {}", path.name, path.turn);
        match verdict(before, count) {
            Verdict::Worse => worse.push(format!("{} {change}", path.name)),
            Verdict::Better => println!("{:<16} is below its baseline; update it with --accept", ""),
            Verdict::Same | Verdict::New => {}
        }
        counted.counts.push((path.name, count));
    }
    if accept {
        std::fs::write(&file, counted.text())?;
        return Ok(format!("{} paths written to {}", counted.counts.len(), file.display()));
    }
    if !judged {
        return Ok(format!(
            "shown but not compared: the baseline is of {}, this is {}",
            if baseline.compiler.is_empty() { "no compiler" } else { &baseline.compiler },
            counted.compiler
        ));
    }
    if !worse.is_empty() {
        fail!("above the baseline by more than {TOLERANCE_PERCENT} %: {}", worse.join(", "));
    }
    Ok(format!("{} paths within {TOLERANCE_PERCENT} % of the baseline, or below it", counted.counts.len()))
}

fn percent(before: u64, now: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}

fn verdict(before: Option<u64>, now: u64) -> Verdict {
    // Integer arithmetic: a count exactly at the limit is within the tolerance.
    let Some(before) = before else { return Verdict::New };
    match now * 100 {
        hundredfold if hundredfold > before * (100 + TOLERANCE_PERCENT) => Verdict::Worse,
        hundredfold if hundredfold < before * (100 - TOLERANCE_PERCENT) => Verdict::Better,
        _ => Verdict::Same,
    }
}

fn median(mut counts: [u64; 3]) -> u64 {
    counts.sort_unstable();
    counts[1]
}

impl Baseline {
    fn parse(text: &str) -> Outcome<Self> {
        let mut baseline = Self::default();
        for line in text.lines() {
            if let Some(compiler) = line.strip_prefix("# compiler: ") {
                compiler.clone_into(&mut baseline.compiler);
            } else if !line.starts_with('#') && !line.trim().is_empty() {
                let (name, count) = line.split_once(char::is_whitespace).ok_or("a line is a name and a number")?;
                let count = count.trim().parse();
                let count = count.map_err(|_| Failure::from(format!("baseline: no number: {line}")))?;
                baseline.counts.push((name.to_owned(), count));
            }
        }
        Ok(baseline)
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Instructions a turn of each hot path; made by `cargo xtask bench counts --accept`.\n# compiler: {}\n",
            self.compiler
        );
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name:<16} {count:>12}");
        }
        text
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.counts.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    }
}

/// Returns the compiler, the target and the vector width. Counts depend on them and on the source, because `memchr`
/// and the C library choose their code by the features of the processor.
fn compiler() -> Outcome<String> {
    let said = Run::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).args(["-vV"]).text()?;
    let field = |name| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    match (field("release:"), field("host:")) {
        (Some(release), Some(host)) => Ok(format!("rustc {release} {host}, {}", vectors())),
        _ => fail!("rustc -vV prints no release or no host: {said}"),
    }
}

fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return "avx2";
    }
    "no avx2"
}

fn list(program: &Path) -> Outcome<Vec<HotPath>> {
    let said = Run::new(program).text()?;
    let path = |line: &str| {
        let mut fields = line.split('\t');
        let (name, turns, turn) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
        Some(HotPath { name: name.to_owned(), turns, turn: turn.to_owned() })
    };
    said.lines().map(|line| path(line).ok_or_else(|| Failure::from(format!("not a path: {line}")))).collect()
}

/// The location of valgrind and of its files.
struct Valgrind {
    program: PathBuf,
    /// The tools of an unpacked valgrind. `None` for an installed valgrind, which finds its tools.
    tools: Option<PathBuf>,
}

impl Valgrind {
    fn find() -> Outcome<Self> {
        let program = tools::find_or_fetch("valgrind", "valgrind")?;
        let beside = program.parent().and_then(Path::parent).map(|usr| usr.join("libexec/valgrind"));
        let tools = beside.filter(|dir| dir.is_dir());
        Ok(Self { program, tools })
    }

    fn per_turn(&self, program: &Path, path: &HotPath) -> Outcome<u64> {
        let (once, twice) = (self.count(program, path, path.turns)?, self.count(program, path, path.turns * 2)?);
        ensure!(twice > once, "{}: twice the turns took {twice} instructions, once {once}", path.name);
        Ok((twice - once) / path.turns)
    }

    fn count(&self, program: &Path, path: &HotPath, turns: u64) -> Outcome<u64> {
        let mut run = Run::new(&self.program)
            .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
            .arg(program)
            .args([path.name.clone(), turns.to_string()])
            .limit(RUN_MAX);
        if let Some(tools) = &self.tools {
            run = run.env("VALGRIND_LIB", tools);
        }
        let output = run.output()?;
        ensure!(output.success(), "{} under valgrind: {}", path.name, output.said());
        match counted(&output.stderr) {
            Some(count) => Ok(count),
            None => fail!("valgrind printed no count: {}", output.said()),
        }
    }
}

/// Parses the count in cachegrind's last lines: `==17== I   refs:      1,234,567`.
fn counted(said: &str) -> Option<u64> {
    let line = said.lines().rev().find(|line| line.contains("refs:") && line.contains(" I "))?;
    let digits: String = line.rsplit("refs:").next()?.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Baseline, Verdict, counted, median, verdict};

    #[test]
    fn hot_path_five_percent_above_its_baseline_is_worse() {
        for (before, now, expected) in [
            (None, 7, Verdict::New),
            (Some(1_000), 1_000, Verdict::Same),
            (Some(1_000), 1_050, Verdict::Same),
            (Some(1_000), 1_051, Verdict::Worse),
            (Some(1_000), 950, Verdict::Same),
            (Some(1_000), 949, Verdict::Better),
        ] {
            assert_eq!(verdict(before, now), expected, "{before:?} and {now}");
        }
    }

    #[test]
    fn median_of_three_ignores_one_that_stands_out() {
        assert_eq!([median([9, 1, 2]), median([1, 9, 2]), median([2, 1, 9]), median([2, 2, 1])], [2, 2, 2, 2]);
    }

    #[test]
    fn baseline_text_round_trips() {
        let counts = vec![("scan".to_owned(), 12), ("apply".to_owned(), 3_456_789)];
        let baseline = Baseline { compiler: "rustc 1.95.0 x86_64".to_owned(), counts };
        assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline));
        assert!(Baseline::parse("scan many").is_err() && Baseline::parse("scan").is_err());
    }

    #[test]
    fn instruction_count_is_parsed_from_cachegrind_output() {
        let said = "==9== Cachegrind\n==9== \n==9== I   refs:      1,234,567\n";
        assert_eq!(counted(said), Some(1_234_567));
        assert_eq!(counted("==9== I refs:        42"), Some(42));
        assert_eq!(counted("nothing"), None);
    }
}
