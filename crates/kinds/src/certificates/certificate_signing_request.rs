//! CertificateSigningRequest (`certificates.k8s.io/v1`): requests an X.509 certificate from a signer.
//!
//! The server records the user who sends the request. The spec is immutable afterwards. `/approval` writes the
//! conditions `Approved` and `Denied`; `/status` writes the certificate, once.
//!
//! Source: `pkg/registry/certificates/certificates/strategy.go`, `pkg/apis/certificates/validation`.

use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_validation::base64::normalize_base64;
use listwatch_validation::clock::timestamp;
use listwatch_validation::names::{self, NameRule};
use listwatch_validation::{Errors, Object, child, child_mut, items, number, quoted, text};

use crate::certificate_request::{self, CertificateRequest};
use crate::{CreateContext, Field, Kind, MetadataScope, Subresource, UpdateContext, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::{NONE, condition};
use listwatch_printers::{AGE, Column, Json, NAME, human_duration};

pub(crate) static KIND: Kind = Kind {
    short_names: &["csr"],
    names: NameRule::PathSegment,
    fields: &[Field::new("spec.signerName")],
    subresources: &[Subresource::Approval, Subresource::Status],
    normalize,
    prepare_for_create,
    prepare_for_update,
    validate,
    validate_transition,
    keeps_spec: true,
    status_write: WriteScope { metadata: MetadataScope::Written, reset: &[&["spec"], &["status", "conditions"]] },
    printer: &PRINTER,
    ..Kind::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest")
};

/// The conditions that only `/approval` writes.
const APPROVAL_CONDITIONS: [&str; 2] = ["Approved", "Denied"];

/// The conditions that an update cannot remove.
const PERMANENT_CONDITIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Rewrites the request and the certificate in standard base64, as Go encodes bytes.
fn normalize(request: &mut Object) -> Result<(), String> {
    normalize_base64(request.get_mut("spec").and_then(|spec| spec.get_mut("request")))?;
    normalize_base64(request.get_mut("status").and_then(|status| status.get_mut("certificate")))
}

/// Records the user who sends the request, and empties the status.
fn prepare_for_create(request: &mut Object, context: CreateContext<'_>) {
    let spec = child_mut(request, "spec");
    for name in ["username", "uid", "groups", "extra"] {
        spec.shift_remove(name);
    }
    if let Value::Object(user) = json!(context.user) {
        spec.extend(user);
    }
    request.insert("status", Value::Object(Map::new()));
}

/// Keeps the approval conditions on a write to `/status`, and sets missing times of conditions.
fn prepare_for_update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    let before = conditions(old);
    let Some(Value::Array(after)) = new.get_mut("status").and_then(|status| status.get_mut("conditions")) else {
        return;
    };
    if context.subresource == Some(&Subresource::Status) {
        for kind in APPROVAL_CONDITIONS {
            let kept: Vec<&Value> = before.iter().filter(|condition| has_type(condition, kind)).collect();
            let mut written: Vec<&mut Value> = after.iter_mut().filter(|condition| has_type(condition, kind)).collect();
            if kept.len() == written.len() {
                written.iter_mut().zip(kept).for_each(|(written, kept)| **written = kept.clone());
            }
        }
    }
    if context.subresource.is_none() {
        return;
    }
    let now = timestamp(context.now);
    // The time of the first old condition of each type and status.
    let mut since: HashMap<(&str, &str), &Value> = HashMap::new();
    for old in before {
        if let Some(time) = old.get("lastTransitionTime") {
            since.entry((member(old, "type"), member(old, "status"))).or_insert(time);
        }
    }
    for condition in after.iter_mut().filter_map(Value::as_object_mut) {
        let missing = |condition: &Object, name: &str| condition.get(name).is_none_or(Value::is_null);
        if missing(condition, "lastUpdateTime") {
            condition.insert("lastUpdateTime", json!(now));
        }
        if missing(condition, "lastTransitionTime") {
            let since = since
                .get(&(text(condition, "type"), text(condition, "status")))
                .map_or_else(|| json!(now), |time| (*time).clone());
            condition.insert("lastTransitionTime", since);
        }
    }
}

/// The conditions in the status of a request.
fn conditions(request: &Object) -> &[Value] {
    let conditions = request.get("status").and_then(|status| status.get("conditions")?.as_array());
    conditions.map(Vec::as_slice).unwrap_or_default()
}

