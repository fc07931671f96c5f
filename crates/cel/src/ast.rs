//! The syntax tree that is checked and evaluated. The `cel` crate parses expressions and expands
//! the standard macros; this module resolves the macros of Kubernetes.

use std::sync::OnceLock;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};
use cel::parser::Parser;

use crate::limits::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX};
use crate::pattern::Matcher;

/// An expression with its position in the source.
#[derive(Debug)]
pub(crate) struct Ast {
    pub(crate) node: Node,
    /// The offset in characters from the start of the source.
    pub(crate) at: usize,
}

#[derive(Debug)]
pub(crate) enum Node {
    Literal(Literal),
    Ident(Box<str>),
    /// `of.field`; with `test`, `has(of.field)`.
    Select {
        of: Box<Ast>,
        field: Box<str>,
        test: bool,
    },
    Call {
        name: Box<str>,
        target: Option<Box<Ast>>,
        args: Vec<Ast>,
    },
    /// The elements, and the positions of the optional ones.
    List(Vec<Ast>, Vec<usize>),
    /// Keys, values, and whether the entry is optional.
    Map(Vec<(Ast, Ast, bool)>),
    /// An object of a patch type, `Object{…}` or `JSONPatch{…}`: its type, and its fields as in a map.
    Struct(Box<str>, Vec<(Ast, Ast, bool)>),
    Fold(Box<Fold>),
    /// A macro of Kubernetes that binds variables: the name of the macro, its receiver, the
    /// variables, and the expressions that use them.
    Binding {
        name: Box<str>,
        target: Box<Ast>,
        vars: Vec<Box<str>>,
        bodies: Vec<Ast>,
    },
}

#[derive(Debug)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Box<str>),
    /// A string that is used as a regular expression, compiled at its first use.
    Pattern(Box<str>, Box<OnceLock<Result<Matcher, String>>>),
    Bytes(Box<[u8]>),
}

/// A loop, the form into which the standard macros expand.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) range: Ast,
    pub(crate) var: Box<str>,
    pub(crate) var2: Option<Box<str>>,
    pub(crate) accu: Box<str>,
    pub(crate) init: Ast,
    pub(crate) condition: Ast,
    pub(crate) step: Ast,
    pub(crate) result: Ast,
}

/// The name of the macro `cel.bind(name, value, expression)`, which only device selectors have.
pub(crate) const BIND: &str = "bind";

/// Identifiers that are namespaces of functions, not variables.
const NAMESPACES: [&str; 4] = ["optional", "sets", "format", "ip"];

