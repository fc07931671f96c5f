//! Certificate signing requests: whose request it is, is not theirs to say; what is asked for stays as it
//! was asked; a certificate comes through `/status`, consent and refusal through `/approval`
//! (`pkg/registry/certificates/certificates`, `pkg/apis/certificates/validation`).

use listwatch_validation::clock::timestamp;
use std::collections::HashMap;

use listwatch_meta::FieldError;
use serde_json::{Map, Value, json};

use crate::Subresource;
use crate::kind::{CreateContext, UpdateContext};
use crate::validate::certificates;
use listwatch_meta::go;
use listwatch_validation::Errors;
use listwatch_validation::Object;
use listwatch_validation::base64::normalize_base64;
use listwatch_validation::child_mut;

/// Consent and refusal: they come through `/approval` alone.
const APPROVAL: [&str; 2] = ["Approved", "Denied"];

/// Conditions that stay, once they are there.
const LASTING: [&str; 3] = ["Approved", "Denied", "Failed"];

/// The request and the certificate have to be base64.
pub(crate) fn decode(request: &mut Object) -> Result<(), String> {
    normalize_base64(request.get_mut("spec").and_then(|spec| spec.get_mut("request")))?;
    normalize_base64(request.get_mut("status").and_then(|status| status.get_mut("certificate")))
}

/// A new one is its sender's, and nobody has decided about it.
pub(crate) fn create(request: &mut Object, context: CreateContext<'_>) {
    let spec = child_mut(request, "spec");
    for name in ["username", "uid", "groups", "extra"] {
        spec.shift_remove(name);
    }
    if let Value::Object(known) = json!(context.user) {
        spec.extend(known);
    }
    request.insert("status".to_owned(), Value::Object(Map::new()));
}

/// What a write to the status says about consent is as it was, and conditions have their times.
pub(crate) fn update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    let before = conditions(old);
    let Some(Value::Array(after)) = new.get_mut("status").and_then(|status| status.get_mut("conditions")) else {
        return;
    };
    if context.subresource == Some(&Subresource::Status) {
        for kind in APPROVAL {
            let kept: Vec<&Value> = before.iter().filter(|condition| is(condition, kind)).collect();
            let mut given: Vec<&mut Value> = after.iter_mut().filter(|condition| is(condition, kind)).collect();
            if kept.len() == given.len() {
                given.iter_mut().zip(kept).for_each(|(given, kept)| **given = kept.clone());
            }
        }
    }
    if context.subresource.is_none() {
        return;
    }
    let now = timestamp(context.now);
    // The first of its type and status that has a time.
    let mut since: HashMap<(&str, &str), &Value> = HashMap::new();
    for old in before {
        if let Some(time) = old.get("lastTransitionTime") {
            since.entry((text(old, "type"), text(old, "status"))).or_insert(time);
        }
    }
    for condition in after.iter_mut().filter_map(Value::as_object_mut) {
        let missing = |condition: &Object, name: &str| condition.get(name).is_none_or(Value::is_null);
        if missing(condition, "lastUpdateTime") {
            condition.insert("lastUpdateTime".to_owned(), json!(now));
        }
        if missing(condition, "lastTransitionTime") {
            let member = |name: &str| condition.get(name).and_then(Value::as_str).unwrap_or_default();
            let since =
                since.get(&(member("type"), member("status"))).map_or_else(|| json!(now), |time| (*time).clone());
            condition.insert("lastTransitionTime".to_owned(), since);
        }
    }
}

fn conditions(request: &Object) -> &[Value] {
    let conditions = request.get("status").and_then(|status| status.get("conditions")?.as_array());
    conditions.map(Vec::as_slice).unwrap_or_default()
}

fn is(condition: &Value, kind: &str) -> bool {
    condition.get("type").is_some_and(|found| found == kind)
}

fn text<'a>(condition: &'a Value, name: &str) -> &'a str {
    condition.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn certificate(request: &Object) -> &str {
    let certificate = request.get("status").and_then(|status| status.get("certificate")?.as_str());
    certificate.unwrap_or_default()
}

/// Finds what a write through this door must not do.
pub(crate) fn judge(new: &Object, old: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
    let (before, after) = (conditions(old), conditions(new));
    if before != after {
        certificates::conditions(after, before, errors);
    }
    let (issued, reissued) = (certificate(old), certificate(new));
    if issued != reissued {
        certificates::certificate(reissued, errors);
    }
    let at = "status.conditions";
    let of = |conditions: &[Value], kind: &str| -> Vec<Value> {
        conditions.iter().filter(|condition| is(condition, kind)).cloned().collect()
    };
    for kind in LASTING {
        if of(after, kind).len() < of(before, kind).len() {
            let why = format!("updates may not remove a condition of type {}", go::quote(kind));
            errors.push(FieldError::forbidden(at, why));
        }
    }
    if context.subresource != Some(&Subresource::Approval) {
        for kind in APPROVAL {
            let (before, after) = (of(before, kind), of(after, kind));
            let what = match after.len().cmp(&before.len()) {
                std::cmp::Ordering::Greater => "add",
                std::cmp::Ordering::Equal if before != after => "modify",
                _ => continue,
            };
            let why = format!("updates may not {what} a condition of type {}", go::quote(kind));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{judged, map};
    use listwatch_meta::UserInfo;
    use listwatch_validation::clock::Clock;

    #[test]
    fn a_request_is_its_senders() {
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
        create(&mut request, CreateContext { uid: "u", now: "NOW", user: &user });
        let expected = json!({
            "spec": {"signerName": "a/b", "username": "bob", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}},
            "status": {},
        });
        assert_eq!(Value::Object(request), expected);
    }

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "r"})
    }

    fn check(door: &Subresource, new: Value, old: Value, expected: &[&str]) {
        let request = |status: Value| json!({ "status": status });
        let found = judged("certificates.k8s.io", "CertificateSigningRequest", request(new), request(old), Some(door));
        assert_eq!(found, expected);
    }

    #[test]
    fn consent_comes_through_its_own_door_and_stays() {
        let with = |kinds: &[&str]| json!({"conditions": kinds.iter().map(|kind| condition(kind)).collect::<Vec<_>>()});
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
    fn a_certificate_comes_once_and_through_the_status() {
        use base64::Engine as _;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let pem = &crate::certificate_request::testing::certificate();
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
    fn conditions_have_their_times() {
        let clock = Clock::fixed(time::OffsetDateTime::UNIX_EPOCH);
        let now = "1970-01-01T00:00:00Z";
        let told = |kind: &str, reason: &str, since: &str| json!({"type": kind, "status": "True", "reason": reason, "lastUpdateTime": since, "lastTransitionTime": since});
        let old = map(json!({"status": {"conditions": [told("Approved", "before", "then")]}}));
        let run = |door: &Subresource| {
            let mut new = map(json!({"status": {"conditions": [
                {"type": "Approved", "status": "True", "reason": "after"}, {"type": "Failed", "status": "True", "reason": "r"}]}}));
            update(&mut new, &old, UpdateContext { subresource: Some(door), now: clock.time() });
            new["status"]["conditions"].clone()
        };
        let mut again = told("Approved", "after", "then");
        again["lastUpdateTime"] = json!(now);
        assert_eq!(run(&Subresource::Approval), json!([again, told("Failed", "r", now)]));
        let kept = told("Approved", "before", "then");
        assert_eq!(run(&Subresource::Status), json!([kept, told("Failed", "r", now)]));
    }
}
