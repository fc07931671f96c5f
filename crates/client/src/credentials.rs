//! Authentication of requests: [`Credentials`], from [`crate::config::Auth`].
//!
//! ```text
//! session() ─ valid? ─ yes ─▶ the current session
//!                   └ no ─▶ read the file, run the plugin ─▶ a new session (concurrent callers
//! wait)
//! refused(session) ─▶ mark the session stale, unless a newer one exists
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use http::Uri;
use http::header::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::{Auth, ConfigError, TlsOptions};
#[cfg(feature = "exec")]
use crate::config::{ExecCredentials, ExecPlugin, Identity};
use crate::deadline::deadline;
use crate::problem::Problem;
use crate::transport::{HttpTransport, TransportOptions};

/// Time for which a token from a file is used before the file is read again.
pub const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// A plugin's credential is renewed this long before its expiry, or at half of its lifetime if that
/// is later.
#[cfg(feature = "exec")]
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// Time for which a plugin's failure is returned without a new run, so that many informers do not
/// run a failing plugin at once.
pub const FAILURE_MEMORY: Duration = Duration::from_secs(1);

/// The credentials of one session: header and connections.
#[derive(Clone)]
pub(crate) struct Session {
    /// The `Authorization` header.
    pub(crate) header: Option<HeaderValue>,
    /// The connections with the client certificate of these credentials, if there is one.
    pub(crate) transport: Option<HttpTransport>,
    /// The number of this session, counted per credentials.
    number: u64,
}

/// The source of the credentials for requests; see the [module](self).
pub(crate) enum Credentials {
    Fixed(Session),
    Renewed(Arc<Renewed>),
}

/// Credentials that can be renewed.
pub(crate) struct Renewed {
    source: Source,
    state: Mutex<SessionState>,
}

/// A source of renewable credentials.
pub(crate) enum Source {
    File(PathBuf),
    #[cfg(feature = "exec")]
    Exec {
        plugin: Box<ExecPlugin>,
        reach: Box<Reconnect>,
    },
}

/// The options for connections with another client certificate.
#[cfg(feature = "exec")]
pub(crate) struct Reconnect {
    server: Uri,
    tls: TlsOptions,
    options: TransportOptions,
}

#[derive(Default)]
pub(crate) struct SessionState {
    session: Option<Session>,
    good_until: Option<Instant>,
    /// The same time on the wall clock. The monotonic clock stands still while a machine sleeps, but credentials expire.
    good_until_wall: Option<SystemTime>,
    /// Whether the server rejected the session, which is kept to compare its number.
    stale: bool,
    #[cfg(feature = "exec")]
    identity: Option<Arc<Identity>>,
    #[cfg(feature = "exec")]
    failed: Option<(Instant, Problem)>,
    number: u64,
}

impl Credentials {
    /// No credentials.
    pub(crate) fn none() -> Self {
        Credentials::Fixed(Session { header: None, transport: None, number: 0 })
    }

    pub(crate) fn new(
        auth: Auth,
        #[cfg_attr(not(feature = "exec"), expect(unused_variables, reason = "plugins alone bring certificates"))]
        reach: (&Uri, &TlsOptions, &TransportOptions),
    ) -> Result<Self, ConfigError> {
        let fixed = |text: &str, what: &str| {
            let header = secret_header(text).map_err(|why| ConfigError::invalid(what, why))?;
            Ok(Credentials::Fixed(Session { header: Some(header), transport: None, number: 0 }))
        };
        let renewed = |source| Ok(Credentials::Renewed(Arc::new(Renewed { source, state: Mutex::default() })));
        match auth {
            Auth::None => Ok(Credentials::none()),
            Auth::Token(token) => fixed(&format!("Bearer {token}"), "the token"),
            Auth::Basic { username, password } => {
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
                fixed(&format!("Basic {pair}"), "the password")
            }
            Auth::TokenFile(path) => renewed(Source::File(path)),
            #[cfg(feature = "exec")]
            Auth::Exec(plugin) => {
                let (server, tls, options) = reach;
                let reach = Reconnect { server: server.clone(), tls: tls.clone(), options: options.clone() };
                renewed(Source::Exec { plugin, reach: Box::new(reach) })
            }
        }
    }

