//! Computes the condition `Available` of an APIService from the observed objects and probes, as a pure function.
//!
//! ```text
//!  ApiService ─▶ service ─▶ port ─▶ endpoint slices ─▶ five discovery probes ─▶ Condition
//!  (local: at once)  (only services of type ClusterIP: port, slices)
//! ```
//!
//! Rules and texts: `kube-aggregator/pkg/controllers/status/{local,remote}`,
//! `…/pkg/apis/apiregistration/v1/helper/helpers.go`.

use listwatch_json::{Map, json};

use crate::ApiService;
use crate::condition::Condition;
use crate::objects::{EndpointSlice, Service};

/// Returns the condition that follows from the objects; `None` if the discovery probes decide ([`check_probes`]).
///
/// `service` is the referenced service, and `slices` are its slices. An error is the text of a failed read. Both are
/// ignored for a local APIService.
pub fn check_objects(
    api_service: &ApiService,
    service: &Result<Option<Service>, String>,
    slices: &Result<Vec<EndpointSlice>, String>,
) -> Option<Condition> {
    let Some(reference) = &api_service.service else {
        return Some(Condition::new("True", "Local", "Local APIServices are always available"));
    };
    let about = format!("service/{} in {:?}", reference.name, reference.namespace);
    let service = match service {
        Ok(Some(service)) => service,
        Ok(None) => return Some(Condition::new("False", "ServiceNotFound", format!("{about} is not present"))),
        Err(error) => {
            let message = format!("{about} cannot be checked due to: {error}");
            return Some(Condition::new("Unknown", "ServiceAccessError", message));
        }
    };
    if service.service_type != "ClusterIP" {
        return None;
    }
    let Some((port_name, _)) = service.ports.iter().find(|(_, port)| *port == reference.port) else {
        let message = format!("{about} is not listening on port {}", reference.port);
        return Some(Condition::new("False", "ServicePortError", message));
    };
    let slices = match slices {
        Ok(slices) => slices,
        Err(error) => {
            let message = format!("{about} cannot be checked due to: {error}");
            return Some(Condition::new("Unknown", "EndpointsAccessError", message));
        }
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for {about}");
        return Some(Condition::new("False", "EndpointsNotFound", message));
    }
    let serves = |slice: &EndpointSlice| {
        !slice.ready_addresses.is_empty() && slice.ports.iter().any(|(name, _)| name == port_name)
    };
    if !slices.iter().any(serves) {
        let message = format!("endpointslices for {about} have no addresses with port name {port_name:?}");
        return Some(Condition::new("False", "MissingEndpoints", message));
    }
    None
}

/// The result of one request for the discovery document of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// A response with this code.
    Code(u16),
    /// No response, with this error.
    Failed(String),
    /// No response within the probe's time.
    TimedOut,
    /// The service reference could not be resolved, with this error.
    Unresolved(String),
}

impl ProbeResult {
    /// Whether the probe succeeded: a code of 200 to 299.
    pub fn is_success(&self) -> bool {
        matches!(self, ProbeResult::Code(200..=299))
    }

    /// The message about a failed probe of a URL.
    fn message(&self, url: &str) -> String {
        match self {
            ProbeResult::Code(code) => {
                format!("failing or missing response from {url}: bad status from {url}: {code}")
            }
            ProbeResult::Failed(error) => format!("failing or missing response from {url}: {error}"),
            ProbeResult::TimedOut => format!("timed out waiting for {url}"),
            ProbeResult::Unresolved(error) => error.clone(),
        }
    }
}

/// Returns the condition that follows from the discovery probes. One success makes the APIService available; otherwise
/// the condition reports the last failure. `probes` holds URLs and results in the order of completion.
pub fn check_probes(probes: &[(String, ProbeResult)]) -> Condition {
    match probes.last() {
        Some((url, last)) if !probes.iter().any(|(_, result)| result.is_success()) => {
            Condition::new("False", "FailedDiscoveryCheck", last.message(url))
        }
        _ => Condition::new("True", "Passed", "all checks passed"),
    }
}

