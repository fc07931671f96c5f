//! ServiceCIDR (`networking.k8s.io/v1`): the ranges of cluster IPs.
//!
//! Source: `pkg/registry/networking/servicecidr/strategy.go`, `ValidateServiceCIDR` in `pkg/apis/networking/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, Range, json as go_json, strict_cidr};
use listwatch_validation::{Errors, Object, child, items};

use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::joined;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    validate,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    ..Kind::cluster("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR")
};

fn validate(cidr: &Object, old: Option<&Object>, errors: &mut Errors) {
    let ranges = items(child(cidr, "spec"), "cidrs");
    let spec_at = Path::root("spec");
    let at = spec_at.child("cidrs");
    let Some(old) = old else {
        return validate_ranges(ranges, &at, errors);
    };
    let before = items(child(old, "spec"), "cidrs");
    let mut changed = |index: usize| {
        if ranges[index] != before[index] {
            errors.invalid(&at.index(index), ranges[index].as_str().unwrap_or_default(), IMMUTABLE);
        }
    };
    match (before.len(), ranges.len()) {
        (had, has) if had == has => (0..has).for_each(changed),
        // An update can add a range of the other family.
        (1, 2) => {
            changed(0);
            validate_ranges(ranges, &at, errors);
        }
        _ => errors.invalid_value(&at, go_json(child(cidr, "spec").get("cidrs")), IMMUTABLE),
    }
}

fn validate_ranges(ranges: &[Value], at: &Path<'_>, errors: &mut Errors) {
    let shown = || Value::from(ranges).to_string();
    match ranges {
        [] => return errors.required(at, "at least one CIDR required"),
        [_] | [_, _] => {}
        _ => {
            return errors.invalid_value(at, format_args!("{{\"CIDRs\":{}}}", shown()), "may only hold up to 2 values");
        }
    }
    for (index, range) in ranges.iter().enumerate() {
        strict_cidr(range.as_str().unwrap_or_default(), &at.index(index), errors);
    }
    let family = |range: &Value| range.as_str().and_then(Range::parse).map(Range::is_ipv6);
    if let [first, second] = ranges
        && let Some(first) = family(first)
        && family(second) == Some(first)
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.invalid_value(at, shown(), why);
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("CIDRs", "The ranges that service addresses come from."), AGE],
    cells: |cidr| vec![cidr.name().into(), joined(cidr.at("spec.cidrs"), ",").into(), cidr.age().into()],
};
