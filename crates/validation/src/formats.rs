//! The formats of values that many kinds share: IP addresses, CIDR ranges, names, quantities
//! (`apimachinery/pkg/util/validation`, Kubernetes v1.36).
//!
//! Fields older than v1.33 accept an IP address or range in any notation. Since v1.36, these fields
//! reject ambiguous notations (leading zeros, IPv4 inside IPv6). Newer fields accept only the
//! canonical notation.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_meta::selector::{
    dns_label_problems, dns_subdomain_problems, label_value_problems, qualified_name_problems,
};
use listwatch_schema::Path;

use crate::{Errors, Object, items, objects, quantities, text};

/// The largest number of digits of a prefix length with leading zeros.
const PREFIX_DIGITS_MAX: usize = 6;
/// The length of the name of a CSI or device driver in bytes.
const DRIVER_NAME_BYTES_MAX: usize = 63;

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
/// The error text for an immutable field.
pub const IMMUTABLE: &str = "field is immutable";
/// The error text for a negative number.
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

impl Errors {
    /// Reports an invalid string at `at`.
    pub fn invalid(&mut self, at: &Path<'_>, text: &str, why: impl std::fmt::Display) {
        self.push(FieldError::invalid(at, quote(text), why));
    }

    /// Reports an invalid value at `at` that is not a string.
    pub fn invalid_value(&mut self, at: &Path<'_>, value: impl std::fmt::Display, why: impl std::fmt::Display) {
        self.push(FieldError::invalid(at, value, why));
    }

    /// Reports a missing value.
    pub fn required(&mut self, at: &Path<'_>, why: &str) {
        self.push(FieldError::required(at, why));
    }

    /// Reports a field that must not be set or changed.
    pub fn forbidden(&mut self, at: &Path<'_>, why: &str) {
        self.push(FieldError::forbidden(at, why));
    }

    /// Reports a string that is not one of the supported values.
    pub fn not_supported(&mut self, at: &Path<'_>, text: &str, supported: &[&str]) {
        self.push(FieldError::not_supported(at, text, supported));
    }

    /// Reports a duplicate string.
    pub fn duplicate(&mut self, at: &Path<'_>, text: &str) {
        self.push(FieldError::duplicate(at, quote(text)));
    }

    /// Reports a value with more than `max` bytes.
    pub fn too_long(&mut self, at: &Path<'_>, max: usize) {
        self.push(FieldError::too_long(at, format_args!("may not be more than {max} bytes")));
    }

    /// Reports a list with `actual` items, of which `max` are allowed.
    pub fn too_many(&mut self, at: &Path<'_>, actual: usize, max: usize) {
        self.push(FieldError::too_many(at, actual, max));
    }

    /// Adds one error for each problem of a string.
    pub fn problems(&mut self, at: &Path<'_>, text: &str, problems: Vec<String>) {
        for problem in problems {
            self.invalid(at, text, problem);
        }
    }
}

/// True if the maximum number of errors is reached. Loops over large bodies can then end.
pub fn is_full(errors: &Errors) -> bool {
    errors.len() >= listwatch_schema::limits::FIELD_ERRORS_MAX
}

/// Encodes a value as Go's JSON. An absent value is encoded like a nil slice or map.
pub fn json(value: Option<&Value>) -> String {
    value.map_or_else(|| "null".to_owned(), Value::to_string)
}

// IP addresses.

fn sloppy_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        let part = part.trim_start_matches('0');
        *octet = if part.is_empty() { 0 } else { part.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// The length of the longest string that is parsed as an IPv6 address, in bytes. Some leading zeros
/// are allowed in each group.
const ADDRESS_BYTES_MAX: usize = 256;

fn sloppy_ipv6(text: &str) -> Option<Ipv6Addr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if text.len() > ADDRESS_BYTES_MAX || !text.contains(':') {
        return None;
    }
    let parts: Vec<String> = text
        .split(':')
        .map(|part| {
            if part.contains('.') {
                return sloppy_ipv4(part).map_or_else(|| part.to_owned(), |address| address.to_string());
            }
            let short = part.trim_start_matches('0');
            if short.is_empty() && !part.is_empty() { "0".to_owned() } else { short.to_owned() }
        })
        .collect();
    parts.join(":").parse().ok()
}

