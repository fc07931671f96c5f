//! `listwatch conformance`: scores any API server by the cases of `listwatch-conformance`.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use listwatch_client::Config;
use listwatch_conformance::{
    Actions, CaseResult, HttpVersion, Outcome, Report, RunOptions, Suite, Target, judge, select,
};

type Failure = Box<dyn std::error::Error>;

/// Score an API server by the rules of list and watch
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Conformance {
    /// Kubeconfig of the server [default: as kubectl finds it]. Its user needs all permissions
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Capabilities that the server is expected to have
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    profile: String,

    /// Run only cases with one of these texts in their names, such as paging/
    #[arg(long, value_name = "TEXT[,TEXT]", value_delimiter = ',')]
    only: Vec<String>,

    /// Print the cases, and run none
    #[arg(long)]
    list: bool,

    /// HTTP version: any, 1.1 or 2. Cases about transports choose their own
    #[arg(long, value_name = "VERSION", default_value = "any", value_parser = parse_http_version)]
    http: HttpVersion,

    /// Cases that run at once
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    jobs: usize,

    /// The server's etcd (http://), for cases that compact its history; without it they are skipped
    #[arg(long, value_name = "URL")]
    etcd: Option<String>,

    /// Shell command that restarts the server with its data, for cases about restarts; without it they are skipped
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,

    /// Directory with other cases
    #[arg(long, value_name = "DIR")]
    cases: Option<PathBuf>,

    /// Form of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// File for the report [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  listwatch conformance --kubeconfig admin.kubeconfig
      all cases, as text; the exit code is 0 if the server conforms to the profile
  listwatch conformance --kubeconfig admin.kubeconfig --only paging/,watch/ --http 1.1
      some cases, over HTTP/1.1
  listwatch conformance --kubeconfig admin.kubeconfig --format html --output report.html
      one page with the matrix and the failures
  listwatch conformance --list
      the cases with their rules";

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A matrix and the failures
    Text,
    /// One JSON document
    Json,
    /// JUnit XML
    Junit,
    /// One self-contained page
    Html,
}

fn parse_http_version(text: &str) -> Result<HttpVersion, String> {
    match text {
        "any" => Ok(HttpVersion::Any),
        "1.1" => Ok(HttpVersion::Http1),
        "2" => Ok(HttpVersion::Http2),
        _ => Err("is neither any, 1.1 nor 2".to_owned()),
    }
}

impl Conformance {
    /// Runs the cases. The exit code says whether the server conforms to the profile.
    ///
    /// # Errors
    /// The server cannot be reached, or a file cannot be used.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let suite = match &self.cases {
            Some(directory) => Suite::read(directory)?,
            None => Suite::bundled()?,
        };
        if self.list {
            self.write(&self.listing(&suite)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let report = tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(self.judge(&suite))?;
        self.write(&match self.format {
            Format::Text => report.to_text(),
            Format::Json => report.to_json(),
            Format::Junit => report.to_junit(),
            Format::Html => report.to_html(),
        })?;
        if self.output.is_some() || self.format != Format::Text {
            eprintln!("{}", report.summary());
        }
        Ok(if report.conforms() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn judge(&self, suite: &Suite) -> Result<Report, Failure> {
        let config = Config::load(self.kubeconfig.as_deref(), self.context.as_deref())?;
        let target = Target::new(config, self.http).await?;
        let actions =
            Actions { etcd: self.etcd.clone(), restart_command: self.restart_command.clone(), directory: None };
        let options = RunOptions { jobs: self.jobs, only: self.only.clone(), profile: self.profile.clone() };
        let shows_progress = std::io::stderr().is_terminal();
        let mut ended = 0;
        let progress = |result: &CaseResult| {
            ended += 1;
            if shows_progress {
                let mark = if matches!(result.outcome, Outcome::Failed { .. }) { "FAILED" } else { "" };
                eprintln!("{ended:>4} {} {mark}", result.id);
            }
        };
        Ok(judge(suite, target, Arc::new(actions), &options, progress).await?)
    }

    /// The cases with their rules, as text or JSON.
    fn listing(&self, suite: &Suite) -> Result<String, Failure> {
        let cases = select(suite, &self.only)?;
        if self.format == Format::Json {
            let cases = cases.iter().map(|case| {
                serde_json::json!({
                    "id": case.id(),
                    "title": case.title(),
                    "capability": case.capability(),
                    "level": case.level().as_str(),
                    "rule": case.rule(),
                    "source": case.source(),
                })
            });
            return Ok(format!("{:#}\n", serde_json::Value::Array(cases.collect())));
        }
        let mut out = String::new();
        for case in &cases {
            out.push_str(&format!("{} [{}]\n    {}\n", case.id(), case.level().as_str(), case.title()));
        }
        out.push_str(&format!("{} cases\n", cases.len()));
        Ok(out)
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        match &self.output {
            Some(path) => {
                std::fs::write(path, text).map_err(|error| format!("--output {}: {error}", path.display()))?;
            }
            // A closed pipe, as of `head`, is no error.
            None => drop(std::io::stdout().write_all(text.as_bytes())),
        }
        Ok(())
    }
}
