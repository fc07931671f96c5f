//! [`RequestDeadline`]: the deadline of a request, from `?timeout=` or from the server's limit
//! (`filters/request_deadline.go`).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use listwatch_meta::Status;
use listwatch_wire::query::{Extra, Query};
use tokio::time::Instant;

use crate::request::info::RequestInfo;

/// The maximum duration of a request, except watches (`--request-timeout`). The client can set a shorter timeout.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The time at which a request must be complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestDeadline {
    at: Instant,
}

impl RequestDeadline {
    /// Computes the deadline of a request that arrived at `now` and may take `limit`. Watches ignore this deadline,
    /// because they have a later deadline of their own.
    ///
    /// # Errors
    /// 400 for an invalid `?timeout=`. A long-running request ignores an invalid value.
    pub(crate) fn new(
        info: &RequestInfo<'_>,
        query: &Query<'_>,
        now: Instant,
        limit: Duration,
    ) -> Result<Self, Status> {
        let extra = Extra { timeout: query.get("timeout").map(str::to_owned), ..Extra::default() };
        let asked = match extra.timeout() {
            Err(status) if !info.long_running => return Err(status),
            asked => asked.ok().flatten(),
        };
        Ok(RequestDeadline { at: now + asked.map_or(limit, |asked| asked.min(limit)) })
    }

    /// Returns the time of the deadline.
    pub(crate) fn at(self) -> Instant {
        self.at
    }

    /// Awaits `work`, and returns a 504 at the deadline.
    ///
    /// The work is passed by reference: an `async fn` would store it twice, as its argument and inside the timeout.
    pub(crate) async fn enforce<T, E, F>(self, mut work: Pin<&mut F>) -> Result<T, E>
    where
        E: From<Status>,
        F: Future<Output = Result<T, E>>,
    {
        // Most reads complete without waiting, so they need no timer.
        if let Some(done) = work.as_mut().now_or_never() {
            return done;
        }
        tokio::time::timeout_at(self.at, work).await.map_err(|_| E::from(Status::request_timed_out()))?
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http::Method;

    use super::*;

    fn deadline(path: &str, query: &str, now: Instant) -> Result<Duration, String> {
        let query = Query::parse(query);
        let info = RequestInfo::new(&Method::GET, path, &query);
        RequestDeadline::new(&info, &query, now, REQUEST_TIMEOUT)
            .map(|deadline| deadline.at - now)
            .map_err(|status| status.message)
    }

    #[test]
    fn timeout_parameter_shortens_the_request_deadline() {
        let now = Instant::now();
        for (query, seconds) in
            [("", 60), ("timeout=5s", 5), ("timeout=1000h", 60), ("timeout=0", 60), ("timeout=-1s", 60)]
        {
            assert_eq!(deadline("/api/v1/pods", query, now), Ok(Duration::from_secs(seconds)), "{query}");
        }
    }

    #[test]
    fn invalid_timeout_is_rejected_unless_the_request_is_long_running() {
        let now = Instant::now();
        assert!(deadline("/api/v1/pods", "timeout=soon", now).is_err_and(|text| text.contains("invalid timeout")));
        for (path, query) in
            [("/api/v1/pods", "watch=1&timeout=soon"), ("/api/v1/namespaces/a/pods/x/log", "timeout=soon")]
        {
            assert_eq!(deadline(path, query, now), Ok(REQUEST_TIMEOUT), "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_past_its_deadline_returns_504() {
        let deadline = RequestDeadline { at: Instant::now() + REQUEST_TIMEOUT };
        let work = async |time| {
            tokio::time::sleep(time).await;
            Ok::<_, Status>(())
        };
        assert!(deadline.enforce(pin!(work(REQUEST_TIMEOUT / 2))).await.is_ok());
        let late = deadline.enforce(pin!(work(REQUEST_TIMEOUT))).await;
        assert_eq!(late.map_err(|status| status.code), Err(504));
    }
}
