//! Implements the functions that [`crate::signatures`] declares.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use base64::Engine as _;
use time::{OffsetDateTime, UtcOffset};

use crate::authorizer;
use crate::check::{PATTERN_DIVISOR, READ_DIVISOR};
use crate::eval::{EvalError, EvalResult, Evaluator};
use crate::format::{Format, escapes_are_whole, is_authority, parse_go_duration, split_scheme};
use crate::lazy;
use crate::limits::TEXT_BYTES_MAX;
use crate::pattern::Matcher;
use crate::quantity::Quantity;
use crate::semver::Version;
use crate::value::{MapVal, Val, parse_timestamp, whole_index};
use listwatch_meta::go::{float, quote};

/// Calls a global function, or a member function of `on`, with evaluated arguments.
pub(crate) fn call<'a>(run: &mut Evaluator<'a>, name: &str, on: Option<Val<'a>>, args: Vec<Val<'a>>) -> EvalResult<'a> {
    match on {
        None => global(run, name, &args),
        Some(on) => member(run, name, &on, &args),
    }
}

/// Calls a function of a namespace (`jsonpatch.go`).
pub(crate) fn in_namespace<'a>(run: &mut Evaluator<'a>, space: &str, name: &str, args: &[Val<'a>]) -> EvalResult<'a> {
    match (space, name, args) {
        ("jsonpatch", "escapeKey", [Val::Text(key)]) => {
            run.read(key.len())?;
            Ok(Val::text(key.replace('~', "~0").replace('/', "~1")))
        }
        ("lists", "range", [Val::Int(count)]) => {
            let count = u64::try_from(*count).unwrap_or_default();
            run.spend(count)?;
            Ok(Val::list((0..count as i64).map(Val::Int).collect()))
        }
        _ => Err(EvalError::overload()),
    }
}

/// The type that an identifier denotes.
pub(crate) fn type_named(name: &str) -> Option<&'static str> {
    let known = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];
    known.into_iter().find(|known| *known == name)
}

fn failed<'a>(text: impl Into<String>) -> EvalResult<'a> {
    Err(EvalError::new(text))
}

fn ordered<'a>(run: &mut Evaluator<'a>, a: &Val<'a>, b: &Val<'a>, test: impl Fn(Ordering) -> bool) -> EvalResult<'a> {
    run.within(|steps| steps.take_text(a.size().min(b.size())))?;
    match (a, b) {
        (Val::Double(a), Val::Double(b)) if a.is_nan() || b.is_nan() => Ok(Val::Bool(false)),
        _ => a.compare(b).map(|order| Val::Bool(test(order))).ok_or_else(EvalError::overload),
    }
}

fn global<'a>(run: &mut Evaluator<'a>, name: &str, args: &[Val<'a>]) -> EvalResult<'a> {
    match (name, args) {
        ("_==_", [a, b]) | ("_!=_", [a, b]) => {
            run.read(a.size().min(b.size()))?;
            let equal = run.within(|steps| a.equals(b, steps))?;
            Ok(Val::Bool(equal == (name == "_==_")))
        }
        ("_<_", [a, b]) => ordered(run, a, b, Ordering::is_lt),
        ("_<=_", [a, b]) => ordered(run, a, b, Ordering::is_le),
        ("_>_", [a, b]) => ordered(run, a, b, Ordering::is_gt),
        ("_>=_", [a, b]) => ordered(run, a, b, Ordering::is_ge),
        ("!_", [Val::Bool(value)]) => Ok(Val::Bool(!value)),
        ("-_", [Val::Int(value)]) => value.checked_neg().map(Val::Int).ok_or_else(overflow),
        ("-_", [Val::Double(value)]) => Ok(Val::Double(-value)),
        ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => arithmetic(run, name, a, b),
        ("_[_]", [of, key]) => index(of, key),
        ("_[?_]", [Val::Optional(None), _]) => Ok(Val::Optional(None)),
        ("_[?_]", [Val::Optional(Some(of)), key]) => Ok(Val::Optional(of.index(key).map(Rc::new))),
        ("_[?_]", [of, key]) => Ok(Val::Optional(of.index(key).map(Rc::new))),
        ("_?._", [Val::Lazy(scope, visible), Val::Text(field)]) => match lazy::has(scope, *visible, field) {
            true => lazy::get(scope, *visible, field).map(Val::some),
            false => Ok(Val::Optional(None)),
        },
        ("_?._", [Val::Optional(None), _]) => Ok(Val::Optional(None)),
        ("_?._", [Val::Optional(Some(of)), Val::Text(field)]) => Ok(Val::Optional(of.field(field).map(Rc::new))),
        ("_?._", [of, Val::Text(field)]) => Ok(Val::Optional(of.field(field).map(Rc::new))),
        ("@in" | "_in_", [item, of @ (Val::List(_) | Val::JsonList(..))]) => {
            let items = of.items().unwrap_or_default();
            run.spend(items.len() as u64)?;
            Ok(Val::Bool(run.within(|steps| items.iter().any(|known| known.equals(item, steps)))?))
        }
        ("@in" | "_in_", [key, of]) => match of.len() {
            Some(_) => Ok(Val::Bool(of.index(key).is_some())),
            None => Err(EvalError::overload()),
        },
        ("size", [value]) => size(run, value),
        ("matches", [Val::Text(text), Val::Text(pattern)]) => search_by(run, name, text, pattern, &[]),
        ("dyn", [value]) => Ok(value.clone()),
        ("type", [value]) => Ok(Val::Type(value.type_name())),
        ("int" | "uint" | "double" | "string" | "bool" | "bytes" | "duration" | "timestamp", [value]) => {
            run.read(value.size())?;
            convert(name, value)
        }
        ("optional.none", []) => Ok(Val::Optional(None)),
        ("optional.of", [value]) => Ok(Val::some(value.clone())),
        ("optional.ofNonZeroValue", [value]) => {
            Ok(if is_zero(value) { Val::Optional(None) } else { Val::some(value.clone()) })
        }
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a, b]) => sets(run, name, a, b),
        ("strings.quote", [Val::Text(text)]) => {
            run.read(text.len())?;
            Ok(Val::text(quote(text)))
        }
        _ => crate::kubernetes::global(run, name, args),
    }
}

