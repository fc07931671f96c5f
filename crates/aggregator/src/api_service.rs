//! [`ApiService`]: a group version, its priorities, and the service that serves it.
//!
//! Rules: `kube-aggregator/pkg/apis/apiregistration/v1/{types,defaults}.go`, `…/v1/helper/helpers.go`,
//! `…/controllers/status/remote/remote_available_controller.go:BuildTransportConfig`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_json::Value;
use listwatch_proxy::{ClientCertificate, TlsSettings};
use serde::Deserialize;

/// The group of APIServices.
pub(crate) const REGISTRATION_GROUP: &str = "apiregistration.k8s.io";
/// The port of a service reference without a port (`SetDefaults_ServiceReference`).
const DEFAULT_PORT: u16 = 443;

/// The parts of an APIService (`apiregistration.k8s.io/v1`) that aggregation needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiService {
    /// `<version>.<group>`. The name of the core group's version 1 is `v1.`.
    pub name: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The minimum priority of the group. The group has the highest such value of its versions.
    pub group_priority_minimum: i64,
    /// The priority of the version in its group.
    pub version_priority: i64,
    /// The service that serves the group version; `None` if the API server itself does.
    pub service: Option<ServiceReference>,
    /// PEM certificates that verify the service's certificate. If empty, the system's certificates are used.
    pub ca_bundle: Vec<u8>,
    /// Accepts the service's certificate without verification.
    pub insecure_skip_tls_verify: bool,
    /// Whether the condition `Available` is `True`.
    pub is_available: bool,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceReference {
    /// The namespace of the service.
    pub namespace: String,
    /// The name of the service.
    pub name: String,
    /// The port of the service; 443 if the reference has no port.
    pub port: u16,
}

/// The object cannot be read as an APIService. Validation by the server prevents this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an APIService: {0}")]
pub struct InvalidApiService(String);

#[derive(Deserialize)]
struct ApiServiceObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Option<ApiServiceStatus>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    group: Option<String>,
    version: Option<String>,
    group_priority_minimum: i64,
    version_priority: i64,
    service: Option<Reference>,
    ca_bundle: Option<String>,
    #[serde(rename = "insecureSkipTLSVerify")]
    insecure_skip_tls_verify: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reference {
    namespace: Option<String>,
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiServiceStatus {
    conditions: Option<Vec<StatusCondition>>,
}

#[derive(Deserialize)]
struct StatusCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl ApiService {
    /// Reads an APIService from its JSON.
    ///
    /// # Errors
    /// [`InvalidApiService`] for an object without a name, with a field of a wrong type, or with a bundle that is not
    /// Base64.
    pub fn from_object(object: &Value) -> Result<Self, InvalidApiService> {
        let wrong = |error: String| InvalidApiService(error);
        let object = ApiServiceObject::deserialize(object).map_err(|error| wrong(error.to_string()))?;
        let ca_bundle = object.spec.ca_bundle.unwrap_or_default();
        let conditions = object.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(ApiService {
            name: object.metadata.name,
            group: object.spec.group.unwrap_or_default(),
            version: object.spec.version.unwrap_or_default(),
            group_priority_minimum: object.spec.group_priority_minimum,
            version_priority: object.spec.version_priority,
            service: object.spec.service.map(|service| ServiceReference {
                namespace: service.namespace.unwrap_or_default(),
                name: service.name.unwrap_or_default(),
                port: service.port.unwrap_or(DEFAULT_PORT),
            }),
            ca_bundle: STANDARD.decode(&ca_bundle).map_err(|error| wrong(format!("caBundle: {error}")))?,
            insecure_skip_tls_verify: object.spec.insecure_skip_tls_verify.unwrap_or_default(),
            is_available: conditions.iter().any(|found| found.kind == "Available" && found.status == "True"),
        })
    }

    /// Whether a service may serve the group version. The core group and the group of APIServices are always local,
    /// because a service that served them could prevent the removal of its APIService.
    pub fn is_remote(&self) -> bool {
        self.service.is_some() && !matches!(self.group.as_str(), "" | REGISTRATION_GROUP)
    }

    /// The path of the group version's discovery document: `/apis/<group>/<version>`, or `/api/<version>`.
    pub fn discovery_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The TLS settings for connections to the service; `None` for a local group version. The certificate must have the
    /// name `<service>.<namespace>.svc`, for every address that is dialed.
    pub fn tls_settings(&self, proxy_certificate: Option<&ClientCertificate>) -> Option<TlsSettings> {
        let service = self.service.as_ref()?;
        Some(TlsSettings {
            server_name: format!("{}.{}.svc", service.name, service.namespace),
            ca_bundle: self.ca_bundle.clone(),
            insecure_skip_verify: self.insecure_skip_tls_verify,
            client_certificate: proxy_certificate.cloned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn remote_api_service_is_read_with_defaults() {
        let service = ApiService::from_object(&json!({
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
                "versionPriority": 20, "caBundle": "UEVN", "service": {"namespace": "kube-system", "name": "metrics"}},
            "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Passed"}]},
        }))
        .unwrap();
        assert_eq!((service.group_priority_minimum, service.version_priority), (100, 20));
        assert_eq!((service.discovery_path().as_str(), service.is_available), ("/apis/metrics.k8s.io/v1beta1", true));
        assert_eq!(service.service.as_ref().unwrap().port, 443);
        let settings = service.tls_settings(None).unwrap();
        assert_eq!((settings.server_name.as_str(), &*settings.ca_bundle), ("metrics.kube-system.svc", &b"PEM"[..]));
    }

    #[test]
    fn local_api_service_has_no_tls_settings() {
        let object = json!({"metadata": {"name": "v1."}, "spec": {"version": "v1", "service": null, "caBundle": null}});
        let service = ApiService::from_object(&object).unwrap();
        assert_eq!((service.tls_settings(None), service.discovery_path()), (None, "/api/v1".to_owned()));
        assert!(!service.is_available, "a service without conditions counts as unavailable");
    }

    #[test]
    fn unreadable_api_service_is_an_error() {
        let check = |object: Value| assert!(ApiService::from_object(&object).is_err(), "{object}");
        check(json!({"spec": {}}));
        check(json!({"metadata": {"name": "v1.g"}, "spec": {"caBundle": "%"}}));
        check(json!({"metadata": {"name": "v1.g"}, "spec": {"service": {"port": 70_000}}}));
    }
}
