//! Webhook configurations (`pkg/apis/admissionregistration/validation`). An update bears what the old object
//! had, where rules came later than the kind.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use serde_json::Value;

use super::admission::{Expressions, REINVOCATION_POLICIES, match_conditions, rule_with_operations};
use listwatch_validation::{
    Errors, Object, child, given, invalid_each, is_same, items, number, objects, one_of, quoted, selector, shown_list,
    text, texts,
};

/// The versions of AdmissionReview, one of which a webhook takes.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
/// The longest time in seconds that a webhook is waited for.
const TIMEOUT_SECONDS_MAX: i64 = 30;

/// Which rules the webhooks of an update have to follow.
struct Strictness {
    match_conditions: bool,
    side_effects: bool,
    review_versions: bool,
    unique_names: bool,
}

impl Strictness {
    fn of(configuration: &Object, old: Option<&Object>) -> Strictness {
        let Some(old) = old else {
            return Strictness {
                match_conditions: true,
                side_effects: true,
                review_versions: true,
                unique_names: true,
            };
        };
        let hooks = |object| objects(object, "webhooks").map(|(_, hook)| hook);
        let changed = items(configuration, "webhooks").len() != items(old, "webhooks").len()
            || !hooks(configuration)
                .zip(hooks(old))
                .all(|(new, old)| is_same(new.get("matchConditions"), old.get("matchConditions")));
        let mut names = HashSet::new();
        Strictness {
            match_conditions: changed,
            side_effects: hooks(old).all(|hook| NO_SIDE_EFFECTS.contains(&text(hook, "sideEffects"))),
            review_versions: hooks(old).all(|hook| {
                items(hook, "admissionReviewVersions").is_empty()
                    || texts(hook, "admissionReviewVersions").any(|version| REVIEW_VERSIONS.contains(&version))
            }),
            unique_names: hooks(old).all(|hook| names.insert(text(hook, "name"))),
        }
    }
}

/// `ValidateValidatingWebhookConfiguration`.
pub(crate) fn validating(configuration: &Object, old: Option<&Object>, errors: &mut Errors) {
    webhooks(configuration, old, false, errors);
}

/// `ValidateMutatingWebhookConfiguration`.
pub(crate) fn mutating(configuration: &Object, old: Option<&Object>, errors: &mut Errors) {
    webhooks(configuration, old, true, errors);
}

fn webhooks(configuration: &Object, old: Option<&Object>, mutating: bool, errors: &mut Errors) {
    let strict = Strictness::of(configuration, old);
    let mut expressions = Expressions::new(false, false);
    let mut seen = HashSet::new();
    for (position, hook) in objects(configuration, "webhooks") {
        let at = format!("webhooks[{position}].");
        webhook(hook, &at, mutating, &strict, errors);
        if strict.match_conditions {
            match_conditions(hook, &at, &mut expressions, errors);
        }
        review_versions(hook, &at, &strict, errors);
        let name = text(hook, "name");
        if strict.unique_names && !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
        }
    }
}

fn webhook(hook: &Object, at: &str, mutating: bool, strict: &Strictness, errors: &mut Errors) {
    fully_qualified_name(text(hook, "name"), &format!("{at}name"), errors);
    for (position, rule) in objects(hook, "rules") {
        rule_with_operations(rule, &format!("{at}rules[{position}]."), errors);
    }
    one_of(hook, "failurePolicy", at, &["Fail", "Ignore"], errors);
    one_of(hook, "matchPolicy", at, &["Equivalent", "Exact"], errors);
    let side_effects: &[&str] = if strict.side_effects { &NO_SIDE_EFFECTS } else { &SIDE_EFFECTS };
    if text(hook, "sideEffects").is_empty() {
        let why = format!("must specify one of {}", side_effects.join(", "));
        errors.push(FieldError::required(format!("{at}sideEffects"), why));
    }
    one_of(hook, "sideEffects", at, side_effects, errors);
    if let Some(seconds) = number(hook, "timeoutSeconds").filter(|seconds| !(1..=TIMEOUT_SECONDS_MAX).contains(seconds))
    {
        let why = format!("the timeout value must be between 1 and {TIMEOUT_SECONDS_MAX} seconds");
        errors.push(FieldError::invalid(format!("{at}timeoutSeconds"), seconds, why));
    }
    selector(hook, "namespaceSelector", at, errors);
    selector(hook, "objectSelector", at, errors);
    if mutating {
        one_of(hook, "reinvocationPolicy", at, &REINVOCATION_POLICIES, errors);
    }
    client_config(child(hook, "clientConfig"), &format!("{at}clientConfig"), errors);
}

