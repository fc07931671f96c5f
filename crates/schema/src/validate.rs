//! Validates values with the messages of Kubernetes 1.36 (kube-openapi `pkg/validation/validate`,
//! apiextensions-apiserver `pkg/apiserver/validation`).
//!
//! On update, an unchanged part may stay invalid (ratcheting), so that a stricter schema does not
//! block existing objects.

use std::borrow::Cow;
use std::collections::HashMap;

use listwatch_cel::format::Format;
use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::FieldError;
use listwatch_meta::fuel;
use listwatch_meta::status::{cut, prefix};

use crate::field_errors;
use crate::golang::{self, Number};
use crate::limits::{FIELD_ERROR_BYTES_MAX, FIELD_ERRORS_BYTES_MAX, FIELD_ERRORS_MAX, VALIDATION_STEPS_MAX};
use crate::path::{Path, ValuePath};
use crate::ratchet::{self, Correlated};
use crate::schema::{AdditionalProperties, Constraint, Kind, Node};

/// Validates a value against a schema; `old` is the replaced value. Errors have paths below `at`.
pub(crate) fn validate(value: &Value, node: &Node, old: Option<&Value>, at: &Path<'_>) -> Vec<FieldError> {
    let mut validator = Validator { steps: 0 };
    let correlated = old.map(|old| Correlated { old, node });
    let mut outcome = validator.ratcheted(value, node, &ValuePath::ROOT, correlated);
    // A branch of `not` or `oneOf` without budget counts as not matching. This check rejects the
    // value in any case.
    if validator.steps > VALIDATION_STEPS_MAX && outcome.is_valid() {
        outcome.add_without_path(format!("the object takes more than {VALIDATION_STEPS_MAX} steps to validate"));
    }
    outcome.errors.into_iter().map(|finding| finding.below(at)).collect()
}

/// The errors of one check and its progress. If all alternatives fail, the errors of the
/// alternative with the most progress are reported.
#[derive(Default)]
struct Outcome {
    errors: Vec<OutcomeError>,
    /// The total size of the errors in bytes.
    bytes: usize,
    matched: usize,
}

/// An error, and the text that identifies duplicates.
struct OutcomeError {
    text: String,
    error: FieldError,
    /// Whether the error has a path. An error without a path concerns the whole value.
    has_path: bool,
}

impl OutcomeError {
    fn below(self, at: &Path<'_>) -> FieldError {
        let FieldError { field, reason, message } = self.error;
        let name = field.strip_prefix('.').unwrap_or(&field);
        let field = if !self.has_path || name.is_empty() { at.to_string() } else { at.child(name).to_string() };
        FieldError { field, reason, message }
    }
}

impl Outcome {
    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether a further error can be stored. Callers do not format errors that cannot be stored.
    fn has_room(&self) -> bool {
        self.errors.len() < FIELD_ERRORS_MAX && self.bytes < FIELD_ERRORS_BYTES_MAX
    }

