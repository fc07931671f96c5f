//! Validates scheduling constraints of pods: affinity, tolerations, topology spread.

use std::collections::{HashMap, HashSet};

use listwatch_json::{JsonString, Value};
use listwatch_meta::selector::label_value_problems;
use listwatch_schema::Path;

use crate::formats::{label, label_selector, node_selector, qualified_name};
use crate::{Errors, Object, child, given, items, number, objects, text, texts};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates `affinity` (`validateAffinity`). Invalid label values are accepted if the old affinity
/// has some.
pub(super) fn affinity(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(affinity)) = given(spec, "affinity") else { return };
    let strict = old.is_none_or(|old| {
        let mut wrong = Errors::default();
        if let Some(Value::Object(affinity)) = given(old, "affinity") {
            validate_affinity(affinity, true, &Path::NIL, &mut wrong);
        }
        wrong.is_empty()
    });
    validate_affinity(affinity, strict, at, errors);
}

fn validate_affinity(affinity: &Object, strict: bool, at: &Path<'_>, errors: &mut Errors) {
    if let Some(Value::Object(node)) = given(affinity, "nodeAffinity") {
        let at = at.child("nodeAffinity");
        if let Some(Value::Object(required)) = given(node, REQUIRED) {
            node_selector(required, strict, &at.child(REQUIRED), errors);
        }
        let at = at.child(PREFERRED);
        for (position, term) in objects(node, PREFERRED) {
            let at = at.index(position);
            weight(term, &at, errors);
            // Upstream does not check label values in preferred terms.
            let preference = child(term, "preference");
            let terms = listwatch_json::json!({"nodeSelectorTerms": [preference]});
            if let Value::Object(terms) = terms {
                preferred_term(&terms, &at.child("preference"), errors);
            }
        }
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(pods)) = given(affinity, name) else { continue };
        let at = at.child(name);
        let required_at = at.child(REQUIRED);
        for (position, term) in objects(pods, REQUIRED) {
            pod_term(term, strict, &required_at.index(position), errors);
        }
        let preferred_at = at.child(PREFERRED);
        for (position, weighted) in objects(pods, PREFERRED) {
            let at = preferred_at.index(position);
            weight(weighted, &at, errors);
            pod_term(child(weighted, "podAffinityTerm"), strict, &at.child("podAffinityTerm"), errors);
        }
    }
}

fn preferred_term(terms: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut found = Errors::default();
    node_selector(terms, false, &Path::NIL, &mut found);
    for mut error in found.iter().cloned() {
        let below = error.field.strip_prefix("nodeSelectorTerms[0]").unwrap_or(&error.field).to_owned();
        error.field = format!("{at}{below}");
        errors.push(error);
    }
}

fn weight(term: &Object, at: &Path<'_>, errors: &mut Errors) {
    let weight = number(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid_value(&at.child("weight"), weight, "must be in the range 1-100");
    }
}

