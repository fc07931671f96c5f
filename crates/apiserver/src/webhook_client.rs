//! [`WebhookClient`] sends reviews to authentication and authorization webhooks. [`IssuerClient`] reads the documents
//! of token issuers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;

use listwatch_access::oidc::{DocumentFetcher, FETCH_PAUSE, JwtAuthenticator};
use listwatch_access::webhook::{ReviewAnswer, ReviewClient};
use listwatch_outbound::{Backoff, Client, Kubeconfig};
use time::OffsetDateTime;

/// The time limit of one attempt of a TokenReview. The deadline of the request can be earlier.
pub(crate) const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit for one document of a token issuer.
pub(crate) const ISSUER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends reviews with upstream's retries: five attempts with delays from 500 ms.
#[derive(Clone, Debug)]
pub(crate) struct WebhookClient {
    pub(crate) client: Client,
    /// The time limit of one attempt.
    pub(crate) timeout: Duration,
}

impl ReviewClient for WebhookClient {
    fn review<'a>(&'a self, body: Vec<u8>) -> Pin<Box<dyn Future<Output = ReviewAnswer> + Send + 'a>> {
        Box::pin(async move {
            let answer = self.client.post_with_retry(body.into(), self.timeout, &Backoff::of_review()).await;
            answer.map(|body| body.to_vec()).map_err(|error| error.to_string())
        })
    }
}

/// Reads the keys of an issuer. Retries until the read succeeds or the server is dropped (`oidc.New`).
pub(crate) async fn prepare(authenticator: Weak<JwtAuthenticator<IssuerClient>>) {
    while let Some(authenticator) = authenticator.upgrade() {
        if authenticator.prepare(OffsetDateTime::now_utc().unix_timestamp()).await {
            return;
        }
        drop(authenticator);
        tokio::time::sleep(FETCH_PAUSE).await;
    }
}

/// Reads the documents of token issuers. No connection is kept alive, because documents are read rarely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssuerClient;

impl DocumentFetcher for IssuerClient {
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        authorities: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>> {
        let client = Client::new(&Kubeconfig::of_url(url, authorities.as_bytes()));
        // In a task, so that the read goes on if the request that began it is dropped.
        let read = tokio::spawn(async move {
            let client = client.map_err(|error| error.to_string())?;
            let read = client.get(ISSUER_TIMEOUT).await;
            if let Err(error) = &read {
                tracing::warn!(%error, "cannot read a document of a token issuer");
            }
            read.map(|document| document.to_vec()).map_err(|error| error.to_string())
        });
        Box::pin(async move { read.await.map_err(|error| error.to_string())? })
    }
}
