//! The rules that MutatingWebhookConfiguration and ValidatingWebhookConfiguration share.
//!
//! Some rules were added after the first release of the kinds. Updates of an object that already violates such a rule
//! skip the rule. Upstream: `pkg/apis/admissionregistration/validation`,
//! `pkg/apis/admissionregistration/v1/defaults.go`.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use listwatch_validation::{
    Errors, Object, child, given, invalid_each, is_same, items, number, objects, one_of, quoted, selector, shown_list,
    text, texts,
};

use super::expressions::{Expressions, validate_match_conditions};
use super::match_rules::{RULE_DEFAULTS, validate_rule};
use crate::defaults::Default::{Each, Empty, If, Number, Text};
use crate::defaults::Defaults;
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

static SERVICE_DEFAULTS: Defaults = Defaults(&[("port", Number(443))]);

static CLIENT_CONFIG_DEFAULTS: Defaults = Defaults(&[("service", If(&SERVICE_DEFAULTS))]);

pub(crate) static WEBHOOK_DEFAULTS: Defaults = Defaults(&[
    ("clientConfig", If(&CLIENT_CONFIG_DEFAULTS)),
    ("rules", Each(&RULE_DEFAULTS)),
    ("failurePolicy", Text("Fail")),
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("timeoutSeconds", Number(10)),
]);

/// The reinvocation policies: whether a webhook or policy runs again after later changes.
pub(crate) const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];

/// The versions of AdmissionReview. A webhook accepts at least one.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The side effects that a webhook can declare.
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];

/// The side effects that a webhook can declare if the stored object has a deprecated one.
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];

/// The largest timeout of a webhook, in seconds.
const TIMEOUT_SECONDS_MAX: i64 = 30;

/// The newer rules that apply to an update: the rules that all webhooks of the old object satisfy.
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

/// Validates the webhooks of a configuration. `mutating`: whether it is a MutatingWebhookConfiguration.
pub(crate) fn validate_webhooks(configuration: &Object, old: Option<&Object>, mutating: bool, errors: &mut Errors) {
    let strict = Strictness::of(configuration, old);
    let mut expressions = Expressions::new(false, false);
    let mut seen = HashSet::new();
    for (position, hook) in objects(configuration, "webhooks") {
        let at = format!("webhooks[{position}].");
        validate_webhook(hook, &at, mutating, &strict, errors);
        if strict.match_conditions {
            validate_match_conditions(hook, &at, &mut expressions, errors);
        }
        validate_review_versions(hook, &at, &strict, errors);
        let name = text(hook, "name");
        if strict.unique_names && !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
        }
    }
}

fn validate_webhook(hook: &Object, at: &str, mutating: bool, strict: &Strictness, errors: &mut Errors) {
    validate_fully_qualified_name(text(hook, "name"), &format!("{at}name"), errors);
    for (position, rule) in objects(hook, "rules") {
        validate_rule(rule, &format!("{at}rules[{position}]."), errors);
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
    validate_client_config(child(hook, "clientConfig"), &format!("{at}clientConfig"), errors);
}

/// Validates the name of a webhook (`IsFullyQualifiedName`).
fn validate_fully_qualified_name(name: &str, field: &str, errors: &mut Errors) {
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

fn validate_review_versions(hook: &Object, at: &str, strict: &Strictness, errors: &mut Errors) {
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

/// Validates the address of a webhook: its URL or its service.
pub fn validate_client_config(config: &Object, at: &str, errors: &mut Errors) {
    match (given(config, "url").and_then(Value::as_str), given(config, "service").and_then(Value::as_object)) {
        (Some(url), None) => validate_url(url, &format!("{at}.url"), errors),
        (None, Some(service)) => validate_service(service, &format!("{at}.service."), errors),
        _ => errors.push(FieldError::required(at, "exactly one of url or service is required")),
    }
}

/// Validates the URL of a webhook (`ValidateWebhookURL`).
fn validate_url(url: &str, field: &str, errors: &mut Errors) {
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

/// Validates the service of a webhook (`ValidateWebhookService`). kube-apiserver swaps `name` and `namespace` in the
/// paths of the errors.
fn validate_service(service: &Object, at: &str, errors: &mut Errors) {
    for (missing, reported) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, missing).is_empty() {
            errors.push(FieldError::required(format!("{at}{reported}"), ""));
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
    // Upstream removes the first character, even if it is not a slash.
    let rest = path.chars().next().map_or("", |first| &path[first.len_utf8()..]);
    for (position, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if segment.is_empty() {
            wrong(format!("segment[{position}] may not be empty"));
            continue;
        }
        for problem in dns_subdomain_problems(segment) {
            wrong(format!("segment[{position}]: {problem}"));
        }
    }
}

pub(crate) static PRINTER: Printer = Printer {
    columns: &[NAME, Column::integer("Webhooks", "How many webhooks this configures."), AGE],
    cells: |hooks| vec![hooks.name().into(), hooks.get("webhooks").count().into(), hooks.age().into()],
};
