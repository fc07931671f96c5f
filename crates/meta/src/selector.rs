//! Label and field selectors: parse once, match many times ([`LabelSelector`], [`FieldSelector`]).
//!
//! Grammar and error texts are those of apimachinery (`labels.Parse`, `fields.ParseSelector`), so
//! that a client receives the same message as from kube-apiserver.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::Hash;

use crate::object::{Object, ObjectShape};
use crate::status::STATUS_TEXT_BYTES_MAX;

/// The error for a selector that does not parse. The client receives its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSelector(String);

/// Requirements on labels, joined by AND. An empty selector matches everything.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    key: String,
    operator: LabelOperator,
    /// The values in the order of an access review; empty for other requirements.
    listed_values: Vec<String>,
}

/// The condition of a requirement on a label's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelOperator {
    /// `key in (a,b)`, `key=a`, `key==a`: the label has one of the values.
    In(BTreeSet<String>),
    /// `key notin (a,b)`, `key!=a`: the label is absent or has none of the values.
    NotIn(BTreeSet<String>),
    /// `key`: the label is present.
    Exists,
    /// `!key`: the label is absent.
    DoesNotExist,
    /// `key>5`: the label is an integer above the bound.
    GreaterThan(i64),
    /// `key<5`: the label is an integer below the bound.
    LessThan(i64),
}

impl LabelSelector {
    /// Creates a selector of these requirements, joined by AND.
    pub fn new(requirements: Vec<LabelRequirement>) -> Self {
        LabelSelector { requirements }
    }

    /// Parses the text of `labelSelector=`. Of equal requirements only one is kept, because each requirement costs time
    /// for every object that is matched.
    ///
    /// # Errors
    /// [`InvalidSelector`] with the text of apimachinery's parser.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        LabelParser { tokens: tokenize(text), at: 0 }.selector()
    }

    /// True when the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, in the order given.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }

    /// The number of requirements. A requirement with several values counts once for each value.
    pub fn value_count(&self) -> usize {
        let values = |requirement: &LabelRequirement| match &requirement.operator {
            LabelOperator::In(values) | LabelOperator::NotIn(values) => values.len().max(1),
            _ => 1,
        };
        self.requirements.iter().map(values).sum()
    }

    /// Whether an object with these labels matches.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key).as_deref()))
    }
}

impl LabelRequirement {
    /// Creates a requirement without validation; [`LabelSelector::parse`] validates user input.
    pub fn new(key: impl Into<String>, operator: LabelOperator) -> Self {
        LabelRequirement { key: key.into(), operator, listed_values: Vec::new() }
    }

