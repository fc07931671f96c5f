//! Certificate signing requests (`pkg/apis/certificates/validation`).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::Value;

use crate::certificate_request::{self, CertificateRequest};
use listwatch_meta::go;
use listwatch_validation::names;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, items, number, quoted, text};

/// `ValidateCertificateSigningRequestCreate`.
pub(crate) fn request(request: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(request, "spec");
    for check in [request_bytes, usages, signer, expiration] {
        check(spec, "spec.", errors);
    }
}

/// What a key may be used for.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// No certificate is asked for for less than this.
const EXPIRATION_SECONDS_MIN: i64 = 600;

/// The longest domain of a signer, and the longest path: a label, a dot and a subdomain.
const SIGNER_DOMAIN_BYTES_MAX: usize = 253;
const SIGNER_PATH_BYTES_MAX: usize = 253 + 63 + 1;

fn request_bytes(spec: &Object, at: &str, errors: &mut Errors) {
    let encoded = text(spec, "request");
    let decoded = BASE64.decode(encoded).map_err(|error| error.to_string());
    let request = decoded.and_then(|text| CertificateRequest::from_pem(&text));
    if let Err(why) = request.and_then(|request| request.check_signature()) {
        errors.push(FieldError::invalid(format!("{at}request"), quoted(encoded), why));
    }
}

fn usages(spec: &Object, at: &str, errors: &mut Errors) {
    let usages: Vec<&str> = items(spec, "usages").iter().filter_map(Value::as_str).collect();
    if usages.is_empty() {
        errors.push(FieldError::required(format!("{at}usages"), ""));
    }
    for (position, usage) in usages.iter().enumerate().filter(|(_, usage)| !USAGES.contains(usage)) {
        errors.push(FieldError::not_supported(format!("{at}usages[{position}]"), usage, &USAGES));
    }
    let mut seen = HashSet::new();
    for (position, usage) in usages.iter().enumerate().filter(|(_, usage)| !seen.insert(**usage)) {
        errors.push(FieldError::duplicate(format!("{at}usages[{position}]"), quoted(usage)));
    }
}

/// The name of a signer: `example.com/name` (`ValidateSignerName`).
fn signer(spec: &Object, at: &str, errors: &mut Errors) {
    let (name, at) = (text(spec, "signerName"), format!("{at}signerName"));
    if name.is_empty() {
        errors.push(FieldError::required(at, ""));
        return;
    }
    if name == "kubernetes.io/legacy-unknown" {
        let why = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid(at, quoted(name), why));
        return;
    }
    let mut parts = name.split('/');
    let (Some(domain), Some(path), None) = (parts.next(), parts.next(), parts.next()) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(at, quoted(name), why));
        return;
    };
    if domain.len() > SIGNER_DOMAIN_BYTES_MAX {
        errors.push(FieldError::too_long(&at, format!("may not be more than {SIGNER_DOMAIN_BYTES_MAX} bytes")));
    }
    labels(domain, NameRule::Label, &at, errors);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(&at, quoted(domain), why));
    }
    labels(path, NameRule::Subdomain, &at, errors);
    let bytes_max = SIGNER_DOMAIN_BYTES_MAX + SIGNER_PATH_BYTES_MAX + 1;
    if name.len() > bytes_max {
        errors.push(FieldError::too_long(&at, format!("may not be more than {bytes_max} bytes")));
    }
}

/// What is wrong with the first label of `text` that something is wrong with.
fn labels(text: &str, rule: NameRule, at: &str, errors: &mut Errors) {
    for label in text.split('.') {
        let problems = names::problems(rule, label, false);
        for problem in &problems {
            let why = format!("validating label {}: {problem}", go::quote(label));
            errors.push(FieldError::invalid(at, quoted(text), why));
        }
        if !problems.is_empty() {
            break;
        }
    }
}

fn expiration(spec: &Object, at: &str, errors: &mut Errors) {
    if let Some(seconds) = number(spec, "expirationSeconds").filter(|seconds| *seconds < EXPIRATION_SECONDS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(format!("{at}expirationSeconds"), seconds, why));
    }
}

/// Finds what is wrong with the conditions of a request. What was wrong before is borne.
pub(crate) fn conditions(conditions: &[Value], before: &[Value], errors: &mut Errors) {
    let at = "status.conditions";
    let member = |condition: &Value, name: &str| condition[name].as_str().unwrap_or_default().to_owned();
    let kinds = |conditions: &[Value]| -> Vec<String> { conditions.iter().map(|one| member(one, "type")).collect() };
    let both = |kinds: &[String]| ["Approved", "Denied"].iter().all(|kind| kinds.iter().any(|found| found == kind));
    let twice = |kinds: &[String]| kinds.iter().collect::<HashSet<_>>().len() < kinds.len();
    let (old, new) = (kinds(before), kinds(conditions));
    let (bears_both, bears_twice, bears_none) = (both(&old), twice(&old), old.iter().any(String::is_empty));
    let mut seen: HashSet<&str> = HashSet::new();
    for (position, (condition, kind)) in conditions.iter().zip(&new).enumerate() {
        if kind.is_empty() && !bears_none {
            errors.push(FieldError::required(format!("{at}[{position}].type"), ""));
        }
        let supported: &[&str] = match kind.as_str() {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        let status = member(condition, "status");
        if status.is_empty() {
            errors.push(FieldError::required(format!("{at}[{position}].status"), ""));
        } else if !supported.contains(&status.as_str()) {
            errors.push(FieldError::not_supported(format!("{at}[{position}].status"), &status, supported));
        }
        let other = match kind.as_str() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !bears_both && seen.contains(other) && !other.is_empty() {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(at, quoted(kind), why));
        }
        if !seen.insert(kind.as_str()) && !bears_twice {
            errors.push(FieldError::duplicate(format!("{at}[{position}].type"), quoted(kind)));
        }
    }
}

/// Validates an issued certificate.
pub(crate) fn certificate(encoded: &str, errors: &mut Errors) {
    if encoded.is_empty() {
        return;
    }
    let decoded = BASE64.decode(encoded).map_err(|error| error.to_string());
    if let Err(why) = decoded.and_then(|text| certificate_request::check_certificates(&text)) {
        errors.push(FieldError::invalid("status.certificate", quoted("<certificate data>"), why));
    }
}