/// True for the types of objects in patches: `JSONPatch`, `Object`, `Object.spec`.
fn is_patch_type(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

impl Ast {
    /// Calls `visit` for each direct part of the expression.
    pub(crate) fn for_each_part(&self, visit: &mut impl FnMut(&Ast)) {
        match &self.node {
            Node::Literal(_) | Node::Ident(_) => {}
            Node::Select { of, .. } => visit(of),
            Node::Call { target, args, .. } => target.as_deref().into_iter().chain(args).for_each(visit),
            Node::List(elements, _) => elements.iter().for_each(visit),
            Node::Map(entries) | Node::Struct(_, entries) => {
                entries.iter().for_each(|(key, value, _)| {
                    visit(key);
                    visit(value);
                });
            }
            Node::Fold(fold) => {
                [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result].into_iter().for_each(visit);
            }
            Node::Binding { target, bodies, .. } => std::iter::once(&**target).chain(bodies).for_each(visit),
        }
    }
}

/// Parses an expression. With `objects`, it may construct objects of patch types (`Object{spec: …}`).
///
/// # Errors
/// The compiler's text, as shown after `compilation failed: `.
pub(crate) fn parse(source: &str, objects: bool) -> Result<Ast, String> {
    if source.len() > EXPRESSION_BYTES_MAX {
        return Err(format!("ERROR: <input>:1:1: expression is longer than {EXPRESSION_BYTES_MAX} bytes"));
    }
    if nesting(source) > EXPRESSION_DEPTH_MAX {
        return Err(format!("ERROR: <input>:1:1: expression recursion limit exceeded: {EXPRESSION_DEPTH_MAX}"));
    }
    let parser = Parser::new().max_recursion_depth(EXPRESSION_DEPTH_MAX as u16).enable_optional_syntax(true);
    match parser.parse_with_source_info(source) {
        Ok((expr, info)) => Reader { info: &info, source, messages: objects }.ast(&expr, 0),
        Err(errors) => {
            let lines = errors.errors.iter().map(|error| {
                // An error in an empty source has no source line.
                if source.is_empty() {
                    return format!("ERROR: <input>:1:0: {}", error.msg);
                }
                let line = source.lines().nth((error.pos.0.max(1) - 1) as usize).unwrap_or_default();
                issue(&error.msg, error.pos.0.max(1) as usize, error.pos.1.max(1) as usize, line)
            });
            Err(lines.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// The nesting depth of an expression: brackets, and in each bracket the operators, calls and
/// conditionals since the last comma, `&&` or `||`.
fn nesting(source: &str) -> usize {
    let bytes = source.as_bytes();
    let (mut at, mut deepest) = (0, 0);
    let mut chains = vec![0usize];
    while let Some(b) = bytes.get(at) {
        match b {
            b'"' | b'\'' => {
                at = text_end(bytes, at);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'(' | b'[' | b'{' => chains.push(0),
            b')' | b']' | b'}' if chains.len() > 1 => {
                chains.pop();
                // A call or an index adds a link to the enclosing chain.
                if let Some(chain) = chains.last_mut() {
                    *chain += 1;
                }
            }
            b',' | b'&' | b'|' => {
                if let Some(chain) = chains.last_mut() {
                    *chain = 0;
                }
            }
            b'?' | b'!' | b'-' | b'+' | b'*' | b'/' | b'%' | b'.' | b'<' | b'>' | b'=' => {
                if let Some(chain) = chains.last_mut() {
                    *chain += 1;
                }
            }
            _ => {}
        }
        at += 1;
        deepest = deepest.max(chains.len() + chains.iter().sum::<usize>());
        if deepest > EXPRESSION_DEPTH_MAX {
            break;
        }
    }
    deepest
}

/// The end of the string literal whose opening quote is at `start`.
fn text_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let raw = start > 0 && matches!(bytes[start - 1], b'r' | b'R');
    let triple = bytes[start..].starts_with(&[quote; 3]);
    let mut at = start + if triple { 3 } else { 1 };
    while at < bytes.len() {
        if bytes[at] == b'\\' && !raw {
            at += 2;
            continue;
        }
        if bytes[at] == quote && (!triple || bytes[at..].starts_with(&[quote; 3])) {
            return at + if triple { 3 } else { 1 };
        }
        at += 1;
    }
    bytes.len()
}

/// Formats an error like cel-go.
fn issue(message: &str, line: usize, column: usize, text: &str) -> String {
    let dots = ".".repeat(column.saturating_sub(1).min(text.chars().count()));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {text}\n | {dots}^")
}

/// Formats an error at an offset of the source.
pub(crate) fn issue_at(source: &str, at: usize, message: &str) -> String {
    let (mut line, mut column) = (1, 1);
    for c in source.chars().take(at) {
        if c == '\n' {
            (line, column) = (line + 1, 1);
        } else {
            column += 1;
        }
    }
    issue(message, line, column, source.lines().nth(line - 1).unwrap_or_default())
}

struct Reader<'a> {
    info: &'a SourceInfo,
    source: &'a str,
    /// Whether messages may be constructed.
    messages: bool,
}

impl Reader<'_> {
    fn ast(&self, expr: &IdedExpr, depth: usize) -> Result<Ast, String> {
        let at = self.info.offset_for(expr.id).map_or(0, |(start, _)| start as usize);
        let refuse = |why: &str| Err(issue_at(self.source, at, why));
        // Macros expand to more levels than the source has.
        if depth > 4 * EXPRESSION_DEPTH_MAX {
            return refuse(&format!("expression recursion limit exceeded: {EXPRESSION_DEPTH_MAX}"));
        }
        let below = |expr: &IdedExpr| self.ast(expr, depth + 1);
        let boxed = |expr: &IdedExpr| below(expr).map(Box::new);
        let node = match &expr.expr {
            Expr::Unspecified => return refuse("empty expression"),
            Expr::Struct(message) if self.messages => {
                if !is_patch_type(&message.type_name) {
                    return refuse(&format!("undeclared reference to '{}' (in container '')", message.type_name));
                }
                let mut entries = Vec::with_capacity(message.entries.len());
                for entry in &message.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        let name = Ast { node: Node::Literal(Literal::Text(field.field.as_str().into())), at };
                        entries.push((name, below(&field.value)?, field.optional));
                    }
                }
                Node::Struct(message.type_name.as_str().into(), entries)
            }
            Expr::Struct(_) => return refuse("messages cannot be made here"),
            Expr::Literal(literal) => Node::Literal(match literal {
                LiteralValue::Null => Literal::Null,
                LiteralValue::Boolean(value) => Literal::Bool(*value.inner()),
                LiteralValue::Int(value) => Literal::Int(*value.inner()),
                LiteralValue::UInt(value) => Literal::Uint(*value.inner()),
                LiteralValue::Double(value) => Literal::Double(*value.inner()),
                LiteralValue::String(value) => Literal::Text(value.inner().into()),
                LiteralValue::Bytes(value) => Literal::Bytes(value.inner().into()),
            }),
            Expr::Ident(name) => Node::Ident(name.as_str().into()),
            Expr::Select(select) => {
                Node::Select { of: boxed(&select.operand)?, field: select.field.as_str().into(), test: select.test }
            }
            Expr::List(list) => {
                let elements = list.elements.iter().map(below).collect::<Result<_, _>>()?;
                Node::List(elements, list.optional_indices.clone())
            }
            Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            entries.push((below(&entry.key)?, below(&entry.value)?, entry.optional));
                        }
                        EntryExpr::StructField(_) => return refuse("messages cannot be made here"),
                    }
                }
                Node::Map(entries)
            }
            Expr::Comprehension(fold) => Node::Fold(Box::new(Fold {
                range: below(&fold.iter_range)?,
                var: fold.iter_var.as_str().into(),
                var2: fold.iter_var2.as_deref().map(Into::into),
                accu: fold.accu_var.as_str().into(),
                init: below(&fold.accu_init)?,
                condition: below(&fold.loop_cond)?,
                step: below(&fold.loop_step)?,
                result: below(&fold.result)?,
            })),
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let args = || {
                    let args = call.args.iter().map(below).collect::<Result<Vec<_>, _>>()?;
                    Ok::<_, String>(with_pattern(name, call.target.is_some(), args))
                };
                match &call.target {
                    None => Node::Call { name: name.into(), target: None, args: args()? },
                    Some(target) => match &target.expr {
                        Expr::Ident(space) if NAMESPACES.contains(&space.as_str()) => {
                            Node::Call { name: format!("{space}.{name}").into(), target: None, args: args()? }
                        }
                        Expr::Ident(space) if space == "cel" && name == BIND && call.args.len() == 3 => {
                            let Expr::Ident(var) = &call.args[0].expr else {
                                return refuse("cel.bind() variable names must be simple identifiers");
                            };
                            let (vars, bodies) = (vec![var.as_str().into()], vec![below(&call.args[2])?]);
                            Node::Binding { name: BIND.into(), target: boxed(&call.args[1])?, vars, bodies }
                        }
                        _ if binds(name, call.args.len()) => {
                            let vars = binds_vars(name);
                            let names: Option<Vec<Box<str>>> = call.args[..vars]
                                .iter()
                                .map(|arg| match &arg.expr {
                                    Expr::Ident(name) => Some(name.as_str().into()),
                                    _ => None,
                                })
                                .collect();
                            let Some(vars_named) = names else { return refuse("argument must be a simple name") };
                            let bodies = call.args[vars..].iter().map(below).collect::<Result<_, _>>()?;
                            Node::Binding { name: name.into(), target: boxed(target)?, vars: vars_named, bodies }
                        }
                        _ => Node::Call { name: name.into(), target: Some(boxed(target)?), args: args()? },
                    },
                }
            }
        };
        Ok(Ast { node, at })
    }
}

/// Converts a string literal to a pattern if the function expects a regular expression.
fn with_pattern(name: &str, on_text: bool, mut args: Vec<Ast>) -> Vec<Ast> {
    if matches!(name, "matches" | "find" | "findAll")
        && let Some(Ast { node: Node::Literal(literal), .. }) = args.get_mut(usize::from(!on_text))
        && let Literal::Text(text) = literal
    {
        *literal = Literal::Pattern(std::mem::take(text), Box::default());
    }
    args
}

/// True if a call is a macro that the `cel` crate does not expand: comprehensions with two
/// variables, and macros of optional values.
fn binds(name: &str, args: usize) -> bool {
    match name {
        "optMap" | "optFlatMap" | "sortBy" => args == 2,
        "all" | "exists" | "existsOne" | "exists_one" => args == 3,
        "transformList" | "transformMap" | "transformMapEntry" => args == 3 || args == 4,
        _ => false,
    }
}

fn binds_vars(name: &str) -> usize {
    if name.starts_with("opt") || name == "sortBy" { 1 } else { 2 }
}