/// Parses an IP address in any notation (`ParseIPSloppy` of `k8s.io/utils/net`).
pub fn sloppy_ip(text: &str) -> Option<IpAddr> {
    sloppy_ipv4(text).map(IpAddr::V4).or_else(|| sloppy_ipv6(text).map(IpAddr::V6))
}

/// True if Go treats the address as IPv6. Go treats an IPv4-mapped IPv6 address as IPv4.
pub fn is_ipv6(text: &str) -> bool {
    matches!(sloppy_ip(text), Some(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none())
}

/// True if a string is an IPv4 address.
pub fn is_ipv4(text: &str) -> bool {
    sloppy_ip(text).is_some() && !is_ipv6(text)
}

fn read_ip(text: &str, at: &Path<'_>, errors: &mut Errors) -> Option<IpAddr> {
    let Some(address) = sloppy_ip(text) else {
        errors.invalid(at, text, NO_ADDRESS);
        return None;
    };
    let before = errors.len();
    if text.parse::<IpAddr>().is_err() {
        errors.invalid(at, text, "must not have leading 0s");
    } else if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        errors.invalid(at, text, "must not be an IPv4-mapped IPv6 address");
    }
    (errors.len() == before).then_some(address)
}

/// Checks an IP address in a field older than v1.33 (`IsValidIPForLegacyField`). Returns whether it
/// is valid.
pub fn legacy_ip(text: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    read_ip(text, at, errors).is_some()
}

/// Checks an IP address in canonical notation (`IsValidIP`). Returns whether it is valid.
pub fn strict_ip(text: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let Some(address) = read_ip(text, at, errors) else { return false };
    let canonical = address.to_string();
    if canonical != text {
        errors.invalid(at, text, format_args!("must be in canonical form ({})", quote(&canonical)));
    }
    canonical == text
}

/// The problems of a name that must be an IP address in canonical notation.
pub fn strict_ip_problems(name: &str) -> Vec<String> {
    let mut errors = Errors::default();
    strict_ip(name, &Path::NIL, &mut errors);
    let shown = format!("Invalid value: {}: ", quote(name));
    errors.iter().map(|error| error.message.trim_start_matches(&shown).to_owned()).collect()
}