fn has_type(condition: &Value, kind: &str) -> bool {
    member(condition, "type") == kind
}

/// A string member of a condition; `""` if it is absent.
fn member<'a>(condition: &'a Value, name: &str) -> &'a str {
    condition.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The issued certificate in base64; `""` if there is none.
fn issued_certificate(request: &Object) -> &str {
    let certificate = request.get("status").and_then(|status| status.get("certificate")?.as_str());
    certificate.unwrap_or_default()
}

/// Validates the spec (`ValidateCertificateSigningRequestCreate`).
fn validate(request: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(request, "spec");
    for check in [validate_request, validate_usages, validate_signer_name, validate_expiration] {
        check(spec, "spec.", errors);
    }
}

/// The supported key usages, sorted.
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

/// The shortest requested lifetime of a certificate, in seconds.
const EXPIRATION_SECONDS_MIN: i64 = 600;

/// The longest domain of a signer name, in bytes.
const SIGNER_DOMAIN_BYTES_MAX: usize = 253;

/// The longest path of a signer name, in bytes: a label, a dot and a subdomain.
const SIGNER_PATH_BYTES_MAX: usize = 253 + 63 + 1;

/// Validates that `request` is a PEM block with a PKCS #10 request and that its signature is valid.
fn validate_request(spec: &Object, at: &str, errors: &mut Errors) {
    let encoded = text(spec, "request");
    let decoded = BASE64.decode(encoded).map_err(|error| error.to_string());
    let request = decoded.and_then(|text| CertificateRequest::from_pem(&text));
    if let Err(why) = request.and_then(|request| request.check_signature()) {
        errors.push(FieldError::invalid(format!("{at}request"), quoted(encoded), why));
    }
}

fn validate_usages(spec: &Object, at: &str, errors: &mut Errors) {
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

/// Validates the name of the signer, such as `example.com/name` (`ValidateSignerName`).
fn validate_signer_name(spec: &Object, at: &str, errors: &mut Errors) {
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
    validate_labels(domain, NameRule::Label, &at, errors);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(&at, quoted(domain), why));
    }
    validate_labels(path, NameRule::Subdomain, &at, errors);
    let bytes_max = SIGNER_DOMAIN_BYTES_MAX + SIGNER_PATH_BYTES_MAX + 1;
    if name.len() > bytes_max {
        errors.push(FieldError::too_long(&at, format!("may not be more than {bytes_max} bytes")));
    }
}

/// Validates the labels of `text` up to and including the first invalid label.
fn validate_labels(text: &str, rule: NameRule, at: &str, errors: &mut Errors) {
    for label in text.split('.') {
        let problems = names::problems(rule, label, false);
        for problem in &problems {
            let why = format!("validating label {}: {problem}", quote(label));
            errors.push(FieldError::invalid(at, quoted(text), why));
        }
        if !problems.is_empty() {
            break;
        }
    }
}

fn validate_expiration(spec: &Object, at: &str, errors: &mut Errors) {
    if let Some(seconds) = number(spec, "expirationSeconds").filter(|seconds| *seconds < EXPIRATION_SECONDS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(format!("{at}expirationSeconds"), seconds, why));
    }
}

/// Validates the conditions of a request. Errors that the old conditions already have are tolerated.
fn validate_conditions(conditions: &[Value], before: &[Value], errors: &mut Errors) {
    let at = "status.conditions";
    fn types(conditions: &[Value]) -> Vec<&str> {
        conditions.iter().map(|condition| member(condition, "type")).collect()
    }
    let has_both = |types: &[&str]| APPROVAL_CONDITIONS.iter().all(|name| types.contains(name));
    let has_duplicates = |types: &[&str]| types.iter().collect::<HashSet<_>>().len() < types.len();
    let (old, new) = (types(before), types(conditions));
    let (allow_both, allow_duplicates, allow_empty) = (has_both(&old), has_duplicates(&old), old.contains(&""));
    let mut seen: HashSet<&str> = HashSet::new();
    for (position, (condition, kind)) in conditions.iter().zip(new).enumerate() {
        if kind.is_empty() && !allow_empty {
            errors.push(FieldError::required(format!("{at}[{position}].type"), ""));
        }
        let supported: &[&str] = match kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        let status = member(condition, "status");
        if status.is_empty() {
            errors.push(FieldError::required(format!("{at}[{position}].status"), ""));
        } else if !supported.contains(&status) {
            errors.push(FieldError::not_supported(format!("{at}[{position}].status"), status, supported));
        }
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !allow_both && seen.contains(other) && !other.is_empty() {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(at, quoted(kind), why));
        }
        if !seen.insert(kind) && !allow_duplicates {
            errors.push(FieldError::duplicate(format!("{at}[{position}].type"), quoted(kind)));
        }
    }
}