    fn add(&mut self, finding: OutcomeError) {
        if self.has_room() && !self.errors.iter().any(|known| known.text == finding.text) {
            self.bytes += finding.error.field.len() + finding.error.message.len();
            self.errors.push(finding);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matched += other.matched;
        if self.errors.is_empty() {
            self.errors = other.errors;
            self.bytes = other.bytes;
        } else {
            other.errors.into_iter().for_each(|finding| self.add(finding));
        }
    }

    /// Adds an error about a value; `text` excludes the path.
    fn add_invalid(&mut self, path: &ValuePath<'_>, value: &Value, text: std::fmt::Arguments<'_>) {
        if !self.has_room() {
            return;
        }
        let text = cut(format_args!("{path} {text}"), FIELD_ERROR_BYTES_MAX);
        let error = field_errors::invalid(path, value, &text);
        self.add(OutcomeError { text, error, has_path: true });
    }

    /// Adds the error of a wrong type; `found` is Go's name of the value's type.
    fn add_wrong_type(&mut self, path: &ValuePath<'_>, expected: &str, found: &str) {
        if !self.has_room() {
            return;
        }
        let shown = golang::quote(prefix(found, FIELD_ERROR_BYTES_MAX));
        let text = cut(format_args!("{path} in body must be of type {expected}: {shown}"), FIELD_ERROR_BYTES_MAX);
        let error = field_errors::type_invalid(path, found, &text);
        self.add(OutcomeError { text, error, has_path: true });
    }

    fn add_error(&mut self, text: String, error: FieldError) {
        self.add(OutcomeError { text, error, has_path: true });
    }

    /// Adds an error without a path; the text contains the path.
    fn add_without_path(&mut self, text: String) {
        let error = field_errors::invalid_str("", "", &text);
        self.add(OutcomeError { text, error, has_path: false });
    }
}

struct Validator {
    steps: usize,
}

impl Validator {
    /// Charges steps to the budget and to the fuel of the task. Each step is one unit of fuel.
    /// Returns false if the budget or the fuel is used up.
    fn spend(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        self.steps <= VALIDATION_STEPS_MAX && fuel::charge(steps as u64)
    }

    /// Validates a value, and tolerates errors of unchanged parts.
    fn ratcheted(
        &mut self,
        value: &Value,
        node: &Node,
        path: &ValuePath<'_>,
        correlated: Option<Correlated<'_>>,
    ) -> Outcome {
        let mut outcome = self.value(value, node, path, correlated);
        if !outcome.is_valid() && correlated.is_some_and(|correlated| ratchet::is_unchanged(value, correlated)) {
            outcome.errors.clear();
            outcome.bytes = 0;
        }
        outcome
    }

    /// Validates a value. `correlated` has the replaced value and the schema that correlates the parts
    /// of both. If `node` is a branch of `allOf`, that schema is the one that contains the `allOf`.
    fn value(
        &mut self,
        value: &Value,
        node: &Node,
        path: &ValuePath<'_>,
        correlated: Option<Correlated<'_>>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        // The cost of a string depends on its length.
        let text_steps = value.as_str().map_or(0, |text| text.len() / 64);
        if !self.spend(1 + text_steps) {
            outcome.add_without_path(format!(
                "{:?} takes more than {VALIDATION_STEPS_MAX} steps to validate",
                path.to_string()
            ));
            return outcome;
        }
        let typed = node.kind != Kind::Any || node.int_or_string || node.format != Format::None;
        if value.is_null() {
            check_type(value, node, path, &mut outcome);
            self.check_enum(value, node, path, &mut outcome);
            return outcome;
        }
        if typed {
            check_type(value, node, path, &mut outcome);
            outcome.matched += 1;
        }
        self.junctors(value, node, path, correlated, &mut outcome);
        match value {
            Value::String(text) => {
                self.check_string(value, text, node, path, &mut outcome);
                outcome.matched += 1;
                if is_string_format(node.format) {
                    if !self.spend(text.len() / 64) || !node.format.accepts(text) {
                        outcome.add_wrong_type(path, node.format.name(), text);
                    }
                    outcome.matched += 1;
                }
            }
            Value::Number(number) => {
                check_number(value, Number::of(number), node, path, &mut outcome);
                outcome.matched += 2;
            }
            Value::Array(items) => {
                self.array(items, node, path, correlated, &mut outcome);
                outcome.matched += 2;
            }
            Value::Null | Value::Bool(_) | Value::Object(_) => {}
        }
        self.check_enum(value, node, path, &mut outcome);
        outcome.matched += 1;
        if let Value::Object(members) = value {
            self.object(members, node, path, correlated, &mut outcome);
            outcome.matched += 1;
        }
        outcome.matched += 1;
        outcome
    }

