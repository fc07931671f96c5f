//! [`ApiServer`]: a running server, without a port.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use listwatch_meta::UserInfo;
use tokio::time::Instant;

use crate::service::ApiService;
use crate::shared::Shared;

/// A running API server. Clones share one server. The built-in controllers end when the last clone, service and
/// listener is dropped, or when [`ApiServer::shutdown`] is called.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiServer")
    }
}

impl ApiServer {
    pub(crate) fn new(shared: Shared) -> Self {
        ApiServer { shared: Arc::new(shared) }
    }

    /// The server as a service from requests to responses.
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.shared))
    }

    /// The server as a service whose requests are this user's, whatever their credentials. The user is a member of
    /// `system:authenticated`. For tests of what a user may do; see [`Builder::authorization`](crate::Builder::authorization).
    pub fn client_as(&self, user: &str, groups: &[&str]) -> ApiService {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".to_owned());
        }
        self.service().with_identity(UserInfo { username: user.to_owned(), groups, ..UserInfo::default() })
    }

    /// Makes readiness fail while the server continues to serve, so that load balancers send no further requests
    /// (`--shutdown-delay-duration`). Call [`ApiServer::shutdown`] after the delay.
    pub fn fail_readiness(&self) {
        self.shared.unready.store(true, Ordering::Relaxed);
    }

    /// Begins the shutdown: readiness fails, the built-in controllers stop, watches end cleanly. Running requests
    /// finish; `Serving::shutdown` waits for them.
    ///
    /// The ends of many watches are spread over up to five seconds, so that their clients do not reconnect to
    /// another server all at once (`--shutdown-watch-termination-grace-period`).
    pub fn shutdown(&self) {
        self.shared.shut_down(Instant::now());
    }
}
