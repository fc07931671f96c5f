//! The flags of kube-apiserver as clap arguments, and the values that a command line gives them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use listwatch_wire::query::parse_go_duration;

use super::flags::{FLAGS, Flag, ValueType, find};

/// The values of flags by name, in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagValues(BTreeMap<&'static str, Vec<String>>);

impl FlagValues {
    /// The flags on the command line, each with all its values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static Flag, &[String])> {
        self.0.iter().filter_map(|(name, values)| Some((find(name)?, values.as_slice())))
    }

    /// All flags of kube-apiserver with their effective values. The values of a list are joined with commas.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, String)> {
        FLAGS.iter().map(move |Flag { name, value_type, .. }| {
            let value = match value_type {
                ValueType::Bool => self.bool(name).to_string(),
                ValueType::Texts | ValueType::List if self.has(name) => self.texts(name).collect::<Vec<_>>().join(","),
                _ => self.text(name).unwrap_or_default().to_owned(),
            };
            (*name, value)
        })
    }

    /// Whether the command line contains the flag.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The last value of a flag, or else kube-apiserver's default. `None` if the value is empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let given = self.0.get(name).and_then(|values| values.last()).map(String::as_str);
        given.or_else(|| find(name).map(|flag| flag.default)).filter(|value| !value.is_empty())
    }

    /// All values of a flag.
    pub(super) fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.get(name).into_iter().flatten().map(String::as_str)
    }

    /// The value of [`FlagValues::text`] as a path.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// The items of all values of a list flag, or of kube-apiserver's default.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        let default = || find(name).map(|flag| flag.default).into_iter().collect();
        let values = self.0.get(name).map_or_else(default, |values| values.iter().map(String::as_str).collect());
        items(values)
    }

    /// The value of a boolean flag.
    pub(super) fn bool(&self, name: &str) -> bool {
        self.text(name).and_then(parse_bool).unwrap_or_default()
    }

    /// The value of a numeric flag.
    pub(super) fn int(&self, name: &str) -> i64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// The value of a duration flag; zero for a negative one.
    pub(super) fn duration(&self, name: &str) -> Duration {
        let nanos = self.text(name).and_then(|text| parse_go_duration(text).ok()).unwrap_or_default();
        Duration::from_nanos(nanos.try_into().unwrap_or_default())
    }
}

/// The items of comma-separated values.
pub(super) fn items(values: Vec<&str>) -> Vec<&str> {
    values.into_iter().flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty()).collect()
}

impl clap::Args for FlagValues {
    fn augment_args(command: Command) -> Command {
        // clap adds `--help` and `--version` itself.
        command.args(FLAGS.iter().filter(|flag| !matches!(flag.name, "help" | "version")).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        FlagValues::augment_args(command)
    }
}

impl clap::FromArgMatches for FlagValues {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = |flag: &'static Flag| {
            let values = matches.try_get_many::<String>(flag.name).ok()??;
            Some((flag.name, values.cloned().collect()))
        };
        Ok(FlagValues(FLAGS.iter().filter_map(values).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = FlagValues::from_arg_matches(matches)?;
        Ok(())
    }
}

fn argument(flag: &'static Flag) -> Arg {
    let value_type = flag.value_type;
    let argument = Arg::new(flag.name)
        .long(flag.name)
        // pflag accepts underscores for dashes (`component-base/cli/flag.WordSepNormalizeFunc`). clap requires names of
        // static lifetime, so they are leaked; arguments are built once.
        .alias(&*flag.name.replace('-', "_").leak())
        .action(ArgAction::Append)
        .allow_hyphen_values(true)
        .value_parser(move |text: &str| validate(value_type, text).map(|()| text.to_owned()))
        .help(flag.note)
        .help_heading("Flags of kube-apiserver");
    let argument = if flag.name == "v" { argument.short('v') } else { argument };
    match value_type {
        // As in pflag, a value of a boolean flag needs `=`.
        ValueType::Bool => {
            argument.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        ValueType::Int => argument.value_name("INT"),
        ValueType::Float => argument.value_name("FLOAT"),
        ValueType::Duration => argument.value_name("DURATION"),
        ValueType::Text | ValueType::Texts => argument.value_name("TEXT"),
        ValueType::List => argument.value_name("LIST"),
    }
}

/// Rejects a value that kube-apiserver rejects for a flag of this type.
fn validate(value_type: ValueType, text: &str) -> Result<(), String> {
    match value_type {
        ValueType::Bool => parse_bool(text).map(|_| ()).ok_or_else(|| "a boolean is needed: true or false".to_owned()),
        ValueType::Int => text.parse::<i64>().map(|_| ()).map_err(|_| "a whole number is needed".to_owned()),
        ValueType::Float => text.parse::<f64>().map(|_| ()).map_err(|_| "a number is needed".to_owned()),
        ValueType::Duration => parse_go_duration(text).map(|_| ()).map_err(|error| error.to_string()),
        ValueType::Text | ValueType::Texts | ValueType::List => Ok(()),
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn parse(line: &str) -> Result<FlagValues, clap::Error> {
        let matches = FlagValues::augment_args(Command::new("kube-apiserver"))
            .try_get_matches_from(["kube-apiserver"].into_iter().chain(line.split_whitespace()))?;
        FlagValues::from_arg_matches(&matches)
    }

    #[test]
    fn command_line_is_parsed_as_by_pflag() {
        let given = parse(
            "--secure-port=1 --secure-port 2 --profiling --watch-cache=F --etcd_servers=a,b --etcd-servers c -v=4 --event-ttl 1m30s",
        )
        .expect("a valid command line");
        assert_eq!(given.int("secure-port"), 2, "the last value counts");
        assert!(given.bool("profiling") && !given.bool("watch-cache"));
        assert_eq!(given.list("etcd-servers"), ["a", "b", "c"], "values of lists add up");
        assert_eq!(given.int("v"), 4);
        assert_eq!(given.duration("event-ttl"), Duration::from_secs(90));
    }

    #[test]
    fn all_flags_have_their_effective_values() {
        let given = parse("--v=2 --v=3 --profiling=F --etcd-servers=a,b --etcd-servers=c");
        let given = given.expect("a valid command line");
        let all: BTreeMap<&str, String> = given.all().collect();
        assert_eq!(all.len(), FLAGS.len());
        for (name, value) in [
            ("v", "3"),
            ("profiling", "false"),
            ("etcd-servers", "a,b,c"),
            ("watch-cache", "true"),
            ("authorization-mode", "AlwaysAllow"),
            ("client-ca-file", ""),
            ("help", "false"),
        ] {
            assert_eq!(all[name], value, "{name}");
        }
    }

    #[test]
    fn absent_flag_has_the_default_of_kube_apiserver() {
        let given = parse("").expect("an empty command line");
        assert_eq!((given.int("secure-port"), given.text("etcd-prefix")), (6443, Some("/registry")));
        assert!(given.bool("watch-cache") && !given.has("watch-cache"));
        assert_eq!(given.text("client-ca-file"), None);
        assert_eq!(given.duration("etcd-compaction-interval"), Duration::from_secs(300));
    }

    #[test]
    fn invalid_values_and_unknown_flags_are_rejected() {
        for (line, expected) in [
            ("--secure-port=x", "a whole number is needed"),
            ("--event-ttl=5", "missing unit"),
            ("--profiling=maybe", "a boolean is needed"),
            ("--goaway-chance=much", "a number is needed"),
            ("--no-such-flag=1", "--no-such-flag"),
            ("--profiling false", "false"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
