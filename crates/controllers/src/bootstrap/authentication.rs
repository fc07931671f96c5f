//! The ConfigMap `extension-apiserver-authentication` holds the CA certificates with which extension servers verify the
//! clients of this cluster. Each server adds its own CA.
//!
//! Each of the two lists of the map (client CAs, and CAs of front proxies) holds at most [`CERTIFICATES_MAX`]
//! certificates. If there are more CAs, only the newest certificates are kept. A server adds its own CA once. If newer
//! certificates replace that CA, the server does not add the CA again. Servers therefore do not replace each other's
//! certificates forever.

use std::sync::Arc;

use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;
use time::{Duration, OffsetDateTime};
use x509_cert::der::Decode as _;

use super::ensure::{BootstrapObject, amend, ensure};
use super::objects::{CONFIG_MAPS, SYSTEM_NAMESPACE};
use super::request_header::{self, RequestHeader};
use listwatch_write::Amendment;
use listwatch_write::Writer;

const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
/// The maximum number of certificates in each list. The oldest certificates are dropped. The limit bounds the size of
/// the object if a server creates a new CA at each start.
const CERTIFICATES_MAX: usize = 16;
/// Time between the expiry of a certificate and its removal from the map.
const EXPIRED_SLACK: Duration = Duration::minutes(5);

/// Whether the lists of the map contain this server's CAs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memberships {
    /// The CA with which extension servers verify clients.
    client_ca: Membership,
    /// The CA with which extension servers verify this server as a front proxy.
    request_header_ca: Membership,
}

/// Whether a list of the map contains one CA of this server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Membership {
    /// The CA has not been seen in the map since the server started.
    #[default]
    Unknown,
    /// The CA was in the map at the last sync.
    Present,
    /// The CA was in the map and was then replaced by [`CERTIFICATES_MAX`] newer certificates.
    Replaced,
}

/// Creates the ConfigMap, or merges this server's certificates into the stored one.
pub(super) async fn sync(
    writer: &Arc<Writer>,
    client_ca: Option<&str>,
    request_header: Option<&RequestHeader>,
    memberships: &mut Memberships,
) -> Result<(), Status> {
    let now = OffsetDateTime::now_utc();
    let data = match client_ca {
        Some(ca) => json!({CLIENT_CA: merged("", ca, now)}),
        None => json!({}),
    };
    let mut body = Map::from_iter([("metadata".to_owned(), json!({"name": NAME})), ("data".to_owned(), data)]);
    if let Some(own) = request_header {
        request_header::merge(&mut body, own, now, Membership::Unknown);
    }
    let (group, version, plural) = CONFIG_MAPS;
    let wanted = BootstrapObject {
        group,
        version,
        plural,
        namespace: Some(SYSTEM_NAMESPACE),
        name: NAME,
        check: "poststarthook/start-cluster-authentication-info-controller",
        body: Value::Object(body),
    };
    let created = ensure(writer, &wanted).await?;
    if client_ca.is_none() && request_header.is_none() {
        return Ok(());
    }
    if created {
        *memberships = Memberships { client_ca: Membership::Present, request_header_ca: Membership::Present };
        return Ok(());
    }
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(group, version, plural) else { return Ok(()) };
    let key = resource.key(wanted.namespace, NAME)?;
    let before = *memberships;
    amend(writer, resource, &key, |map| {
        *memberships = before;
        let mut changed = false;
        if let Some(client_ca) = client_ca {
            let (merged, after) = merge(map, client_ca, now, before.client_ca);
            (changed, memberships.client_ca) = (merged, after);
        }
        if let Some(own) = request_header {
            let (merged, after) = request_header::merge(map, own, now, before.request_header_ca);
            (changed, memberships.request_header_ca) = (changed || merged, after);
        }
        if changed { Amendment::Write } else { Amendment::Leave }
    })
    .await?;
    for (list, before, after) in [
        ("client CA", before.client_ca, memberships.client_ca),
        ("front proxy CA", before.request_header_ca, memberships.request_header_ca),
    ] {
        if after == Membership::Replaced && before != Membership::Replaced {
            tracing::warn!(
                "{CERTIFICATES_MAX} newer certificates took the place of this server's {list} in {NAME}; servers of \
                 one store should share a CA"
            );
        }
    }
    Ok(())
}

/// Adds this server's client CA if the CA is missing. Returns whether the map changed, and the new membership.
fn merge(map: &mut Map, client_ca: &str, now: OffsetDateTime, before: Membership) -> (bool, Membership) {
    let present = map.get("data").and_then(|data| data.get(CLIENT_CA)?.as_str()).unwrap_or_default();
    let (merged, after) = merge_certificates(present, client_ca, now, before);
    let Some(merged) = merged else { return (false, after) };
    let data = map.entry("data").or_insert(Value::Null);
    if !data.is_object() {
        *data = json!({});
    }
    data[CLIENT_CA] = json!(merged);
    (true, after)
}

