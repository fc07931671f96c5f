//! Evaluates expressions within a cost limit. No evaluation panics or exceeds its limit: each step
//! costs one unit, and reading a value costs units by its size, charged before the read. In some
//! operations cel-go counts only the top level (comparison of lists, `size` of a string). This
//! module also counts the nested values, with a tenth of a unit per value or 64 bytes.

use std::borrow::Cow;
use std::rc::Rc;

use listwatch_meta::fuel;

use crate::ast::{Ast, BIND, Fold, Literal, Node};
use crate::check::READ_DIVISOR;
use crate::lazy;
use crate::library;
use crate::pattern::Matcher;
use crate::value::{MapVal, Steps, Val};

/// The reason why an evaluation has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// The evaluation exceeded its cost limit.
    Limit,
    /// An authorization check has no decision yet. The caller adds the decision and evaluates again
    /// ([`crate::AuthorizationDecisions::take_undecided`]).
    Undecided,
    /// The evaluation failed; the text is cel-go's.
    Failed(String),
}

impl EvalError {
    pub(crate) fn new(text: impl Into<String>) -> EvalError {
        EvalError::Failed(text.into())
    }

    pub(crate) fn overload() -> EvalError {
        EvalError::new("no such overload")
    }

    /// Whether the evaluation cannot go on. No operator absorbs such an error.
    pub(crate) fn ends_evaluation(&self) -> bool {
        matches!(self, EvalError::Limit | EvalError::Undecided)
    }
}

impl std::error::Error for EvalError {}

impl std::fmt::Display for EvalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EvalError::Undecided => f.write_str("an authorization check is not decided yet"),
            EvalError::Limit => f.write_str("operation cancelled: actual cost limit exceeded"),
            EvalError::Failed(text) => f.write_str(text),
        }
    }
}

pub(crate) type EvalResult<'a> = Result<Val<'a>, EvalError>;

/// One evaluation.
pub(crate) struct Evaluator<'a> {
    variables: Vec<(&'a str, Val<'a>)>,
    spent: u64,
    limit: u64,
}

impl<'a> Evaluator<'a> {
    pub(crate) fn new(variables: Vec<(&'a str, Val<'a>)>, limit: u64) -> Self {
        Evaluator { variables, spent: 0, limit }
    }

    /// The units spent so far.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Charges units. Returns an error if the cost limit or the fuel is exceeded.
    pub(crate) fn spend(&mut self, units: u64) -> Result<(), EvalError> {
        self.spent = self.spent.saturating_add(units);
        if self.spent > self.limit || !fuel::charge(units) { Err(EvalError::Limit) } else { Ok(()) }
    }

    /// Charges units for work outside of the evaluation, such as an authorization check.
    pub(crate) fn spend_elsewhere(&mut self, units: u64) -> Result<(), EvalError> {
        self.spent = self.spent.saturating_add(units);
        if self.spent > self.limit { Err(EvalError::Limit) } else { Ok(()) }
    }

    /// Charges the cost of reading `size` bytes or items, 0.1 units each.
    pub(crate) fn read(&mut self, size: usize) -> Result<(), EvalError> {
        self.spend(size as u64 / READ_DIVISOR + 1)
    }

    /// Runs a computation that costs a tenth of a unit per step, within the remaining units.
    pub(crate) fn within<T>(&mut self, work: impl FnOnce(&mut Steps) -> T) -> Result<T, EvalError> {
        let before = self.limit.saturating_sub(self.spent).saturating_mul(READ_DIVISOR);
        let mut steps = Steps::new(before);
        let done = work(&mut steps);
        let left = steps.left().ok_or(EvalError::Limit)?;
        self.spend((before - left) / READ_DIVISOR)?;
        Ok(done)
    }

    /// Charges the cost of copying a string.
    fn copy(&mut self, value: &Val<'a>) -> Result<(), EvalError> {
        match value {
            Val::Text(Cow::Owned(text)) => self.within(|steps| steps.take_text(text.len())).map(drop),
            Val::Bytes(bytes) => self.within(|steps| steps.take_text(bytes.len())).map(drop),
            _ => Ok(()),
        }
    }

