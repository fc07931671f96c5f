//! A panic ends its request with a 500, and nothing else (`filters/wrap.go`).

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use http::{Response, StatusCode};

use crate::body::Body;
use crate::respond;

/// The response of a handler, or a 500 when it panics. The panic hook has logged the panic.
pub(crate) async fn recover(handler: impl Future<Output = Response<Body>> + Unpin) -> Response<Body> {
    AssertUnwindSafe(handler).catch_unwind().await.unwrap_or_else(|_| {
        let text = "This request caused apiserver to panic. Look in the logs for details.\n";
        respond::text(StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_becomes_a_500() {
        let fine = recover(Box::pin(async { Response::new(Body::empty()) })).await;
        assert_eq!(fine.status(), 200);
        let panicked = recover(Box::pin(async { panic!("on purpose") })).await;
        assert_eq!(panicked.status(), 500);
        assert_eq!(panicked.headers()["content-type"], "text/plain; charset=utf-8");
    }
}