/// Checks an IP address of an endpoint (`ValidateEndpointIP`).
pub fn endpoint_ip(text: &str, at: &Path<'_>, errors: &mut Errors) {
    let Some(address) = sloppy_ip(text) else {
        errors.invalid(at, text, "must be a valid IP address");
        return;
    };
    if address.is_unspecified() {
        errors.invalid(at, text, format_args!("may not be unspecified ({text})"));
    }
    let address = match address {
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    if address.is_loopback() {
        errors.invalid(at, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (local, multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => (address.segments()[0] & 0xffc0 == 0xfe80, address.segments()[0] & 0xff0f == 0xff02),
    };
    if local {
        errors.invalid(at, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        errors.invalid(at, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// A CIDR range as it was written: the address may have bits after the prefix.
#[derive(Clone, Copy)]
pub struct Range {
    /// The IP address before the slash.
    pub address: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u32,
}

impl Range {
    /// Parses a range in any notation (`ParseCIDRSloppy`).
    pub fn parse(text: &str) -> Option<Range> {
        let (address, prefix) = text.split_once('/')?;
        let address = sloppy_ip(address)?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let short = prefix.trim_start_matches('0');
        if !digits || short.len() > PREFIX_DIGITS_MAX {
            return None;
        }
        let prefix = if short.is_empty() { 0 } else { short.parse().ok()? };
        (prefix <= bits(address)).then_some(Range { address, prefix })
    }

    /// The first IP address of the range.
    pub fn network(self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - self.prefix).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
            }
        }
    }

    /// True if this range contains `other` and has a shorter prefix. Ranges of different IP
    /// families do not contain each other.
    pub fn is_strictly_above(self, other: Range) -> bool {
        let inner = Range { address: other.network(), prefix: self.prefix };
        let same_family = self.address.is_ipv4() == other.address.is_ipv4();
        same_family && inner.network() == self.network() && self.prefix < other.prefix
    }

    /// True if this is an IPv6 range.
    pub fn is_ipv6(self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.to_ipv4_mapped().is_none())
    }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn read_cidr(text: &str, at: &Path<'_>, errors: &mut Errors) -> Option<Range> {
    let Some(range) = Range::parse(text) else {
        errors.invalid(at, text, NO_RANGE);
        return None;
    };
    let (address, prefix) = text.split_once('/').unwrap_or_default();
    let well_spelled = address.parse::<IpAddr>().is_ok() && (prefix == "0" || !prefix.starts_with('0'));
    let why = if !well_spelled {
        "must not have leading 0s in IP or prefix length"
    } else if matches!(range.address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        "must not have an IPv4-mapped IPv6 address"
    } else if range.network() != range.address {
        "must not have bits set beyond the prefix length"
    } else {
        return Some(range);
    };
    errors.invalid(at, text, why);
    None
}

/// Checks a range in a field older than v1.33 (`IsValidCIDRForLegacyField`).
pub fn legacy_cidr(text: &str, at: &Path<'_>, errors: &mut Errors) {
    read_cidr(text, at, errors);
}

/// Checks a range in canonical notation (`IsValidCIDR`).
pub fn strict_cidr(text: &str, at: &Path<'_>, errors: &mut Errors) {
    let Some(range) = read_cidr(text, at, errors) else { return };
    let canonical = format!("{}/{}", range.address, range.prefix);
    if canonical != text {
        errors.invalid(at, text, format_args!("must be in canonical form ({})", quote(&canonical)));
    }
}

/// Checks an IP address with the prefix length of its network, in canonical notation
/// (`IsValidInterfaceAddress`).
pub fn interface_address(text: &str, at: &Path<'_>, errors: &mut Errors) {
    let Some(Range { address, mut prefix }) = Range::parse(text) else {
        errors.invalid(at, text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)");
        return;
    };
    let mut shown = address;
    if let IpAddr::V6(inner) = address
        && let Some(inner) = inner.to_ipv4_mapped()
    {
        shown = IpAddr::V4(inner);
        if prefix > 32 {
            prefix = prefix.saturating_sub(96);
        }
    }
    let canonical = format!("{shown}/{prefix}");
    if canonical != text {
        errors.invalid(at, text, format_args!("must be in canonical form ({})", quote(&canonical)));
    }
}

// Names.

/// Checks a DNS subdomain (RFC 1123).
pub fn subdomain(text: &str, at: &Path<'_>, errors: &mut Errors) {
    errors.problems(at, text, dns_subdomain_problems(text));
}

/// Checks a DNS label (RFC 1123).
pub fn label(text: &str, at: &Path<'_>, errors: &mut Errors) {
    errors.problems(at, text, dns_label_problems(text));
}

/// Checks the value of a label.
pub fn label_value(text: &str, at: &Path<'_>, errors: &mut Errors) {
    errors.problems(at, text, label_value_problems(text));
}

/// Checks a qualified name, which is also the format of label keys.
pub fn qualified_name(text: &str, at: &Path<'_>, errors: &mut Errors) {
    errors.problems(at, text, qualified_name_problems(text));
}

/// Checks a name that is one element of a path (`IsPathSegmentName`).
pub fn path_segment(text: &str, at: &Path<'_>, errors: &mut Errors) {
    if matches!(text, "." | "..") {
        errors.invalid(at, text, format_args!("may not be '{text}'"));
        return;
    }
    for illegal in ["/", "%"] {
        if text.contains(illegal) {
            errors.invalid(at, text, format_args!("may not contain '{illegal}'"));
        }
    }
}

/// Checks the name of a driver (`ValidateCSIDriverName`).
pub fn driver_name(text: &str, at: &Path<'_>, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(at, "");
        return;
    }
    if text.len() > DRIVER_NAME_BYTES_MAX {
        errors.too_long(at, DRIVER_NAME_BYTES_MAX);
    }
    errors.problems(at, text, dns_subdomain_problems(&text.to_lowercase()));
}

/// Checks a domain name with at least two labels (`IsFullyQualifiedDomainName`).
pub fn domain_name(text: &str, at: &Path<'_>, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(at, "");
        return;
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let problems = dns_subdomain_problems(name);
    if !problems.is_empty() {
        errors.invalid(at, name, problems.join(","));
    } else if !name.contains('.') {
        errors.invalid(at, name, "should be a domain with at least two segments separated by dots");
    } else if let Some(label) = name.split('.').find(|label| !dns_label_problems(label).is_empty()) {
        errors.invalid(at, label, dns_label_problems(label).join(","));
    }
}

/// Checks a domain, a slash and a path (`IsDomainPrefixedPath`).
pub fn domain_prefixed_path(text: &str, at: &Path<'_>, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(at, "");
        return;
    }
    let Some((host, path)) = text.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        errors.invalid(at, text, "must be a domain-prefixed path (such as \"acme.io/foo\")");
        return;
    };
    subdomain(host, at, errors);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !path.bytes().all(fine) {
        let why = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.invalid(at, path, why);
    }
}

/// Checks a host name with a wildcard, which must begin with `*.`.
pub fn wildcard_subdomain(text: &str, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    if text.len() > 253 {
        errors.invalid(at, text, "must be no more than 253 characters");
    }
    let shape = |rest: &str| dns_subdomain_problems(rest).iter().all(|problem| problem.contains("no more than"));
    if !text.strip_prefix("*.").is_some_and(shape) {
        errors.invalid(at, text, WHY);
    }
}

/// Checks a host name with or without a wildcard.
pub fn host(text: &str, at: &Path<'_>, errors: &mut Errors) {
    if text.contains('*') { wildcard_subdomain(text, at, errors) } else { subdomain(text, at, errors) }
}

/// Checks the name of a port (`IsValidPortName`).
pub fn port_name(text: &str, at: &Path<'_>, errors: &mut Errors) {
    super::port_name(text, &at.to_string(), errors);
}

/// Checks the number of a port (`IsValidPortNum`).
pub fn port_number(number: i64, at: &Path<'_>, errors: &mut Errors) {
    if !(1..=65535).contains(&number) {
        errors.invalid_value(at, number, "must be between 1 and 65535, inclusive");
    }
}

/// Checks labels (`ValidateLabels`).
pub fn labels(object: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(labels)) = object.get(name) else { return };
    for (name, value) in labels {
        qualified_name(name, at, errors);
        label_value(value.as_str().unwrap_or_default(), at, errors);
    }
}

