//! The part of `extension-apiserver-authentication` with which extension servers recognize this server as a front
//! proxy: the CA of the server's certificate, and the headers with the user.
//!
//! Several servers merge their values. Only expired certificates are removed
//! (`pkg/controlplane/controller/clusterauthenticationtrust`).

use listwatch_json::{Map, Value, json};
use time::OffsetDateTime;

use super::authentication::{Membership, merge_certificates};

const CLIENT_CA: &str = "requestheader-client-ca-file";
/// The maximum number of entries of one list. Further entries are not added, so that servers with different names
/// cannot enlarge the object without bound.
const ENTRIES_MAX: usize = 64;

/// The headers and certificates by which a front proxy identifies the user of a request (`--requestheader-*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The CA certificates, in PEM, that sign the front proxy's certificate.
    pub client_ca: String,
    /// The headers with the user's name, e.g. `X-Remote-User`.
    pub username_headers: Vec<String>,
    /// The headers with the user's uid, e.g. `X-Remote-Uid`. If empty, the key is omitted.
    pub uid_headers: Vec<String>,
    /// The headers with the user's groups, e.g. `X-Remote-Group`.
    pub group_headers: Vec<String>,
    /// The prefixes of headers with extra values, e.g. `X-Remote-Extra-`.
    pub extra_header_prefixes: Vec<String>,
    /// The common names of the front proxy's certificate. Empty: any name.
    pub allowed_names: Vec<String>,
}

/// Merges this server's values into the data of the map. `before` is the membership of this server's CA at the last
/// sync. Returns whether the map changed, and the new membership.
pub(super) fn merge(map: &mut Map, own: &RequestHeader, now: OffsetDateTime, before: Membership) -> (bool, Membership) {
    let data = map.entry("data").or_insert(Value::Null);
    if !data.is_object() {
        *data = json!({});
    }
    let former = data.clone();
    let present = data[CLIENT_CA].as_str().unwrap_or_default();
    let (merged, membership) = merge_certificates(present, &own.client_ca, now, before);
    if let Some(merged) = merged {
        data[CLIENT_CA] = json!(merged);
    } else if data[CLIENT_CA].is_null() {
        data[CLIENT_CA] = json!("");
    }
    for (key, values) in [
        ("requestheader-username-headers", &own.username_headers),
        ("requestheader-uid-headers", &own.uid_headers),
        ("requestheader-group-headers", &own.group_headers),
        ("requestheader-extra-headers-prefix", &own.extra_header_prefixes),
        ("requestheader-allowed-names", &own.allowed_names),
    ] {
        let mut united: Vec<String> =
            data[key].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        for value in values {
            if !united.contains(value) && united.len() < ENTRIES_MAX {
                united.push(value.clone());
            }
        }
        if !united.is_empty() || key != "requestheader-uid-headers" {
            data[key] = json!(json!(united).to_string());
        } else if let Some(data) = data.as_object_mut() {
            data.remove(key);
        }
    }
    (*data != former, membership)
}

#[cfg(test)]
mod tests {
    use super::super::authentication::tests::{certificate, count};
    use super::*;

    fn header(name: &str) -> RequestHeader {
        RequestHeader {
            username_headers: vec!["X-Remote-User".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            allowed_names: vec![name.to_owned()],
            ..RequestHeader::default()
        }
    }

    #[test]
    fn request_header_lists_of_all_servers_are_merged_in_order() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let mut map = json!({"data": {"client-ca-file": "x"}}).as_object().unwrap().clone();
        let merge = |map: &mut Map, own| merge(map, &own, now, Membership::Unknown).0;
        assert!(merge(&mut map, header("one")));
        assert!(!merge(&mut map, header("one")), "nothing is new");
        assert!(merge(&mut map, header("two")));
        assert_eq!(map["data"]["requestheader-allowed-names"], "[\"one\",\"two\"]");
        assert_eq!(map["data"]["requestheader-username-headers"], "[\"X-Remote-User\"]");
        assert_eq!(map["data"]["requestheader-extra-headers-prefix"], "[]");
        assert!(map["data"].get("requestheader-uid-headers").is_none());
        assert_eq!(map["data"]["client-ca-file"], "x", "other keys stay");
    }

    #[test]
    fn request_header_list_does_not_grow_beyond_its_limit() {
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let mut map = Map::new();
        for number in 0..ENTRIES_MAX + 5 {
            merge(&mut map, &header(&number.to_string()), now, Membership::Unknown);
        }
        let names: Vec<String> =
            serde_json::from_str(map["data"]["requestheader-allowed-names"].as_str().unwrap()).unwrap();
        assert_eq!(names.len(), ENTRIES_MAX);
        assert!(!merge(&mut map, &header("more"), now, Membership::Unknown).0, "a full list is written again");
    }

    #[test]
    fn server_adds_its_front_proxy_ca_only_once_if_the_certificate_list_is_full() {
        const SERVERS: usize = 20;
        const HELD: usize = 16;
        let now = rcgen::date_time_ymd(2030, 1, 1);
        let server = |_| (RequestHeader { client_ca: certificate(2040), ..header("one") }, Membership::Unknown);
        let mut servers: Vec<(RequestHeader, Membership)> = (0..SERVERS).map(server).collect();
        let mut map = Map::new();
        let mut sync = || {
            let mut writes = 0;
            for (own, membership) in &mut servers {
                let (changed, after) = merge(&mut map, own, now, *membership);
                *membership = after;
                writes += usize::from(changed);
            }
            (writes, count(map["data"][CLIENT_CA].as_str().unwrap()))
        };
        assert_eq!(sync(), (SERVERS, HELD));
        for _ in 0..3 {
            assert_eq!(sync(), (0, HELD), "servers replace each other's certificates");
        }
    }
}