    fn junctors(
        &mut self,
        value: &Value,
        node: &Node,
        path: &ValuePath<'_>,
        correlated: Option<Correlated<'_>>,
        outcome: &mut Outcome,
    ) {
        for constraint in &node.constraints {
            match constraint {
                Constraint::AnyOf(branches) => {
                    let mut best: Option<Outcome> = None;
                    let mut valid = false;
                    for branch in branches {
                        let tried = self.value(value, branch, path, correlated);
                        valid = tried.is_valid();
                        if valid || best.as_ref().is_none_or(|best| tried.matched > best.matched) {
                            best = Some(tried);
                        }
                        if valid {
                            break;
                        }
                    }
                    if !valid {
                        let place = golang::quote(&path.to_string());
                        outcome.add_without_path(format!("{place} must validate at least one schema (anyOf)"));
                    }
                    outcome.merge(best.unwrap_or_default());
                }
                Constraint::OneOf(branches) => {
                    let (mut best, mut first_valid): (Option<Outcome>, Option<Outcome>) = (None, None);
                    let mut valid = 0;
                    for branch in branches {
                        let tried = self.value(value, branch, path, correlated);
                        if tried.is_valid() {
                            valid += 1;
                            best = None;
                            first_valid.get_or_insert(tried);
                        } else if valid == 0 && best.as_ref().is_none_or(|best| tried.matched > best.matched) {
                            best = Some(tried);
                        }
                    }
                    if valid == 1 {
                        outcome.merge(first_valid.unwrap_or_default());
                    } else {
                        let found = match valid {
                            0 => "Found none valid".to_owned(),
                            valid => format!("Found {valid} valid alternatives"),
                        };
                        let place = golang::quote(&path.to_string());
                        outcome.add_without_path(format!(
                            "{place} must validate one and only one schema (oneOf). {found}"
                        ));
                        outcome.merge(best.unwrap_or_default());
                    }
                }
                Constraint::AllOf(branches) => {
                    let mut valid = 0;
                    for branch in branches {
                        let tried = self.value(value, branch, path, correlated);
                        valid += usize::from(tried.is_valid());
                        outcome.merge(tried);
                    }
                    if valid < branches.len() {
                        let place = golang::quote(&path.to_string());
                        let none = if valid == 0 { ". None validated" } else { "" };
                        outcome.add_without_path(format!("{place} must validate all the schemas (allOf){none}"));
                    }
                }
                Constraint::Not(branch) if self.value(value, branch, path, correlated).is_valid() => {
                    let place = golang::quote(&path.to_string());
                    outcome.add_without_path(format!("{place} must not validate the schema (not)"));
                }
                _ => {}
            }
        }
        // One for the number of junctors, and one for the evaluation.
        outcome.matched += 2;
    }

    /// Reports the first error of a string.
    fn check_string(&mut self, value: &Value, text: &str, node: &Node, path: &ValuePath<'_>, outcome: &mut Outcome) {
        let mut length = None;
        let mut length = || *length.get_or_insert_with(|| text.chars().count() as i64);
        for constraint in &node.constraints {
            match constraint {
                Constraint::MaxLength(max) if length() > *max => {
                    let text = format!("{path} in body should be at most {max} chars long");
                    return outcome.add_error(text, field_errors::too_long(path, *max));
                }
                Constraint::MinLength(min) if length() < *min => {
                    return outcome.add_invalid(
                        path,
                        value,
                        format_args!("in body should be at least {min} chars long"),
                    );
                }
                Constraint::Pattern(pattern) => {
                    let matches = self.spend(text.len() / 64)
                        && pattern.matcher().is_ok_and(|matcher| matcher.is_match(text) == Some(true));
                    if !matches {
                        let pattern = &pattern.text;
                        return outcome.add_invalid(path, value, format_args!("in body should match '{pattern}'"));
                    }
                }
                _ => {}
            }
        }
    }