/// Checks a label selector (`ValidateLabelSelector`). `values_too` is false if invalid label values
/// are tolerated, because the old object has some.
pub fn label_selector(selector: Option<&Value>, values_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(selector)) = selector else { return };
    labels(selector, "matchLabels", &at.child("matchLabels"), errors);
    let requirements_at = at.child("matchExpressions");
    for (index, requirement) in objects(selector, "matchExpressions") {
        let at = requirements_at.index(index);
        let (values, values_at) = (items(requirement, "values"), at.child("values"));
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&values_at, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(&values_at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        qualified_name(text(requirement, "key"), &at.child("key"), errors);
        for (index, value) in values.iter().enumerate().filter(|_| values_too) {
            label_value(value.as_str().unwrap_or_default(), &values_at.index(index), errors);
        }
    }
}

/// True if the label selector is invalid by the current rules.
pub fn is_invalid_selector(selector: Option<&Value>) -> bool {
    let mut errors = Errors::default();
    label_selector(selector, true, &Path::NIL, &mut errors);
    !errors.is_empty()
}

/// Checks a node selector (`ValidateNodeSelector`). `values_too` is false if invalid label values
/// are tolerated, because the old object has some.
pub fn node_selector(selector: &Object, values_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let terms_at = at.child("nodeSelectorTerms");
    if items(selector, "nodeSelectorTerms").is_empty() {
        return errors.required(&terms_at, "must have at least one node selector term");
    }
    for (index, term) in objects(selector, "nodeSelectorTerms") {
        let at = terms_at.index(index);
        let requirements_at = at.child("matchExpressions");
        for (index, requirement) in objects(term, "matchExpressions") {
            node_requirement(requirement, values_too, &requirements_at.index(index), errors);
        }
        let requirements_at = at.child("matchFields");
        for (index, requirement) in objects(term, "matchFields") {
            node_field_requirement(requirement, &requirements_at.index(index), errors);
        }
    }
}

