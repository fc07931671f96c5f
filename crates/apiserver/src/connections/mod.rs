//! [`Connections`]: the transports to kubelets, nodes, pods and services.
//!
//! Source of the rules: `pkg/kubelet/client/kubelet_client.go:MakeTransport`,
//! `pkg/controlplane/apiserver/config.go:CreateProxyTransport`.

mod slots;

use std::sync::Arc;
use std::time::Duration;

use listwatch_connect::location::{Location, Via};
use listwatch_meta::{Status, UserInfo};
use listwatch_proxy::{
    ClientCertificate, Destination, Limits, Proxy, Redirects, TlsSettings, TlsSettingsError, Transport,
};

pub(crate) use self::slots::ConnectSlot;
use self::slots::{CONNECTS_MAX, ConnectSlots};

/// The time limit for the response header of a log or a proxied request. A kubelet sends the header of a followed log
/// with the first line.
const HEADER_TIMEOUT: Duration = Duration::from_secs(14_400);

/// The settings of connections to kubelets (`--kubelet-*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletOptions {
    /// The certificate chain and the key, in PEM, that identify this server. `None`: no client certificate.
    pub client_certificate: Option<(String, String)>,
    /// The CA certificates, in PEM, that sign the serving certificates of kubelets. `None`: kubelets are not verified.
    pub certificate_authority: Option<String>,
    /// The types of node addresses in the order of preference.
    pub preferred_address_types: Vec<String>,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        let types = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];
        KubeletOptions {
            client_certificate: None,
            certificate_authority: None,
            preferred_address_types: types.map(str::to_owned).to_vec(),
        }
    }
}

/// The transports of one server, and the limits of connections.
pub(crate) struct Connections {
    pub(crate) proxy: Proxy,
    kubelet: Transport,
    /// The transport to kubelets for requests that skip the verification of the certificate.
    kubelet_unverified: Transport,
    /// The transport to pods, services and other ports of nodes. Certificates are not verified, because the server does
    /// not know the names of the targets.
    https: Transport,
    http: Transport,
    pub(crate) preferred_address_types: Vec<String>,
    slots: Arc<ConnectSlots>,
}

impl Connections {
    /// Creates the transports.
    ///
    /// # Errors
    /// [`TlsSettingsError`] for unusable certificates.
    pub(crate) fn new(options: KubeletOptions) -> Result<Self, TlsSettingsError> {
        let proxy = Proxy::new(Limits { connections_per_backend_max: CONNECTS_MAX / 4, ..Limits::default() });
        let pem = |text: String| text.into_bytes();
        let client_certificate = options
            .client_certificate
            .map(|(chain, key)| ClientCertificate { chain_pem: pem(chain), key_pem: pem(key) });
        let ca_bundle = options.certificate_authority.map(pem);
        let unverified = TlsSettings { insecure_skip_verify: true, ..TlsSettings::default() };
        let kubelet_unverified = proxy
            .tls_transport(TlsSettings { client_certificate: client_certificate.clone(), ..unverified.clone() })?;
        let kubelet = match ca_bundle {
            Some(ca_bundle) => {
                proxy.tls_transport(TlsSettings { ca_bundle, client_certificate, ..TlsSettings::default() })?
            }
            None => kubelet_unverified.clone(),
        };
        let (https, http) = (proxy.tls_transport(unverified)?, proxy.plain_transport());
        Ok(Connections {
            proxy,
            kubelet,
            kubelet_unverified,
            https,
            http,
            preferred_address_types: options.preferred_address_types,
            slots: Arc::default(),
        })
    }

    /// Takes a slot for a request that is not an upgrade. The slot is held until the response is sent.
    ///
    /// # Errors
    /// 429 if no slot is free, or if the user holds the maximum number of slots.
    pub(crate) fn take_slot(&self, user: &UserInfo) -> Result<ConnectSlot, Status> {
        self.slots.take(&user.username)
    }

    /// Creates the destination of a path at a location. Redirects are returned to the client and not followed.
    pub(crate) fn destination(&self, location: &Location, path_and_query: String) -> Destination {
        let transport = match location.via {
            Via::Kubelet => &self.kubelet,
            Via::UnverifiedKubelet => &self.kubelet_unverified,
            Via::Https => &self.https,
            Via::Http => &self.http,
        };
        let mut to = Destination::new(transport.clone(), location.host.clone(), location.port, path_and_query);
        to.redirects = Redirects::PassOn;
        to.header_timeout = Some(HEADER_TIMEOUT);
        to
    }
}
