//! Parses the flags of the verbs: `--name value`, `--name=value` and plain words. No argument
//! parser from crates.io is used, so that xtask builds in seconds.

use crate::failure::{Failure, Outcome, fail};

/// The arguments of a verb. Each call removes a flag or word; [`Args::finish`] rejects the rest.
pub(crate) struct Args {
    rest: Vec<String>,
}

impl Args {
    pub(crate) fn new(words: impl IntoIterator<Item = String>) -> Self {
        let mut rest = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => rest.extend([name.to_owned(), value.to_owned()]),
                _ => rest.push(word),
            }
        }
        Self { rest }
    }

    /// Whether the flag without a value was given.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.rest.iter().position(|word| word == name);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// The value of a flag that takes one.
    pub(crate) fn value(&mut self, name: &str) -> Outcome<Option<String>> {
        let Some(at) = self.rest.iter().position(|word| word == name) else { return Ok(None) };
        self.rest.remove(at);
        if self.rest.get(at).is_none_or(|word| word.starts_with("--")) {
            fail!("{name} needs a value");
        }
        Ok(Some(self.rest.remove(at)))
    }

    /// Removes and returns the next plain word.
    pub(crate) fn word(&mut self) -> Option<String> {
        let at = self.rest.iter().position(|word| !word.starts_with("--"))?;
        Some(self.rest.remove(at))
    }

    /// Returns the remaining arguments unchanged.
    pub(crate) fn rest(self) -> Vec<String> {
        self.rest
    }

    /// Returns an error if an argument remains.
    pub(crate) fn finish(self, verb: &str) -> Outcome<()> {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => Err(Failure::from(format!("{verb} knows no `{word}`; see `cargo xtask help {verb}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn args_separate_flags_values_and_words() {
        let mut given = args("one --etcd=binary --keep --only watch two");
        assert_eq!(given.value("--etcd"), Ok(Some("binary".to_owned())));
        assert_eq!(given.value("--only"), Ok(Some("watch".to_owned())));
        assert_eq!(given.value("--absent"), Ok(None));
        assert!(given.flag("--keep") && !given.flag("--keep"));
        assert_eq!(given.word().as_deref(), Some("one"));
        assert_eq!(given.rest(), ["two"]);
    }

    #[test]
    fn unknown_argument_is_an_error() {
        assert!(args("").finish("e2e").is_ok());
        let error = args("--etdc").finish("e2e").unwrap_err().to_string();
        assert_eq!(error, "e2e knows no `--etdc`; see `cargo xtask help e2e`");
        assert_eq!(args("--etcd --keep").value("--etcd").unwrap_err().to_string(), "--etcd needs a value");
    }
}
