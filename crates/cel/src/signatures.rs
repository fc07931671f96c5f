//! Declares the functions: their arguments, results and worst-case costs.
//!
//! The declarations contain the standard functions of CEL and the Kubernetes library of 1.36:
//! strings, Kubernetes' list functions (`isSorted`, `min`, `max`, `sum`, `indexOf`, `lastIndexOf`),
//! regular expressions, URLs, quantities, IP addresses, formats, versions, sets and optional
//! values. cel-go's list library, which Kubernetes has since 1.34, is absent (`distinct`,
//! `flatten`, `slice`, `sort`, `sortBy`, `reverse`, `first`, `last`, `lists.range`). A rule that
//! calls an undeclared function is rejected with its definition.

use std::rc::Rc;

use crate::check::{PATTERN_DIVISOR, READ_DIVISOR};
use crate::types::Type;

/// The result of resolving a call.
pub(crate) enum Result<'n> {
    Type(Type<'n>),
    /// No function has this name.
    Undeclared,
    /// A function has this name but does not accept these types.
    NoOverload,
}

/// The signatures of functions: name, receiver, arguments, result. Each type is one letter, see [`fits`].
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("!_", "", "b", "b"),
    ("-_", "", "i", "i"),
    ("-_", "", "d", "d"),
    ("_&&_", "", "bb", "b"),
    ("_||_", "", "bb", "b"),
    ("@not_strictly_false", "", "b", "b"),
    ("__not_strictly_false__", "", "b", "b"),
    ("_+_", "", "ii", "i"),
    ("_+_", "", "uu", "u"),
    ("_+_", "", "dd", "d"),
    ("_+_", "", "ss", "s"),
    ("_+_", "", "yy", "y"),
    ("_+_", "", "tD", "t"),
    ("_+_", "", "Dt", "t"),
    ("_+_", "", "DD", "D"),
    ("_-_", "", "ii", "i"),
    ("_-_", "", "uu", "u"),
    ("_-_", "", "dd", "d"),
    ("_-_", "", "tt", "D"),
    ("_-_", "", "tD", "t"),
    ("_-_", "", "DD", "D"),
    ("_*_", "", "ii", "i"),
    ("_*_", "", "uu", "u"),
    ("_*_", "", "dd", "d"),
    ("_/_", "", "ii", "i"),
    ("_/_", "", "uu", "u"),
    ("_/_", "", "dd", "d"),
    ("_%_", "", "ii", "i"),
    ("_%_", "", "uu", "u"),
    ("size", "", "s", "i"),
    ("size", "", "y", "i"),
    ("size", "", "l", "i"),
    ("size", "", "m", "i"),
    ("size", "s", "", "i"),
    ("size", "y", "", "i"),
    ("size", "l", "", "i"),
    ("size", "m", "", "i"),
    ("contains", "s", "s", "b"),
    ("startsWith", "s", "s", "b"),
    ("endsWith", "s", "s", "b"),
    ("matches", "s", "s", "b"),
    ("matches", "", "ss", "b"),
    ("int", "", "n", "i"),
    ("int", "", "s", "i"),
    ("int", "", "t", "i"),
    ("int", "", "D", "i"),
    ("uint", "", "n", "u"),
    ("uint", "", "s", "u"),
    ("double", "", "n", "d"),
    ("double", "", "s", "d"),
    ("string", "", "n", "s"),
    ("string", "", "s", "s"),
    ("string", "", "b", "s"),
    ("string", "", "y", "s"),
    ("string", "", "t", "s"),
    ("string", "", "D", "s"),
    ("string", "", "I", "s"),
    ("string", "", "C", "s"),
    ("bool", "", "s", "b"),
    ("bool", "", "b", "b"),
    ("bytes", "", "s", "y"),
    ("bytes", "", "y", "y"),
    ("duration", "", "s", "D"),
    ("duration", "", "D", "D"),
    ("timestamp", "", "s", "t"),
    ("timestamp", "", "t", "t"),
    ("timestamp", "", "i", "t"),
    ("getFullYear", "t", "", "i"),
    ("getFullYear", "t", "s", "i"),
    ("getMonth", "t", "", "i"),
    ("getMonth", "t", "s", "i"),
    ("getDate", "t", "", "i"),
    ("getDate", "t", "s", "i"),
    ("getDayOfMonth", "t", "", "i"),
    ("getDayOfMonth", "t", "s", "i"),
    ("getDayOfWeek", "t", "", "i"),
    ("getDayOfWeek", "t", "s", "i"),
    ("getDayOfYear", "t", "", "i"),
    ("getDayOfYear", "t", "s", "i"),
    ("getHours", "t", "", "i"),
    ("getHours", "t", "s", "i"),
    ("getMinutes", "t", "", "i"),
    ("getMinutes", "t", "s", "i"),
    ("getSeconds", "t", "", "i"),
    ("getSeconds", "t", "s", "i"),
    ("getMilliseconds", "t", "", "i"),
    ("getMilliseconds", "t", "s", "i"),
    ("getHours", "D", "", "i"),
    ("getMinutes", "D", "", "i"),
    ("getSeconds", "D", "", "i"),
    ("getMilliseconds", "D", "", "i"),
    ("charAt", "s", "i", "s"),
    ("indexOf", "s", "s", "i"),
    ("indexOf", "s", "si", "i"),
    ("indexOf", "l", "x", "i"),
    ("lastIndexOf", "s", "s", "i"),
    ("lastIndexOf", "s", "si", "i"),
    ("lastIndexOf", "l", "x", "i"),
    ("join", "l", "", "s"),
    ("join", "l", "s", "s"),
    ("lowerAscii", "s", "", "s"),
    ("upperAscii", "s", "", "s"),
    ("replace", "s", "ss", "s"),
    ("replace", "s", "ssi", "s"),
    ("split", "s", "s", "S"),
    ("split", "s", "si", "S"),
    ("substring", "s", "i", "s"),
    ("substring", "s", "ii", "s"),
    ("trim", "s", "", "s"),
    ("format", "s", "l", "s"),
    ("strings.quote", "", "s", "s"),
    ("find", "s", "s", "s"),
    ("findAll", "s", "s", "S"),
    ("findAll", "s", "si", "S"),
    ("isSorted", "l", "", "b"),
    ("sets.contains", "", "ll", "b"),
    ("sets.equivalent", "", "ll", "b"),
    ("sets.intersects", "", "ll", "b"),
    ("url", "", "s", "U"),
    ("isURL", "", "s", "b"),
    ("getScheme", "U", "", "s"),
    ("getHost", "U", "", "s"),
    ("getHostname", "U", "", "s"),
    ("getPort", "U", "", "s"),
    ("getEscapedPath", "U", "", "s"),
    ("getQuery", "U", "", "M"),
    ("quantity", "", "s", "q"),
    ("isQuantity", "", "s", "b"),
    ("isInteger", "q", "", "b"),
    ("asInteger", "q", "", "i"),
    ("asApproximateFloat", "q", "", "d"),
    ("sign", "q", "", "i"),
    ("add", "q", "q", "q"),
    ("add", "q", "i", "q"),
    ("sub", "q", "q", "q"),
    ("sub", "q", "i", "q"),
    ("isLessThan", "q", "q", "b"),
    ("isGreaterThan", "q", "q", "b"),
    ("compareTo", "q", "q", "i"),
    ("ip", "", "s", "I"),
    ("isIP", "", "s", "b"),
    ("ip.isCanonical", "", "s", "b"),
    ("family", "I", "", "i"),
    ("isUnspecified", "I", "", "b"),
    ("isLoopback", "I", "", "b"),
    ("isLinkLocalMulticast", "I", "", "b"),
    ("isLinkLocalUnicast", "I", "", "b"),
    ("isGlobalUnicast", "I", "", "b"),
    ("cidr", "", "s", "C"),
    ("isCIDR", "", "s", "b"),
    ("containsIP", "C", "s", "b"),
    ("containsIP", "C", "I", "b"),
    ("containsCIDR", "C", "s", "b"),
    ("containsCIDR", "C", "C", "b"),
    ("ip", "C", "", "I"),
    ("masked", "C", "", "C"),
    ("prefixLength", "C", "", "i"),
    ("semver", "", "s", "V"),
    ("semver", "", "sb", "V"),
    ("isSemver", "", "s", "b"),
    ("isSemver", "", "sb", "b"),
    ("major", "V", "", "i"),
    ("minor", "V", "", "i"),
    ("patch", "V", "", "i"),
    ("isLessThan", "V", "V", "b"),
    ("isGreaterThan", "V", "V", "b"),
    ("compareTo", "V", "V", "i"),
    ("format.named", "", "s", "OF"),
    ("format.dns1123Label", "", "", "F"),
    ("format.dns1123Subdomain", "", "", "F"),
    ("format.dns1035Label", "", "", "F"),
    ("format.qualifiedName", "", "", "F"),
    ("format.dns1123LabelPrefix", "", "", "F"),
    ("format.dns1123SubdomainPrefix", "", "", "F"),
    ("format.dns1035LabelPrefix", "", "", "F"),
    ("format.labelValue", "", "", "F"),
    ("format.uri", "", "", "F"),
    ("format.uuid", "", "", "F"),
    ("format.byte", "", "", "F"),
    ("format.date", "", "", "F"),
    ("format.datetime", "", "", "F"),
    ("validate", "F", "s", "OS"),
    ("type", "", "x", "T"),
    ("optional.none", "", "", "Ox"),
    ("hasValue", "o", "", "b"),
];

pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
const URL: &str = "kubernetes.URL";
const IP: &str = "net.IP";
const CIDR: &str = "net.CIDR";
const SEMVER: &str = "kubernetes.Semver";
const FORMAT: &str = "kubernetes.NamedFormat";

/// The type of an identifier that denotes a type.
pub(crate) fn type_value<'n>(name: &str) -> Option<Type<'n>> {
    let known = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];
    known.contains(&name).then_some(Type::Type)
}

fn fits(ty: &Type<'_>, letter: char) -> bool {
    match (letter, ty) {
        (_, Type::Dyn(_)) | ('x', _) => true,
        ('b', Type::Bool)
        | ('i', Type::Int)
        | ('u', Type::Uint)
        | ('d', Type::Double)
        | ('s', Type::Text(_))
        | ('y', Type::Bytes(_))
        | ('t', Type::Timestamp)
        | ('D', Type::Duration)
        | ('l', Type::List(..))
        | ('m', Type::Map(..))
        | ('o', Type::Optional(_)) => true,
        ('n', Type::Int | Type::Uint | Type::Double) => true,
        (letter, Type::Named(name)) => named_type(letter) == Some(name),
        _ => false,
    }
}

fn named_type(letter: char) -> Option<&'static str> {
    Some(match letter {
        'q' => QUANTITY,
        'U' => URL,
        'I' => IP,
        'C' => CIDR,
        'V' => SEMVER,
        'F' => FORMAT,
        _ => return None,
    })
}