fn pod_term(term: &Object, strict: bool, at: &Path<'_>, errors: &mut Errors) {
    for name in ["labelSelector", "namespaceSelector"] {
        label_selector(term.get(name), strict, &at.child(name), errors);
    }
    for namespace in texts(term, "namespaces") {
        label(namespace, &at.child("namespace"), errors);
    }
    label_keys(term, at, errors);
    let topology = text(term, "topologyKey");
    if topology.is_empty() {
        errors.required(&at.child("topologyKey"), "can not be empty");
    }
    qualified_name(topology, &at.child("topologyKey"), errors);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` (`ValidateMatchLabelKeysAndMismatchLabelKeys`).
fn label_keys(term: &Object, at: &Path<'_>, errors: &mut Errors) {
    let selector = given(term, "labelSelector").and_then(Value::as_object);
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let at = at.child(list);
        if !items(term, list).is_empty() && selector.is_none() {
            errors.forbidden(&at, "must not be specified when labelSelector is not set");
            continue;
        }
        for (position, key) in texts(term, list).enumerate() {
            qualified_name(key, &at.index(position), errors);
        }
    }
    if let Some(selector) = selector {
        let places: HashMap<&str, usize> =
            texts(term, "matchLabelKeys").enumerate().map(|(position, key)| (key, position)).collect();
        let mut seen: HashSet<&str> = child(selector, "matchLabels").keys().map(JsonString::as_str).collect();
        for (_, requirement) in objects(selector, "matchExpressions") {
            let key = text(requirement, "key");
            if let Some(position) = places.get(key)
                && seen.contains(key)
            {
                errors.invalid(&at.index(*position), key, "exists in both matchLabelKeys and labelSelector");
            }
            seen.insert(key);
        }
    }
    let mismatched: HashSet<&str> = texts(term, "mismatchLabelKeys").collect();
    let at = at.child("matchLabelKeys");
    for (position, key) in texts(term, "matchLabelKeys").enumerate().filter(|(_, key)| mismatched.contains(key)) {
        errors.invalid(&at.index(position), key, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}

/// Validates tolerations (`ValidateTolerations`).
pub fn tolerations(tolerations: &[Value], at: &Path<'_>, errors: &mut Errors) {
    for (position, toleration) in tolerations.iter().enumerate() {
        let Value::Object(toleration) = toleration else { continue };
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        let at = at.index(position);
        if !key.is_empty() {
            qualified_name(key, &at.child("key"), errors);
        }
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&at.child("operator"), operator, why);
        }
        if given(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&at.child("effect"), effect, why);
        }
        match operator {
            "" | "Equal" => {
                let problems = label_value_problems(value);
                if !problems.is_empty() {
                    errors.invalid(&at.child("operator"), value, problems.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(&at.child("operator"), value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            // The feature TaintTolerationComparisonOperators is off.
            "Lt" | "Gt" => errors.not_supported(&at.child("operator"), operator, &["Equal", "Exists", "Lt", "Gt"]),
            other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !effects.contains(&effect) {
            errors.not_supported(&at.child("effect"), effect, &effects);
        }
    }
}

/// Validates `topologySpreadConstraints` (`validateTopologySpreadConstraints`).
pub(super) fn topology_spread(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let constraints = || objects(spec, "topologySpreadConstraints").map(|(_, constraint)| constraint);
    let key = |constraint| (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
    // Upstream reports all equal constraints but the last as duplicates.
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for constraint in constraints() {
        *counts.entry(key(constraint)).or_default() += 1;
    }
    let strict = old.is_none_or(|old| {
        let selectors = objects(old, "topologySpreadConstraints").map(|(_, constraint)| constraint);
        let mut wrong = Errors::default();
        selectors.for_each(|one| label_selector(one.get("labelSelector"), true, &Path::NIL, &mut wrong));
        wrong.is_empty()
    });
    for (position, constraint) in objects(spec, "topologySpreadConstraints") {
        let at = at.index(position);
        let skew = number(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            errors.invalid_value(&at.child("maxSkew"), skew, "must be greater than zero");
        }
        let (topology, action) = key(constraint);
        if topology.is_empty() {
            errors.required(&at.child("topologyKey"), "can not be empty");
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action) {
            errors.not_supported(&at.child("whenUnsatisfiable"), action, &actions);
        }
        if let Some(left) = counts.get_mut(&(topology, action)) {
            *left -= 1;
            if *left > 0 {
                let shown = format!("{{{topology}, {action}}}");
                errors.duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), &shown);
            }
        }
        if let Some(domains) = number(constraint, "minDomains") {
            let at = at.child("minDomains");
            if domains <= 0 {
                errors.invalid_value(&at, domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let why = format_args!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid_value(&at, domains, why);
            }
        }
        for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policies = ["Honor", "Ignore"];
            if given(constraint, name).is_some() && !policies.contains(&text(constraint, name)) {
                errors.not_supported(&at.child(name), text(constraint, name), &policies);
            }
        }
        label_keys(constraint, &at, errors);
        if strict {
            label_selector(constraint.get("labelSelector"), true, &at.child("labelSelector"), errors);
        }
    }
}