    fn array(
        &mut self,
        items: &[Value],
        node: &Node,
        path: &ValuePath<'_>,
        correlated: Option<Correlated<'_>>,
        outcome: &mut Outcome,
    ) {
        if let Some(below) = node.items.as_deref() {
            let old = correlated.and_then(ratchet::OldItems::of);
            for (index, item) in items.iter().enumerate() {
                let correlated = old.as_ref().and_then(|old| old.get(item));
                outcome.merge(self.ratcheted(item, below, &path.index(index), correlated));
            }
        }
        let count = items.len() as i64;
        for constraint in &node.constraints {
            match constraint {
                Constraint::MinItems(min) if count < *min => {
                    let text = format_args!("in body should have at least {min} items");
                    outcome.add_invalid(path, &count.into(), text);
                }
                Constraint::MaxItems(max) if count > *max => {
                    let text = format!("{path} in body should have at most {max} items");
                    outcome.add_error(text, field_errors::too_many(path, count, *max));
                }
                // Visiting the items has already been charged; this charges the comparison.
                Constraint::UniqueItems if self.spend(items.len()) => {
                    let mut seen: HashMap<String, ()> = HashMap::new();
                    if items.iter().any(|item| seen.insert(golang::json(item), ()).is_some()) {
                        outcome.add_invalid(
                            path,
                            &Value::from(""),
                            format_args!("in body shouldn't contain duplicates"),
                        );
                    }
                }
                _ => {}
            }
        }
    }

    fn object(
        &mut self,
        members: &Map,
        node: &Node,
        path: &ValuePath<'_>,
        correlated: Option<Correlated<'_>>,
        outcome: &mut Outcome,
    ) {
        let count = members.len() as i64;
        for constraint in &node.constraints {
            match constraint {
                Constraint::MinProperties(min) if count < *min => {
                    let text = format_args!("in body should have at least {min} properties");
                    outcome.add_invalid(path, &count.into(), text);
                }
                Constraint::MaxProperties(max) if count > *max => {
                    let text = format!("{path} in body should have at most {max} properties");
                    outcome.add_error(text, field_errors::too_many(path, count, *max));
                }
                _ => {}
            }
        }
        if let AdditionalProperties::Schema(_) | AdditionalProperties::Allowed(false) = node.more {
            let mut unknown: Vec<&JsonString> = members.keys().filter(|name| node.property(name).is_none()).collect();
            unknown.sort_unstable();
            for name in unknown {
                let path = path.key(name);
                match &node.more {
                    AdditionalProperties::Schema(more) => {
                        let correlated = correlated.and_then(|correlated| correlated.field(name));
                        outcome.merge(self.ratcheted(&members[name], more, &path, correlated));
                    }
                    _ => {
                        let text = format!("{path} in body is a forbidden property");
                        let at = path.parent();
                        outcome.add_error(text.clone(), field_errors::invalid_str(at, name, &text));
                    }
                }
            }
        }
        for (name, property) in &node.properties {
            let Some(value) = members.get(name.as_ref()) else { continue };
            // The URL of the request determines `kind` and `apiVersion`, so they are always
            // validated as new.
            let is_type = path.is_root() && matches!(name.as_ref(), "kind" | "apiVersion");
            let correlated = correlated.filter(|_| !is_type).and_then(|correlated| correlated.field(name));
            outcome.merge(self.ratcheted(value, property, &path.property(name), correlated));
        }
        for constraint in &node.constraints {
            let Constraint::Required(names) = constraint else { continue };
            for name in names {
                if !members.contains_key(name.as_ref()) {
                    let path = path.key(name);
                    outcome.add_error(format!("{path} in body is required"), field_errors::required(path, ""));
                }
            }
        }
    }

