//! Converts a panic to a 500 response of its request (`filters/wrap.go`). Other requests continue.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use http::{Response, StatusCode};

use crate::response::body::Body;
use crate::response::respond;

/// Returns the response of a handler, or a 500 if the handler panics. The panic hook has logged the panic.
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
    async fn panic_of_a_handler_returns_500() {
        let fine = recover(Box::pin(async { Response::new(Body::empty()) })).await;
        assert_eq!(fine.status(), 200);
        let panicked = recover(Box::pin(async { panic!("on purpose") })).await;
        assert_eq!(panicked.status(), 500);
        assert_eq!(panicked.headers()["content-type"], "text/plain; charset=utf-8");
    }
}
