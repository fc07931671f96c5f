//! [`RangeAllocation`]: the stored object that holds the bitmap of node ports, and the ports of stored services.
//!
//! Sources: `RangeAllocation` of `k8s.io/api/core/v1`, `collectServiceNodePorts` in
//! `pkg/registry/core/service/portallocator/controller/repair.go`.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use listwatch_json::{Map, json};
use listwatch_storage::unreadable_reason;
use serde::Deserialize;

use super::bitmap::PortBitmap;

/// A stored `RangeAllocation`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct RangeAllocation {
    metadata: Map,
    /// The range of ports, such as `30000-32767`.
    pub(super) range: String,
    /// The bitmap in base64.
    data: Option<String>,
}

impl RangeAllocation {
    /// Parses a stored value.
    ///
    /// # Errors
    /// The reason why the value is not a `RangeAllocation`.
    pub(super) fn parse(value: &[u8]) -> Result<Self, String> {
        match unreadable_reason(value) {
            Some(why) => Err(why.to_owned()),
            None => serde_json::from_slice(value).map_err(|error| error.to_string()),
        }
    }

    /// Returns the allocated ports, if the range of the object is `ports`.
    ///
    /// # Errors
    /// The reason why the bitmap cannot be used. For a different range, the text of kube-apiserver.
    pub(super) fn bitmap(&self, ports: RangeInclusive<u16>) -> Result<PortBitmap, String> {
        if self.range != range_text(&ports) {
            return Err("the provided range does not match the current range".to_owned());
        }
        Ok(PortBitmap::from_data(ports, &self.decoded()?))
    }

    /// Returns the allocated ports in the range of the object. A new object has no allocated ports.
    ///
    /// # Errors
    /// The reason why the range or the bitmap is invalid.
    pub(super) fn own_bitmap(&self) -> Result<PortBitmap, String> {
        let bounds = self.range.split_once('-').and_then(|(first, last)| first.parse().ok().zip(last.parse().ok()));
        let (first, last): (u16, u16) = bounds.ok_or_else(|| format!("{:?} is not a range of ports", self.range))?;
        if first == 0 || last < first {
            return Err(format!("{:?} is not a range of ports", self.range));
        }
        Ok(PortBitmap::from_data(first..=last, &self.decoded()?))
    }

    fn decoded(&self) -> Result<Vec<u8>, String> {
        STANDARD.decode(self.data.as_deref().unwrap_or_default()).map_err(|error| error.to_string())
    }

    /// Returns the JSON of this object with other ports.
    pub(super) fn with_ports(&self, ports: &RangeInclusive<u16>, bitmap: &PortBitmap) -> Bytes {
        let object = json!({
            "kind": "RangeAllocation",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "range": range_text(ports),
            "data": STANDARD.encode(bitmap.to_data()),
        });
        object.to_string().into()
    }
}

fn range_text(ports: &RangeInclusive<u16>) -> String {
    format!("{}-{}", ports.start(), ports.end())
}

/// Returns the node ports and the health check port of a stored service.
///
/// # Errors
/// The reason why the service is unreadable.
pub(super) fn ports_of_service(value: &[u8]) -> Result<BTreeSet<u16>, String> {
    #[derive(Deserialize)]
    struct Service {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        ports: Option<Vec<Port>>,
        health_check_node_port: Option<i64>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Port {
        #[serde(default)]
        node_port: Option<i64>,
    }
    if let Some(why) = unreadable_reason(value) {
        return Err(why.to_owned());
    }
    let service: Service = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    let ports = service.spec.ports.into_iter().flatten().filter_map(|port| port.node_port);
    let ports = ports.chain(service.spec.health_check_node_port);
    Ok(ports.filter_map(|port| u16::try_from(port).ok()).filter(|port| *port > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_allocation_keeps_its_metadata_and_rejects_another_range() {
        let stored = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{"labels":{"a":"b"}},"range":"30000-32767","data":"AQE="}"#;
        let parsed = RangeAllocation::parse(stored).unwrap();
        let bitmap = parsed.bitmap(30_000..=32_767).unwrap();
        assert_eq!(bitmap.taken().collect::<Vec<_>>(), [30_000, 30_008]);
        assert_eq!(parsed.with_ports(&(30_000..=32_767), &bitmap), stored.as_slice());
        let other = parsed.bitmap(30_000..=30_100).unwrap_err();
        assert_eq!(other, "the provided range does not match the current range");
        assert_eq!(parsed.own_bitmap(), Ok(bitmap));
    }

    #[test]
    fn invalid_range_allocation_is_rejected() {
        let check = |text: &str, is_ok: bool| {
            let parsed = RangeAllocation::parse(text.as_bytes()).and_then(|parsed| parsed.own_bitmap());
            assert_eq!(parsed.is_ok(), is_ok, "{text}: {parsed:?}");
        };
        check(r#"{"range":"30000-32767"}"#, true);
        check(r#"{"range":"30000-32767","data":null}"#, true);
        for text in [
            "",
            "[]",
            "k8s\0",
            r#"{"data":"AQ=="}"#,
            r#"{"range":"0-5"}"#,
            r#"{"range":"7-5"}"#,
            r#"{"range":"1-70000"}"#,
            r#"{"range":"30000-32767","data":"%"}"#,
        ] {
            check(text, false);
        }
    }

    #[test]
    fn node_ports_and_health_check_port_of_a_service_are_read() {
        let check = |text: &str, ports: &[u16]| {
            assert_eq!(ports_of_service(text.as_bytes()).unwrap().into_iter().collect::<Vec<_>>(), ports, "{text}");
        };
        check(r#"{"metadata":{}}"#, &[]);
        check(r#"{"spec":{"ports":null,"healthCheckNodePort":0}}"#, &[]);
        check(
            r#"{"spec":{"ports":[{"port":80,"nodePort":30080},{"port":81,"nodePort":30080},{"port":1}],"healthCheckNodePort":30099}}"#,
            &[30_080, 30_099],
        );
        check(r#"{"spec":{"ports":[{"nodePort":-1},{"nodePort":70000}]}}"#, &[]);
        assert!(ports_of_service(b"k8s\0").is_err());
    }
}