    /// The credentials for a request. Cancel-safe: a started plugin runs to its end, and the next
    /// caller receives the result. A login in a browser can take longer than a request.
    ///
    /// # Errors
    /// [`Problem::Misconfigured`] if the file or the plugin provides no usable credentials.
    pub(crate) async fn session(&self) -> Result<Session, Problem> {
        let renewed = match self {
            Credentials::Fixed(session) => return Ok(session.clone()),
            Credentials::Renewed(renewed) => renewed,
        };
        match &renewed.source {
            Source::File(path) => {
                let mut state = renewed.state.lock().await;
                match state.usable() {
                    Some(session) => Ok(session),
                    None => state.read_file(path).await,
                }
            }
            #[cfg(feature = "exec")]
            Source::Exec { .. } => {
                if let Some(session) = renewed.state.lock().await.usable() {
                    return Ok(session);
                }
                let renewed = renewed.clone();
                let renewing = tokio::spawn(async move { renewed.run_plugin().await });
                renewing.await.unwrap_or_else(|error| {
                    let why = format!("running the credential plugin failed: {error}");
                    Err(Problem::misconfigured(why).caused_by(error))
                })
            }
        }
    }

    /// Records that the server rejected this session. Returns true if the next session is a
    /// different one, so that a retry can succeed.
    pub(crate) async fn refused(&self, session: &Session) -> bool {
        let Credentials::Renewed(renewed) = self else { return false };
        let mut state = renewed.state.lock().await;
        if state.number == session.number {
            state.stale = true;
        }
        true
    }
}

#[cfg(feature = "exec")]
impl Renewed {
    async fn run_plugin(&self) -> Result<Session, Problem> {
        let Source::Exec { plugin, reach } = &self.source else { unreachable!("files are read by who asks") };
        // The lock is held while the plugin runs; concurrent callers receive the same result.
        let mut state = self.state.lock().await;
        if let Some(session) = state.usable() {
            return Ok(session);
        }
        if let Some((at, problem)) = &state.failed
            && at.elapsed() < FAILURE_MEMORY
        {
            return Err(problem.clone());
        }
        let ran = plugin.run().await.map_err(|error| Problem::misconfigured(error.to_string()).caused_by(error));
        let renewed = ran.and_then(|credentials| state.take(credentials, reach));
        state.failed = renewed.as_ref().err().map(|problem| (Instant::now(), problem.clone()));
        renewed
    }
}

impl SessionState {
    /// The current session, unless it is expired or stale.
    fn usable(&self) -> Option<Session> {
        self.usable_at(Instant::now(), SystemTime::now())
    }

    fn usable_at(&self, now: Instant, wall: SystemTime) -> Option<Session> {
        let in_time =
            self.good_until.is_none_or(|until| now < until) && self.good_until_wall.is_none_or(|until| wall < until);
        self.session.clone().filter(|_| in_time && !self.stale)
    }

    async fn read_file(&mut self, path: &PathBuf) -> Result<Session, Problem> {
        let read = tokio::fs::read_to_string(path).await;
        let header = match &read {
            Ok(token) if token.trim().is_empty() => Err("is empty".to_owned()),
            Ok(token) => secret_header(&format!("Bearer {}", token.trim())).map_err(str::to_owned),
            Err(error) => Err(error.to_string()),
        };
        match (header, &self.session) {
            (Ok(header), _) => Ok(self.keep(Some(header), None, Some(TOKEN_LIFE))),
            // The old token may still be valid, and the file may return. The server decides.
            (Err(why), Some(session)) => {
                tracing::warn!(path = %path.display(), why, "the token file cannot be read; the former token is used");
                let session = session.clone();
                self.set_life(Some(FAILURE_MEMORY));
                self.stale = false;
                Ok(session)
            }
            (Err(why), None) => {
                let problem = Problem::misconfigured(format!("the token file {}: {why}", path.display()));
                Err(match read {
                    Err(error) => problem.caused_by(error),
                    Ok(_) => problem,
                })
            }
        }
    }

    #[cfg(feature = "exec")]
    fn take(&mut self, credentials: ExecCredentials, reach: &Reconnect) -> Result<Session, Problem> {
        let unusable = |why: String| Problem::misconfigured(format!("the credential plugin's {why}"));
        let header = match credentials.token {
            Some(token) => {
                Some(secret_header(&format!("Bearer {}", token.0)).map_err(|why| unusable(format!("token {why}")))?)
            }
            None => None,
        };
        let transport = match credentials.identity {
            None => {
                self.identity = None;
                None
            }
            // Same certificate: the connections are kept.
            Some(identity) if self.identity.as_deref() == Some(&identity) => {
                self.session.as_ref().and_then(|session| session.transport.clone())
            }
            Some(identity) => {
                let mut tls = reach.tls.clone();
                // The plugin's certificate replaces that of a file.
                (tls.identity, tls.files.identity) = (Some(identity.clone()), None);
                let transport = HttpTransport::new(&reach.server, tls, reach.options.clone())
                    .map_err(|error| unusable(format!("certificate cannot be used: {error}")).caused_by(error))?;
                self.identity = Some(Arc::new(identity));
                Some(transport)
            }
        };
        let life = credentials.lasts.map(|lasts| lasts.saturating_sub(EXPIRY_MARGIN).max(lasts / 2));
        Ok(self.keep(header, transport, life))
    }