    pub(crate) fn eval(&mut self, ast: &'a Ast) -> EvalResult<'a> {
        match &ast.node {
            Node::Literal(literal) => Ok(literal_value(literal)),
            Node::Ident(name) => {
                self.spend(1)?;
                let known = self.variables.iter().rev().find(|(known, _)| *known == name.as_ref());
                match known {
                    Some((_, value)) => {
                        let value = value.clone();
                        self.copy(&value)?;
                        Ok(value)
                    }
                    None => library::type_named(name)
                        .map(Val::Type)
                        .ok_or_else(|| EvalError::new(format!("no such attribute: {name}"))),
                }
            }
            Node::Select { of, field, test } => {
                self.spend(1)?;
                if let Some(name) = qualified_type(of, field) {
                    return Ok(Val::Type(name));
                }
                let of = self.eval(of)?;
                self.select(of, field, *test)
            }
            Node::Call { name, target, args } => self.call(name, target.as_deref(), args),
            Node::List(elements, optional) => {
                self.spend(1 + elements.len() as u64)?;
                let mut items = Vec::with_capacity(elements.len());
                for (index, element) in elements.iter().enumerate() {
                    match self.eval(element)? {
                        Val::Optional(value) if optional.contains(&index) => {
                            items.extend(value.map(|value| (*value).clone()));
                        }
                        value => items.push(value),
                    }
                }
                Ok(Val::list(items))
            }
            Node::Map(entries) => self.map(entries),
            Node::Struct(name, entries) => {
                let Val::Map(map) = self.map(entries)? else { return Err(EvalError::overload()) };
                Ok(Val::Struct(name, map))
            }
            Node::Fold(fold) => self.fold(fold),
            Node::Binding { name, target, vars, bodies } => self.binding(name, target, vars, bodies),
        }
    }

    fn map(&mut self, entries: &'a [(Ast, Ast, bool)]) -> EvalResult<'a> {
        self.spend(1 + entries.len() as u64)?;
        let mut map = MapVal::default();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match self.eval(value)? {
                Val::Optional(None) if *optional => continue,
                Val::Optional(Some(value)) if *optional => (*value).clone(),
                value => value,
            };
            if !map.insert(key, value) {
                return Err(EvalError::new("Failed with repeated key"));
            }
        }
        Ok(Val::Map(Rc::new(map)))
    }

    fn select(&mut self, of: Val<'a>, field: &str, test: bool) -> EvalResult<'a> {
        match of {
            Val::Optional(None) if test => Ok(Val::Bool(false)),
            Val::Optional(None) => Ok(Val::Optional(None)),
            Val::Optional(Some(value)) if test => Ok(Val::Bool(value.field(field).is_some())),
            Val::Optional(Some(value)) => Ok(Val::Optional(value.field(field).map(Rc::new))),
            of @ (Val::Map(_) | Val::JsonMap(..)) => match of.field(field) {
                found if test => Ok(Val::Bool(found.is_some())),
                Some(value) => {
                    self.copy(&value)?;
                    Ok(value)
                }
                None => Err(EvalError::new(format!("no such key: {field}"))),
            },
            Val::Lazy(scope, visible) if test => Ok(Val::Bool(lazy::has(&scope, visible, field))),
            Val::Lazy(scope, visible) => lazy::get(&scope, visible, field),
            Val::Authz(authz) if !test => authz.field(field).map(Val::Authz).ok_or_else(EvalError::overload),
            _ => Err(EvalError::overload()),
        }
    }

    /// Whether an identifier is a namespace of functions and not a variable.
    fn is_namespace(&self, name: &str) -> bool {
        matches!(name, "jsonpatch" | "lists") && !self.variables.iter().any(|(known, _)| *known == name)
    }

    fn call(&mut self, name: &'a str, target: Option<&'a Ast>, args: &'a [Ast]) -> EvalResult<'a> {
        match (name, args) {
            ("_&&_" | "_||_", [left, right]) => return self.logic(name == "_||_", left, right),
            ("_?_:_", [condition, yes, no]) => {
                return match self.eval(condition)? {
                    Val::Bool(true) => self.eval(yes),
                    Val::Bool(false) => self.eval(no),
                    _ => Err(EvalError::overload()),
                };
            }
            ("@not_strictly_false" | "__not_strictly_false__", [value]) => {
                return match self.eval(value) {
                    Ok(Val::Bool(value)) => Ok(Val::Bool(value)),
                    Err(error) if error.ends_evaluation() => Err(error),
                    _ => Ok(Val::Bool(true)),
                };
            }
            ("_+_", [list, added @ Ast { node: Node::List(..), .. }]) => {
                let added = self.eval(added)?;
                if let Some(mut items) = self.take_accu(list) {
                    let added = added.items().unwrap_or_default();
                    self.spend(1 + added.len() as u64)?;
                    Rc::make_mut(&mut items).extend(added);
                    return Ok(Val::List(items));
                }
                let list = self.eval(list)?;
                return library::call(self, name, None, vec![list, added]);
            }
            _ => {}
        }
        self.spend(1)?;
        if let Some(Ast { node: Node::Ident(space), .. }) = target
            && self.is_namespace(space)
        {
            let values = args.iter().map(|arg| self.eval(arg)).collect::<Result<Vec<_>, _>>()?;
            return library::in_namespace(self, space, name, &values);
        }
        let target = target.map(|target| self.eval(target)).transpose()?;
        if let (Some(Val::Optional(of)), "orValue" | "or", [other]) = (&target, name, args) {
            return match (of, name) {
                (Some(value), "orValue") => Ok((**value).clone()),
                (Some(_), _) => Ok(Val::Optional(of.clone())),
                (None, _) => self.eval(other),
            };
        }
        if let Some(value) = self.search(name, target.as_ref(), args)? {
            return Ok(value);
        }
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(self.eval(arg)?);
        }
        library::call(self, name, target, values)
    }

    /// Calls a function whose regular expression is a literal, which is compiled once.
    fn search(&mut self, name: &str, target: Option<&Val<'a>>, args: &'a [Ast]) -> Result<Option<Val<'a>>, EvalError> {
        let (pattern, rest) = match (target, args) {
            (Some(_), [pattern, rest @ ..]) => (pattern, rest),
            (None, [_, pattern]) => (pattern, &[][..]),
            _ => return Ok(None),
        };
        let Node::Literal(Literal::Pattern(pattern, compiled)) = &pattern.node else { return Ok(None) };
        let text = match target {
            Some(text) => text.clone(),
            None => self.eval(&args[0])?,
        };
        let Val::Text(text) = text else { return Ok(None) };
        let regex = compiled.get_or_init(|| Matcher::compile(pattern));
        let regex = regex.as_ref().map_err(EvalError::new)?;
        let mut values = Vec::with_capacity(rest.len());
        for arg in rest {
            values.push(self.eval(arg)?);
        }
        library::search(self, name, &text, regex, &values).map(Some)
    }

    /// `&&` and `||`: one side can decide the result even if the other one fails.
    fn logic(&mut self, decides: bool, left: &'a Ast, right: &'a Ast) -> EvalResult<'a> {
        let left = self.eval(left);
        match left {
            Ok(Val::Bool(value)) if value == decides => return Ok(Val::Bool(decides)),
            Err(error) if error.ends_evaluation() => return Err(error),
            _ => {}
        }
        match (left, self.eval(right)) {
            (_, Ok(Val::Bool(value))) if value == decides => Ok(Val::Bool(decides)),
            (_, Err(error)) if error.ends_evaluation() => Err(error),
            (Err(error), _) | (Ok(Val::Bool(_)), Err(error)) => Err(error),
            (Ok(Val::Bool(_)), Ok(Val::Bool(_))) => Ok(Val::Bool(!decides)),
            _ => Err(EvalError::overload()),
        }
    }

