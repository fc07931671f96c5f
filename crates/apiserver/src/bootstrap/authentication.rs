//! The ConfigMap `extension-apiserver-authentication`: by which certificates extension servers know the clients
//! of this cluster. Each server adds its own; nothing is removed but certificates that have expired.

use std::sync::Arc;

use listwatch_meta::Status;
use serde_json::{Map, Value, json};
use time::{Duration, OffsetDateTime};
use x509_cert::der::Decode as _;

use super::ensure;
use super::objects::{CONFIG_MAPS, SYSTEM_NAMESPACE, Wanted};
use crate::backend::Backend;
use crate::write::Amendment;

const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
/// Certificates that are kept; the oldest are dropped. A server that makes a new CA at each start must not make
/// the object grow for ever.
const CERTIFICATES_MAX: usize = 16;
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
    super::amend(backend, resource, &key, |map| merge(map, client_ca, now)).await
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

/// The certificates of both texts, each once, without expired ones. A text that is not PEM has none.
fn merged(present: &str, own: &str, now: OffsetDateTime) -> String {
    let line_feeds = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    let mut seen: Vec<pem::Pem> = Vec::new();
    for block in [present, own].into_iter().flat_map(|text| pem::parse_many(text).unwrap_or_default()) {
        let expired = not_after(block.contents()).is_some_and(|end| end + EXPIRED_SLACK < now);
        if block.tag() == "CERTIFICATE" && !expired && !seen.iter().any(|seen| seen.contents() == block.contents()) {
            seen.push(block);
        }
    }
    // This server's own certificates are the last.
    let first = seen.len().saturating_sub(CERTIFICATES_MAX);
    seen[first..].iter().map(|block| pem::encode_config(block, line_feeds)).collect()
}

/// The end of a certificate's validity (RFC 5280, section 4.1.2.5). `None` if the certificate is unreadable.
fn not_after(certificate: &[u8]) -> Option<OffsetDateTime> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let end = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    OffsetDateTime::from_unix_timestamp(i64::try_from(end.as_secs()).ok()?).ok()
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