    /// Keeps the values of an access review in the order of the review, for [`LabelRequirement::values`]. Matching
    /// ignores them.
    #[must_use]
    pub fn with_listed_values(mut self, values: Vec<String>) -> Self {
        self.listed_values = values;
        self
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The condition on the label's value.
    pub fn operator(&self) -> &LabelOperator {
        &self.operator
    }

    /// The values of `In` and `NotIn`: those of an access review in its order, and the values of a parsed selector
    /// sorted (`labels.Requirement.ValuesUnsorted`). Other operators have none.
    pub fn values(&self) -> Vec<&str> {
        match &self.operator {
            LabelOperator::In(_) | LabelOperator::NotIn(_) if !self.listed_values.is_empty() => {
                self.listed_values.iter().map(String::as_str).collect()
            }
            LabelOperator::In(values) | LabelOperator::NotIn(values) => values.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            LabelOperator::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelOperator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
            LabelOperator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            LabelOperator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Removes items that equal an earlier one.
fn distinct<T: Eq + Hash>(mut items: Vec<T>) -> Vec<T> {
    if items.len() > 1 {
        let mut seen = HashSet::with_capacity(items.len());
        let mut is_new: std::vec::IntoIter<bool> =
            items.iter().map(|item| seen.insert(item)).collect::<Vec<_>>().into_iter();
        items.retain(|_| is_new.next().unwrap_or(true));
    }
    items
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, LabelRequirement { key, operator, .. }) in self.requirements.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            let list = |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            match operator {
                LabelOperator::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values))?,
                LabelOperator::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", list(values))?,
                LabelOperator::In(values) => write!(f, "{key} in ({})", list(values))?,
                LabelOperator::NotIn(values) => write!(f, "{key} notin ({})", list(values))?,
                LabelOperator::Exists => write!(f, "{key}")?,
                LabelOperator::DoesNotExist => write!(f, "!{key}")?,
                LabelOperator::GreaterThan(bound) => write!(f, "{key}>{bound}")?,
                LabelOperator::LessThan(bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LabelSelector({self})")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Comma,
    Not,
    Operator(&'a str),
    Word(&'a str),
}

impl<'a> Token<'a> {
    fn literal(token: Option<Self>) -> &'a str {
        match token {
            None => "",
            Some(Token::Open) => "(",
            Some(Token::Close) => ")",
            Some(Token::Comma) => ",",
            Some(Token::Not) => "!",
            Some(Token::Operator(text) | Token::Word(text)) => text,
        }
    }
}

fn tokenize(text: &str) -> Vec<Token<'_>> {
    let special = |c: char| "=!(),><".contains(c);
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if special(first) {
            match () {
                () if rest.starts_with("==") || rest.starts_with("!=") => 2,
                () => 1,
            }
        } else {
            rest.find(|c: char| special(c) || c.is_whitespace()).unwrap_or(rest.len())
        };
        let (word, tail) = rest.split_at(len);
        tokens.push(match word {
            "(" => Token::Open,
            ")" => Token::Close,
            "," => Token::Comma,
            "!" => Token::Not,
            "=" | "==" | "!=" | ">" | "<" => Token::Operator(word),
            _ => Token::Word(word),
        });
        rest = tail.trim_start();
    }
    tokens
}

struct LabelParser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

fn invalid<T>(message: String) -> Result<T, InvalidSelector> {
    Err(InvalidSelector(message))
}

impl<'a> LabelParser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn take(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(mut self) -> Result<LabelSelector, InvalidSelector> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                None => break,
                Some(Token::Word(_) | Token::Not) => {
                    let requirement = self
                        .requirement()
                        .map_err(|error| InvalidSelector(format!("unable to parse requirement: {error}")))?;
                    requirements.push(requirement);
                    match self.take() {
                        None => break,
                        Some(Token::Comma) => {
                            let next = self.peek();
                            if !matches!(next, Some(Token::Word(_) | Token::Not)) {
                                return invalid(format!(
                                    "found '{}', expected: identifier after ','",
                                    Token::literal(next)
                                ));
                            }
                        }
                        other => {
                            return invalid(format!(
                                "found '{}', expected: ',' or 'end of string'",
                                Token::literal(other)
                            ));
                        }
                    }
                }
                other => {
                    return invalid(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        Token::literal(other)
                    ));
                }
            }
        }
        // apimachinery sorts by key, so equal selectors print alike.
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements: distinct(requirements) })
    }

    fn requirement(&mut self) -> Result<LabelRequirement, InvalidSelector> {
        let mut token = self.take();
        let negated = token == Some(Token::Not);
        if negated {
            token = self.take();
        }
        let Some(Token::Word(key)) = token else {
            return invalid(format!("found '{}', expected: identifier", Token::literal(token)));
        };
        validate_label_key(key)?;
        if matches!(self.peek(), None | Some(Token::Comma)) || negated {
            let operator = if negated { LabelOperator::DoesNotExist } else { LabelOperator::Exists };
            return Ok(LabelRequirement::new(key, operator));
        }
        let operator = self.take();
        let operator = match operator {
            Some(Token::Word("in")) => LabelOperator::In(self.value_list()?),
            Some(Token::Word("notin")) => LabelOperator::NotIn(self.value_list()?),
            Some(Token::Operator("=" | "==")) => LabelOperator::In(self.exact_value()?.into()),
            Some(Token::Operator("!=")) => LabelOperator::NotIn(self.exact_value()?.into()),
            Some(Token::Operator(">")) => LabelOperator::GreaterThan(self.bound(key)?),
            Some(Token::Operator("<")) => LabelOperator::LessThan(self.bound(key)?),
            other => {
                return invalid(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", Token::literal(other)));
            }
        };
        if let LabelOperator::In(values) | LabelOperator::NotIn(values) = &operator {
            aggregate(values.iter().enumerate().filter_map(|(position, value)| invalid_value(key, position, value)))?;
        }
        Ok(LabelRequirement::new(key, operator))
    }

    fn exact_value(&mut self) -> Result<[String; 1], InvalidSelector> {
        if matches!(self.peek(), None | Some(Token::Comma)) {
            return Ok([String::new()]);
        }
        match self.take() {
            Some(Token::Word(value)) => Ok([value.to_owned()]),
            other => invalid(format!("found '{}', expected: identifier", Token::literal(other))),
        }
    }

    fn bound(&mut self, key: &str) -> Result<i64, InvalidSelector> {
        let [value] = self.exact_value()?;
        let bound = value.parse().map_err(|_| {
            format!("values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        });
        // An integer with a sign is no label value.
        aggregate(bound.as_ref().err().cloned().into_iter().chain(invalid_value(key, 0, &value)))?;
        bound.map_err(InvalidSelector)
    }

    fn value_list(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        let open = self.take();
        if open != Some(Token::Open) {
            return invalid(format!("found '{}' expected: '('", Token::literal(open)));
        }
        let mut values = BTreeSet::new();
        // An empty item between commas is the empty value: `(,)`, `(a,)`.
        let mut expect_value = false;
        loop {
            match self.take() {
                Some(Token::Word(value)) => {
                    values.insert(value.to_owned());
                    expect_value = false;
                    match self.peek() {
                        Some(Token::Comma | Token::Close) => {}
                        other => {
                            return invalid(format!("found '{}', expected: ',' or ')'", Token::literal(other)));
                        }
                    }
                }
                Some(Token::Comma) => {
                    if expect_value || values.is_empty() {
                        values.insert(String::new());
                    }
                    expect_value = true;
                }
                Some(Token::Close) => {
                    // `()` is the empty value too.
                    if expect_value || values.is_empty() {
                        values.insert(String::new());
                    }
                    return Ok(values);
                }
                other => {
                    let expected = match values.is_empty() {
                        true => "',', ')' or identifier",
                        false => "',', or identifier",
                    };
                    return invalid(format!("found '{}', expected: {expected}", Token::literal(other)));
                }
            }
        }
    }
}

/// The error of a value that is no label value.
fn invalid_value(key: &str, position: usize, value: &str) -> Option<String> {
    let why = validate_label_value(value).err()?;
    Some(format!("values[{position}][{key}]: Invalid value: {value:?}: {why}"))
}

/// Joins errors as `ErrorList.ToAggregate` does. A short value has a long error, so errors beyond
/// [`STATUS_TEXT_BYTES_MAX`] bytes are omitted: no Status shows them.
fn aggregate(errors: impl Iterator<Item = String>) -> Result<(), InvalidSelector> {
    let mut bytes = 0;
    let within_bound = |error: &String| {
        let before = bytes;
        bytes += error.len();
        before < STATUS_TEXT_BYTES_MAX
    };
    match &errors.take_while(within_bound).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        [error] => invalid(error.clone()),
        errors => invalid(format!("[{}]", errors.join(", "))),
    }
}

const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Checks that `value` is a valid label value (`validation.IsValidLabelValue`).
///
/// # Errors
/// The problems in apimachinery's words, joined by `; `.
pub fn validate_label_value(value: &str) -> Result<(), String> {
    joined(label_value_problems(value))
}

/// The reasons why a text is not a label value, in apimachinery's words; empty if it is one.
pub fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_name_part(value) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// Checks that `key` is a valid label or annotation key (`validation.IsQualifiedName`).
///
/// # Errors
/// The problems in apimachinery's words, joined by `; `.
pub fn validate_qualified_name(key: &str) -> Result<(), String> {
    joined(qualified_name_problems(key))
}

/// The reasons why a text is not a label or annotation key, in apimachinery's words; empty if it is
/// one.
pub fn qualified_name_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            return vec!["a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')".to_owned()];
        }
        Some(("", name)) => {
            problems.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            // Upstream's check of the prefix counts bytes; its check of object names counts
            // characters.
            let counted = |why: String| why.replace("no more than 253 characters", "no more than 253 bytes");
            let wrong = dns_subdomain_problems(prefix).into_iter();
            problems.extend(wrong.map(|why| format!("prefix part {}", counted(why))));
            name
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        problems.push(QUALIFIED_NAME.to_owned());
    }
    problems
}