fn result_type<'n>(letters: &str, size: u64) -> Type<'n> {
    if let Some(inner) = letters.strip_prefix('O') {
        return result_type(inner, size).optional();
    }
    match letters.chars().next().unwrap_or('x') {
        'b' => Type::Bool,
        'i' => Type::Int,
        'u' => Type::Uint,
        'd' => Type::Double,
        's' => Type::Text(size),
        'y' => Type::Bytes(size),
        't' => Type::Timestamp,
        'D' => Type::Duration,
        'S' => Type::List(Rc::new(Type::Text(size)), size),
        'M' => Type::Map(Rc::new(Type::Text(size)), Rc::new(result_type("S", size)), size),
        'T' => Type::Type,
        // The type of a value that does not exist.
        'x' => Type::FREE,
        letter => named_type(letter).map_or(Type::DYN, Type::Named),
    }
}

fn comparable(a: &Type<'_>, b: &Type<'_>) -> bool {
    let number = |ty: &Type<'_>| matches!(ty, Type::Int | Type::Uint | Type::Double);
    match (a, b) {
        (Type::Dyn(_), _) | (_, Type::Dyn(_)) => true,
        (a, b) if number(a) && number(b) => true,
        (Type::Bool | Type::Text(_) | Type::Bytes(_) | Type::Duration | Type::Timestamp, _) => a == b,
        _ => false,
    }
}