    fn check_enum(&mut self, value: &Value, node: &Node, path: &ValuePath<'_>, outcome: &mut Outcome) {
        for constraint in &node.constraints {
            let Constraint::Enum(allowed) = constraint else { continue };
            // The comparisons, and the same number for formatting the error.
            if !self.spend(allowed.len().div_ceil(8)) {
                outcome.add_without_path(format!(
                    "{:?} takes more than {VALIDATION_STEPS_MAX} steps to validate",
                    path.to_string()
                ));
                return;
            }
            if allowed.iter().any(|allowed| is_enum_value(value, allowed)) || !outcome.has_room() {
                continue;
            }
            let names = allowed.iter().map(|allowed| match allowed {
                Value::String(text) => Cow::Borrowed(text.as_str()),
                other => Cow::Owned(golang::json(other)),
            });
            let names = field_errors::quoted(names, ", ");
            self.steps += names.len() / 64;
            let text = format!("{path} in body should be one of [{names}]");
            outcome.add_error(text, field_errors::not_among(path, value, &names));
        }
    }
}

fn is_string_format(format: Format) -> bool {
    !matches!(format, Format::None | Format::Int32 | Format::Int64 | Format::Float | Format::Double)
}

/// The name of a node's type in error texts.
fn type_name(node: &Node) -> &'static str {
    match node.kind {
        _ if node.int_or_string => "integer,string",
        Kind::Any => "",
        Kind::Object => "object",
        Kind::Array => "array",
        Kind::String => "string",
        Kind::Integer => "integer",
        Kind::Number => "number",
        Kind::Boolean => "boolean",
    }
}

fn check_type(value: &Value, node: &Node, path: &ValuePath<'_>, outcome: &mut Outcome) {
    let expected = type_name(node);
    // Go's name of the value's type: a JSON type, and the format of a number.
    let (found, found_format) = match value {
        Value::Null => {
            if !expected.is_empty() && !node.nullable {
                outcome.add_wrong_type(path, expected, "null");
            } else {
                outcome.matched += 1;
            }
            return;
        }
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) => match Number::of(number) {
            Number::Int(_) => ("integer", "int64"),
            Number::Float(_) => ("number", "float64"),
        },
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    };
    let wants_integer = node.int_or_string || node.kind == Kind::Integer;
    let wants_number = !node.int_or_string && node.kind == Kind::Number;
    let is_expected = match value {
        Value::Number(number) => match Number::of(number) {
            Number::Int(_) => wants_integer || wants_number,
            Number::Float(float) => wants_number || (wants_integer && golang::is_whole(float)),
        },
        Value::String(_) => node.int_or_string || node.kind == Kind::String,
        _ => found == expected,
    };
    let formatted = node.format != Format::None;
    let text_or_list = matches!(value, Value::String(_) | Value::Array(_));
    if formatted && !text_or_list && !is_expected && found_format != node.format.name() {
        outcome.add_wrong_type(path, node.format.name(), found_format);
    } else if (formatted && text_or_list && !wants_integer && !wants_number) || is_expected {
        outcome.matched += 1;
    } else {
        outcome.add_wrong_type(path, expected, found);
    }
}

/// True if a value equals an enum value. Numbers are converted to the type of the enum value, as in
/// Go; null equals nothing.
fn is_enum_value(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(value), Value::Number(allowed)) => match (Number::of(value), Number::of(allowed)) {
            (Number::Int(value), Number::Int(allowed)) => value == allowed,
            (Number::Float(value), Number::Int(allowed)) => value as i64 == allowed,
            (value, Number::Float(allowed)) => value.as_f64() == allowed,
        },
        _ => value == allowed,
    }
}