/// Checks that `text` is a lowercase RFC 1123 subdomain (`validation.IsDNS1123Subdomain`), the rule
/// for most object names.
///
/// # Errors
/// The problems in apimachinery's words, joined by `; `.
pub fn validate_dns_subdomain(text: &str) -> Result<(), String> {
    joined(dns_subdomain_problems(text))
}

/// The reasons why a text is not an RFC 1123 subdomain, in apimachinery's words; empty if it is
/// one.
pub fn dns_subdomain_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    if !is_dns_subdomain_shape(text) {
        problems.push("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".to_owned());
    }
    problems
}

/// Checks that `text` is a lowercase RFC 1123 label (`validation.IsDNS1123Label`), the rule for
/// namespaces.
///
/// # Errors
/// The problems in apimachinery's words, joined by `; `.
pub fn validate_dns_label(text: &str) -> Result<(), String> {
    joined(dns_label_problems(text))
}

/// The reasons why a text is not an RFC 1123 label, in apimachinery's words; empty if it is one.
pub fn dns_label_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !is_dns_label_shape(text) {
        problems.push(if is_dns_subdomain_shape(text) {
            "must not contain dots".to_owned()
        } else {
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')".to_owned()
        });
    }
    problems
}

/// The reasons why a text is not an RFC 1035 label (`validation.IsDNS1035Label`), in apimachinery's
/// words; empty if it is one.
pub fn dns_1035_label_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) || !is_dns_label_shape(text) {
        problems.push("a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')".to_owned());
    }
    problems
}

