//! [`JwtAuthenticator`]: authenticates the tokens of one issuer, and keeps the issuer's keys.
//!
//! The keys are fetched by [`JwtAuthenticator::prepare`] or for the first token, and again for a token with an unknown key
//! or signature. [`FETCH_PAUSE`] is the least time between two fetches. If a fetch fails, the old keys stay. Requests whose
//! tokens need the keys wait for a fetch that is under way (`RemoteKeySet.keysFromRemote` in go-oidc).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use futures_util::FutureExt as _;
use futures_util::future::Shared;
use listwatch_json::{Map, Value};
use parking_lot::Mutex;
use serde::Deserialize;

use super::config::JwtIssuer;
use super::keys::{KeySet, Unverified};
use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::maybe_future::MaybeFuture;
use crate::service_account::jwt::{Header, UnverifiedToken};

/// The least time between two fetches of an issuer's keys. The pause prevents tokens with unknown keys from causing
/// many requests to the issuer.
pub const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// A fetch that began earlier was abandoned by its requests. The fetcher of the server gives each of two documents 10 s.
const ABANDONED_AFTER: Duration = Duration::from_secs(30);

/// The tolerance of `nbf`, in seconds (go-oidc).
const NOT_BEFORE_LEEWAY_SECONDS: f64 = 300.0;

/// Reads documents of issuers. An API server implements it with its HTTP client, with limits of time and size.
pub trait DocumentFetcher: Send + Sync {
    /// Reads the document at an `https` URL. `authorities` are the CA certificates in PEM that verify the server's
    /// certificate. If empty, the CAs of the system are used.
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        authorities: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>>;
}

/// Authenticates the tokens of one issuer.
pub struct JwtAuthenticator<F> {
    issuer: Arc<JwtIssuer>,
    fetcher: Arc<F>,
    api_audiences: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<KeySet>>,
    /// The time at which the last fetch began, in seconds since the Unix epoch.
    fetched: Option<i64>,
    /// The fetch that is under way. If the request that began it is dropped, the next one that needs keys continues it.
    fetch: Option<Fetch>,
}

impl State {
    /// Whether the last fetch began in this time before `now`. A clock that was set back does not prolong the time.
    fn began_within(&self, time: Duration, now: i64) -> bool {
        let time = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        self.fetched.is_some_and(|fetched| (fetched..fetched.saturating_add(time)).contains(&now))
    }
}

/// A fetch of the keys, which any number of requests drive. `None` if it fails.
type Fetch = Shared<Pin<Box<dyn Future<Output = Option<Arc<KeySet>>> + Send>>>;

/// Reads the discovery document and the key set (OpenID Connect Discovery 1.0, section 4).
async fn discover<F: DocumentFetcher>(fetcher: Arc<F>, of: Arc<JwtIssuer>) -> Result<KeySet, String> {
    #[derive(Deserialize)]
    struct Document {
        issuer: String,
        jwks_uri: String,
    }
    let authorities = of.certificate_authority();
    let document = fetcher.fetch(of.discovery_url(), authorities).await?;
    let Document { issuer, jwks_uri } = serde_json::from_slice(&document).map_err(|error| error.to_string())?;
    if issuer != of.url() {
        return Err("the discovery document is of another issuer".to_owned());
    }
    if !jwks_uri.starts_with("https://") {
        return Err("the keys are not at an https URL".to_owned());
    }
    KeySet::parse(&fetcher.fetch(&jwks_uri, authorities).await?)
}

impl<F> std::fmt::Debug for JwtAuthenticator<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JwtAuthenticator({})", self.issuer.url())
    }
}

