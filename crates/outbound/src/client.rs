//! [`Client`]: sends HTTP requests to one server, with limits on time, response size and concurrency.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use listwatch_proxy::{Destination, Limits, Proxy, ProxyErrorKind, Redirects, TlsSettingsError};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::kubeconfig::{Authorization, Kubeconfig, KubeconfigError};
use crate::token_file::{TokenFile, bearer};

/// The largest response body, in bytes. A larger body is an error.
pub const RESPONSE_BYTES_MAX: usize = 3 << 20;

/// The largest number of concurrent calls to one server. Further calls wait, within their time limit.
pub const CALLS_MAX: usize = 256;

/// The error of a call without a usable response. The text names the server, and contains no credential and no body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CallError {
    text: String,
    /// Whether a retry may succeed: connection failures, timeouts, 429, 500, 504 and responses with `Retry-After`.
    is_retriable: bool,
    /// The delay in the `Retry-After` header of the response.
    retry_after: Option<Duration>,
}

impl CallError {
    /// Whether a retry may succeed.
    pub fn is_retriable(&self) -> bool {
        self.is_retriable
    }
}

/// Calls one server. Clones share the connections and the limit of concurrent calls.
#[derive(Clone, Debug)]
pub struct Client {
    proxy: Proxy,
    to: Destination,
    url: Arc<str>,
    calls: Arc<Semaphore>,
    /// The source of the header `Authorization`, if it can change.
    token_file: Option<Arc<TokenFile>>,
}

/// The error for client settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Unusable {
    #[error("{0:?} is not a URL of a server")]
    Url(String),
    #[error("the credentials are not valid in a header")]
    Credentials,
    #[error(transparent)]
    Tls(#[from] TlsSettingsError),
}

