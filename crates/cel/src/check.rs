//! Computes types and worst-case costs of expressions before their evaluation.
//!
//! The estimate follows cel-go's (`checker/cost.go`) and Kubernetes' (`pkg/cel/library/cost.go`). A
//! step costs one unit, and ten read bytes cost one unit. A loop has the maximum number of items in
//! the schema.

use std::rc::Rc;

use listwatch_meta::fuel;

use crate::ast::{Ast, BIND, Fold, Literal, Node, issue_at};
use crate::expression::CompileError;
use crate::limits::TYPE_CHECKS_MAX;
use crate::pattern::Matcher;
use crate::types::Type;
use crate::value::Val;
use crate::{library, signatures};

/// The number of units of fuel per visit of a node.
const VISIT_UNITS: u64 = 4;

/// The number of bytes or items that are read for one cost unit.
pub(crate) const READ_DIVISOR: u64 = 10;
/// The number of characters of a regular expression that cost as much as one state of its automaton.
pub(crate) const PATTERN_DIVISOR: u64 = 4;
/// The costs of constructing a list, a map and a library value (cel-go's `checker/cost.go`).
const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;

/// The type and the worst-case cost of a subexpression.
#[derive(Clone, Debug)]
pub(crate) struct TypeAndCost<'n> {
    pub(crate) ty: Type<'n>,
    /// The worst-case cost in cost units.
    pub(crate) cost: u64,
}

/// Checks an expression with its variables.
///
/// # Errors
/// The compiler's error text.
pub(crate) fn check<'v, 'n>(
    source: &str,
    ast: &Ast,
    variables: impl IntoIterator<Item = (&'v str, Type<'n>)>,
) -> Result<TypeAndCost<'n>, CompileError> {
    let mut checker = Checker::new(source, variables, false);
    let checked = checker.ast(ast);
    checker.finish()?;
    Ok(checked)
}

/// Checks an expression that may call unknown functions. The type is `None` if a part of the
/// expression is unknown.
///
/// # Errors
/// The compiler's error text.
pub(crate) fn check_leniently<'n>(
    source: &str,
    ast: &Ast,
    variables: Vec<(&str, Type<'n>)>,
) -> Result<Option<Type<'n>>, CompileError> {
    let mut checker = Checker::new(source, variables, true);
    let checked = checker.ast(ast);
    let is_certain = !checker.uncertain;
    checker.finish()?;
    Ok(is_certain.then_some(checked.ty))
}

/// The names of the patch types. `Object` represents every nested type `Object.<path>`.
pub(crate) const OBJECT: &str = "Object";
pub(crate) const JSON_PATCH: &str = "JSONPatch";

/// Namespaces of functions that Kubernetes' environments have and rules do not.
const FUNCTION_NAMESPACES: [&str; 8] =
    ["base64", "cidr", "jsonpatch", "lists", "math", "quantity", "semver", "strings"];

struct Checker<'s, 'n> {
    source: &'s str,
    variables: Vec<(String, Type<'n>)>,
    issues: Vec<String>,
    /// The issues of literals, which are reported if there are no other issues.
    literal_issues: Vec<String>,
    /// The reason why no program can be made of the expression, which is reported if there are no issues.
    program_error: Option<String>,
    /// The number of calls of `format` around the current node.
    formats: usize,
    /// Whether unknown names are accepted.
    lenient: bool,
    /// Whether the expression contains an unknown name. The type of the expression is then unknown.
    uncertain: bool,
    /// The remaining number of node visits, of [`TYPE_CHECKS_MAX`].
    visits_left: usize,
}

impl<'s, 'n> Checker<'s, 'n> {
    fn new<'v>(
        source: &'s str,
        variables: impl IntoIterator<Item = (&'v str, Type<'n>)>,
        lenient: bool,
    ) -> Checker<'s, 'n> {
        Checker {
            source,
            variables: variables.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect(),
            issues: Vec::new(),
            literal_issues: Vec::new(),
            program_error: None,
            formats: 0,
            lenient,
            uncertain: false,
            visits_left: TYPE_CHECKS_MAX,
        }
    }

    fn finish(self) -> Result<(), CompileError> {
        for issues in [self.issues, self.literal_issues] {
            if !issues.is_empty() {
                return Err(CompileError::of_check(issues.join("\n")));
            }
        }
        self.program_error.map_or(Ok(()), |text| Err(CompileError::of_program(text)))
    }