fn check_number(value: &Value, number: Number, node: &Node, path: &ValuePath<'_>, outcome: &mut Outcome) {
    if let Some(text) = out_of_range(number, node, "Checked", path) {
        outcome.add_without_path(text);
    }
    for constraint in &node.constraints {
        match constraint {
            Constraint::MultipleOf(factor) => {
                check_bound_range(*factor, node, "MultipleOf", path, outcome);
                check_multiple(value, number, *factor, node, path, outcome);
            }
            Constraint::Minimum(bound, exclusive) => {
                check_bound_range(*bound, node, "Minimum boundary", path, outcome);
                let (below, shown) = match number {
                    Number::Int(int) if fits(*bound, node) => {
                        let bound = *bound as i64;
                        (int < bound || (*exclusive && int == bound), bound.to_string())
                    }
                    number => {
                        let float = number.as_f64();
                        (float < *bound || (*exclusive && float == *bound), golang::float_v(*bound))
                    }
                };
                if below {
                    let relation = if *exclusive { "greater than" } else { "greater than or equal to" };
                    outcome.add_invalid(path, value, format_args!("in body should be {relation} {shown}"));
                }
            }
            Constraint::Maximum(bound, exclusive) => {
                check_bound_range(*bound, node, "Maximum boundary", path, outcome);
                let (above, shown) = match number {
                    Number::Int(int) if fits(*bound, node) => {
                        let bound = *bound as i64;
                        (int > bound || (*exclusive && int == bound), bound.to_string())
                    }
                    number => {
                        let float = number.as_f64();
                        (float > *bound || (*exclusive && float == *bound), golang::float_v(*bound))
                    }
                };
                if above {
                    let relation = if *exclusive { "less than" } else { "less than or equal to" };
                    outcome.add_invalid(path, value, format_args!("in body should be {relation} {shown}"));
                }
            }
            _ => {}
        }
    }
}

/// Whether a bound can be represented in the schema's type. If so, integers are compared as
/// integers and not as floats.
fn fits(bound: f64, node: &Node) -> bool {
    out_of_range(Number::Float(bound), node, "", &ValuePath::ROOT).is_none()
}

fn check_bound_range(bound: f64, node: &Node, what: &str, path: &ValuePath<'_>, outcome: &mut Outcome) {
    if let Some(text) = out_of_range(Number::Float(bound), node, what, path) {
        outcome.add_without_path(text);
    }
}

fn check_multiple(
    value: &Value,
    number: Number,
    factor: f64,
    node: &Node,
    path: &ValuePath<'_>,
    outcome: &mut Outcome,
) {
    let native = match number {
        Number::Int(int) if fits(factor, node) => Some((int, factor as i64)),
        _ => None,
    };
    let (positive, multiple, shown) = match native {
        Some((int, factor)) => (factor > 0, factor > 0 && int % factor == 0, factor.to_string()),
        None => {
            let data = number.as_f64();
            let quotient = if factor < 1.0 { 1.0 / factor * data } else { data / factor };
            (factor > 0.0, golang::is_whole(quotient), golang::float_v(factor))
        }
    };
    if !positive {
        let text = format!("factor MultipleOf declared for {path} must be positive: {shown}");
        let shown = native.map_or_else(|| Value::from(factor), |(_, factor)| factor.into());
        let error = field_errors::invalid(path, &shown, &text);
        outcome.add(OutcomeError { text, error, has_path: true });
    } else if !multiple {
        outcome.add_invalid(path, value, format_args!("in body should be a multiple of {shown}"));
    }
}

/// The error of a number outside the range of its type and format.
fn out_of_range(number: Number, node: &Node, what: &str, path: &ValuePath<'_>) -> Option<String> {
    if node.int_or_string {
        return None;
    }
    let whole = match number {
        Number::Int(int) => Some(int),
        // Go prints the float in full and parses it as an integer.
        Number::Float(float) => {
            let in_range = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float);
            (float.fract() == 0.0 && in_range).then_some(float as i64)
        }
    };
    let (good, name) = match (node.kind, node.format) {
        (Kind::Integer, Format::Int32) => (whole.is_some_and(|int| i32::try_from(int).is_ok()), "integer"),
        (Kind::Integer, _) => (whole.is_some(), "integer"),
        (Kind::Number, Format::Float) => (number.as_f64().abs() <= f64::from(f32::MAX), "number"),
        _ => return None,
    };
    if good {
        return None;
    }
    let format = match node.format {
        Format::None => "(default format)".to_owned(),
        format => format!("with format {}", format.name()),
    };
    Some(format!("{what} value must be of type {name} {format} in {path}"))
}