fn overflow() -> EvalError {
    EvalError::new("return error for overflow")
}

fn arithmetic<'a>(run: &mut Evaluator<'a>, name: &str, a: &Val<'a>, b: &Val<'a>) -> EvalResult<'a> {
    let whole = |value: Option<i64>| value.map(Val::Int).ok_or_else(overflow);
    let natural = |value: Option<u64>| value.map(Val::Uint).ok_or_else(overflow);
    let span = |value: Option<i64>| value.map(Val::Duration).ok_or_else(overflow);
    match (name, a, b) {
        ("_/_", Val::Int(_), Val::Int(0)) | ("_/_", Val::Uint(_), Val::Uint(0)) => failed("division by zero"),
        ("_%_", Val::Int(_), Val::Int(0)) | ("_%_", Val::Uint(_), Val::Uint(0)) => failed("modulus by zero"),
        ("_+_", Val::Int(a), Val::Int(b)) => whole(a.checked_add(*b)),
        ("_-_", Val::Int(a), Val::Int(b)) => whole(a.checked_sub(*b)),
        ("_*_", Val::Int(a), Val::Int(b)) => whole(a.checked_mul(*b)),
        ("_/_", Val::Int(a), Val::Int(b)) => whole(a.checked_div(*b)),
        ("_%_", Val::Int(a), Val::Int(b)) => whole(a.checked_rem(*b)),
        ("_+_", Val::Uint(a), Val::Uint(b)) => natural(a.checked_add(*b)),
        ("_-_", Val::Uint(a), Val::Uint(b)) => natural(a.checked_sub(*b)),
        ("_*_", Val::Uint(a), Val::Uint(b)) => natural(a.checked_mul(*b)),
        ("_/_", Val::Uint(a), Val::Uint(b)) => natural(a.checked_div(*b)),
        ("_%_", Val::Uint(a), Val::Uint(b)) => natural(a.checked_rem(*b)),
        ("_+_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
        ("_-_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a - b)),
        ("_*_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a * b)),
        ("_/_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a / b)),
        ("_+_", Val::Text(a), Val::Text(b)) => {
            run.read(a.len() + b.len())?;
            text(format!("{a}{b}"))
        }
        ("_+_", Val::Bytes(a), Val::Bytes(b)) => {
            run.read(a.len() + b.len())?;
            Ok(Val::Bytes([a.as_ref(), b.as_ref()].concat().into()))
        }
        ("_+_", Val::List(_) | Val::JsonList(..), Val::List(_) | Val::JsonList(..)) => {
            let (mut items, more) = (a.items().unwrap_or_default(), b.items().unwrap_or_default());
            run.read(items.len() + more.len())?;
            items.extend(more);
            Ok(Val::list(items))
        }
        ("_+_", Val::Duration(a), Val::Duration(b)) => span(a.checked_add(*b)),
        ("_-_", Val::Duration(a), Val::Duration(b)) => span(a.checked_sub(*b)),
        ("_+_", Val::Timestamp(at), Val::Duration(span)) | ("_+_", Val::Duration(span), Val::Timestamp(at)) => {
            at.checked_add(time::Duration::nanoseconds(*span)).map(Val::Timestamp).ok_or_else(overflow)
        }
        ("_-_", Val::Timestamp(at), Val::Duration(span)) => {
            at.checked_sub(time::Duration::nanoseconds(*span)).map(Val::Timestamp).ok_or_else(overflow)
        }
        ("_-_", Val::Timestamp(a), Val::Timestamp(b)) => span(i64::try_from((*a - *b).whole_nanoseconds()).ok()),
        _ => Err(EvalError::overload()),
    }
}

/// Creates a string value. Fails above [`TEXT_BYTES_MAX`].
pub(crate) fn text<'a>(text: String) -> EvalResult<'a> {
    if text.len() > TEXT_BYTES_MAX { Err(EvalError::Limit) } else { Ok(Val::text(text)) }
}

fn index<'a>(of: &Val<'a>, key: &Val<'a>) -> EvalResult<'a> {
    match (of, key) {
        (Val::Optional(None), _) => Ok(Val::Optional(None)),
        (Val::Optional(Some(of)), key) => Ok(Val::Optional(of.index(key).map(Rc::new))),
        (Val::List(_) | Val::JsonList(..), Val::Int(at)) => {
            of.index(key).ok_or_else(|| EvalError::new(format!("index out of bounds: {at}")))
        }
        (Val::Map(_) | Val::JsonMap(..), key) => of.index(key).ok_or_else(|| {
            let shown = match key {
                Val::Text(text) => text.to_string(),
                Val::Int(int) => int.to_string(),
                other => other.type_name().to_owned(),
            };
            EvalError::new(format!("no such key: {shown}"))
        }),
        (Val::List(_) | Val::JsonList(..), key) => match whole_index(key).and_then(|at| of.item(at)) {
            Some(value) => Ok(value),
            None => Err(EvalError::overload()),
        },
        _ => Err(EvalError::overload()),
    }
}

fn size<'a>(run: &mut Evaluator<'a>, value: &Val<'a>) -> EvalResult<'a> {
    if let Val::Text(text) = value {
        run.within(|steps| steps.take_text(text.len()))?;
    }
    let size = match value {
        Val::Text(text) => text.chars().count(),
        Val::Bytes(bytes) => bytes.len(),
        other => other.len().ok_or_else(EvalError::overload)?,
    };
    Ok(Val::Int(size as i64))
}

/// Calls `matches`, `find` or `findAll` with a compiled regular expression.
pub(crate) fn search<'a>(
    run: &mut Evaluator<'a>,
    name: &str,
    text: &str,
    regex: &Matcher,
    rest: &[Val<'a>],
) -> EvalResult<'a> {
    let pattern_cost = (regex.as_str().chars().count() as u64).div_ceil(PATTERN_DIVISOR);
    let text_cost = (text.chars().count() as u64 + 1).div_ceil(READ_DIVISOR);
    run.spend(text_cost.saturating_mul(pattern_cost))?;
    match (name, rest) {
        ("matches", []) => Ok(Val::Bool(regex.is_match(text).ok_or(EvalError::Limit)?)),
        ("find", []) => Ok(Val::text(regex.find(text).unwrap_or_default())),
        ("findAll", rest) => {
            let limit = match rest {
                [Val::Int(limit)] if *limit >= 0 => *limit as usize,
                _ => usize::MAX,
            };
            Ok(Val::list(regex.find_all(text, limit).into_iter().map(Val::text).collect()))
        }
        _ => Err(EvalError::overload()),
    }
}

/// Calls `matches`, `find` or `findAll` with a regular expression that is not a literal. The compilation costs at least
/// as much as the search.
fn search_by<'a>(run: &mut Evaluator<'a>, name: &str, text: &str, pattern: &str, rest: &[Val<'a>]) -> EvalResult<'a> {
    const COMPILE_COST: u64 = 100;
    run.spend(COMPILE_COST + pattern.len() as u64)?;
    let regex = Matcher::compile(pattern).map_err(EvalError::new)?;
    search(run, name, text, &regex, rest)
}

fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Null | Val::Optional(None) => true,
        Val::Bool(value) => !value,
        Val::Int(value) | Val::Duration(value) => *value == 0,
        Val::Uint(value) => *value == 0,
        Val::Double(value) => *value == 0.0,
        Val::Text(text) => text.is_empty(),
        Val::Bytes(bytes) => bytes.is_empty(),
        other => other.len() == Some(0),
    }
}

pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

pub(crate) fn convert<'a>(to: &str, value: &Val<'a>) -> EvalResult<'a> {
    let range = || EvalError::new("range error");
    match (to, value) {
        ("int", Val::Int(_)) | ("uint", Val::Uint(_)) | ("double", Val::Double(_)) => Ok(value.clone()),
        ("string", Val::Text(_)) | ("bool", Val::Bool(_)) | ("bytes", Val::Bytes(_)) => Ok(value.clone()),
        ("duration", Val::Duration(_)) | ("timestamp", Val::Timestamp(_)) => Ok(value.clone()),
        ("int", Val::Uint(value)) => i64::try_from(*value).map(Val::Int).map_err(|_| range()),
        ("int", Val::Double(value)) if value.abs() < 9.2e18 => Ok(Val::Int(*value as i64)),
        ("int", Val::Double(_)) => Err(range()),
        ("int", Val::Text(text)) => match text.parse() {
            Ok(value) => Ok(Val::Int(value)),
            Err(_) => failed(format!("strconv.ParseInt: parsing {}: invalid syntax", quote(text))),
        },
        ("int", Val::Timestamp(at)) => Ok(Val::Int(at.unix_timestamp())),
        ("int", Val::Duration(span)) => Ok(Val::Int(*span)),
        ("uint", Val::Int(value)) => u64::try_from(*value).map(Val::Uint).map_err(|_| range()),
        ("uint", Val::Double(value)) if (0.0..1.8e19).contains(value) => Ok(Val::Uint(*value as u64)),
        ("uint", Val::Double(_)) => Err(range()),
        ("uint", Val::Text(text)) => match text.parse() {
            Ok(value) => Ok(Val::Uint(value)),
            Err(_) => failed(format!("strconv.ParseUint: parsing {}: invalid syntax", quote(text))),
        },
        ("double", Val::Int(value)) => Ok(Val::Double(*value as f64)),
        ("double", Val::Uint(value)) => Ok(Val::Double(*value as f64)),
        ("double", Val::Text(text)) => match text.parse() {
            Ok(value) => Ok(Val::Double(value)),
            Err(_) => failed(format!("strconv.ParseFloat: parsing {}: invalid syntax", quote(text))),
        },
        ("bool", Val::Text(text)) => match text.as_ref() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
            _ => failed(format!("strconv.ParseBool: parsing {}: invalid syntax", quote(text))),
        },
        ("bytes", Val::Text(text)) => Ok(Val::Bytes(text.as_bytes().into())),
        ("duration", Val::Text(text)) => match parse_go_duration(text) {
            Some(span) => Ok(Val::Duration(span)),
            None => failed(format!("time: invalid duration {}", quote(text))),
        },
        ("timestamp", Val::Text(text)) => match parse_timestamp(text) {
            Some(at) => Ok(Val::Timestamp(at)),
            None => failed(format!("parsing time {} as \"2006-01-02T15:04:05Z07:00\"", quote(text))),
        },
        ("timestamp", Val::Int(seconds)) => {
            OffsetDateTime::from_unix_timestamp(*seconds).map(Val::Timestamp).map_err(|_| range())
        }
        ("string", value) => to_text(value).map(Val::text).ok_or_else(EvalError::overload),
        _ => Err(EvalError::overload()),
    }
}