/// Adds this server's certificates to a list in the map. `before` is the membership at the last sync. Returns the new
/// list and the new membership. The list is `None` if nothing changed.
pub(super) fn merge_certificates(
    present: &str,
    own: &str,
    now: OffsetDateTime,
    before: Membership,
) -> (Option<String>, Membership) {
    let (there, added) = (certificates(present, now), certificates(own, now));
    if !added.is_empty() && added.iter().all(|own| there.iter().any(|block| block.contents() == own.contents())) {
        return (None, Membership::Present);
    }
    if before != Membership::Unknown && there.len() + added.len() > CERTIFICATES_MAX {
        return (None, Membership::Replaced);
    }
    let merged = merged(present, own, now);
    ((merged != present).then_some(merged), Membership::Present)
}

/// Returns the certificates in a PEM text that have not expired. An invalid PEM text yields none.
fn certificates(text: &str, now: OffsetDateTime) -> Vec<pem::Pem> {
    let mut blocks = pem::parse_many(text).unwrap_or_default();
    let expired = |block: &pem::Pem| not_after(block.contents()).is_some_and(|end| end + EXPIRED_SLACK < now);
    blocks.retain(|block| block.tag() == "CERTIFICATE" && !expired(block));
    blocks
}

/// Merges the certificates of both texts, without duplicates and expired certificates.
fn merged(present: &str, own: &str, now: OffsetDateTime) -> String {
    let line_feeds = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    let mut seen: Vec<pem::Pem> = Vec::new();
    for block in [present, own].into_iter().flat_map(|text| certificates(text, now)) {
        if !seen.iter().any(|seen| seen.contents() == block.contents()) {
            seen.push(block);
        }
    }
    // This server's own certificates come last and are kept.
    let first = seen.len().saturating_sub(CERTIFICATES_MAX);
    seen[first..].iter().map(|block| pem::encode_config(block, line_feeds)).collect()
}

/// Returns the `notAfter` time of a DER certificate (RFC 5280, section 4.1.2.5). Returns `None` if the certificate
/// is invalid.
fn not_after(certificate: &[u8]) -> Option<OffsetDateTime> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let end = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    OffsetDateTime::from_unix_timestamp(i64::try_from(end.as_secs()).ok()?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bootstrap) fn certificate(year: i32) -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 3, 4);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    pub(in crate::bootstrap) fn count(text: &str) -> usize {
        text.matches("-----BEGIN CERTIFICATE-----").count()
    }

    #[test]
    fn merged_certificates_of_all_servers_are_kept_until_they_expire() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let (one, other, old, far) = (certificate(2031), certificate(2032), certificate(2029), certificate(2060));
        let first = merged("", &one, now);
        assert_eq!(count(&first), 1);
        let both = merged(&first, &other, now);
        assert_eq!(count(&both), 2);
        assert!(both.starts_with(&first), "existing certificates stay in front");
        assert_eq!(merged(&both, &one, now), both, "a certificate is not repeated");
        assert_eq!(merged(&format!("{old}{both}"), &other, now), both, "an expired certificate is dropped");
        assert_eq!(count(&merged(&far, &one, now)), 2);
        assert_eq!(merged("no certificate", &one, now), first);
    }

    #[test]
    fn merge_preserves_other_keys_of_the_config_map() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let one = certificate(2031);
        let mut map = json!({"data": {"requestheader-client-ca-file": "x"}}).as_object().unwrap().clone();
        assert_eq!(merge(&mut map, &one, now, Membership::Unknown), (true, Membership::Present));
        assert_eq!(map["data"]["requestheader-client-ca-file"], "x");
        assert_eq!(count(map["data"][CLIENT_CA].as_str().unwrap()), 1);
        assert_eq!(merge(&mut map, &one, now, Membership::Unknown), (false, Membership::Present));
    }

    #[test]
    fn server_adds_its_ca_only_once_if_the_certificate_list_is_full() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let mut servers: Vec<(String, Membership)> =
            (0..CERTIFICATES_MAX + 4).map(|_| (certificate(2040), Membership::Unknown)).collect();
        let mut map = Map::new();
        let mut sync = |map: &mut Map| {
            let mut writes = 0;
            for (ca, membership) in &mut servers {
                let (changed, after) = merge(map, ca, now, *membership);
                *membership = after;
                writes += usize::from(changed);
            }
            let held = count(map["data"][CLIENT_CA].as_str().unwrap());
            let replaced = servers.iter().filter(|(_, membership)| *membership == Membership::Replaced).count();
            (writes, held, replaced)
        };
        assert_eq!(sync(&mut map), (CERTIFICATES_MAX + 4, CERTIFICATES_MAX, 0));
        for _ in 0..3 {
            assert_eq!(sync(&mut map), (0, CERTIFICATES_MAX, 4), "servers replace each other's certificates");
        }
        // A map emptied by a client is filled again.
        map["data"][CLIENT_CA] = json!("");
        assert_eq!(sync(&mut map), (CERTIFICATES_MAX, CERTIFICATES_MAX, 4));
        assert_eq!(sync(&mut map), (0, CERTIFICATES_MAX, 4));
    }
}
