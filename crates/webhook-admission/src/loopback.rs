//! [`LoopbackClient`]: how a server calls the webhooks that it serves itself
//! (`apiserver/pkg/server/config_selfclient.go`, `NewDefaultAuthenticationInfoResolverWrapper` in
//! `apiserver/pkg/util/webhook/authentication.go`).
//!
//! Such webhooks are usually paths of extension servers, to which the server forwards the calls
//! (`generic-admission-server`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use listwatch_aggregator::loopback_address;
use listwatch_proxy::{AddressFuture, AddressResolver};
use listwatch_webhooks::Target;
use parking_lot::Mutex;

/// The connection of a server to its own listener, and the credential of its requests.
///
/// The server alone chooses these values. No object of the cluster and no DNS record can change the address, and no CA
/// bundle of a webhook can replace the certificate.
pub struct LoopbackClient {
    /// The bound address of the listener. An unspecified address means the loopback address of its family.
    pub address: SocketAddr,
    /// The TLS server name, which selects the certificate of the listener.
    pub server_name: String,
    /// The only certificate that the listener may present, in PEM. Only this process may have its key: then no other
    /// process can receive the token.
    pub certificate_pem: String,
    /// The bearer token of the requests.
    pub token: String,
}

impl fmt::Debug for LoopbackClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token must not reach a log.
        f.debug_struct("LoopbackClient").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The clients of the listeners of one server.
#[derive(Default)]
pub(crate) struct LoopbackClients {
    open: Vec<Arc<LoopbackClient>>,
    /// The client of the listener that closed last.
    closed: Option<Arc<LoopbackClient>>,
}

impl LoopbackClients {
    /// Returns the client of the first listener that is open. If none is, returns the client of a closed listener: the
    /// calls fail, and no other process receives the objects.
    pub(crate) fn current(&self) -> Option<Arc<LoopbackClient>> {
        self.open.first().or(self.closed.as_ref()).cloned()
    }
}

/// Marks a listener as open until the value is dropped ([`HttpsCaller::add_loopback`](crate::HttpsCaller::add_loopback)).
#[must_use = "dropping the value marks the listener as closed"]
pub struct LoopbackRegistration {
    clients: Arc<Mutex<LoopbackClients>>,
    client: Arc<LoopbackClient>,
}

impl LoopbackRegistration {
    pub(crate) fn new(clients: &Arc<Mutex<LoopbackClients>>, client: LoopbackClient) -> Self {
        let client = Arc::new(client);
        clients.lock().open.push(Arc::clone(&client));
        LoopbackRegistration { clients: Arc::clone(clients), client }
    }
}

impl fmt::Debug for LoopbackRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoopbackRegistration").field(&self.client).finish()
    }
}

impl Drop for LoopbackRegistration {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        clients.open.retain(|open| !Arc::ptr_eq(open, &self.client));
        clients.closed = Some(Arc::clone(&self.client));
    }
}

/// Whether the server serves a webhook itself: the webhook is at port 443 of the service `default/kubernetes`, or of a
/// URL with the host `kubernetes.default.svc`.
pub(crate) fn is_own_webhook(target: &Target) -> bool {
    let is_own = match &target.service {
        Some(service) => service.namespace == "default" && service.name == "kubernetes",
        None => target.host == "kubernetes.default.svc",
    };
    is_own && target.port == 443
}

/// Dials the listener of this server, whatever host and port a destination has.
pub(crate) struct OwnAddress(pub(crate) SocketAddr);

impl AddressResolver for OwnAddress {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> AddressFuture<'a> {
        let address = loopback_address(self.0);
        Box::pin(async move { Ok((address.ip().to_string(), address.port())) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use listwatch_json::{Value, json};
    use listwatch_webhooks::Webhook;

    use super::*;

    #[test]
    fn own_webhooks_are_those_at_the_service_kubernetes_and_at_its_url() {
        let check = |config: Value, expected: bool| {
            let configuration =
                json!({"metadata": {"name": "c"}, "webhooks": [{"name": "a.b.c", "clientConfig": config}]});
            let webhook = Webhook::parse(configuration.as_object().unwrap()).remove(0);
            let target = webhook.client_config.target(Duration::from_secs(1)).unwrap();
            assert_eq!(is_own_webhook(&target), expected, "{target:?}");
        };
        let service = |namespace: &str, name: &str| json!({"service": {"namespace": namespace, "name": name}});
        let with_port = |port: u16| json!({"service": {"namespace": "default", "name": "kubernetes", "port": port}});
        let url = |url: &str| json!({"url": url});
        check(service("default", "kubernetes"), true);
        check(with_port(443), true);
        check(with_port(6443), false);
        check(service("other", "kubernetes"), false);
        check(service("default", "hook"), false);
        check(service("svc", "kubernetes.default"), false);
        check(url("https://kubernetes.default.svc/v"), true);
        check(url("https://kubernetes.default.svc:443/v"), true);
        check(url("https://kubernetes.default.svc:6443/v"), false);
        check(url("https://kubernetes.default.svc.cluster.local/v"), false);
        check(url("https://kubernetes.default.svc.example.com/v"), false);
        check(url("https://kubernetes.default/v"), false);
        check(url("https://kubernetes/v"), false);
        check(url("https://localhost/kubernetes.default.svc:443"), false);
        check(url("https://apiserver-loopback-client/v"), false);
    }

    fn client(port: u16) -> LoopbackClient {
        LoopbackClient {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            server_name: "apiserver-loopback-client".to_owned(),
            certificate_pem: String::new(),
            token: "s3cret".to_owned(),
        }
    }

    #[test]
    fn debug_output_of_a_loopback_client_omits_the_token() {
        let client = client(6443);
        assert_eq!(format!("{client:?}"), "LoopbackClient { address: 127.0.0.1:6443, .. }");
    }

    #[test]
    fn first_open_listener_is_called_and_after_the_last_one_a_closed_listener() {
        let clients: Arc<Mutex<LoopbackClients>> = Arc::default();
        let port = || clients.lock().current().map(|client| client.address.port());
        assert_eq!(port(), None);
        let [first, second, third] = [1, 2, 3].map(|port| LoopbackRegistration::new(&clients, client(port)));
        assert_eq!(port(), Some(1));
        drop(second);
        assert_eq!(port(), Some(1), "another listener closed");
        drop(first);
        assert_eq!(port(), Some(3));
        drop(third);
        assert_eq!(port(), Some(3), "no listener is open");
        let _fourth = LoopbackRegistration::new(&clients, client(4));
        assert_eq!(port(), Some(4));
    }
}