/// Converts a value to a string, if the conversion exists for its type.
fn to_text(value: &Val<'_>) -> Option<String> {
    Some(match value {
        Val::Text(text) => text.to_string(),
        Val::Bool(value) => value.to_string(),
        Val::Int(value) => value.to_string(),
        Val::Uint(value) => value.to_string(),
        Val::Double(value) => float(*value),
        Val::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
        Val::Duration(span) => format!("{}s", float(*span as f64 / 1e9)),
        Val::Timestamp(at) => at.format(&time::format_description::well_known::Rfc3339).ok()?,
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(ip, bits) => format!("{ip}/{bits}"),
        Val::Type(name) => (*name).to_owned(),
        Val::Null => "null".to_owned(),
        Val::Url(text) => text.to_string(),
        _ => return None,
    })
}

fn sets<'a>(run: &mut Evaluator<'a>, name: &str, a: &Val<'a>, b: &Val<'a>) -> EvalResult<'a> {
    let (Some(a), Some(b)) = (a.items(), b.items()) else { return Err(EvalError::overload()) };
    run.spend((a.len() as u64).saturating_mul(b.len() as u64))?;
    let answer = run.within(|steps| {
        let mut has = |list: &[Val<'a>], item: &Val<'a>| list.iter().any(|known| known.equals(item, steps));
        match name {
            "sets.contains" => b.iter().all(|item| has(&a, item)),
            "sets.equivalent" => a.iter().all(|item| has(&b, item)) && b.iter().all(|item| has(&a, item)),
            _ => a.iter().any(|item| has(&b, item)),
        }
    })?;
    Ok(Val::Bool(answer))
}