fn node_requirement(requirement: &Object, values_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let (values, values_at) = (items(requirement, "values"), at.child("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&values_at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(&values_at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&values_at, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
    }
    qualified_name(text(requirement, "key"), &at.child("key"), errors);
    for (index, value) in values.iter().enumerate().filter(|_| values_too) {
        label_value(value.as_str().unwrap_or_default(), &values_at.index(index), errors);
    }
}

fn node_field_requirement(requirement: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (values, values_at) = (items(requirement, "values"), at.child("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&values_at, why);
        }
        "In" | "NotIn" => {}
        other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
    }
    match text(requirement, "key") {
        "metadata.name" => {
            for (index, value) in values.iter().enumerate() {
                subdomain(value.as_str().unwrap_or_default(), &values_at.index(index), errors);
            }
        }
        other => errors.invalid(&at.child("key"), other, "not a valid field selector key"),
    }
}

// Quantities.

/// Compares a quantity with zero. The quantity may be too large to be represented.
pub fn sign(amount: &str) -> Ordering {
    quantities::compare(amount, "0")
        .unwrap_or_else(|| if amount.starts_with('-') { Ordering::Less } else { Ordering::Greater })
}

/// Compares two quantities. Quantities that are too large to be represented are equal to each
/// other, and larger than all others.
pub fn compare(left: &str, right: &str) -> Ordering {
    let countable = |amount: &str| quantities::compare(amount, "0").is_some();
    match (countable(left), countable(right)) {
        (true, true) => quantities::compare(left, right).unwrap_or(Ordering::Equal),
        (true, false) => sign(right).reverse(),
        (false, true) => sign(left),
        (false, false) => sign(left).cmp(&sign(right)),
    }
}

/// A quantity as text. Decoding has already canonicalized it.
pub fn amount(value: &Value) -> &str {
    value.as_str().unwrap_or("0")
}

/// Reports a negative quantity (`ValidateNonnegativeQuantity`).
pub fn not_negative_amount(amount: &str, at: &Path<'_>, errors: &mut Errors) {
    if sign(amount) == Ordering::Less {
        errors.invalid(at, amount, NOT_NEGATIVE);
    }
}

/// Reports a quantity that is not positive (`ValidatePositiveQuantityValue`).
pub fn positive_amount(amount: &str, at: &Path<'_>, errors: &mut Errors) {
    if sign(amount) != Ordering::Greater {
        errors.invalid(at, amount, "must be greater than zero");
    }
}

/// A quantity in whole units, rounded away from zero (`Quantity.Value`).
pub fn whole(amount: &str) -> i64 {
    let Ok(Some(nanos)) = listwatch_meta::quantity::nanos(amount) else { return 0 };
    let units = nanos / 1_000_000_000 + i128::from(nanos % 1_000_000_000 != 0) * nanos.signum();
    i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
}

// Equality.

/// True if two members are equal for Go's `Semantic.DeepEqual`. An absent member equals its zero
/// value, because most of upstream's fields are not pointers. For pointer fields this tolerates
/// more than upstream.
pub fn same(left: Option<&Value>, right: Option<&Value>) -> bool {
    fn is_nothing(value: Option<&Value>) -> bool {
        match value {
            None | Some(Value::Null) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(members)) => members.values().all(|value| is_nothing(Some(value))),
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Bool(flag)) => !flag,
            Some(Value::Number(number)) => number.as_i64() == Some(0),
        }
    }
    match (left, right) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            left.iter().all(|(name, value)| same(Some(value), right.get(name)))
                && right.iter().all(|(name, value)| left.contains_key(name) || same(None, Some(value)))
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(Some(left), Some(right)))
        }
        (left, right) if is_nothing(left) || is_nothing(right) => is_nothing(left) && is_nothing(right),
        (left, right) => left == right,
    }
}

/// Converts a node selector to the Go field names of upstream's internal type, as error messages show them.
pub fn go_node_selector(selector: &Value) -> Value {
    json!({ "NodeSelectorTerms": selector.get("nodeSelectorTerms").map(go_node_selector_terms) })
}

