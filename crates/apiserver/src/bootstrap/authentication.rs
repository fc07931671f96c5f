//! The ConfigMap `extension-apiserver-authentication`: the certificates by which extension servers verify the
//! clients of this cluster. Each server adds its own CA when that is missing.
//!
//! The map holds [`CERTIFICATES_MAX`] certificates. When more servers than that have CAs of their own, the newest
//! stay in the map: a server adds its CA once, and does not add it again to a full map. So servers never replace
//! each other's certificates in turn.

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
/// Certificates in the map; the oldest are dropped. A server that makes a new CA at each start must not make
/// the object grow without bound.
const CERTIFICATES_MAX: usize = 16;
/// A certificate is dropped when it has expired for this time.
const EXPIRED_SLACK: Duration = Duration::minutes(5);

/// Whether the map has this server's CA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Membership {
    /// It was not seen there since the server started.
    #[default]
    Unknown,
    /// It was there.
    Present,
    /// It was there, and [`CERTIFICATES_MAX`] newer ones took its place.
    Replaced,
}

/// Makes the ConfigMap, or merges this server's certificates into it.
pub(super) async fn sync(
    backend: &Arc<Backend>,
    client_ca: Option<&str>,
    membership: &mut Membership,
) -> Result<(), Status> {
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
    let created = ensure(backend, &wanted).await?;
    let Some(client_ca) = client_ca else { return Ok(()) };
    if created {
        *membership = Membership::Present;
        return Ok(());
    }
    let registry = backend.registry();
    let Some(resource) = registry.find(group, version, plural) else { return Ok(()) };
    let key = resource.key(wanted.namespace, NAME)?;
    let before = *membership;
    super::amend(backend, resource, &key, |map| {
        let (amendment, after) = merge(map, client_ca, now, before);
        *membership = after;
        amendment
    })
    .await?;
    if *membership == Membership::Replaced && before != Membership::Replaced {
        tracing::warn!(
            "{CERTIFICATES_MAX} newer certificates took the place of this server's client CA in {NAME}; servers of \
             one store should share a CA"
        );
    }
    Ok(())
}

/// Adds a CA that is missing. `before` is whether it was there; the result says whether it is.
fn merge(
    map: &mut Map<String, Value>,
    client_ca: &str,
    now: OffsetDateTime,
    before: Membership,
) -> (Amendment, Membership) {
    let present = map.get("data").and_then(|data| data.get(CLIENT_CA)?.as_str()).unwrap_or_default();
    let (there, own) = (certificates(present, now), certificates(client_ca, now));
    if !own.is_empty() && own.iter().all(|own| there.iter().any(|block| block.contents() == own.contents())) {
        return (Amendment::Leave, Membership::Present);
    }
    if before != Membership::Unknown && there.len() + own.len() > CERTIFICATES_MAX {
        return (Amendment::Leave, Membership::Replaced);
    }
    let merged = merged(present, client_ca, now);
    if merged == present {
        return (Amendment::Leave, Membership::Present);
    }
    let data = map.entry("data").or_insert(Value::Null);
    if !data.is_object() {
        *data = json!({});
    }
    data[CLIENT_CA] = json!(merged);
    (Amendment::Write, Membership::Present)
}

/// The certificates of a text that have not expired. A text that is not PEM has none.
fn certificates(text: &str, now: OffsetDateTime) -> Vec<pem::Pem> {
    let mut blocks = pem::parse_many(text).unwrap_or_default();
    let expired = |block: &pem::Pem| not_after(block.contents()).is_some_and(|end| end + EXPIRED_SLACK < now);
    blocks.retain(|block| block.tag() == "CERTIFICATE" && !expired(block));
    blocks
}

/// The certificates of both texts, each once, without expired ones.
fn merged(present: &str, own: &str, now: OffsetDateTime) -> String {
    let line_feeds = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    let mut seen: Vec<pem::Pem> = Vec::new();
    for block in [present, own].into_iter().flat_map(|text| certificates(text, now)) {
        if !seen.iter().any(|seen| seen.contents() == block.contents()) {
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
        assert!(matches!(merge(&mut map, &one, now, Membership::Unknown), (Amendment::Write, Membership::Present)));
        assert_eq!(map["data"]["requestheader-client-ca-file"], "x");
        assert_eq!(count(map["data"][CLIENT_CA].as_str().unwrap()), 1);
        assert!(matches!(merge(&mut map, &one, now, Membership::Unknown), (Amendment::Leave, Membership::Present)));
    }

    #[test]
    fn more_servers_than_the_map_holds_write_once_each() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let mut servers: Vec<(String, Membership)> =
            (0..CERTIFICATES_MAX + 4).map(|_| (certificate(2040), Membership::Unknown)).collect();
        let mut map = Map::new();
        let mut sync = |map: &mut Map<String, Value>| {
            let mut writes = 0;
            for (ca, membership) in &mut servers {
                let (amendment, after) = merge(map, ca, now, *membership);
                *membership = after;
                writes += usize::from(matches!(amendment, Amendment::Write));
            }
            let held = count(map["data"][CLIENT_CA].as_str().unwrap());
            let replaced = servers.iter().filter(|(_, membership)| *membership == Membership::Replaced).count();
            (writes, held, replaced)
        };
        assert_eq!(sync(&mut map), (CERTIFICATES_MAX + 4, CERTIFICATES_MAX, 0));
        for _ in 0..3 {
            assert_eq!(sync(&mut map), (0, CERTIFICATES_MAX, 4), "servers replace each other's certificates");
        }
        // A map that someone emptied is filled again.
        map["data"][CLIENT_CA] = json!("");
        assert_eq!(sync(&mut map), (CERTIFICATES_MAX, CERTIFICATES_MAX, 4));
        assert_eq!(sync(&mut map), (0, CERTIFICATES_MAX, 4));
    }
}