    fn bound<T>(
        &mut self,
        names: impl IntoIterator<Item = (&'a str, Val<'a>)>,
        run: impl FnOnce(&mut Self) -> Result<T, EvalError>,
    ) -> Result<T, EvalError> {
        let before = self.variables.len();
        self.variables.extend(names);
        let result = run(self);
        self.variables.truncate(before);
        result
    }

    /// The range of a loop: items, or keys with values.
    fn range(&mut self, value: &Val<'a>, two: bool) -> Result<Vec<(Val<'a>, Val<'a>)>, EvalError> {
        self.read(value.size())?;
        if let Some(items) = value.items() {
            let pair = |(index, item)| if two { (Val::Int(index as i64), item) } else { (item, Val::Null) };
            return Ok(items.into_iter().enumerate().map(pair).collect());
        }
        value.entries().ok_or_else(EvalError::overload)
    }

    fn fold(&mut self, fold: &'a Fold) -> EvalResult<'a> {
        let range = self.eval(&fold.range)?;
        let range = self.range(&range, fold.var2.is_some())?;
        let mut accu = self.eval(&fold.init)?;
        let before = self.variables.len();
        for (first, second) in range {
            self.spend(1)?;
            self.variables.push((fold.var.as_ref(), first));
            if let Some(var2) = &fold.var2 {
                self.variables.push((var2.as_ref(), second));
            }
            // Moved, not copied, so that the step can append in place.
            self.variables.push((fold.accu.as_ref(), accu));
            let goes_on = match self.eval(&fold.condition) {
                Ok(Val::Bool(false)) => false,
                Err(error) if error.ends_evaluation() => return Err(error),
                _ => true,
            };
            if !goes_on {
                accu = self.variables.pop().map_or(Val::Null, |(_, accu)| accu);
                self.variables.truncate(before);
                break;
            }
            let step = self.eval(&fold.step);
            self.variables.truncate(before);
            match step {
                Ok(value) => accu = value,
                Err(error) if error.ends_evaluation() => return Err(error),
                Err(error) => return self.retry_without_failing_items(fold, error),
            }
        }
        self.bound([(fold.accu.as_ref(), accu)], |this| this.eval(&fold.result))
    }

    /// Moves the accumulated list of a loop out of its variable, so that the next item is appended
    /// without a copy.
    fn take_accu(&mut self, ast: &Ast) -> Option<Rc<Vec<Val<'a>>>> {
        let Node::Ident(name) = &ast.node else { return None };
        if !matches!(name.as_ref(), "@result" | "__result__") {
            return None;
        }
        let (last, value) = self.variables.last_mut()?;
        match value {
            Val::List(items) if *last == name.as_ref() => Some(std::mem::take(items)),
            _ => None,
        }
    }

