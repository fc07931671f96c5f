//! LimitRange (`v1`): limits and defaults for the resources of objects in a namespace.
//!
//! Source: `pkg/registry/core/limitrange/strategy.go`, `ValidateLimitRange` in `pkg/apis/core/validation`.

use std::collections::{BTreeMap, BTreeSet};

use listwatch_json::{Map, Value, json};
use listwatch_schema::Path;
use listwatch_validation::formats::{amount, compare, is_full, qualified_name, whole};
use listwatch_validation::{Errors, Object, child, objects, text};

use crate::defaults::Default::{Do, Each, If};
use crate::defaults::Defaults;
use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_validation::resource_names::{container_resource_name, is_huge_page, is_native, resource_name};

pub(crate) static KIND: Kind = Kind {
    short_names: &["limits"],
    create_on_update: true,
    uuid_names: true,
    defaults: &DEFAULTS,
    validate,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Object,
        consequence: "it neither sets nor limits resources of pods",
    }),
    ..Kind::namespaced("", "v1", "limitranges", "LimitRange")
};

static LIMIT_DEFAULTS: Defaults = Defaults(&[("default", Do(default_container_limits))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[("limits", Each(&LIMIT_DEFAULTS))]);

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

/// Applies the defaults of limits for containers: `default` defaults to `max`. `defaultRequest` defaults to `default`,
/// then to `min`.
fn default_container_limits(item: &mut Map) {
    if item.get("type").and_then(Value::as_str) != Some("Container") {
        return;
    }
    for (target, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let amounts = item.get(source).and_then(Value::as_object).cloned().unwrap_or_default();
        let target = item.entry(target).or_insert_with(|| json!({}));
        if let Value::Object(target) = target {
            for (name, amount) in amounts {
                target.entry(name).or_insert(amount);
            }
        }
    }
    item.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
}

fn validate(range: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec_at = Path::root("spec");
    let limits_at = spec_at.child("limits");
    let mut kinds = BTreeSet::new();
    for (index, limit) in objects(child(range, "spec"), "limits") {
        if is_full(errors) {
            return;
        }
        let at = limits_at.index(index);
        let kind = text(limit, "type");
        let before = errors.len();
        qualified_name(kind, &at.child("type"), errors);
        let known = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
        if errors.len() == before && !kind.contains('/') && !known {
            errors.invalid(&at.child("type"), kind, "must be a standard limit type or fully qualified");
        }
        if !kinds.insert(kind) {
            errors.duplicate(&at.child("type"), kind);
        }
        validate_limit(limit, kind, &at, errors);
    }
}

/// The amounts of one resource in one limit.
#[derive(Default)]
struct Limits<'a> {
    min: Option<&'a str>,
    max: Option<&'a str>,
    default: Option<&'a str>,
    request: Option<&'a str>,
    ratio: Option<&'a str>,
}

fn validate_limit(limit: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) {
    let mut limits: BTreeMap<&str, Limits<'_>> = BTreeMap::new();
    for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let list_at = at.child(list);
        if kind == "Pod" && list.starts_with("default") {
            if !child(limit, list).is_empty() {
                errors.forbidden(&list_at, "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        if list == "maxLimitRequestRatio"
            && kind == "PersistentVolumeClaim"
            && !["min", "max"].iter().any(|list| child(limit, list).contains_key("storage"))
        {
            let why = "either minimum or maximum storage value is required, but neither was provided";
            errors.required(&at.child("limits"), why);
        }
        for (name, value) in child(limit, list) {
            let at = list_at.key(name);
            match kind {
                "Pod" | "Container" => container_resource_name(name, &at, errors),
                _ => {
                    resource_name(name, &at, errors);
                }
            }
            let of = limits.entry(name).or_default();
            let member = match list {
                "max" => &mut of.max,
                "min" => &mut of.min,
                "default" => &mut of.default,
                "defaultRequest" => &mut of.request,
                _ => &mut of.ratio,
            };
            *member = Some(amount(value));
        }
    }
    for (name, limits) in limits {
        validate_order(name, &limits, at, errors);
    }
}

/// Validates that the amounts of one resource are consistent, e.g. that `min` is not above `max`.
fn validate_order(name: &str, limits: &Limits<'_>, at: &Path<'_>, errors: &mut Errors) {
    let &Limits { min, max, default, request, ratio } = limits;
    let mut above = |low: Option<&str>, high: Option<&str>, list: &str, shown: Option<&str>, words: (&str, &str)| {
        let (Some(low), Some(high)) = (low, high) else { return };
        if compare(low, high).is_gt() {
            let why = format_args!("{} value {low} is greater than {} value {high}", words.0, words.1);
            errors.invalid(&at.child(list).key(name), shown.unwrap_or(low), why);
        }
    };
    above(min, max, "min", min, ("min", "max"));
    above(min, request, "defaultRequest", request, ("min", "default request"));
    above(request, max, "defaultRequest", request, ("default request", "max"));
    above(request, default, "defaultRequest", request, ("default request", "default limit"));
    above(min, default, "default", min, ("min", "default"));
    above(default, max, "default", max, ("default", "max"));
    if let Some(ratio) = ratio {
        let list_at = at.child("maxLimitRequestRatio");
        let ratio_at = list_at.key(name);
        if compare(ratio, "1").is_lt() {
            errors.invalid(&ratio_at, ratio, format_args!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (min, max) {
            let limit = ratio_of(max, min);
            if compare(ratio, "0").is_gt() && as_number(ratio) > limit {
                let limit = if limit.is_nan() {
                    "NaN".to_owned()
                } else if limit.is_infinite() {
                    "+Inf".to_owned()
                } else {
                    format!("{limit:.6}")
                };
                errors.invalid(&ratio_at, ratio, format_args!("ratio {ratio} is greater than max/min = {limit}"));
            }
        }
    }
    let overcommitted = is_native(name) && !is_huge_page(name);
    if let (false, Some(default), Some(request)) = (overcommitted, default, request)
        && compare(default, request).is_ne()
    {
        let list_at = at.child("defaultRequest");
        let why = format_args!("default value {default} must equal to defaultRequest value {request} in {name}");
        errors.invalid(&list_at.key(name), request, why);
    }
}

fn as_number(amount: &str) -> f64 {
    listwatch_meta::quantity::nanos(amount).ok().flatten().map_or(whole(amount) as f64, |nanos| nanos as f64 / 1e9)
}

fn ratio_of(max: &str, min: &str) -> f64 {
    as_number(max) / as_number(min)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::testing::check_defaults;

    use super::*;

    #[test]
    fn limit_range_sets_defaults_of_container_limits_and_requests() {
        check_defaults(
            &KIND,
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1"}}, {"type": "Pod", "max": {"cpu": "1"}}]}}),
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1"},
                "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2", "memory": "1"}}, {"type": "Pod", "max": {"cpu": "1"}}]}}),
        );
    }
}