/// `IsFullyQualifiedName`.
fn fully_qualified_name(name: &str, field: &str, errors: &mut Errors) {
    let problems = dns_subdomain_problems(name);
    if name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !problems.is_empty() {
        errors.push(FieldError::invalid(field, quoted(name), problems.join(",")));
    } else if name.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(field, quoted(name), why));
    }
}

fn review_versions(hook: &Object, at: &str, strict: &Strictness, errors: &mut Errors) {
    let field = format!("{at}admissionReviewVersions");
    if items(hook, "admissionReviewVersions").is_empty() {
        let why = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        return errors.push(FieldError::required(field, why));
    }
    let (mut seen, mut known) = (HashSet::new(), false);
    for (position, version) in texts(hook, "admissionReviewVersions").enumerate() {
        let field = || format!("{field}[{position}]");
        if !seen.insert(version) {
            errors.push(FieldError::invalid(field(), quoted(version), "duplicate version"));
            continue;
        }
        invalid_each(dns_1035_label_problems(version), version, &field(), errors);
        known |= REVIEW_VERSIONS.contains(&version);
    }
    if strict.review_versions && !known {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(field, shown_list(hook, "admissionReviewVersions"), why));
    }
}

/// Where a webhook is reached.
fn client_config(config: &Object, at: &str, errors: &mut Errors) {
    match (given(config, "url").and_then(Value::as_str), given(config, "service").and_then(Value::as_object)) {
        (Some(url), None) => webhook_url(url, &format!("{at}.url"), errors),
        (None, Some(service)) => webhook_service(service, &format!("{at}.service."), errors),
        _ => errors.push(FieldError::required(at, "exactly one of url or service is required")),
    }
}

/// `ValidateWebhookURL`.
fn webhook_url(url: &str, field: &str, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut wrong = |part: &str, why: &str| errors.push(FieldError::invalid(field, quoted(part), why));
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let is_scheme = |scheme: &&str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    };
    let (scheme, rest) = match rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => (String::new(), rest),
    };
    let authority = rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or_default());
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if scheme != "https" {
        wrong(&scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        wrong(host, &format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        wrong(user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        wrong(fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        wrong(query, "query parameters are not permitted in the URL");
    }
}

/// `ValidateWebhookService`. kube-apiserver takes the name for the namespace and the other way round, which
/// shows in the paths of the errors.
fn webhook_service(service: &Object, at: &str, errors: &mut Errors) {
    for (missing, told) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, missing).is_empty() {
            errors.push(FieldError::required(format!("{at}{told}"), ""));
        }
    }
    let port = number(service, "port").unwrap_or(0);
    if !(1..=65535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(format!("{at}port"), port, why));
    }
    let path = text(service, "path");
    if matches!(path, "" | "/") {
        return;
    }
    let mut wrong = |why: String| errors.push(FieldError::invalid(format!("{at}path"), quoted(path), why));
    if path == "//" {
        return wrong("segment[0] may not be empty".to_owned());
    }
    if !path.starts_with('/') {
        wrong("must start with a '/'".to_owned());
    }
    // The first character goes, whatever it is.
    let rest = path.chars().next().map_or("", |first| &path[first.len_utf8()..]);
    for (position, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            wrong(format!("segment[{position}] may not be empty"));
            continue;
        }
        for problem in dns_subdomain_problems(step) {
            wrong(format!("segment[{position}]: {problem}"));
        }
    }
}