fn member<'a>(run: &mut Evaluator<'a>, name: &str, on: &Val<'a>, args: &[Val<'a>]) -> EvalResult<'a> {
    match (on, name, args) {
        (_, "size", []) => size(run, on),
        (Val::Optional(value), "hasValue", []) => Ok(Val::Bool(value.is_some())),
        (Val::Optional(Some(value)), "value", []) => Ok((**value).clone()),
        (Val::Optional(None), "value", []) => failed("optional.none() dereference"),
        (Val::Authz(authz), name, args) => authorizer::member(run, authz, name, args),
        (Val::Text(text), ..) => {
            run.read(text.len())?;
            on_text(run, name, text, args)
        }
        (Val::List(_) | Val::JsonList(..), ..) => {
            let items = on.items().unwrap_or_default();
            run.spend(items.len() as u64)?;
            on_list(run, name, &items, args)
        }
        (Val::Timestamp(at), name, []) => part_of_time(name, at),
        (Val::Timestamp(at), name, [Val::Text(zone)]) => match offset(zone) {
            Some(offset) => part_of_time(name, &at.to_offset(offset)),
            None => failed(format!("unknown time zone {zone}")),
        },
        (Val::Duration(span), name, []) => match name {
            "getHours" => Ok(Val::Int(span / 3_600_000_000_000)),
            "getMinutes" => Ok(Val::Int(span / 60_000_000_000)),
            "getSeconds" => Ok(Val::Int(span / 1_000_000_000)),
            "getMilliseconds" => Ok(Val::Int(span / 1_000_000)),
            _ => Err(EvalError::overload()),
        },
        _ => crate::kubernetes::member(run, name, on, args),
    }
}

