//! Computes types and worst-case costs of expressions before their evaluation.
//!
//! The estimate follows cel-go's (`checker/cost.go`) and Kubernetes' (`pkg/cel/library/cost.go`). A
//! step costs one unit, and ten read bytes cost one unit. A loop has the maximum number of items in
//! the schema.

use std::rc::Rc;

use listwatch_meta::fuel;

use crate::ast::{Ast, BIND, Fold, Literal, Node, issue_at};
use crate::limits::TYPE_CHECKS_MAX;
use crate::types::Type;
use crate::{library, signatures};

/// The number of units of fuel per visit of a node.
const VISIT_UNITS: u64 = 4;

/// The number of bytes or items that are read for one cost unit.
pub(crate) const READ_DIVISOR: u64 = 10;
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
) -> Result<TypeAndCost<'n>, String> {
    let variables = variables.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
    let mut checker = Checker {
        source,
        variables,
        issues: Vec::new(),
        lenient: false,
        uncertain: false,
        visits_left: TYPE_CHECKS_MAX,
    };
    let checked = checker.ast(ast);
    if !checker.issues.is_empty() {
        return Err(checker.issues.join("\n"));
    }
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
) -> Result<Option<Type<'n>>, String> {
    let variables = variables.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
    let mut checker = Checker {
        source,
        variables,
        issues: Vec::new(),
        lenient: true,
        uncertain: false,
        visits_left: TYPE_CHECKS_MAX,
    };
    let checked = checker.ast(ast);
    if !checker.issues.is_empty() {
        return Err(checker.issues.join("\n"));
    }
    Ok((!checker.uncertain).then_some(checked.ty))
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
    /// Whether unknown names are accepted.
    lenient: bool,
    /// Whether the expression contains an unknown name. The type of the expression is then unknown.
    uncertain: bool,
    /// The remaining number of node visits, of [`TYPE_CHECKS_MAX`].
    visits_left: usize,
}

impl<'n> Checker<'_, 'n> {
    fn issue(&mut self, at: usize, message: &str) -> Type<'n> {
        self.issues.push(issue_at(self.source, at, message));
        Type::Dyn
    }

    fn ast(&mut self, ast: &Ast) -> TypeAndCost<'n> {
        if !fuel::charge(VISIT_UNITS) {
            // The request is answered like one that exceeded its deadline.
            self.visits_left = 0;
        }
        match self.visits_left {
            0 => return TypeAndCost { ty: Type::Dyn, cost: 0 },
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
                let found = of.ty.field(field);
                if let Type::Fields(fields) = &of.ty {
                    self.uncertain |= matches!(fields.find(field), Some(None));
                }
                let ty = match (found, &of.ty) {
                    (Some(_), _) if *test => Type::Bool,
                    (Some(ty), _) => ty,
                    (None, Type::Object(..) | Type::Metadata | Type::Device | Type::Fields(_) | Type::Declared(_)) => {
                        self.issue(ast.at, &format!("undefined field '{field}'"))
                    }
                    (None, other) => {
                        let message = format!("type '{other}' does not support field selection");
                        self.issue(ast.at, &message)
                    }
                };
                TypeAndCost { ty, cost: of.cost.saturating_add(1) }
            }
            Node::List(elements, _) => {
                let mut cost = LIST_COST;
                let mut item: Option<Type<'n>> = None;
                for element in elements {
                    let element = self.ast(element);
                    cost = cost.saturating_add(element.cost);
                    let ty = match element.ty {
                        Type::Optional(inner) => (*inner).clone(),
                        ty => ty,
                    };
                    item = Some(item.map_or(ty.clone(), |item| item.join(ty)));
                }
                TypeAndCost { ty: Type::List(Rc::new(item.unwrap_or(Type::Dyn)), elements.len() as u64), cost }
            }
            Node::Map(entries) => {
                let mut cost = MAP_COST;
                let mut types: Option<(Type<'n>, Type<'n>)> = None;
                for (key, value, _) in entries {
                    let (key, value) = (self.ast(key), self.ast(value));
                    cost = cost.saturating_add(key.cost).saturating_add(value.cost);
                    types = Some(match types {
                        None => (key.ty, value.ty),
                        Some((known_key, known_value)) => (known_key.join(key.ty), known_value.join(value.ty)),
                    });
                }
                let (key, value) = types.unwrap_or((Type::Dyn, Type::Dyn));
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
            return TypeAndCost { ty: Type::Dyn, cost: 0 };
        }
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
                self.uncertain |= name == "_?_:_" && matches!(ty, Type::Dyn);
                ty
            }
            signatures::Result::Undeclared | signatures::Result::NoOverload
                if self.lenient && (!operator || self.uncertain) =>
            {
                self.uncertain = true;
                Type::Dyn
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
            Type::List(item, _) => ((**item).clone(), Type::Dyn),
            Type::Map(key, value, _) => ((**key).clone(), (**value).clone()),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.issue(at, &message), Type::Dyn)
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
                Type::Dyn => Type::Dyn,
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
        let [var, var2] = vars else { return TypeAndCost { ty: Type::Dyn, cost: 0 } };
        let names = [(var.as_ref(), first.clone()), (var2.as_ref(), second)];
        let bodies: Vec<TypeAndCost<'n>> =
            self.bound(&names, |this| bodies.iter().map(|body| this.ast(body)).collect());
        let count = range.ty.size_max();
        let each = bodies.iter().fold(3u64, |sum, body| sum.saturating_add(body.cost));
        let cost = each.saturating_mul(count).saturating_add(range.cost);
        let Some(last) = bodies.last() else { return TypeAndCost { ty: Type::Dyn, cost } };
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
                _ => Type::Dyn,
            },
            _ => Type::Bool,
        };
        TypeAndCost { ty, cost }
    }
}

fn literal_type<'n>(literal: &Literal) -> Type<'n> {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::Text(text) | Literal::Pattern(text, _) => Type::Text(text.len() as u64),
        Literal::Bytes(bytes) => Type::Bytes(bytes.len() as u64),
    }
}
