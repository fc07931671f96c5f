//! The ConfigMap `extension-apiserver-authentication`: by which certificates extension servers know the clients
//! of this cluster. Each server adds its own; nothing is removed but certificates that have expired.

use std::sync::Arc;

use listwatch_meta::Status;
use serde_json::{Map, Value, json};
use time::{Duration, OffsetDateTime};

use super::ensure;
use super::objects::{CONFIG_MAPS, SYSTEM_NAMESPACE, Wanted};
use crate::backend::Backend;
use crate::write::{self, Amendment};

const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
/// A certificate is dropped when it has expired for this time.
const EXPIRED_SLACK: Duration = Duration::minutes(5);

/// Makes the ConfigMap, or merges this server's certificates into it.
pub(super) async fn sync(backend: &Arc<Backend>, client_ca: Option<&str>) -> Result<(), Status> {
    let now = OffsetDateTime::now_utc();
    let data = match client_ca {
        Some(ca) => json!({CLIENT_CA: merged("", ca, now)}),
        None => json!({}),
    };
    let (group, version, plural) = CONFIG_MAPS;
    let wanted = Wanted {
        group,
        version,
        plural,
        namespace: Some(SYSTEM_NAMESPACE),
        name: NAME,
        check: "poststarthook/start-cluster-authentication-info-controller",
        body: json!({"metadata": {"name": NAME}, "data": data}),
    };
    if ensure(backend, &wanted).await? {
        return Ok(());
    }
    let Some(client_ca) = client_ca else { return Ok(()) };
    let registry = backend.registry();
    let Some(resource) = registry.find(group, version, plural) else { return Ok(()) };
    let key = resource.key(wanted.namespace, NAME)?;
    write::amend(backend, resource, &key, |map| merge(map, client_ca, now)).await
}

fn merge(map: &mut Map<String, Value>, client_ca: &str, now: OffsetDateTime) -> Amendment {
    let present = map.get("data").and_then(|data| data.get(CLIENT_CA)?.as_str()).unwrap_or_default();
    let merged = merged(present, client_ca, now);
    if merged == present {
        return Amendment::Leave;
    }
    let data = map.entry("data").or_insert(Value::Null);
    if !data.is_object() {
        *data = json!({});
    }
    data[CLIENT_CA] = json!(merged);
    Amendment::Write
}

/// The certificates of both, each once, without those that have expired.
fn merged(present: &str, own: &str, now: OffsetDateTime) -> String {
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let mut text = String::new();
    for (label, der) in [present, own].into_iter().flat_map(|pem| write::pem_blocks(pem.as_bytes())) {
        let expired = not_after(&der).is_some_and(|end| end + EXPIRED_SLACK < now);
        if label == "CERTIFICATE" && !expired && !seen.contains(&der) {
            text.push_str(&write::pem(&label, &der));
            seen.push(der);
        }
    }
    text
}

/// Until when a certificate is valid (RFC 5280, section 4.1). `None` where that cannot be read.
fn not_after(certificate: &[u8]) -> Option<OffsetDateTime> {
    const VERSION: u8 = 0xa0;
    const UTC_TIME: u8 = 0x17;
    let body = der(der(certificate)?.content)?;
    // Version (optional), serial number, algorithm, issuer, validity.
    let mut field = der(body.content)?;
    let behind_version = if field.tag == VERSION { 4 } else { 3 };
    for _ in 0..behind_version {
        field = der(field.rest)?;
    }
    let begin = der(field.content)?;
    let end = der(begin.rest)?;
    let text = std::str::from_utf8(end.content).ok()?;
    // Two digits of a year below 50 are of this century.
    let text = match end.tag {
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        _ => text.to_owned(),
    };
    let part = |at: usize, length: usize| text.get(at..at + length);
    let stamp =
        format!("{}-{}-{}T{}:{}:{}Z", part(0, 4)?, part(4, 2)?, part(6, 2)?, part(8, 2)?, part(10, 2)?, part(12, 2)?);
    write::parse_timestamp(&stamp)
}

/// One value of DER.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

fn der(bytes: &[u8]) -> Option<Element<'_>> {
    let (tag, content, rest) = write::der_element(bytes)?;
    Some(Element { tag, content, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(year: i32) -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 3, 4);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn count(text: &str) -> usize {
        text.matches("-----BEGIN CERTIFICATE-----").count()
    }

    #[test]
    fn certificates_of_all_servers_are_united_until_they_expire() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let (one, other, old, far) = (certificate(2031), certificate(2032), certificate(2029), certificate(2060));
        let first = merged("", &one, now);
        assert_eq!(count(&first), 1);
        let both = merged(&first, &other, now);
        assert_eq!(count(&both), 2);
        assert!(both.starts_with(&first), "what was there stays in front");
        assert_eq!(merged(&both, &one, now), both, "a certificate stands once");
        assert_eq!(merged(&format!("{old}{both}"), &other, now), both, "an expired certificate is dropped");
        assert_eq!(count(&merged(&far, &one, now)), 2);
        assert_eq!(merged("no certificate", &one, now), first);
    }

    #[test]
    fn other_keys_of_the_map_stay() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let one = certificate(2031);
        let mut map = json!({"data": {"requestheader-client-ca-file": "x"}}).as_object().unwrap().clone();
        assert!(matches!(merge(&mut map, &one, now), Amendment::Write));
        assert_eq!(map["data"]["requestheader-client-ca-file"], "x");
        assert_eq!(count(map["data"][CLIENT_CA].as_str().unwrap()), 1);
        assert!(matches!(merge(&mut map, &one, now), Amendment::Leave));
    }
}
