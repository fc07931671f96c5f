//! [`Printer`]: formats changes for standard output, without I/O.

use std::io::{self, Write};

use clap::ValueEnum;
use listwatch_client::{Change, Object, Origin};
use serde_json::{Value, json};

use super::diff::{DiffOptions, FieldChange, difference, hide_values, visible};

/// The format of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The changed fields
    Diff,
    /// One line per change: `MODIFIED  shop/web  rv=7`
    #[value(alias = "line")]
    Name,
    /// `{"type":"MODIFIED","object":{...}}` per line, as a watch sends it; values of Secrets are ***
    Json,
}

/// Formats changes in the selected format.
pub(super) struct Printer {
    pub(super) format: Format,
    pub(super) shown: DiffOptions,
    pub(super) color: bool,
    /// Whether the objects are Secrets.
    pub(super) are_secrets: bool,
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
                if self.are_secrets && !self.shown.secrets {
                    serde_json::to_writer(&mut *out, &without_values(object))?;
                } else {
                    out.extend_from_slice(object.json());
                }
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

/// A Secret with hidden values. Only its metadata if it cannot be parsed, so that no value is printed.
fn without_values(secret: &Object) -> Value {
    let Ok(mut value) = serde_json::from_slice::<Value>(secret.json()) else {
        return json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "namespace": secret.namespace(),
                "name": secret.name(),
                "uid": secret.uid(),
                "resourceVersion": secret.resource_version(),
            },
        });
    };
    hide_values(&mut value);
    value
}

fn name(object: &Object) -> String {
    visible(object.key().as_str())
}

fn version(object: &Object) -> String {
    visible(&object.resource_version())
}

#[cfg(test)]
mod tests {
    use listwatch_client::{Decode as _, KeepJson, ObjectKey, RawObject};

    use super::*;

    const SECRET: &str = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"namespace":"shop","name":"s","uid":"u","resourceVersion":"7","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"password\":\"b2xk\"}}\n","x":"y"}},"type":"Opaque","data":{"password":"b2xk"}}"#;
    const HIDDEN: &str = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"namespace":"shop","name":"s","uid":"u","resourceVersion":"7","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"***","x":"y"}},"type":"Opaque","data":{"password":"***"}}"#;
    /// Members with white space show that an object is printed as it was received.
    const CONFIG_MAP: &str = r#"{"kind":"ConfigMap", "metadata":{"namespace":"shop","name":"s","uid":"u","resourceVersion":"7"},"data":{"password":"b2xk"}}"#;

    fn object(json: &str) -> Object {
        let raw = RawObject::new(json.to_owned().into()).expect("it is JSON");
        KeepJson.decode(&raw, ObjectKey::new("shop", "s"), None).expect("bytes are kept as they are")
    }

    fn printed(printer: &Printer, change: &Change) -> String {
        let mut out = Vec::new();
        printer.print(change, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("the output is text")
    }

    #[test]
    fn json_output_hides_the_values_of_secrets_unless_they_are_requested() {
        fn check(are_secrets: bool, show_secrets: bool, json: &str, expected: &str) {
            let shown = DiffOptions { secrets: show_secrets, ..DiffOptions::default() };
            let printer = Printer { format: Format::Json, shown, color: false, are_secrets };
            let (object, origin) = (object(json), Origin::Live);
            let changes = [
                ("ADDED", Change::Added { object: object.clone(), origin }),
                ("MODIFIED", Change::Updated { old: object.clone(), new: object.clone(), origin }),
                ("DELETED", Change::Deleted { last: object, last_is_final: true, origin }),
            ];
            for (kind, change) in changes {
                let expected = format!("{{\"type\":\"{kind}\",\"object\":{expected}}}\n");
                assert_eq!(printed(&printer, &change), expected, "Secrets: {are_secrets}, shown: {show_secrets}");
            }
        }
        check(true, false, SECRET, HIDDEN);
        check(true, true, SECRET, SECRET);
        check(false, false, CONFIG_MAP, CONFIG_MAP);
        // A Secret that is nested too deeply to be parsed.
        let deep = format!(r#","data":{{"a":{}"b2xk"{}}}}}"#, "[".repeat(200), "]".repeat(200));
        let metadata = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"shop","name":"s","uid":"u","resourceVersion":"7"}"#;
        check(true, false, &format!("{metadata}{deep}"), &format!("{metadata}}}"));
    }
}