/// UTC or an offset such as `-08:00`. Names of regions are not supported.
pub(crate) fn offset(zone: &str) -> Option<UtcOffset> {
    if matches!(zone, "UTC" | "" | "Etc/UTC" | "GMT") {
        return Some(UtcOffset::UTC);
    }
    let (sign, rest) = match zone.as_bytes().first()? {
        b'-' => (-1, &zone[1..]),
        b'+' => (1, &zone[1..]),
        _ => (1, zone),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let part = |text: &str| text.parse::<i8>().ok()?.checked_mul(sign);
    UtcOffset::from_hms(part(hours)?, part(minutes)?, 0).ok()
}

fn part_of_time<'a>(name: &str, at: &OffsetDateTime) -> EvalResult<'a> {
    Ok(Val::Int(match name {
        "getFullYear" => at.year().into(),
        "getMonth" => i64::from(u8::from(at.month())) - 1,
        "getDate" => at.day().into(),
        "getDayOfMonth" => i64::from(at.day()) - 1,
        "getDayOfWeek" => at.weekday().number_days_from_sunday().into(),
        "getDayOfYear" => i64::from(at.ordinal()) - 1,
        "getHours" => at.hour().into(),
        "getMinutes" => at.minute().into(),
        "getSeconds" => at.second().into(),
        "getMilliseconds" => at.millisecond().into(),
        _ => return Err(EvalError::overload()),
    }))
}

fn on_text<'a>(run: &mut Evaluator<'a>, name: &str, on: &str, args: &[Val<'a>]) -> EvalResult<'a> {
    let char_at = |index: i64| -> Option<usize> {
        let index = usize::try_from(index).ok()?;
        on.char_indices().map(|(at, _)| at).chain([on.len()]).nth(index)
    };
    let out = |index: i64| EvalError::new(format!("index out of range: {index}"));
    let place = |at: Option<usize>| Val::Int(at.map_or(-1, |at| on[..at].chars().count() as i64));
    match (name, args) {
        ("contains", [Val::Text(part)]) => {
            run.read(part.len())?;
            Ok(Val::Bool(on.contains(part.as_ref())))
        }
        ("startsWith", [Val::Text(part)]) => Ok(Val::Bool(on.starts_with(part.as_ref()))),
        ("endsWith", [Val::Text(part)]) => Ok(Val::Bool(on.ends_with(part.as_ref()))),
        ("matches" | "find" | "findAll", [Val::Text(pattern), rest @ ..]) => search_by(run, name, on, pattern, rest),
        ("charAt", [Val::Int(index)]) => {
            let at = char_at(*index).ok_or_else(|| out(*index))?;
            Ok(Val::text(on[at..].chars().next().map(String::from).unwrap_or_default()))
        }
        ("indexOf", [Val::Text(part)]) => Ok(place(on.find(part.as_ref()))),
        ("indexOf", [Val::Text(part), Val::Int(from)]) => {
            let from = char_at(*from).ok_or_else(|| out(*from))?;
            Ok(place(on[from..].find(part.as_ref()).map(|at| at + from)))
        }
        ("lastIndexOf", [Val::Text(part)]) => Ok(place(on.rfind(part.as_ref()))),
        ("lastIndexOf", [Val::Text(part), Val::Int(until)]) => {
            let until = char_at(*until).ok_or_else(|| out(*until))?;
            let found = on.match_indices(part.as_ref()).map(|(at, _)| at).take_while(|at| *at <= until).last();
            Ok(place(found))
        }
        ("lowerAscii", []) => Ok(Val::text(on.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Val::text(on.to_ascii_uppercase())),
        ("trim", []) => Ok(Val::text(on.trim())),
        ("replace", [Val::Text(from), Val::Text(to), rest @ ..]) => {
            let limit = match rest {
                [Val::Int(limit)] if *limit >= 0 => *limit as usize,
                _ => usize::MAX,
            };
            let count = if from.is_empty() { on.len() + 1 } else { on.matches(from.as_ref()).count() }.min(limit);
            run.read(count.saturating_mul(to.len()).saturating_add(on.len()))?;
            text(if limit == usize::MAX {
                on.replace(from.as_ref(), to)
            } else {
                on.replacen(from.as_ref(), to, limit)
            })
        }
        ("split", [Val::Text(by), rest @ ..]) => {
            let limit = match rest {
                [Val::Int(0)] => return Ok(Val::list(Vec::new())),
                [Val::Int(limit)] if *limit > 0 => *limit as usize,
                _ => usize::MAX,
            };
            let parts: Vec<Val<'a>> = if by.is_empty() {
                let mut chars = on.chars();
                let mut parts: Vec<Val<'a>> = chars.by_ref().take(limit - 1).map(Val::text).collect();
                if !chars.as_str().is_empty() {
                    parts.push(Val::text(chars.as_str()));
                }
                parts
            } else {
                on.splitn(limit, by.as_ref()).map(Val::text).collect()
            };
            run.spend(parts.len() as u64)?;
            Ok(Val::list(parts))
        }
        ("substring", [Val::Int(from), rest @ ..]) => {
            let start = char_at(*from).ok_or_else(|| out(*from))?;
            let end = match rest {
                [Val::Int(to)] => char_at(*to).ok_or_else(|| out(*to))?,
                _ => on.len(),
            };
            match on.get(start..end) {
                Some(part) => Ok(Val::text(part)),
                None => failed(format!("invalid substring range. start: {start}, end: {end}")),
            }
        }
        ("format", [list]) => {
            let items = list.items().ok_or_else(EvalError::overload)?;
            run.within(|steps| steps.take_all_of(list))?;
            text(format(on, &items)?)
        }
        _ => Err(EvalError::overload()),
    }
}

/// `"…".format([…])` of the strings extension.
fn format(pattern: &str, args: &[Val<'_>]) -> Result<String, EvalError> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = chars.next();
        let mut precision = 6usize;
        if verb == Some('%') {
            out.push('%');
            continue;
        }
        if verb == Some('.') {
            let digits: String = chars.as_str().chars().take_while(char::is_ascii_digit).collect();
            chars = chars.as_str()[digits.len()..].chars();
            precision = digits.parse::<usize>().ok().filter(|digits| *digits <= 100).unwrap_or(6);
            verb = chars.next();
        }
        let Some(value) = args.next() else { return Err(EvalError::new("index out of range")) };
        let written = match (verb, value) {
            (Some('s'), value) => format_value(value, 0),
            (Some('d'), Val::Int(_) | Val::Uint(_)) => to_text(value),
            (Some('f'), Val::Double(value)) => Some(format!("{value:.precision$}")),
            (Some('f'), Val::Int(value)) => Some(format!("{:.precision$}", *value as f64)),
            (Some('e'), Val::Double(value)) => Some(format!("{value:.precision$e}")),
            (Some('b'), Val::Int(value)) => Some(format!("{value:b}")),
            (Some('b'), Val::Bool(value)) => Some(u8::from(*value).to_string()),
            (Some('o'), Val::Int(value)) => Some(format!("{value:o}")),
            (Some('x'), Val::Int(value)) => Some(format!("{value:x}")),
            (Some('X'), Val::Int(value)) => Some(format!("{value:X}")),
            (Some('x'), Val::Text(text)) => Some(text.bytes().map(|b| format!("{b:02x}")).collect()),
            (Some('X'), Val::Text(text)) => Some(text.bytes().map(|b| format!("{b:02X}")).collect()),
            _ => None,
        };
        let Some(written) = written else {
            return Err(EvalError::new("error during formatting: unrecognized formatting clause"));
        };
        out.push_str(&written);
        if out.len() > TEXT_BYTES_MAX {
            return Err(EvalError::Limit);
        }
    }
    Ok(out)
}

/// Formats a value for `%s`.
fn format_value(value: &Val<'_>, depth: usize) -> Option<String> {
    if let (Some(items), true) = (value.items(), depth < 32) {
        let items: Option<Vec<String>> = items.iter().map(|item| format_value(item, depth + 1)).collect();
        return Some(format!("[{}]", items?.join(", ")));
    }
    if let (Some(entries), true) = (value.entries(), depth < 32) {
        let entries: Option<Vec<String>> = entries
            .iter()
            .map(|(key, value)| Some(format!("{}: {}", format_value(key, depth + 1)?, format_value(value, depth + 1)?)))
            .collect();
        let mut entries = entries?;
        entries.sort();
        return Some(format!("{{{}}}", entries.join(", ")));
    }
    to_text(value)
}

fn on_list<'a>(run: &mut Evaluator<'a>, name: &str, items: &[Val<'a>], args: &[Val<'a>]) -> EvalResult<'a> {
    match (name, args) {
        ("join", by) => {
            let by: Cow<'a, str> = match by {
                [Val::Text(by)] => by.clone(),
                _ => "".into(),
            };
            let mut out = String::new();
            for (index, item) in items.iter().enumerate() {
                let Val::Text(item) = item else { return Err(EvalError::overload()) };
                run.read(item.len() + by.len())?;
                if index > 0 {
                    out.push_str(&by);
                }
                out.push_str(item);
                if out.len() > TEXT_BYTES_MAX {
                    return Err(EvalError::Limit);
                }
            }
            Ok(Val::text(out))
        }
        ("isSorted", []) => {
            Ok(Val::Bool(items.windows(2).all(|pair| pair[0].compare(&pair[1]).is_some_and(Ordering::is_le))))
        }
        ("min" | "max", []) => {
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<&Val<'a>> = None;
            for item in items {
                if best.is_none_or(|best| item.compare(best) == Some(wanted)) {
                    best = Some(item);
                }
            }
            best.cloned().ok_or_else(|| EvalError::new(format!("{name} called on empty list")))
        }
        ("sum", []) => {
            let mut sum: Option<Val<'a>> = None;
            for item in items {
                sum = Some(match sum {
                    None => item.clone(),
                    Some(sum) => arithmetic(run, "_+_", &sum, item)?,
                });
            }
            Ok(sum.unwrap_or(Val::Int(0)))
        }
        ("first", []) => Ok(Val::Optional(items.first().cloned().map(Rc::new))),
        ("last", []) => Ok(Val::Optional(items.last().cloned().map(Rc::new))),
        ("reverse", []) => Ok(Val::list(items.iter().rev().cloned().collect())),
        ("slice", [Val::Int(start), Val::Int(end)]) => slice(items, *start, *end),
        ("flatten", []) => flatten(run, items, 1),
        ("flatten", [Val::Int(depth)]) if *depth < 0 => failed("level must be non-negative"),
        ("flatten", [Val::Int(depth)]) => flatten(run, items, *depth),
        ("distinct", []) => {
            let mut distinct: Vec<Val<'a>> = Vec::new();
            for item in items {
                run.spend(distinct.len() as u64)?;
                if !run.within(|steps| distinct.iter().any(|known| known.equals(item, steps)))? {
                    distinct.push(item.clone());
                }
            }
            Ok(Val::list(distinct))
        }
        ("sort", []) => sort_by_keys(run, items.to_vec(), items),
        ("indexOf", [item]) => {
            let at = run.within(|steps| items.iter().position(|known| known.equals(item, steps)))?;
            Ok(Val::Int(at.map_or(-1, |at| at as i64)))
        }
        ("lastIndexOf", [item]) => {
            let at = run.within(|steps| items.iter().rposition(|known| known.equals(item, steps)))?;
            Ok(Val::Int(at.map_or(-1, |at| at as i64)))
        }
        _ => Err(EvalError::overload()),
    }
}