/// Sets the condition `Available` of an APIService, and returns whether the object changed. `now` is in RFC 3339; it
/// becomes `lastTransitionTime` only if the status changes.
pub fn set_condition(object: &mut Map, condition: &Condition, now: &str) -> bool {
    let status = object.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    let conditions = &mut status["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return false };
    let present = conditions.iter_mut().find(|found| found["type"] == "Available");
    let since = match &present {
        Some(present) if present["status"] == condition.status && present["lastTransitionTime"].is_string() => {
            present["lastTransitionTime"].clone()
        }
        _ => json!(now),
    };
    let wanted = json!({"type": "Available", "status": condition.status, "lastTransitionTime": since,
        "reason": condition.reason, "message": condition.message});
    match present {
        Some(present) if *present == wanted => false,
        Some(present) => {
            *present = wanted;
            true
        }
        None => {
            conditions.push(wanted);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> ApiService {
        ApiService::from_object(&json!({"metadata": {"name": "v1.g"}, "spec": {"group": "g", "version": "v1",
            "service": {"namespace": "ns", "name": "api", "port": 443}}}))
        .unwrap()
    }

    fn service(service_type: &str, port: u16) -> Service {
        let ports = vec![("https".to_owned(), port)];
        Service { service_type: service_type.to_owned(), ports, ..Service::default() }
    }

    fn slice(name: &str, addresses: &[&str]) -> EndpointSlice {
        EndpointSlice {
            ports: vec![(name.to_owned(), 8443)],
            ready_addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            ..EndpointSlice::default()
        }
    }

    #[track_caller]
    fn check(
        service: Result<Option<Service>, String>,
        slices: Result<Vec<EndpointSlice>, String>,
        expected: Option<(&str, &str, &str)>,
    ) {
        let found = check_objects(&remote(), &service, &slices);
        let found = found.as_ref().map(|found| (found.status, found.reason, found.message.as_str()));
        assert_eq!(found, expected);
    }

    #[test]
    fn missing_object_is_reported_with_upstreams_reason_and_message() {
        let cluster = || Ok(Some(service("ClusterIP", 443)));
        let denied = || Err("denied".to_owned());
        check(Ok(None), Ok(vec![]), Some(("False", "ServiceNotFound", "service/api in \"ns\" is not present")));
        let access = "service/api in \"ns\" cannot be checked due to: denied";
        check(Err("denied".to_owned()), Ok(vec![]), Some(("Unknown", "ServiceAccessError", access)));
        let port = "service/api in \"ns\" is not listening on port 443";
        check(Ok(Some(service("ClusterIP", 80))), Ok(vec![]), Some(("False", "ServicePortError", port)));
        check(cluster(), denied(), Some(("Unknown", "EndpointsAccessError", access)));
        let none = "cannot find endpointslices for service/api in \"ns\"";
        check(cluster(), Ok(vec![]), Some(("False", "EndpointsNotFound", none)));
        let missing = "endpointslices for service/api in \"ns\" have no addresses with port name \"https\"";
        let missing = Some(("False", "MissingEndpoints", missing));
        check(cluster(), Ok(vec![slice("https", &[]), slice("other", &["10.0.0.1"])]), missing);
        check(cluster(), Ok(vec![slice("https", &["10.0.0.1"])]), None);
        check(Ok(Some(service("ExternalName", 1))), denied(), None);
    }

    #[test]
    fn local_api_service_is_always_available() {
        let local = ApiService { service: None, ..remote() };
        let condition = check_objects(&local, &Ok(None), &Ok(vec![])).unwrap();
        assert!(condition.is_true());
        assert_eq!((condition.reason, &*condition.message), ("Local", "Local APIServices are always available"));
    }

    #[test]
    fn one_successful_probe_makes_the_api_service_available() {
        let url = "https://10.0.0.1:443/apis/g/v1";
        let probes =
            |results: &[ProbeResult]| results.iter().map(|result| (url.to_owned(), result.clone())).collect::<Vec<_>>();
        let check = |results: &[ProbeResult], reason: &str, message: &str| {
            let condition = check_probes(&probes(results));
            assert_eq!((condition.reason, condition.message.as_str()), (reason, message), "{results:?}");
        };
        use ProbeResult::{Code, Failed, TimedOut, Unresolved};
        check(&[Failed("x".to_owned()), Code(200), Code(500)], "Passed", "all checks passed");
        let bad = format!("failing or missing response from {url}: bad status from {url}: 403");
        check(&[Code(500), Code(403)], "FailedDiscoveryCheck", &bad);
        let refused = format!("failing or missing response from {url}: dial tcp: refused");
        check(&[Failed("dial tcp: refused".to_owned())], "FailedDiscoveryCheck", &refused);
        check(&[TimedOut], "FailedDiscoveryCheck", &format!("timed out waiting for {url}"));
        check(&[Unresolved("no endpoints".to_owned())], "FailedDiscoveryCheck", "no endpoints");
        assert!(!Code(302).is_success() && Code(299).is_success());
    }

    #[test]
    fn transition_time_of_available_changes_only_with_the_status() {
        let mut object = json!({"status": {"conditions": [{"type": "Other"}]}}).as_object().unwrap().clone();
        let passed = check_probes(&[("u".to_owned(), ProbeResult::Code(200))]);
        let failed = check_probes(&[("u".to_owned(), ProbeResult::TimedOut)]);
        let mut step = |condition: &Condition, now: &str, changed: bool, since: &str| {
            assert_eq!(set_condition(&mut object, condition, now), changed, "{condition:?} at {now}");
            assert_eq!(object["status"]["conditions"][1]["lastTransitionTime"], since);
            assert_eq!(object["status"]["conditions"].as_array().unwrap().len(), 2);
        };
        step(&passed, "t1", true, "t1");
        step(&passed, "t2", false, "t1");
        step(&failed, "t3", true, "t3");
        step(&Condition { message: "other".to_owned(), ..failed.clone() }, "t4", true, "t3");
        let mut broken = json!({"status": 5}).as_object().unwrap().clone();
        assert!(set_condition(&mut broken, &passed, "t"), "a status of a wrong type is replaced");
    }
}