impl Client {
    /// Creates a client for the server of a kubeconfig. The client connects with the first call.
    ///
    /// # Errors
    /// The URL or the certificates cannot be used.
    pub fn new(kubeconfig: &Kubeconfig) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Client::with(kubeconfig)?)
    }

    fn with(kubeconfig: &Kubeconfig) -> Result<Client, Unusable> {
        let url = kubeconfig.url();
        let uri: Uri = url.parse().map_err(|_| Unusable::Url(url.to_owned()))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| Unusable::Url(url.to_owned()))?;
        let proxy = Proxy::new(Limits::default());
        let (transport, port) = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => (proxy.tls_transport(kubeconfig.tls.clone())?, 443),
            Some(scheme) if *scheme == Scheme::HTTP => (proxy.plain_transport(), 80),
            _ => return Err(Unusable::Url(url.to_owned())),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut to = Destination::new(transport, host, uri.port_u16().unwrap_or(port), path);
        to.redirects = Redirects::PassOn;
        let mut token_file = None;
        match &kubeconfig.authorization {
            Authorization::None => {}
            Authorization::Fixed(text) => {
                let mut value = HeaderValue::try_from(text).map_err(|_| Unusable::Credentials)?;
                value.set_sensitive(true);
                to.headers.insert(AUTHORIZATION, value);
            }
            Authorization::TokenFile { path, token, is_of_file } => {
                let header = bearer(token).ok_or(Unusable::Credentials)?;
                token_file = Some(Arc::new(TokenFile::new(path.clone(), header, *is_of_file)));
            }
        }
        Ok(Client { proxy, to, url: url.into(), calls: Arc::new(Semaphore::new(CALLS_MAX)), token_file })
    }

    /// Sends a JSON document with POST, and returns the body of the response. The call takes at most `time_max`.
    ///
    /// # Errors
    /// [`CallError`] for a failed call or a response whose code is not 2xx.
    pub async fn post(&self, body: Bytes, time_max: Duration) -> Result<Bytes, CallError> {
        self.call(Method::POST, body, time_max).await
    }

    /// Reads a document with GET. The call takes at most `time_max`.
    ///
    /// # Errors
    /// [`CallError`] for a failed call or a response whose code is not 2xx.
    pub async fn get(&self, time_max: Duration) -> Result<Bytes, CallError> {
        self.call(Method::GET, Bytes::new(), time_max).await
    }

    /// Sends a JSON document with POST, and retries after transient failures (`WithExponentialBackoff`). Each attempt
    /// takes at most `time_max`.
    ///
    /// # Errors
    /// The [`CallError`] of the last attempt.
    pub async fn post_with_retry(
        &self,
        body: Bytes,
        time_max: Duration,
        backoff: &Backoff,
    ) -> Result<Bytes, CallError> {
        self.post_while(body, time_max, backoff, CallError::is_retriable).await
    }

    /// Sends a JSON document with POST, and retries after any failure, as for audit events.
    ///
    /// # Errors
    /// The [`CallError`] of the last attempt.
    pub async fn post_until_accepted(
        &self,
        body: Bytes,
        time_max: Duration,
        backoff: &Backoff,
    ) -> Result<Bytes, CallError> {
        self.post_while(body, time_max, backoff, |_| true).await
    }

    async fn post_while(
        &self,
        body: Bytes,
        time_max: Duration,
        backoff: &Backoff,
        retries: impl Fn(&CallError) -> bool,
    ) -> Result<Bytes, CallError> {
        let mut tried = 0;
        loop {
            let error = match self.post(body.clone(), time_max).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tried += 1;
            let pause = backoff.pause(tried, rand::random()).filter(|_| retries(&error));
            let Some(pause) = pause else { return Err(error) };
            sleep(error.retry_after.map_or(pause, |asked| asked.clamp(pause, time_max.max(pause)))).await;
        }
    }

    async fn call(&self, method: Method, body: Bytes, time_max: Duration) -> Result<Bytes, CallError> {
        let name = if method == Method::GET { "Get" } else { "Post" };
        let failed = |why: &dyn std::fmt::Display, is_retriable| CallError {
            text: format!("{name} {:?}: {why}", self.url),
            is_retriable,
            retry_after: None,
        };
        let exchange = async {
            // The semaphore is never closed.
            let _slot = self.calls.acquire().await;
            let mut request = Request::new(Full::new(body));
            let headers = request.headers_mut();
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            if method != Method::GET {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            *request.method_mut() = method;
            let mut to = Destination { header_timeout: Some(time_max), ..self.to.clone() };
            if let Some(file) = &self.token_file {
                to.headers.insert(AUTHORIZATION, file.header().await);
            }
            let response = self.proxy.handle(request, &to).await.map_err(|error| {
                let is_retriable = !matches!(error.kind(), ProxyErrorKind::TooManyConnections(_));
                failed(error.kind(), is_retriable)
            })?;
            let (code, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
            if let (401, Some(file)) = (code, &self.token_file) {
                file.reject();
            }
            let mut received = BytesMut::new();
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| failed(&error, true))?;
                let Some(data) = frame.data_ref() else { continue };
                if received.len() + data.len() > RESPONSE_BYTES_MAX {
                    return Err(failed(&format!("the answer has more than {RESPONSE_BYTES_MAX} bytes"), false));
                }
                received.extend_from_slice(data);
            }
            if !(200..300).contains(&code) {
                let is_retriable = matches!(code, 429 | 500 | 504) || retry_after.is_some();
                let error = failed(&format!("the server answered with {code}"), is_retriable);
                return Err(CallError { retry_after, ..error });
            }
            Ok(received.freeze())
        };
        match timeout(time_max, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(failed(&"context deadline exceeded", true)),
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

impl TryFrom<&std::path::Path> for Client {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    /// Creates a client from a kubeconfig file.
    fn try_from(path: &std::path::Path) -> Result<Self, Self::Error> {
        let kubeconfig = Kubeconfig::read(path).map_err(|error: KubeconfigError| error.to_string())?;
        Client::new(&kubeconfig)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Responds to one connection after another with these texts, and returns the requests.
    async fn serve(answers: &'static [&'static str]) -> (Client, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let count = connection.read(&mut bytes).await.unwrap();
                requests.push(String::from_utf8_lossy(&bytes[..count]).into_owned());
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        });
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        );
        let kubeconfig = Kubeconfig::parse(&text, std::path::Path::new(".")).unwrap();
        (Client::new(&kubeconfig).unwrap(), served)
    }

    const LONG: Duration = Duration::from_secs(30);
    const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";

    #[tokio::test]
    async fn post_sends_the_document_with_the_credentials() {
        let (client, served) = serve(&[FINE]).await;
        assert_eq!(client.post("{\"a\":1}".into(), LONG).await.unwrap(), "{}");
        let request = served.await.unwrap().remove(0).to_ascii_lowercase();
        assert!(request.starts_with("post /hook?a=b http/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: bearer t\r\n") && request.contains("content-type: application/json"));
    }

    #[tokio::test]
    async fn transient_failure_is_retried() {
        let overloaded = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let backoff = Backoff::starting_at(Duration::from_millis(1));
        let (client, served) = serve(Box::leak(Box::new([overloaded, FINE]))).await;
        assert_eq!(client.post_with_retry("{}".into(), LONG, &backoff).await.unwrap(), "{}");
        assert_eq!(served.await.unwrap().len(), 2);
        let forbidden = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (client, served) = serve(Box::leak(Box::new([forbidden]))).await;
        let error = client.post_with_retry("{}".into(), LONG, &backoff).await.unwrap_err();
        assert!(error.to_string().ends_with("the server answered with 403"), "{error}");
        assert_eq!(served.await.unwrap().len(), 1, "403 is final");
    }

    #[tokio::test]
    async fn call_to_a_silent_server_ends_at_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::new(&Kubeconfig::of_url(&url, b"")).unwrap();
        let error = client.get(Duration::from_millis(50)).await.unwrap_err();
        assert!(error.is_retriable() && error.to_string().starts_with("Get \"http://127.0.0.1:"), "{error}");
    }

    #[test]
    fn unusable_urls_are_rejected() {
        for url in ["", "ftp://a", "/path", "https://"] {
            assert!(Client::new(&Kubeconfig::of_url(url, b"")).is_err(), "{url}");
        }
    }
}