fn slice<'a>(items: &[Val<'a>], start: i64, end: i64) -> EvalResult<'a> {
    let shown = format!("cannot slice({start}, {end}), ");
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return failed(shown + "negative indexes not supported");
    };
    if from > to {
        return failed(shown + "start index must be less than or equal to end index");
    }
    match items.get(from..to) {
        Some(part) => Ok(Val::list(part.to_vec())),
        None => failed(format!("{shown}list is length {}", items.len())),
    }
}

/// The items of nested lists, down to a depth.
fn flatten<'a>(run: &mut Evaluator<'a>, items: &[Val<'a>], depth: i64) -> EvalResult<'a> {
    let mut flat = items.to_vec();
    for _ in 0..depth {
        if !flat.iter().any(|item| matches!(item, Val::List(_) | Val::JsonList(..))) {
            break;
        }
        let mut next = Vec::new();
        for item in flat {
            match item.items() {
                Some(nested) => {
                    run.spend(nested.len() as u64 + 1)?;
                    next.extend(nested);
                }
                None => next.push(item),
            }
        }
        flat = next;
    }
    Ok(Val::list(flat))
}

/// Sorts items by their keys, which have one comparable type.
pub(crate) fn sort_by_keys<'a>(run: &mut Evaluator<'a>, items: Vec<Val<'a>>, keys: &[Val<'a>]) -> EvalResult<'a> {
    let is_comparable = |key: &Val<'a>| {
        matches!(
            key,
            Val::Int(_)
                | Val::Uint(_)
                | Val::Double(_)
                | Val::Bool(_)
                | Val::Text(_)
                | Val::Bytes(_)
                | Val::Duration(_)
                | Val::Timestamp(_)
        )
    };
    if !keys.iter().all(is_comparable) {
        return failed("list elements must be comparable");
    }
    if keys.windows(2).any(|pair| pair[0].type_name() != pair[1].type_name()) {
        return failed("list elements must have the same type");
    }
    // Each key is compared about as often as its position has bits.
    let comparisons = u64::from(usize::BITS - keys.len().leading_zeros());
    for key in keys {
        run.spend(comparisons.saturating_mul(1 + key.size() as u64 / 64))?;
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| keys[*a].compare(&keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Val::list(order.into_iter().map(|at| items[at].clone()).collect()))
}