/// Validates an issued certificate: PEM in base64. An empty certificate is valid.
fn validate_certificate(encoded: &str, errors: &mut Errors) {
    if encoded.is_empty() {
        return;
    }
    let decoded = BASE64.decode(encoded).map_err(|error| error.to_string());
    if let Err(why) = decoded.and_then(|text| certificate_request::check_certificates(&text)) {
        errors.push(FieldError::invalid("status.certificate", quoted("<certificate data>"), why));
    }
}

/// Validates the changes of conditions and certificate. The subresource decides which of them are valid
/// (`validateCertificateSigningRequestUpdate`).
fn validate_transition(new: &Object, old: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
    let (before, after) = (conditions(old), conditions(new));
    if before != after {
        validate_conditions(after, before, errors);
    }
    let (issued, reissued) = (issued_certificate(old), issued_certificate(new));
    if issued != reissued {
        validate_certificate(reissued, errors);
    }
    let at = "status.conditions";
    let of = |conditions: &[Value], kind: &str| -> Vec<Value> {
        conditions.iter().filter(|condition| has_type(condition, kind)).cloned().collect()
    };
    for kind in PERMANENT_CONDITIONS {
        if of(after, kind).len() < of(before, kind).len() {
            let why = format!("updates may not remove a condition of type {}", quote(kind));
            errors.push(FieldError::forbidden(at, why));
        }
    }
    if context.subresource != Some(&Subresource::Approval) {
        for kind in APPROVAL_CONDITIONS {
            let (before, after) = (of(before, kind), of(after, kind));
            let what = match after.len().cmp(&before.len()) {
                std::cmp::Ordering::Greater => "add",
                std::cmp::Ordering::Equal if before != after => "modify",
                _ => continue,
            };
            let why = format!("updates may not {what} a condition of type {}", quote(kind));
            errors.push(FieldError::forbidden(at, why));
        }
    }
    if issued != reissued {
        let why = match context.subresource {
            Some(Subresource::Status) if issued.is_empty() => return,
            Some(Subresource::Status) => "updates may not modify existing certificate content",
            _ => "updates may not set certificate content",
        };
        errors.push(FieldError::forbidden("status.certificate", why));
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        AGE,
        Column::text("SignerName", "Who is asked to sign."),
        Column::text("Requestor", "Who asks."),
        Column::text("RequestedDuration", "How long the certificate should be valid."),
        Column::text("Condition", "What became of the request."),
    ],
    cells: |request| {
        let spec = request.spec();
        let duration = spec.get("expirationSeconds").int();
        let duration = duration.map(|seconds| human_duration(time::Duration::seconds(seconds)));
        vec![
            request.name().into(),
            request.age().into(),
            spec.get("signerName").string_or(NONE).into(),
            spec.get("username").string().into(),
            duration.unwrap_or_else(|| NONE.to_owned()).into(),
            request_state(request.status()).into(),
        ]
    },
};

