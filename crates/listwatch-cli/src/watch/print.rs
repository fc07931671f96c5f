//! [`Printer`]: formats changes for standard output, without I/O.

use std::io::{self, Write};

use clap::ValueEnum;
use listwatch_client::{Change, Object, Origin};
use serde_json::Value;

use super::diff::{DiffOptions, FieldChange, difference, visible};

/// The format of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The changed fields
    Diff,
    /// One line per change: `MODIFIED  shop/web  rv=7`
    #[value(alias = "line")]
    Name,
    /// `{"type":"MODIFIED","object":{...}}` per line, as a watch sends it
    Json,
}

/// Formats changes in the selected format.
pub(super) struct Printer {
    pub(super) format: Format,
    pub(super) shown: DiffOptions,
    pub(super) color: bool,
}

const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const DIM: &str = "\u{1b}[2m";
const BOLD: &str = "\u{1b}[1m";
const PLAIN: &str = "\u{1b}[0m";

impl Printer {
    /// Appends a change to the output.
    pub(super) fn print(&self, change: &Change, out: &mut Vec<u8>) -> io::Result<()> {
        let (kind, object, origin) = match change {
            Change::Added { object, origin } => ("ADDED", object, *origin),
            Change::Updated { new, origin, .. } => ("MODIFIED", new, *origin),
            Change::Deleted { last, origin, .. } => ("DELETED", last, *origin),
        };
        match self.format {
            Format::Json => {
                write!(out, "{{\"type\":\"{kind}\",\"object\":")?;
                out.extend_from_slice(object.json());
                out.extend_from_slice(b"}\n");
                Ok(())
            }
            Format::Name => {
                let note = match origin {
                    Origin::Relist => "  (found by listing again)",
                    _ => "",
                };
                writeln!(out, "{kind:<8}  {}  rv={}{note}", name(object), version(object))
            }
            Format::Diff => self.print_diff(change, origin, out),
        }
    }

    fn print_diff(&self, change: &Change, origin: Origin, out: &mut Vec<u8>) -> io::Result<()> {
        let [bold, dim, plain] = self.codes([BOLD, DIM, PLAIN]);
        let (sign, color) = match change {
            Change::Added { .. } => ('+', GREEN),
            Change::Updated { .. } => ('~', YELLOW),
            Change::Deleted { .. } => ('-', RED),
        };
        let [color] = self.codes([color]);
        let versions = match change {
            Change::Updated { old, new, .. } => format!("rv {} → {}", version(old), version(new)),
            Change::Added { object, .. } => format!("rv {}", version(object)),
            Change::Deleted { last, .. } => format!("rv {}", version(last)),
        };
        let note = match (origin, change) {
            (Origin::Relist, Change::Deleted { .. }) => ", gone when listed again; this is its last known state",
            (Origin::Relist, _) => ", found by listing again",
            _ => "",
        };
        let object = match change {
            Change::Added { object, .. } => object,
            Change::Updated { new, .. } => new,
            Change::Deleted { last, .. } => last,
        };
        writeln!(out, "{color}{sign} {bold}{}{plain}  {dim}{versions}{note}{plain}", name(object))?;
        let Change::Updated { old, new, .. } = change else { return Ok(()) };
        let parse = |object: &Object| serde_json::from_slice::<Value>(object.json());
        let (Ok(old), Ok(new)) = (parse(old), parse(new)) else {
            return writeln!(out, "    {dim}(this is no JSON that can be compared){plain}");
        };
        let found = difference(&old, &new, self.shown);
        if found.is_empty() {
            return writeln!(out, "    {dim}(nothing that is shown){plain}");
        }
        let [green, red] = self.codes([GREEN, RED]);
        for found in found {
            let path = found.path;
            match found.how {
                FieldChange::Added(value) => writeln!(out, "  {green}+ {path}: {value}{plain}")?,
                FieldChange::Removed(value) => writeln!(out, "  {red}- {path}: {value}{plain}")?,
                FieldChange::Changed(old, new) => writeln!(out, "    {path}: {red}{old}{plain} → {green}{new}{plain}")?,
                FieldChange::Text(line, gone, come) => {
                    writeln!(out, "    {path}: {dim}from line {line}{plain}")?;
                    for line in gone {
                        writeln!(out, "      {red}- {line}{plain}")?;
                    }
                    for line in come {
                        writeln!(out, "      {green}+ {line}{plain}")?;
                    }
                }
            }
        }
        Ok(())
    }

    fn codes<const N: usize>(&self, codes: [&'static str; N]) -> [&'static str; N] {
        if self.color { codes } else { [""; N] }
    }
}

fn name(object: &Object) -> String {
    visible(object.key().as_str())
}

fn version(object: &Object) -> String {
    visible(&object.resource_version())
}