impl<F: DocumentFetcher + 'static> JwtAuthenticator<F> {
    /// Creates an authenticator that has no keys yet. `api_audiences` are the audiences of this server, for TokenReviews.
    pub fn new(issuer: JwtIssuer, fetcher: F, api_audiences: Vec<String>) -> Self {
        let (issuer, fetcher) = (Arc::new(issuer), Arc::new(fetcher));
        JwtAuthenticator { issuer, fetcher, api_audiences, state: Mutex::default() }
    }

    /// Fetches the keys before the first token arrives, so that no request finds an authenticator without keys. Returns
    /// whether there are keys.
    pub async fn prepare(&self, now: i64) -> bool {
        self.fetch_keys(now).await.is_some()
    }

    /// Fetches the keys, or waits for the fetch that is under way. Fetches nothing if the last fetch began less than
    /// [`FETCH_PAUSE`] ago. Returns the current keys.
    async fn fetch_keys(&self, now: i64) -> Option<Arc<KeySet>> {
        let fetch = {
            let mut state = self.state.lock();
            match &state.fetch {
                // An older fetch has stopped, because its requests were dropped.
                Some(fetch) if state.began_within(ABANDONED_AFTER, now) => fetch.clone(),
                None if state.began_within(FETCH_PAUSE, now) => return state.keys.clone(),
                _ => {
                    let fetch = discover(Arc::clone(&self.fetcher), Arc::clone(&self.issuer));
                    // A panic would otherwise reach every later request.
                    let fetch = AssertUnwindSafe(fetch).catch_unwind();
                    let fetch: Fetch = fetch.map(|keys| keys.ok()?.ok().map(Arc::new)).boxed().shared();
                    state.fetched = Some(now);
                    state.fetch = Some(fetch.clone());
                    fetch
                }
            }
        };
        let keys = fetch.clone().await;
        let mut state = self.state.lock();
        // The first request that wakes up stores the keys. Another fetch may be under way when the last request wakes up.
        if state.fetch.as_ref().is_some_and(|current| current.ptr_eq(&fetch)) {
            state.fetch = None;
            state.keys = keys.or(state.keys.take());
        }
        state.keys.clone()
    }

    async fn check(&self, token: &UnverifiedToken<'_>, now: i64) -> Result<Authentication, String> {
        let malformed = || "malformed jwt".to_owned();
        let header = BASE64.decode(token.header).map_err(|_| malformed())?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| malformed())?;
        let signature = BASE64.decode(token.signature).map_err(|_| malformed())?;
        if header.crit.is_some() {
            return Err(malformed());
        }
        if !self.issuer.allows_algorithm(&header.alg) {
            return Err(format!("id token signed with unsupported algorithm {:?}", header.alg));
        }
        let known = self.state.lock().keys.clone();
        let verify = |keys: &KeySet| keys.verify(&header.alg, &header.kid, token.signed.as_bytes(), &signature);
        let verified = match &known {
            Some(keys) => verify(keys),
            None => Err(Unverified::Key),
        };
        match verified {
            Ok(()) => {}
            Err(Unverified::Algorithm) => {
                return Err(format!("id token signed with unsupported algorithm {:?}", header.alg));
            }
            Err(Unverified::Key) => {
                let keys = self.fetch_keys(now).await.ok_or("authenticator not initialized")?;
                verify(&keys).map_err(|_| "failed to verify signature")?;
            }
        }
        let claims: Map = serde_json::from_slice(&token.payload).map_err(|_| malformed())?;
        self.check_times(&claims, now)?;
        if !has_audience(&claims, self.issuer.audiences()) {
            return Err("the token is for another audience".to_owned());
        }
        let mut user = self.issuer.mappings().user(&claims)?;
        add_authenticated_group(&mut user);
        Ok(Authentication::of_user(user))
    }

    fn check_times(&self, claims: &Map, now: i64) -> Result<(), String> {
        let time = |name: &str| claims.get(name).and_then(Value::as_f64);
        let now = now as f64;
        if time("exp").is_none_or(|expiry| expiry <= now) {
            return Err("token is expired".to_owned());
        }
        if time("nbf").is_some_and(|begin| begin > now + NOT_BEFORE_LEEWAY_SECONDS) {
            return Err("current time is before the nbf (not before) time".to_owned());
        }
        Ok(())
    }

    /// Whether a token of this server may be for the requested audiences. The audiences of an issuer are its own.
    fn is_for(&self, requested: &[String]) -> bool {
        requested.is_empty() || requested.iter().any(|audience| self.api_audiences.contains(audience))
    }
}

fn has_audience(claims: &Map, accepted: &[String]) -> bool {
    let is_accepted =
        |audience: &Value| audience.as_str().is_some_and(|audience| accepted.iter().any(|one| one == audience));
    match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(is_accepted),
        Some(audience) => is_accepted(audience),
        None => false,
    }
}

impl<F: DocumentFetcher + 'static> Authenticator for JwtAuthenticator<F> {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        let token = request.token.and_then(UnverifiedToken::parse);
        match token.filter(|token| token.issuer == self.issuer.url() && self.is_for(request.audiences)) {
            Some(token) => MaybeFuture::new(async move {
                let checked = self.check(&token, request.now).await;
                checked.unwrap_or_else(|why| Authentication::Rejected(format!("oidc: {why}")))
            }),
            None => MaybeFuture::ready(Authentication::NotRecognized),
        }
    }
}