fn joined(problems: Vec<String>) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn is_dns_subdomain_shape(text: &str) -> bool {
    text.split('.').all(is_dns_label_shape)
}

fn is_dns_label_shape(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && alphanumeric(bytes[0])
        && alphanumeric(bytes[bytes.len() - 1])
        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes[0].is_ascii_alphanumeric()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn validate_label_key(key: &str) -> Result<(), InvalidSelector> {
    validate_qualified_name(key).map_err(|why| InvalidSelector(format!("<nil>: Invalid value: {key:?}: {why}")))
}

/// Requirements on fields, joined by AND. An empty selector matches everything.
///
/// The operators are `=`, `==` and `!=`; `\` escapes `,`, `=` and itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

/// One requirement on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldTerm {
    /// The field's selector label, e.g. `status.phase`.
    pub field: String,
    /// The value to compare with.
    pub value: String,
    /// True for `!=`.
    pub negated: bool,
}

impl FieldSelector {
    /// Creates a selector of these terms, joined by AND.
    pub fn new(terms: Vec<FieldTerm>) -> Self {
        FieldSelector { terms }
    }

    /// Parses the text of `fieldSelector=`. The terms are sorted by their text, as authorizers see them
    /// (`fields.ParseSelector`). Of equal terms only one is kept.
    ///
    /// # Errors
    /// [`InvalidSelector`] with the text of apimachinery's parser, about the first invalid term in this order.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        let mut terms = Vec::new();
        let mut parts = split_unescaped(text);
        parts.sort_unstable();
        for part in parts {
            if part.is_empty() {
                continue;
            }
            let Some((field, operator, value)) = split_operator(part) else {
                return invalid(format!("invalid selector: '{text}'; can't understand '{part}'"));
            };
            terms.push(FieldTerm { field: field.to_owned(), value: unescape(value)?, negated: operator == "!=" });
        }
        Ok(FieldSelector { terms: distinct(terms) })
    }

    /// True when the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, in the order of [`FieldSelector::new`] or of [`FieldSelector::parse`].
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The value that the first term with `=` requires of a field; `None` if no term does.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| !term.negated && term.field == field).map(|term| term.value.as_str())
    }

    /// Whether the object matches. A term on a field that the resource lacks never matches `=` and
    /// always matches `!=`; the parsers of requests reject such selectors earlier.
    pub fn matches(&self, object: &Object, shape: &ObjectShape) -> bool {
        self.terms.iter().all(|term| {
            let equal = object.field(&term.field, shape).is_some_and(|value| value == term.value.as_str());
            equal != term.negated
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, term) in self.terms.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{}{operator}{value}", term.field)?;
        }
        Ok(())
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_operator(part: &str) -> Option<(&str, &str, &str)> {
    for (at, _) in part.char_indices() {
        for operator in ["!=", "==", "="] {
            if part[at..].starts_with(operator) {
                return Some((&part[..at], operator, &part[at + operator.len()..]));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, InvalidSelector> {
    let mut text = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => text.push(escaped),
                Some(other) => {
                    return invalid(format!("invalid field selector: invalid escape sequence: \\{other}"));
                }
                None => return invalid("invalid field selector: invalid escape sequence: \\".to_owned()),
            },
            ',' | '=' => {
                // apimachinery prints the rune's number.
                let number = u32::from(character);
                return invalid(format!("invalid field selector: unescaped character in value: {number}"));
            }
            _ => text.push(character),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        LabelSelector::parse(selector).unwrap().matches(|key| {
            labels.iter().find(|(name, _)| *name == key).map(|(_, value)| Cow::Owned((*value).to_owned()))
        })
    }

    #[test]
    fn label_selector_operators_match_as_documented() {
        let labels = [("app", "web"), ("n", "7"), ("empty", "")];
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!gone", true),
            ("app=web", true),
            ("app==web,n", true),
            (" app = web , n ", true),
            ("app!=web", false),
            ("gone!=web", true),
            ("app in (web,db)", true),
            ("app in (db)", false),
            ("app notin (db)", true),
            ("gone notin (db)", true),
            ("gone in (db)", false),
            ("n>6", true),
            ("n>7", false),
            ("n<8", true),
            ("app>1", false),
            ("empty=", true),
            ("empty in (,)", true),
            ("empty in ()", true),
            ("app in ()", false),
            ("in in (in)", false),
            ("example.com/app!=x", true),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector:?}");
        }
    }

    #[test]
    fn label_selector_errors_equal_apimachinery() {
        for (selector, message) in [
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a,", "found '', expected: identifier after ','"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap_err().to_string(), message, "{selector:?}");
        }
        let error = LabelSelector::parse("-a=b").unwrap_err().to_string();
        assert!(
            error.starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name part must"),
            "{error}"
        );
        assert!(LabelSelector::parse("a=b_").is_err());
        let integer = |value: &str| {
            format!("values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        };
        let label = |at: usize, value: &str| format!("values[{at}][a]: Invalid value: {value:?}: {LABEL_VALUE}");
        for (selector, message) in [
            ("a>-5", label(0, "-5")),
            ("a<x", integer("x")),
            ("a<-x", format!("[{}, {}]", integer("-x"), label(0, "-x"))),
            ("a in (x,-b,-c)", format!("[{}, {}]", label(0, "-b"), label(1, "-c"))),
        ] {
            let error = LabelSelector::parse(selector).unwrap_err().to_string();
            assert_eq!(error, format!("unable to parse requirement: {message}"), "{selector:?}");
        }
        assert!(LabelSelector::parse(&format!("a={}", "x".repeat(64))).is_err());
    }

    #[test]
    fn errors_of_a_label_selector_are_bounded() {
        let values: Vec<String> = (0..20_000).map(|n| format!("-{n}")).collect();
        let error = LabelSelector::parse(&format!("a in ({})", values.join(","))).unwrap_err().to_string();
        assert!(error.len() < 2 * STATUS_TEXT_BYTES_MAX, "{} bytes", error.len());
        assert!(
            error.starts_with("unable to parse requirement: [values[0][a]: Invalid value: \"-0\""),
            "{}",
            &error[..80]
        );
    }

    #[test]
    fn equal_requirements_of_a_selector_are_kept_once() {
        for (text, kept, values) in [
            ("!a,!a,b,!a,zz", "!a,b,zz", 3),
            ("a=x,a==x,a in (x)", "a=x", 1),
            ("a in (x,y),a in (y,x,x),a notin (x,y)", "a in (x,y),a notin (x,y)", 4),
            ("a,!a,a>1,a<1,a>1", "a,!a,a>1,a<1", 4),
            ("", "", 0),
        ] {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!((selector.to_string().as_str(), selector.value_count()), (kept, values), "{text:?}");
        }
        let many = LabelSelector::parse(&["!a"; 21_000].join(",")).unwrap();
        assert_eq!(many.requirements().len(), 1);
        let fields = FieldSelector::parse("a=x,b!=x,a=x,a!=x,a==x").unwrap();
        assert_eq!(fields.to_string(), "a!=x,a=x,b!=x");
    }

    #[test]
    fn terms_and_errors_of_a_field_selector_follow_the_sorted_text() {
        for (text, expected) in [
            (
                "spec.nodeName=mynode,metadata.name!=b,metadata.name!=a",
                "metadata.name!=a,metadata.name!=b,spec.nodeName=mynode",
            ),
            ("metadata.name=b,metadata.name=a", "metadata.name=a,metadata.name=b"),
            // `=1` sorts before `==0`.
            ("a==0,a=1", "a=1,a=0"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().to_string(), expected, "{text}");
        }
        for (text, expected) in [
            ("y,x,a=b", "invalid selector: 'y,x,a=b'; can't understand 'x'"),
            (r"z,a=\x", r"invalid field selector: invalid escape sequence: \x"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn requirement_returns_the_values_of_a_review_in_their_order() {
        let set = || BTreeSet::from(["a", "b"].map(str::to_owned));
        let listed = LabelRequirement::new("k", LabelOperator::In(set()))
            .with_listed_values(["b", "a", "b"].map(str::to_owned).into());
        assert_eq!(listed.values(), ["b", "a", "b"]);
        assert_eq!(LabelRequirement::new("k", LabelOperator::NotIn(set())).values(), ["a", "b"]);
        assert!(LabelRequirement::new("k", LabelOperator::Exists).values().is_empty());
    }

    #[test]
    fn field_selectors_parse_with_escapes() {
        let selector = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=Running,,x==y\=").unwrap();
        assert_eq!(selector.requires_exact("metadata.name"), Some("a,b"));
        assert_eq!(selector.requires_exact("status.phase"), None);
        assert_eq!(selector.requires_exact("x"), Some("y="));
        assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        assert_eq!(
            FieldSelector::parse("a=b,metadata.name").unwrap_err().to_string(),
            "invalid selector: 'a=b,metadata.name'; can't understand 'metadata.name'"
        );
        assert!(FieldSelector::parse(r"a=\x").is_err());
        assert!(FieldSelector::parse("a=b=c").is_err());
    }

    proptest! {
        #[test]
        fn printed_selector_parses_to_an_equal_selector(text in "[a-c=!,() notin<>0-9]{0,16}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
            }
            if let Ok(selector) = FieldSelector::parse(&text) {
                // `==` is printed as `=`, so the terms may sort differently. Printed again, the text is the same.
                let again = FieldSelector::parse(&selector.to_string()).unwrap();
                prop_assert_eq!(again.terms().len(), selector.terms().len());
                prop_assert!(selector.terms().iter().all(|term| again.terms().contains(term)));
                prop_assert_eq!(FieldSelector::parse(&again.to_string()), Ok(again));
            }
        }
    }
}