/// Converts node selector terms to the Go field names of upstream's internal type, as error messages show them.
pub fn go_node_selector_terms(terms: &Value) -> Value {
    let requirements = |term: &Value, name: &str| {
        let list = term.get(name)?.as_array()?.iter();
        let list = list.map(|requirement| {
            json!({"Key": requirement.get("key"), "Operator": requirement.get("operator"), "Values": requirement.get("values")})
        });
        Some(list.collect::<Vec<_>>())
    };
    let terms = terms.as_array().into_iter().flatten();
    terms
        .map(|term| {
            json!({"MatchExpressions": requirements(term, "matchExpressions"), "MatchFields": requirements(term, "matchFields")})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_ip_fields_accept_any_notation_except_ambiguous_ones() {
        let check = |text: &str, legacy: &str, strict: &str| {
            for (form, expected) in
                [(legacy_ip as fn(&str, &Path<'_>, &mut Errors) -> bool, legacy), (strict_ip, strict)]
            {
                let mut errors = Errors::default();
                form(text, &Path::root("f"), &mut errors);
                let found: Vec<String> = errors.iter().map(|error| error.message.clone()).collect();
                let expected =
                    if expected.is_empty() { vec![] } else { vec![format!("Invalid value: {text:?}: {expected}")] };
                assert_eq!(found, expected, "{text}");
            }
        };
        check("10.9.8.7", "", "");
        check("2001:db8::ffff", "", "");
        check("2001:DB8::1", "", "must be in canonical form (\"2001:db8::1\")");
        check("2001:db8:0:0:0:0:0:1", "", "must be in canonical form (\"2001:db8::1\")");
        for text in ["010.9.8.7", "2001:00db8::1", "::ffff:010.0.0.1"] {
            check(text, "must not have leading 0s", "must not have leading 0s");
        }
        let mapped = "must not be an IPv4-mapped IPv6 address";
        check("::ffff:10.9.8.7", mapped, mapped);
        for text in ["", "a", "10.9.8", "10.9.8.256", "10.9.8.7.6", "fe80::1%eth0", "1:2", "[::1]", "10.9.8.7/8"] {
            check(text, NO_ADDRESS, NO_ADDRESS);
        }
    }

    #[test]
    fn cidr_with_host_bits_or_other_notation_is_rejected() {
        let check = |text: &str, legacy: &str, strict: &str| {
            for (form, expected) in [(legacy_cidr as fn(&str, &Path<'_>, &mut Errors), legacy), (strict_cidr, strict)] {
                let mut errors = Errors::default();
                form(text, &Path::root("f"), &mut errors);
                let found: Vec<String> = errors.iter().map(|error| error.message.clone()).collect();
                let expected =
                    if expected.is_empty() { vec![] } else { vec![format!("Invalid value: {text:?}: {expected}")] };
                assert_eq!(found, expected, "{text}");
            }
        };
        check("10.9.8.0/24", "", "");
        check("0.0.0.0/0", "", "");
        check("2001:db8::/64", "", "");
        check("2001:DB8::/64", "", "must be in canonical form (\"2001:db8::/64\")");
        let zeros = "must not have leading 0s in IP or prefix length";
        check("10.9.8.0/024", zeros, zeros);
        check("010.9.8.0/24", zeros, zeros);
        let left = "must not have bits set beyond the prefix length";
        check("10.9.8.7/24", left, left);
        let mapped = "must not have an IPv4-mapped IPv6 address";
        check("::ffff:10.9.8.0/120", mapped, mapped);
        for text in ["10.9.8.0", "10.9.8.0/33", "2001:db8::/129", "10.9.8.0/", "10.9.8.0/-1", "/8", "x/8"] {
            check(text, NO_RANGE, NO_RANGE);
        }
    }

    #[test]
    fn is_strictly_above_is_true_only_for_smaller_cidr_ranges_inside_the_range() {
        let above =
            |outer: &str, inner: &str| Range::parse(outer).unwrap().is_strictly_above(Range::parse(inner).unwrap());
        assert!(above("10.0.0.0/8", "10.1.0.0/16"));
        assert!(!above("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!above("10.0.0.0/8", "11.0.0.0/16"));
        assert!(!above("10.0.0.0/8", "2001:db8::/64"));
        assert!(above("0.0.0.0/0", "255.255.255.255/32"));
    }

    #[test]
    fn unrepresentably_large_quantities_compare_as_largest() {
        let huge = "1e40";
        assert_eq!(compare(huge, "1"), Ordering::Greater);
        assert_eq!(compare("1", huge), Ordering::Less);
        assert_eq!(compare("-1e40", "1"), Ordering::Less);
        assert_eq!(compare("1500m", "2"), Ordering::Less);
        assert_eq!((whole("1500m"), whole("-1500m"), whole("1Ki")), (2, -2, 1024));
    }
}
