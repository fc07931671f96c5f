//! The value types that Kubernetes adds to CEL: quantities, URLs, IP addresses, CIDRs, versions,
//! formats.
//! Rules: apiserver `pkg/cel/library`, Kubernetes 1.36.

use std::net::IpAddr;
use std::rc::Rc;

use listwatch_meta::selector::{
    dns_1035_label_problems, validate_dns_label, validate_dns_subdomain, validate_label_value, validate_qualified_name,
};

use crate::eval::{EvalError, EvalResult, Evaluator};
use crate::format::Format;
use crate::library::{is_url, parse_ip, parse_quantity, parse_version, url_part};
use crate::quantity::Quantity;
use crate::value::Val;

/// Calls a global function that constructs a value of the Kubernetes library, or tests whether it is valid.
pub(crate) fn global<'a>(run: &mut Evaluator<'a>, name: &str, args: &[Val<'a>]) -> EvalResult<'a> {
    if let Some(first) = args.first() {
        run.read(first.size())?;
    }
    let or = |value: Option<Val<'a>>, text: &str| value.ok_or_else(|| EvalError::new(text));
    match (name, args) {
        ("url", [Val::Text(text)]) if is_url(text) => Ok(Val::Url(text.as_ref().into())),
        ("url", [Val::Text(text)]) => {
            Err(EvalError::new(format!("URL parse error during conversion from string: {text}")))
        }
        ("isURL", [Val::Text(text)]) => Ok(Val::Bool(is_url(text))),
        ("quantity", [Val::Text(text)]) => parse_quantity(text).map(Val::Quantity),
        ("isQuantity", [Val::Text(text)]) => Ok(Val::Bool(parse_quantity(text).is_ok())),
        ("ip", [Val::Text(text)]) => {
            or(parse_ip(text).map(Val::Ip), "IP Address parse error during conversion from string")
        }
        ("isIP", [Val::Text(text)]) => Ok(Val::Bool(parse_ip(text).is_some())),
        ("ip.isCanonical", [Val::Text(text)]) => match parse_ip(text) {
            Some(ip) => Ok(Val::Bool(ip.to_string() == text.as_ref())),
            None => Err(EvalError::new("IP Address parse error during conversion from string")),
        },
        ("cidr", [Val::Text(text)]) => {
            or(parse_cidr(text), "network address parse error during conversion from string")
        }
        ("isCIDR", [Val::Text(text)]) => Ok(Val::Bool(parse_cidr(text).is_some())),
        ("semver", [Val::Text(text)]) => or(parse_version(text, false), "No semantic version found"),
        ("semver", [Val::Text(text), Val::Bool(normalize)]) => {
            or(parse_version(text, *normalize), "No semantic version found")
        }
        ("isSemver", [Val::Text(text)]) => Ok(Val::Bool(parse_version(text, false).is_some())),
        ("isSemver", [Val::Text(text), Val::Bool(normalize)]) => {
            Ok(Val::Bool(parse_version(text, *normalize).is_some()))
        }
        ("format.named", [Val::Text(name)]) => {
            let known = FORMATS.iter().find(|known| **known == name.as_ref());
            Ok(Val::Optional(known.map(|name| Rc::new(Val::Format(name)))))
        }
        (name, []) => {
            match name.strip_prefix("format.").and_then(|name| FORMATS.iter().find(|known| **known == name)) {
                Some(name) => Ok(Val::Format(name)),
                None => Err(EvalError::overload()),
            }
        }
        _ => Err(EvalError::overload()),
    }
}

/// Calls a member function of a value of the Kubernetes library.
pub(crate) fn member<'a>(run: &mut Evaluator<'a>, name: &str, on: &Val<'a>, args: &[Val<'a>]) -> EvalResult<'a> {
    run.read(on.size())?;
    match on {
        Val::Quantity(quantity) => on_quantity(name, *quantity, args),
        Val::Url(url) => url_part(url, name),
        Val::Ip(ip) => on_ip(name, *ip),
        Val::Cidr(ip, bits) => on_cidr(name, *ip, *bits, args),
        Val::Semver(version) => match (name, args) {
            ("major", []) => Ok(Val::Int(version.major())),
            ("minor", []) => Ok(Val::Int(version.minor())),
            ("patch", []) => Ok(Val::Int(version.patch())),
            ("compareTo", [Val::Semver(other)]) => Ok(Val::Int(version.compare(other) as i64)),
            ("isLessThan", [Val::Semver(other)]) => Ok(Val::Bool(version.compare(other).is_lt())),
            ("isGreaterThan", [Val::Semver(other)]) => Ok(Val::Bool(version.compare(other).is_gt())),
            _ => Err(EvalError::overload()),
        },
        Val::Format(format) => match (name, args) {
            ("validate", [Val::Text(text)]) => {
                run.read(text.len())?;
                let problems = problems(format, text);
                Ok(if problems.is_empty() {
                    Val::Optional(None)
                } else {
                    Val::some(Val::list(problems.into_iter().map(Val::text).collect()))
                })
            }
            _ => Err(EvalError::overload()),
        },
        _ => Err(EvalError::overload()),
    }
}