/// The cell of the condition: `Approved`, `Denied` or `Pending`, then `Failed` and `Issued` if they apply.
fn request_state(status: Json<'_>) -> String {
    let has = |type_: &str| condition(status.get("conditions"), type_).is_some();
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !status.get("certificate").string().is_empty() {
        state.push_str(",Issued");
    }
    state
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use listwatch_meta::UserInfo;
    use listwatch_validation::clock::Clock;

    use super::*;
    use crate::certificate_request::testing;
    use crate::testing::{map, transition_errors};

    #[test]
    fn new_request_records_the_user_and_has_an_empty_status() {
        let user = UserInfo {
            username: "bob".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["g".to_owned()],
            extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]),
        };
        let mut request = map(json!({
            "spec": {"signerName": "a/b", "username": "root", "groups": ["system:masters"], "extra": {"x": ["y"]}},
            "status": {"conditions": [{"type": "Approved", "status": "True"}]},
        }));
        prepare_for_create(&mut request, CreateContext { uid: "u", now: "NOW", user: &user });
        let expected = json!({
            "spec": {"signerName": "a/b", "username": "bob", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}},
            "status": {},
        });
        assert_eq!(Value::Object(request), expected);
    }

    fn true_condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "r"})
    }

    fn check(subresource: &Subresource, new: Value, old: Value, expected: &[&str]) {
        let request = |status: Value| json!({ "status": status });
        let errors = transition_errors(&KIND, request(new), request(old), Some(subresource));
        assert_eq!(errors, expected);
    }

    #[test]
    fn approval_conditions_are_added_only_by_approval_and_never_removed() {
        let with =
            |kinds: &[&str]| json!({"conditions": kinds.iter().map(|kind| true_condition(kind)).collect::<Vec<_>>()});
        let (approval, status) = (&Subresource::Approval, &Subresource::Status);
        check(approval, with(&["Approved"]), with(&[]), &[]);
        check(
            approval,
            with(&["Approved", "Denied"]),
            with(&["Approved"]),
            &["status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"],
        );
        let gone = "status.conditions: Forbidden: updates may not remove a condition of type \"Denied\"";
        check(approval, with(&[]), with(&["Denied"]), &[gone]);
        check(status, with(&[]), with(&["Denied"]), &[gone]);
        let added = "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"";
        check(status, with(&["Approved"]), with(&[]), &[added]);
        check(status, with(&["Failed"]), with(&[]), &[]);
        check(
            approval,
            json!({"conditions": [{"type": "Approved", "status": "False"}, {"status": "Maybe"}, {"type": "x"}, {"type": "x", "status": "True"}]}),
            with(&[]),
            &[
                "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
                "status.conditions[1].type: Required value",
                "status.conditions[1].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
                "status.conditions[2].status: Required value",
                "status.conditions[3].type: Duplicate value: \"x\"",
            ],
        );
    }

    #[test]
    fn certificate_is_set_only_by_status_and_only_once() {
        let encode = |text: &str| BASE64.encode(text);
        let pem = &testing::certificate();
        let with = |text: &str| json!({ "certificate": encode(text) });
        let (approval, status) = (&Subresource::Approval, &Subresource::Status);
        check(status, with(pem), json!({}), &[]);
        check(
            approval,
            with(pem),
            json!({}),
            &["status.certificate: Forbidden: updates may not set certificate content"],
        );
        check(
            status,
            with(&pem.repeat(2)),
            with(pem),
            &["status.certificate: Forbidden: updates may not modify existing certificate content"],
        );
        check(
            status,
            with("hello"),
            json!({}),
            &[
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
            ],
        );
        check(
            status,
            with(&pem.replace("CERTIFICATE", "PRIVATE KEY")),
            json!({}),
            &[
                "status.certificate: Invalid value: \"<certificate data>\": only CERTIFICATE PEM blocks are allowed, found \"PRIVATE KEY\"",
            ],
        );
    }

    #[test]
    fn approval_update_sets_condition_times_and_status_update_keeps_approval_conditions() {
        let clock = Clock::fixed(time::OffsetDateTime::UNIX_EPOCH);
        let now = "1970-01-01T00:00:00Z";
        let timed = |kind: &str, reason: &str, since: &str| json!({"type": kind, "status": "True", "reason": reason, "lastUpdateTime": since, "lastTransitionTime": since});
        let old = map(json!({"status": {"conditions": [timed("Approved", "before", "then")]}}));
        let run = |subresource: &Subresource| {
            let mut new = map(json!({"status": {"conditions": [
                {"type": "Approved", "status": "True", "reason": "after"}, {"type": "Failed", "status": "True", "reason": "r"}]}}));
            prepare_for_update(&mut new, &old, UpdateContext { subresource: Some(subresource), now: clock.time() });
            new["status"]["conditions"].clone()
        };
        let mut updated = timed("Approved", "after", "then");
        updated["lastUpdateTime"] = json!(now);
        assert_eq!(run(&Subresource::Approval), json!([updated, timed("Failed", "r", now)]));
        let kept = timed("Approved", "before", "then");
        assert_eq!(run(&Subresource::Status), json!([kept, timed("Failed", "r", now)]));
    }
}