    fn issue(&mut self, at: usize, message: &str) -> Type<'n> {
        self.issues.push(issue_at(self.source, at, message));
        Type::DYN
    }

    fn literal_issue(&mut self, at: usize, message: &str) {
        let issue = issue_at(self.source, at, message);
        // The body of a loop is checked more than once.
        if !self.literal_issues.contains(&issue) {
            self.literal_issues.push(issue);
        }
    }

    /// Reports an entry of a list or map whose type differs from that of the first entry
    /// (`ValidateHomogeneousAggregateLiterals`). The arguments of `format` may differ. Returns false for an issue.
    fn is_homogeneous(&mut self, at: usize, first: &Type<'n>, ty: &Type<'n>) -> bool {
        // A lenient check does not know the types of all functions.
        let same = if self.lenient { ty.fits(first) } else { ty.is_equivalent(first) };
        if same || self.formats > 0 {
            return true;
        }
        self.literal_issue(at, &format!("expected type '{first}' but found '{ty}'"));
        false
    }

    /// Checks the literal arguments of a call (`ValidateDurationLiterals`, `ValidateTimestampLiterals`,
    /// `ValidateRegexLiterals`, and the compilation of regular expressions with the program).
    fn literals(&mut self, name: &str, is_member: bool, args: &[Ast]) {
        match (name, args) {
            ("duration" | "timestamp", [Ast { node: Node::Literal(literal), at }]) => {
                let value = match literal {
                    Literal::Text(text) => Val::text(text.as_ref()),
                    Literal::Int(seconds) => Val::Int(*seconds),
                    _ => return,
                };
                if library::convert(name, &value).is_err() {
                    self.literal_issue(*at, &format!("invalid {name} argument"));
                }
            }
            ("matches", [pattern, ..]) if is_member && pattern_error(pattern).is_some() => {
                self.literal_issue(pattern.at, "invalid matches argument");
            }
            ("matches", [text, pattern]) if !is_member => {
                // Upstream reads the first argument as an expression, which is the text.
                if pattern_error(text).is_some() {
                    self.literal_issue(text.at, "invalid matches argument");
                }
                self.program_error = self.program_error.take().or_else(|| pattern_error(pattern));
            }
            ("find" | "findAll", [pattern, ..]) if is_member => {
                self.program_error = self.program_error.take().or_else(|| pattern_error(pattern));
            }
            _ => {}
        }
    }

    /// The type of a field. The field of an optional value is optional (cel-go's `checkSelectField`).
    fn select(&mut self, at: usize, of: &Type<'n>, field: &str) -> Type<'n> {
        if let Type::Optional(inner) = of {
            return self.select(at, inner, field).optional();
        }
        if let Type::Fields(fields) = of {
            self.uncertain |= matches!(fields.find(field), Some(None));
        }
        match (of.field(field), of) {
            (Some(ty), _) => ty,
            (None, Type::Object(..) | Type::Metadata | Type::Device | Type::Fields(_) | Type::Declared(_)) => {
                self.issue(at, &format!("undefined field '{field}'"))
            }
            (None, other) => {
                let message = format!("type '{other}' does not support field selection");
                self.issue(at, &message)
            }
        }
    }

    /// Checks `of.?field`.
    fn optional_select(&mut self, at: usize, of: &Ast, field: &str) -> TypeAndCost<'n> {
        let of = self.ast(of);
        let target = if let Type::Optional(inner) = &of.ty { &**inner } else { &of.ty };
        let ty = match target {
            // The fields of patch types are unknown here.
            Type::Named(OBJECT | JSON_PATCH) => {
                self.uncertain = true;
                Type::DYN
            }
            target => self.select(at, &target.clone(), field),
        };
        TypeAndCost { ty: ty.optional(), cost: of.cost.saturating_add(1) }
    }

    fn ast(&mut self, ast: &Ast) -> TypeAndCost<'n> {
        if !fuel::charge(VISIT_UNITS) {
            // The request is answered like one that exceeded its deadline.
            self.visits_left = 0;
        }
        match self.visits_left {
            0 => return TypeAndCost { ty: Type::DYN, cost: 0 },
            1 => {
                // The last visit reports the limit once; then nothing is visited.
                self.visits_left = 0;
                let ty = self.issue(ast.at, &format!("expression needs more than {TYPE_CHECKS_MAX} type checks"));
                return TypeAndCost { ty, cost: 0 };
            }
            _ => self.visits_left -= 1,
        }
        match &ast.node {
            Node::Literal(literal) => TypeAndCost { ty: literal_type(literal), cost: 0 },
            Node::Ident(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name.as_ref());
                let ty = match known.map(|(_, ty)| ty.clone()).or_else(|| signatures::type_value(name)) {
                    Some(ty) => ty,
                    None => self.issue(ast.at, &format!("undeclared reference to '{name}' (in container '')")),
                };
                TypeAndCost { ty, cost: 1 }
            }
            Node::Select { of, field, .. } if self.is_qualified_type(of, field) => {
                TypeAndCost { ty: Type::Type, cost: 1 }
            }
            Node::Select { of, field, test } => {
                let of = self.ast(of);
                let selected = self.select(ast.at, &of.ty, field);
                let ty = if *test { Type::Bool } else { selected };
                TypeAndCost { ty, cost: of.cost.saturating_add(1) }
            }
            Node::List(elements, optional) => {
                let mut cost = LIST_COST;
                let mut types: Option<(Type<'n>, Type<'n>)> = None;
                let mut homogeneous = true;
                for (index, node) in elements.iter().enumerate() {
                    let element = self.ast(node);
                    cost = cost.saturating_add(element.cost);
                    let ty = match element.ty {
                        Type::Optional(inner) if optional.contains(&index) => (*inner).clone(),
                        ty => ty,
                    };
                    types = Some(match types {
                        None => (ty.clone(), ty),
                        Some((first, item)) => {
                            homogeneous = homogeneous && self.is_homogeneous(node.at, &first, &ty);
                            (first, item.join(ty))
                        }
                    });
                }
                let item = types.map_or(Type::FREE, |(_, item)| item);
                TypeAndCost { ty: Type::List(Rc::new(item), elements.len() as u64), cost }
            }
            Node::Map(entries) => {
                let mut cost = MAP_COST;
                // The types of the first entry, and of all entries.
                let mut first: Option<(Type<'n>, Type<'n>)> = None;
                let mut all = (Type::FREE, Type::FREE);
                for (key_node, value_node, optional) in entries {
                    let (key, value) = (self.ast(key_node), self.ast(value_node));
                    cost = cost.saturating_add(key.cost).saturating_add(value.cost);
                    let value = match value.ty {
                        Type::Optional(inner) if *optional => (*inner).clone(),
                        ty => ty,
                    };
                    let (first_key, first_value) = first.get_or_insert_with(|| (key.ty.clone(), value.clone()));
                    let (first_key, first_value) = (first_key.clone(), first_value.clone());
                    self.is_homogeneous(key_node.at, &first_key, &key.ty);
                    self.is_homogeneous(value_node.at, &first_value, &value);
                    all = (all.0.join(key.ty), all.1.join(value));
                }
                let (key, value) = all;
                TypeAndCost { ty: Type::Map(Rc::new(key), Rc::new(value), entries.len() as u64), cost }
            }
            Node::Struct(name, entries) => {
                let cost = entries.iter().fold(MAP_COST, |sum, (_, value, _)| sum.saturating_add(self.ast(value).cost));
                let ty = if name.as_ref() == "JSONPatch" { JSON_PATCH } else { OBJECT };
                TypeAndCost { ty: Type::Named(ty), cost }
            }
            Node::Call { name, target, args } => self.call(ast.at, name, target.as_deref(), args),
            Node::Fold(fold) => self.fold(fold),
            Node::Binding { name, target, vars, bodies } => self.binding(ast.at, name, target, vars, bodies),
        }
    }

    /// True for names of types such as `google.protobuf.Timestamp`.
    fn is_qualified_type(&self, of: &Ast, field: &str) -> bool {
        matches!(field, "Timestamp" | "Duration")
            && matches!(&of.node, Node::Select { of, field, .. } if field.as_ref() == "protobuf"
                && matches!(&of.node, Node::Ident(name) if name.as_ref() == "google"))
    }

    /// True if an identifier is a namespace of functions and not a variable.
    fn is_namespace(&self, target: &Ast) -> bool {
        let Node::Ident(name) = &target.node else { return false };
        FUNCTION_NAMESPACES.contains(&name.as_ref()) && !self.variables.iter().any(|(known, _)| known == name.as_ref())
    }

    fn call(&mut self, at: usize, name: &str, target: Option<&Ast>, args: &[Ast]) -> TypeAndCost<'n> {
        if self.lenient && target.is_some_and(|target| self.is_namespace(target)) {
            self.uncertain = true;
            args.iter().for_each(|arg| {
                self.ast(arg);
            });
            return TypeAndCost { ty: Type::DYN, cost: 0 };
        }
        if let ("_?._", None, [of, Ast { node: Node::Literal(Literal::Text(field)), .. }]) = (name, target, args) {
            return self.optional_select(at, of, field);
        }
        self.literals(name, target.is_some(), args);
        self.formats += usize::from(name == "format");
        let target = target.map(|target| self.ast(target));
        // An unknown time zone would fail for each object.
        if let (Some(Type::Timestamp), [Ast { node: Node::Literal(Literal::Text(zone)), at, .. }]) =
            (target.as_ref().map(|target| &target.ty), args)
            && library::offset(zone).is_none()
            && !self.lenient
        {
            self.issue(*at, &format!("unknown time zone {zone}: there are UTC and offsets such as +02:00 here"));
        }
        let args: Vec<TypeAndCost<'n>> = args.iter().map(|arg| self.ast(arg)).collect();
        self.formats -= usize::from(name == "format");
        let mut cost = target.iter().chain(&args).fold(0u64, |sum, part| sum.saturating_add(part.cost));
        // Only one of two branches is evaluated.
        if let ("_?_:_", [condition, yes, no]) = (name, args.as_slice()) {
            cost = condition.cost.saturating_add(yes.cost.max(no.cost));
        }
        let receiver = target.as_ref().map(|target| &target.ty);
        let types: Vec<&Type<'n>> = args.iter().map(|arg| &arg.ty).collect();
        cost = cost.saturating_add(signatures::cost_max(name, receiver, &types));
        let operator = name.starts_with(['_', '!', '-', '@']);
        let ty = match signatures::result(name, receiver, &types) {
            signatures::Result::Type(ty) => {
                // The type of a conditional is unknown if the type of a branch is.
                self.uncertain |= name == "_?_:_" && matches!(ty, Type::Dyn(_));
                ty
            }
            signatures::Result::Undeclared | signatures::Result::NoOverload
                if self.lenient && (!operator || self.uncertain) =>
            {
                self.uncertain = true;
                Type::DYN
            }
            signatures::Result::Undeclared => {
                self.issue(at, &format!("undeclared reference to '{name}' (in container '')"))
            }
            signatures::Result::NoOverload => {
                let shown: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
                let shown = match receiver {
                    Some(receiver) => format!("{receiver}.({})", shown.join(", ")),
                    None => format!("({})", shown.join(", ")),
                };
                self.issue(at, &format!("found no matching overload for '{name}' applied to '{shown}'"))
            }
        };
        TypeAndCost { ty, cost }
    }

    /// The types of a loop's one or two variables.
    fn loop_types(&mut self, at: usize, range: &Type<'n>, two: bool) -> (Type<'n>, Type<'n>) {
        match range {
            Type::List(item, _) if two => (Type::Int, (**item).clone()),
            Type::List(item, _) => ((**item).clone(), Type::DYN),
            Type::Map(key, value, _) => ((**key).clone(), (**value).clone()),
            Type::Dyn(_) => (Type::DYN, Type::DYN),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.issue(at, &message), Type::DYN)
            }
        }
    }

    fn bound<T>(&mut self, names: &[(&str, Type<'n>)], run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.variables.len();
        self.variables.extend(names.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())));
        let result = run(self);
        self.variables.truncate(before);
        result
    }

    fn fold(&mut self, fold: &Fold) -> TypeAndCost<'n> {
        let range = self.ast(&fold.range);
        let (first, second) = self.loop_types(fold.range.at, &range.ty, fold.var2.is_some());
        let init = self.ast(&fold.init);
        let mut names = vec![(fold.var.as_ref(), first)];
        names.extend(fold.var2.as_deref().map(|name| (name, second)));
        let count = range.ty.size_max();
        // The list that a loop builds has the length of its range; the type of its items is known
        // after one step.
        let mut accu = init.ty;
        let mut looped = 0u64;
        for _ in 0..2 {
            let issues = self.issues.len();
            let names: Vec<_> = names.iter().cloned().chain([(fold.accu.as_ref(), accu.clone())]).collect();
            let (condition, step) = self.bound(&names, |this| (this.ast(&fold.condition), this.ast(&fold.step)));
            looped = condition.cost.saturating_add(step.cost);
            accu = match step.ty {
                Type::List(item, _) => Type::List(item, count),
                ty => ty,
            };
            // Without costs one round suffices. Two rounds in each nested loop would take
            // exponential time.
            if self.lenient || self.issues.len() > issues {
                break;
            }
        }
        let result = self.bound(&[(fold.accu.as_ref(), accu)], |this| this.ast(&fold.result));
        let cost = looped.saturating_mul(count).saturating_add(range.cost).saturating_add(init.cost);
        TypeAndCost { ty: result.ty, cost: cost.saturating_add(result.cost) }
    }

    fn binding(&mut self, at: usize, name: &str, target: &Ast, vars: &[Box<str>], bodies: &[Ast]) -> TypeAndCost<'n> {
        if name == BIND && !self.lenient {
            let ty = self.issue(at, "undeclared reference to 'cel' (in container '')");
            return TypeAndCost { ty, cost: 0 };
        }
        if name == "sortBy" && !self.lenient {
            let ty = self.issue(at, "undeclared reference to 'sortBy' (in container '')");
            return TypeAndCost { ty, cost: 0 };
        }
        let range = self.ast(target);
        if let (BIND, [var], [body]) = (name, vars, bodies) {
            let body = self.bound(&[(var, range.ty)], |this| this.ast(body));
            return TypeAndCost { ty: body.ty, cost: range.cost.saturating_add(body.cost).saturating_add(1) };
        }
        if let ("sortBy", [var], [body]) = (name, vars, bodies) {
            let (item, _) = self.loop_types(target.at, &range.ty, false);
            let body = self.bound(&[(var, item)], |this| this.ast(body));
            return TypeAndCost { ty: range.ty, cost: range.cost.saturating_add(body.cost) };
        }
        if let ("optMap" | "optFlatMap", [var], [body]) = (name, vars, bodies) {
            let inner = match &range.ty {
                Type::Optional(inner) => (**inner).clone(),
                Type::Dyn(_) => Type::DYN,
                other => {
                    let message = format!("found no matching overload for 'hasValue' applied to '{other}.()'");
                    self.issue(at, &message)
                }
            };
            let body = self.bound(&[(var, inner)], |this| this.ast(body));
            let ty = if name == "optMap" { body.ty.optional() } else { body.ty };
            return TypeAndCost { ty, cost: range.cost.saturating_add(body.cost).saturating_add(2) };
        }
        let (first, second) = self.loop_types(target.at, &range.ty, true);
        let [var, var2] = vars else { return TypeAndCost { ty: Type::DYN, cost: 0 } };
        let names = [(var.as_ref(), first.clone()), (var2.as_ref(), second)];
        let bodies: Vec<TypeAndCost<'n>> =
            self.bound(&names, |this| bodies.iter().map(|body| this.ast(body)).collect());
        let count = range.ty.size_max();
        let each = bodies.iter().fold(3u64, |sum, body| sum.saturating_add(body.cost));
        let cost = each.saturating_mul(count).saturating_add(range.cost);
        let Some(last) = bodies.last() else { return TypeAndCost { ty: Type::DYN, cost } };
        let conditions = if name.starts_with("transform") { &bodies[..bodies.len() - 1] } else { &bodies[..] };
        if conditions.iter().any(|condition| !condition.ty.fits(&Type::Bool)) {
            let message = format!("expected type 'bool' but found '{}'", conditions[0].ty);
            self.issue(at, &message);
        }
        let ty = match name {
            "transformList" => Type::List(Rc::new(last.ty.clone()), count),
            "transformMap" => Type::Map(Rc::new(first), Rc::new(last.ty.clone()), count),
            "transformMapEntry" => match &last.ty {
                Type::Map(key, value, _) => Type::Map(key.clone(), value.clone(), count),
                _ => Type::DYN,
            },
            _ => Type::Bool,
        };
        TypeAndCost { ty, cost }
    }
}

/// The error of a literal regular expression. `None` if it compiles, or if the argument is not a literal.
fn pattern_error(arg: &Ast) -> Option<String> {
    match &arg.node {
        Node::Literal(Literal::Pattern(pattern, compiled)) => {
            compiled.get_or_init(|| Matcher::compile(pattern)).as_ref().err().cloned()
        }
        Node::Literal(Literal::Text(text)) => Matcher::compile(text).err(),
        _ => None,
    }
}

fn literal_type<'n>(literal: &Literal) -> Type<'n> {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::Text(text) | Literal::Pattern(text, _) => Type::Text(text.chars().count() as u64),
        Literal::Bytes(bytes) => Type::Bytes(bytes.len() as u64),
    }
}