    /// Handles a loop that failed at one item. `all` and `exists` still have a value if another
    /// item decides the result, so the loop runs again without the failing items.
    fn retry_without_failing_items(&mut self, fold: &'a Fold, error: EvalError) -> EvalResult<'a> {
        let decisive = match &fold.init.node {
            Node::Literal(Literal::Bool(init)) => !init,
            _ => return Err(error),
        };
        let range = self.eval(&fold.range)?;
        let range = self.range(&range, fold.var2.is_some())?;
        for (first, second) in range {
            self.spend(1)?;
            let names = [(fold.var.as_ref(), first)];
            let names = names.into_iter().chain(fold.var2.as_deref().map(|name| (name, second)));
            let init = Val::Bool(!decisive);
            let step = self.bound(names.chain([(fold.accu.as_ref(), init)]), |this| Ok(this.eval(&fold.step)))?;
            match step {
                Ok(Val::Bool(value)) if value == decisive => return Ok(Val::Bool(decisive)),
                Err(error) if error.ends_evaluation() => return Err(error),
                _ => {}
            }
        }
        Err(error)
    }

    fn binding(&mut self, name: &str, target: &'a Ast, vars: &'a [Box<str>], bodies: &'a [Ast]) -> EvalResult<'a> {
        self.spend(1)?;
        let target = self.eval(target)?;
        if let (BIND, [var], [body]) = (name, vars, bodies) {
            return self.bound([(var.as_ref(), target)], |this| this.eval(body));
        }
        if let ("sortBy", [var], [body]) = (name, vars, bodies) {
            let items = target.items().ok_or_else(EvalError::overload)?;
            let mut keys = Vec::with_capacity(items.len());
            for item in &items {
                self.spend(1)?;
                keys.push(self.bound([(var.as_ref(), item.clone())], |this| this.eval(body))?);
            }
            return library::sort_by_keys(self, items, &keys);
        }
        if let ("optMap" | "optFlatMap", [var], [body]) = (name, vars, bodies) {
            let value = match target {
                Val::Optional(None) => return Ok(Val::Optional(None)),
                Val::Optional(Some(value)) => (*value).clone(),
                _ => return Err(EvalError::overload()),
            };
            let result = self.bound([(var.as_ref(), value)], |this| this.eval(body))?;
            return Ok(if name == "optMap" { Val::some(result) } else { result });
        }
        let [var, var2] = vars else { return Err(EvalError::overload()) };
        let (conditions, last) = match bodies {
            [last] => (None, last),
            [condition, last] => (Some(condition), last),
            _ => return Err(EvalError::overload()),
        };
        let mut list = Vec::new();
        let mut map = MapVal::default();
        let mut matches = 0;
        let mut failed = None;
        for (first, second) in self.range(&target, true)? {
            self.spend(1)?;
            let key = first.clone();
            let names = [(var.as_ref(), first), (var2.as_ref(), second)];
            let result = self.bound(names, |this| {
                if let Some(condition) = conditions {
                    match this.eval(condition)? {
                        Val::Bool(true) => {}
                        Val::Bool(false) => return Ok(None),
                        _ => return Err(EvalError::overload()),
                    }
                }
                this.eval(last).map(Some)
            });
            match (name, result) {
                (_, Err(error)) if error.ends_evaluation() => return Err(error),
                (_, Ok(None)) => {}
                ("transformList", Ok(Some(value))) => list.push(value),
                ("transformMap", Ok(Some(value))) => {
                    map.insert(key, value);
                }
                ("transformMapEntry", Ok(Some(value))) => {
                    for (key, value) in value.entries().ok_or_else(EvalError::overload)? {
                        if !map.insert(key, value) {
                            return Err(EvalError::new("insert failed: key already exists"));
                        }
                    }
                }
                ("all", Ok(Some(Val::Bool(false)))) => return Ok(Val::Bool(false)),
                ("exists", Ok(Some(Val::Bool(true)))) => return Ok(Val::Bool(true)),
                (_, Ok(Some(Val::Bool(value)))) => matches += usize::from(value),
                (_, Ok(Some(_))) => failed = Some(EvalError::overload()),
                ("all" | "exists", Err(error)) => failed = Some(error),
                (_, Err(error)) => return Err(error),
            }
        }
        match (name, failed) {
            (_, Some(error)) => Err(error),
            ("transformList", None) => Ok(Val::list(list)),
            ("transformMap" | "transformMapEntry", None) => Ok(Val::Map(Rc::new(map))),
            ("all", None) => Ok(Val::Bool(true)),
            ("exists", None) => Ok(Val::Bool(false)),
            _ => Ok(Val::Bool(matches == 1)),
        }
    }
}

fn literal_value(literal: &Literal) -> Val<'_> {
    match literal {
        Literal::Null => Val::Null,
        Literal::Bool(value) => Val::Bool(*value),
        Literal::Int(value) => Val::Int(*value),
        Literal::Uint(value) => Val::Uint(*value),
        Literal::Double(value) => Val::Double(*value),
        Literal::Text(text) | Literal::Pattern(text, _) => Val::Text(text.as_ref().into()),
        Literal::Bytes(bytes) => Val::Bytes(bytes.as_ref().into()),
    }
}

/// The name of a qualified type such as `google.protobuf.Timestamp`.
fn qualified_type(of: &Ast, field: &str) -> Option<&'static str> {
    let Node::Select { of, field: middle, .. } = &of.node else { return None };
    let Node::Ident(root) = &of.node else { return None };
    match (root.as_ref(), middle.as_ref(), field) {
        ("google", "protobuf", "Timestamp") => Some("google.protobuf.Timestamp"),
        ("google", "protobuf", "Duration") => Some("google.protobuf.Duration"),
        _ => None,
    }
}