/// Resolves a call.
pub(crate) fn result<'n>(name: &str, receiver: Option<&Type<'n>>, args: &[&Type<'n>]) -> Result<'n> {
    let or = |found: Option<Type<'n>>| found.map_or(Result::NoOverload, Result::Type);
    match (name, receiver, args) {
        ("_==_" | "_!=_", None, [a, b]) => or(a.fits(b).then_some(Type::Bool)),
        ("_<_" | "_<=_" | "_>_" | "_>=_", None, [a, b]) => or(comparable(a, b).then_some(Type::Bool)),
        ("_?_:_", None, [condition, yes, no]) => {
            or((fits(condition, 'b') && yes.fits(no)).then(|| (*yes).clone().join((*no).clone())))
        }
        ("_+_", None, [Type::List(a, x), Type::List(b, y)]) => {
            let item = match (*x, *y) {
                // The item type of an empty list is that of the other operand.
                (0, _) => (**b).clone(),
                (_, 0) => (**a).clone(),
                _ => (**a).clone().join((**b).clone()),
            };
            Result::Type(Type::List(Rc::new(item), x.saturating_add(*y)))
        }
        ("@in" | "_in_", None, [item, Type::List(of, _)]) => or(item.fits(of).then_some(Type::Bool)),
        ("@in" | "_in_", None, [key, Type::Map(of, _, _)]) => or(key.fits(of).then_some(Type::Bool)),
        ("@in" | "_in_", None, [_, Type::Dyn(_)]) => Result::Type(Type::Bool),
        ("_[_]" | "_[?_]", None, [of, key]) => {
            let target = if let Type::Optional(inner) = of { &**inner } else { *of };
            let found = match target {
                Type::List(item, _) if fits(key, 'i') => Some((**item).clone()),
                Type::Map(known, value, _) if key.fits(known) => Some((**value).clone()),
                Type::Dyn(_) => Some(Type::DYN),
                _ => None,
            };
            let optional = name == "_[?_]" || matches!(of, Type::Optional(_));
            or(found.map(|found| if optional { found.optional() } else { found }))
        }
        ("dyn", None, [of]) => Result::Type(Type::Dyn(of.size_max().max(1))),
        ("optional.of" | "optional.ofNonZeroValue", None, [of]) => Result::Type((*of).clone().optional()),
        ("value", Some(of), []) => or(inner(of)),
        ("or", Some(of), [other]) => or(of.fits(other).then(|| (*of).clone().join((*other).clone()))),
        ("orValue", Some(of), [other]) => or(inner(of).filter(|of| of.fits(other)).map(|of| of.join((*other).clone()))),
        ("min" | "max", Some(Type::List(item, _)), []) => or(comparable(item, item).then(|| (**item).clone())),
        ("sum", Some(Type::List(item, _)), []) => {
            let adds = matches!(**item, Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Dyn(_));
            or(adds.then(|| (**item).clone()))
        }
        _ => by_table(name, receiver, args),
    }
}

fn inner<'n>(of: &Type<'n>) -> Option<Type<'n>> {
    match of {
        Type::Optional(inner) => Some((**inner).clone()),
        Type::Dyn(_) => Some(of.clone()),
        _ => None,
    }
}