fn on_quantity<'a>(name: &str, quantity: Quantity, args: &[Val<'a>]) -> EvalResult<'a> {
    let sum = |value: Option<Quantity>| value.map(Val::Quantity).ok_or_else(|| EvalError::new("quantity out of range"));
    match (name, args) {
        ("isInteger", []) => Ok(Val::Bool(quantity.as_int().is_some())),
        ("asInteger", []) => {
            quantity.as_int().map(Val::Int).ok_or_else(|| EvalError::new("cannot convert value to integer"))
        }
        ("asApproximateFloat", []) => Ok(Val::Double(quantity.as_f64())),
        ("sign", []) => Ok(Val::Int(quantity.sign())),
        ("add", [Val::Quantity(other)]) => sum(quantity.add(*other)),
        ("add", [Val::Int(other)]) => sum(quantity.add(Quantity::of(*other))),
        ("sub", [Val::Quantity(other)]) => sum(quantity.sub(*other)),
        ("sub", [Val::Int(other)]) => sum(quantity.sub(Quantity::of(*other))),
        ("isLessThan", [Val::Quantity(other)]) => Ok(Val::Bool(quantity < *other)),
        ("isGreaterThan", [Val::Quantity(other)]) => Ok(Val::Bool(quantity > *other)),
        ("compareTo", [Val::Quantity(other)]) => Ok(Val::Int(quantity.cmp(other) as i64)),
        _ => Err(EvalError::overload()),
    }
}

fn on_ip<'a>(name: &str, ip: IpAddr) -> EvalResult<'a> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let link_local_multicast = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    };
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    Ok(match name {
        "family" => Val::Int(if ip.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Val::Bool(ip.is_unspecified()),
        "isLoopback" => Val::Bool(ip.is_loopback()),
        "isLinkLocalMulticast" => Val::Bool(link_local_multicast),
        "isLinkLocalUnicast" => Val::Bool(link_local),
        "isGlobalUnicast" => {
            Val::Bool(!broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local)
        }
        _ => return Err(EvalError::overload()),
    })
}

fn parse_cidr<'a>(text: &str) -> Option<Val<'a>> {
    let (address, bits) = text.split_once('/')?;
    let ip = parse_ip(address)?;
    if bits.len() > 3 || bits.is_empty() || (bits.len() > 1 && bits.starts_with('0')) {
        return None;
    }
    let bits: u8 = bits.bytes().all(|b| b.is_ascii_digit()).then(|| bits.parse().ok()).flatten()?;
    (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some(Val::Cidr(ip, bits))
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

fn on_cidr<'a>(name: &str, ip: IpAddr, bits: u8, args: &[Val<'a>]) -> EvalResult<'a> {
    let contains = |other: IpAddr| other.is_ipv4() == ip.is_ipv4() && masked(other, bits) == masked(ip, bits);
    match (name, args) {
        ("containsIP", [Val::Ip(other)]) => Ok(Val::Bool(contains(*other))),
        ("containsIP", [Val::Text(text)]) => match parse_ip(text) {
            Some(other) => Ok(Val::Bool(contains(other))),
            None => Err(EvalError::new("IP Address parse error during conversion from string")),
        },
        ("containsCIDR", [Val::Cidr(other, other_bits)]) => Ok(Val::Bool(bits <= *other_bits && contains(*other))),
        ("containsCIDR", [Val::Text(text)]) => match parse_cidr(text) {
            Some(Val::Cidr(other, other_bits)) => Ok(Val::Bool(bits <= other_bits && contains(other))),
            _ => Err(EvalError::new("network address parse error during conversion from string")),
        },
        ("ip", []) => Ok(Val::Ip(ip)),
        ("masked", []) => Ok(Val::Cidr(masked(ip, bits), bits)),
        ("prefixLength", []) => Ok(Val::Int(bits.into())),
        _ => Err(EvalError::overload()),
    }
}

const FORMATS: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// Validates a string by a named format, and returns the errors.
fn problems(format: &str, text: &str) -> Vec<String> {
    // A prefix may end in a dash, because a suffix follows.
    let masked = match format.strip_suffix("Prefix").and_then(|_| text.strip_suffix('-')) {
        Some(front) if !front.is_empty() => format!("{front}a"),
        _ => text.to_owned(),
    };
    let of = |result: Result<(), String>| result.err().into_iter().collect();
    let by = |format: Format, why: &str| if format.accepts(text) { Vec::new() } else { vec![why.to_owned()] };
    match format {
        "dns1123Label" | "dns1123LabelPrefix" => of(validate_dns_label(&masked)),
        "dns1123Subdomain" | "dns1123SubdomainPrefix" => of(validate_dns_subdomain(&masked)),
        "dns1035Label" | "dns1035LabelPrefix" => dns_1035_label_problems(&masked),
        "qualifiedName" => of(validate_qualified_name(text)),
        "labelValue" => of(validate_label_value(text)),
        "uri" => by(Format::Uri, "invalid URI for request"),
        "uuid" => by(Format::Uuid, "does not match the UUID format"),
        "byte" => by(Format::Byte, "invalid base64"),
        "date" => by(Format::Date, "invalid date"),
        _ => by(Format::DateTime, "invalid datetime"),
    }
}