/// A part of a URL, by the name of its getter.
pub(crate) fn url_part<'a>(url: &str, part: &str) -> EvalResult<'a> {
    let (scheme, rest) = match split_scheme(url) {
        Some((true, rest)) => (&url[..url.len() - rest.len() - 1], rest),
        _ => ("", url),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", rest),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (name, port) = match host.rfind(':').filter(|at| !host[*at..].contains(']')) {
        Some(at) => (&host[..at], &host[at + 1..]),
        None => (host, ""),
    };
    Ok(match part {
        "getScheme" => Val::text(scheme.to_lowercase()),
        "getHost" => Val::text(host),
        "getHostname" => Val::text(name.trim_start_matches('[').trim_end_matches(']')),
        "getPort" => Val::text(port),
        "getEscapedPath" => Val::text(if path.starts_with('/') || scheme.is_empty() { path } else { "" }),
        _ => {
            let mut pairs: Vec<(String, Vec<Val<'a>>)> = Vec::new();
            let mut places: HashMap<String, usize> = HashMap::new();
            for pair in query.split('&').filter(|pair| !pair.is_empty()) {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                let (key, value) = (unescape_query(key), Val::text(unescape_query(value)));
                match places.get(&key) {
                    Some(at) => pairs[*at].1.push(value),
                    None => {
                        places.insert(key.clone(), pairs.len());
                        pairs.push((key, vec![value]));
                    }
                }
            }
            let mut map = MapVal::default();
            for (key, values) in pairs {
                map.insert(Val::text(key), Val::list(values));
            }
            Val::Map(Rc::new(map))
        }
    })
}

fn unescape_query(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'+' => out.push(b' '),
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).unwrap_or(0) as u8;
                let high = digit();
                out.push(high << 4 | digit());
            }
            b => out.push(b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// True if a string is an absolute URL or an absolute path.
pub(crate) fn is_url(text: &str) -> bool {
    Format::Uri.accepts(text) && text != "*" && {
        let (scheme, rest) = split_scheme(text).unwrap_or((false, text));
        match rest.strip_prefix("//").filter(|_| scheme) {
            Some(after) => {
                let end = after.find(['/', '?']).unwrap_or(after.len());
                is_authority(&after[..end]) && escapes_are_whole(&after[end..])
            }
            None => true,
        }
    }
}

pub(crate) fn parse_quantity(text: &str) -> Result<Quantity, EvalError> {
    Quantity::parse(text).ok_or_else(|| {
        let form = "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        EvalError::new(format!("quantities must match the regular expression {form}"))
    })
}

pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    // IPv4-mapped IPv6 addresses are rejected, as in Kubernetes.
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

pub(crate) fn parse_version<'a>(text: &str, normalize: bool) -> Option<Val<'a>> {
    Version::parse(text, normalize).map(|version| Val::Semver(Rc::new(version)))
}