    fn keep(
        &mut self,
        header: Option<HeaderValue>,
        transport: Option<HttpTransport>,
        life: Option<Duration>,
    ) -> Session {
        self.number += 1;
        let session = Session { header, transport, number: self.number };
        self.session = Some(session.clone());
        self.set_life(life);
        self.stale = false;
        session
    }

    fn set_life(&mut self, life: Option<Duration>) {
        self.good_until = life.map(|life| deadline(Instant::now(), life));
        self.good_until_wall = life.map(|life| deadline(SystemTime::now(), life));
    }
}

/// Creates a header value that is not printed.
fn secret_header(text: &str) -> Result<HeaderValue, &'static str> {
    let mut header = HeaderValue::try_from(text).map_err(|_| "holds characters that a header cannot carry")?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ExecVersion, InteractiveMode};

    fn credentials(auth: Auth) -> Credentials {
        let server = "https://localhost:1".parse().unwrap();
        Credentials::new(auth, (&server, &TlsOptions::default(), &TransportOptions::default())).unwrap()
    }

    async fn header(credentials: &Credentials) -> String {
        let session = credentials.session().await.unwrap();
        session.header.map(|header| header.to_str().unwrap().to_owned()).unwrap_or_default()
    }

    #[tokio::test]
    async fn static_credentials_become_authorization_headers() {
        assert_eq!(header(&credentials(Auth::None)).await, "");
        assert_eq!(header(&credentials(Auth::Token("t".to_owned()))).await, "Bearer t");
        let basic = Auth::Basic { username: "me".to_owned(), password: "pass".to_owned() };
        assert_eq!(header(&credentials(basic)).await, "Basic bWU6cGFzcw==");
        let server = "https://localhost:1".parse().unwrap();
        let reach = (&server, &TlsOptions::default(), &TransportOptions::default());
        let bad = Credentials::new(Auth::Token("a\nb".to_owned()), reach);
        assert!(bad.is_err());
    }

    #[tokio::test]
    async fn token_file_is_reread_after_401_or_one_minute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let renewed = credentials(Auth::TokenFile(path.clone()));
        assert!(renewed.session().await.is_err(), "there is no file");
        std::fs::write(&path, "\n").unwrap();
        let empty = renewed.session().await.err().map(|problem| problem.to_string());
        assert!(empty.is_some_and(|text| text.ends_with("/token: is empty")), "an empty token was sent");
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(header(&renewed).await, "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(&renewed).await, "Bearer one", "a file is not read for every request");
        let session = renewed.session().await.unwrap();
        assert!(renewed.refused(&session).await);
        assert_eq!(header(&renewed).await, "Bearer two");
        std::fs::write(&path, "three").unwrap();
        renewed.refused(&session).await;
        assert_eq!(header(&renewed).await, "Bearer two", "a late refusal of an old token says nothing of the new one");
        tokio::time::pause();
        std::fs::remove_file(&path).unwrap();
        let session = renewed.session().await.unwrap();
        renewed.refused(&session).await;
        assert_eq!(header(&renewed).await, "Bearer two", "an old token that may be valid is kept");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(header(&renewed).await, "Bearer two", "a missing file is not looked for at every request");
        tokio::time::advance(FAILURE_MEMORY).await;
        assert_eq!(header(&renewed).await, "Bearer four", "a file that returned is not read");
        std::fs::write(&path, "five").unwrap();
        tokio::time::advance(TOKEN_LIFE).await;
        assert_eq!(header(&renewed).await, "Bearer five");
    }

    /// A plugin that returns the tokens `run-1`, `run-2`, … and fails while a file `fail` exists. It waits while a file
    /// `slow` exists.
    fn counting(folder: &std::path::Path, expiry: &str) -> Credentials {
        let script = format!(
            r#"cd '{}'; echo x >> runs; [ -e fail ] && exit 1; while [ -e slow ]; do sleep 0.1; done; n=$(wc -l < runs); printf '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"run-%d"{expiry}}}}}' $n"#,
            folder.display()
        );
        credentials(Auth::Exec(Box::new(ExecPlugin {
            command: "sh".into(),
            args: vec!["-c".to_owned(), script],
            env: Vec::new(),
            version: ExecVersion::V1,
            interactive: InteractiveMode::Never,
            install_hint: String::new(),
            cluster: None,
        })))
    }

    #[tokio::test]
    async fn exec_plugin_runs_once_for_concurrent_requests() {
        let folder = tempfile::tempdir().unwrap();
        let renewed = counting(folder.path(), "");
        let (one, two, three) = tokio::join!(header(&renewed), header(&renewed), header(&renewed));
        assert_eq!([one, two, three], ["Bearer run-1", "Bearer run-1", "Bearer run-1"]);
        let session = renewed.session().await.unwrap();
        renewed.refused(&session).await;
        renewed.refused(&session).await;
        assert_eq!(header(&renewed).await, "Bearer run-2", "what the server refuses is replaced");
        renewed.refused(&session).await;
        assert_eq!(header(&renewed).await, "Bearer run-2");
    }

    #[tokio::test]
    async fn exec_plugin_survives_cancellation_of_its_request() {
        let folder = tempfile::tempdir().unwrap();
        let slow = counting(&folder.path().join("."), "");
        std::fs::write(folder.path().join("slow"), "").unwrap();
        let started = async {
            while !folder.path().join("runs").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = slow.session() => panic!("the plugin ended before the request was canceled"),
            () = started => {}
        }
        std::fs::remove_file(folder.path().join("slow")).unwrap();
        assert_eq!(header(&slow).await, "Bearer run-1", "the login was started again");
    }

    #[tokio::test]
    async fn expired_credentials_are_replaced_and_failures_cached_for_one_second() {
        let folder = tempfile::tempdir().unwrap();
        let renewed = counting(folder.path(), r#","expirationTimestamp":"2000-01-01T00:00:00Z""#);
        assert_eq!(header(&renewed).await, "Bearer run-1", "even an expired token is tried: clocks differ");
        assert_eq!(header(&renewed).await, "Bearer run-2");
        std::fs::write(folder.path().join("fail"), "").unwrap();
        let failure = || async { renewed.session().await.err().map(|problem| problem.to_string()) };
        let first = failure().await;
        assert!(first.is_some(), "the plugin fails");
        // The clock stands still, because a slow machine may need more than FAILURE_MEMORY for the next requests. If
        // the plugin ran again, its time limit would pass at once on this clock, and the error would differ.
        tokio::time::pause();
        for _ in 0..4 {
            assert_eq!(failure().await, first, "a plugin that failed is run again at once");
        }
        let runs = std::fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
        assert_eq!(runs, 3, "a plugin that failed is not run again at once");
    }

    #[tokio::test]
    async fn valid_credentials_of_a_plugin_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let renewed = counting(folder.path(), r#","expirationTimestamp":"2999-01-01T00:00:00Z""#);
        assert_eq!(header(&renewed).await, "Bearer run-1");
        assert_eq!(header(&renewed).await, "Bearer run-1", "a token is used until it expires");
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_renewed_before_they_expire() {
        let mut state = SessionState::default();
        let reach = Reconnect {
            server: "https://localhost:1".parse().unwrap(),
            tls: TlsOptions::default(),
            options: TransportOptions::default(),
        };
        let given = |seconds| ExecCredentials {
            token: Some(crate::config::Secret("t".to_owned())),
            identity: None,
            lasts: Some(Duration::from_secs(seconds)),
        };
        for (seconds, kept) in [(3_600, 3_590), (15, 7), (0, 0)] {
            let begun = Instant::now();
            state.take(given(seconds), &reach).unwrap();
            let found = (state.good_until.unwrap() - begun).as_secs();
            assert_eq!(found, kept, "{seconds} s");
            assert_eq!(state.usable().is_some(), kept > 0, "an expired token is for one request: {seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_expire_while_the_machine_sleeps() {
        let mut state = SessionState::default();
        state.keep(None, None, Some(Duration::from_secs(3_600)));
        let (now, wall) = (Instant::now(), SystemTime::now());
        assert!(state.usable_at(now, wall).is_some());
        let slept = wall + Duration::from_secs(3_601);
        assert!(state.usable_at(now, slept).is_none(), "an expired credential is used after a sleep");
        // A wall clock that is set back extends no life.
        let later = now + Duration::from_secs(3_601);
        assert!(state.usable_at(later, wall - Duration::from_secs(3_600)).is_none());
        state.keep(None, None, None);
        assert!(state.usable_at(later, slept).is_some(), "a credential without an expiry expires");
    }
}
