//! Reads the members of a YAML document. Errors name the location, and unknown members are rejected.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The members of one object. [`Members::finish`] rejects those that were not taken.
#[derive(Debug)]
pub(super) struct Members<'a> {
    members: &'a Map<String, Value>,
    place: String,
    taken: BTreeSet<&'static str>,
}

impl<'a> Members<'a> {
    pub(super) fn new(value: &'a Value, place: impl Into<String>) -> Result<Self, String> {
        let place = place.into();
        let members = value.as_object().ok_or_else(|| format!("{place}: is not a mapping"))?;
        Ok(Members { members, place, taken: BTreeSet::new() })
    }

    /// The error of a member.
    pub(super) fn error(&self, why: impl std::fmt::Display) -> String {
        format!("{}: {why}", self.place)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.taken.insert(name);
        self.members.get(name)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim().to_owned())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => Err(self.error(format!("{name} is not text"))),
        }
    }

    pub(super) fn required_text(&mut self, name: &'static str) -> Result<String, String> {
        let text = self.text(name)?;
        text.filter(|text| !text.is_empty()).ok_or_else(|| self.error(format!("{name} is missing")))
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<u64>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.error(format!("{name} is not a number"))),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, String> {
        match self.take(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.error(format!("{name} is neither true nor false"))),
        }
    }

    pub(super) fn list(&mut self, name: &'static str) -> Result<&'a [Value], String> {
        match self.take(name) {
            None => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.error(format!("{name} is not a list"))),
        }
    }

    pub(super) fn texts(&mut self, name: &'static str) -> Result<Vec<String>, String> {
        let list = self.list(name)?;
        let texts = list.iter().map(|value| value.as_str().map(str::to_owned));
        texts.collect::<Option<_>>().ok_or_else(|| self.error(format!("{name} is not a list of texts")))
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<&'a Map<String, Value>>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(_) => Err(self.error(format!("{name} is not a mapping"))),
        }
    }

    /// Rejects members that were not taken.
    pub(super) fn finish(self) -> Result<(), String> {
        match self.members.keys().find(|name| !self.taken.contains(name.as_str())) {
            Some(name) => Err(self.error(format!("{name:?} is not a known member"))),
            None => Ok(()),
        }
    }
}