fn by_table<'n>(name: &str, receiver: Option<&Type<'n>>, args: &[&Type<'n>]) -> Result<'n> {
    let mut known =
        matches!(name, "_==_" | "@in" | "min" | "max" | "sum" | "value" | "or" | "orValue" | "_[_]" | "_[?_]")
            || matches!(name, "_<_" | "_<=_" | "_>_" | "_>=_" | "_?_:_" | "_!=_");
    let sizes = receiver.into_iter().chain(args.iter().copied()).map(|ty| ty.size_max());
    let size = sizes.fold(0u64, u64::saturating_add);
    for (function, on, takes, gives) in TABLE {
        if *function != name {
            continue;
        }
        known = true;
        let receiver_fits = match (receiver, on.chars().next()) {
            (None, None) => true,
            (Some(ty), Some(letter)) => fits(ty, letter),
            _ => false,
        };
        let args_fit = takes.len() == args.len() && takes.chars().zip(args).all(|(letter, ty)| fits(ty, letter));
        if receiver_fits && args_fit {
            let size = if is_of_unknown_size(name, args) { u64::MAX } else { size };
            return Result::Type(result_type(gives, size));
        }
    }
    if known { Result::NoOverload } else { Result::Undeclared }
}

/// True if cel-go's estimate has no size for a call's result and assumes the maximum. A
/// concatenation with the result, or a search in it, is then too costly (`checker/cost.go`).
fn is_of_unknown_size(name: &str, args: &[&Type<'_>]) -> bool {
    match name {
        "string" => !matches!(args, [Type::Bytes(_)]),
        "format" => true,
        _ => false,
    }
}

/// The worst-case cost of a call without its arguments, in cost units.
pub(crate) fn cost_max(name: &str, receiver: Option<&Type<'_>>, args: &[&Type<'_>]) -> u64 {
    let size = |index: usize| args.get(index).map_or(0, |ty| ty.size_max());
    let on = receiver.map_or_else(|| size(0), |ty| ty.size_max());
    let read = |bytes: u64| bytes.div_ceil(READ_DIVISOR).max(1);
    match name {
        // Conditionals and internal macro calls cost nothing themselves.
        "_&&_" | "_||_" | "_?_:_" | "@not_strictly_false" | "__not_strictly_false__" => 0,
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => read(size(0).min(size(1))),
        "_+_" => match args {
            [Type::Text(_) | Type::Bytes(_), _] => read(size(0).saturating_add(size(1))),
            _ => 1,
        },
        "@in" | "_in_" => match args {
            [_, Type::List(..)] => size(1),
            _ => 1,
        },
        "startsWith" | "endsWith" => read(size(0)),
        "contains" => read(on).saturating_mul(read(size(0))),
        // The length of the expression counts a quarter. The estimate does not cover `matches(text, expression)`.
        "matches" | "find" | "findAll" if receiver.is_some() => {
            on.saturating_add(1).div_ceil(READ_DIVISOR).saturating_mul(size(0).div_ceil(PATTERN_DIVISOR))
        }
        "string" if matches!(args, [Type::Bytes(_) | Type::Dyn(_)]) => read(on),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" if matches!(receiver, Some(Type::List(..))) => {
            on
        }
        "sets.contains" | "sets.equivalent" | "sets.intersects" => size(0).saturating_mul(size(1)),
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "split" | "replace" | "join" | "format" | "indexOf"
        | "lastIndexOf" | "url" | "isURL" | "quantity" | "isQuantity" | "ip" | "isIP" | "cidr" | "isCIDR"
        | "validate" | "bytes" | "semver" | "isSemver" | "strings.quote" => read(on),
        _ => 1,
    }
}
