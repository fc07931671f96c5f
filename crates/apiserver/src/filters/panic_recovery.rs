//! Converts a panic of a handler to a 500 response (`filters/wrap.go`). Other requests continue.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use http::{Response, StatusCode};

use crate::response::body::Body;
use crate::response::respond;

/// Returns the response of a handler.
///
/// # Errors
/// The text of the panic, if the handler panics. The panic hook has logged it.
pub(crate) async fn recover(handler: impl Future<Output = Response<Body>> + Unpin) -> Result<Response<Body>, String> {
    AssertUnwindSafe(handler).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".to_owned())
    })
}

/// Returns the response for a request whose handler panicked.
pub(crate) fn response() -> Response<Body> {
    let text = "This request caused apiserver to panic. Look in the logs for details.\n";
    respond::text(StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_handler_returns_500() {
        let fine = recover(Box::pin(async { Response::new(Body::empty()) })).await;
        assert_eq!(fine.unwrap().status(), 200);
        let text = recover(Box::pin(async { panic!("on purpose") })).await.unwrap_err();
        assert_eq!(text, "on purpose");
        let panicked = response();
        assert_eq!(panicked.status(), 500);
        assert_eq!(panicked.headers()["content-type"], "text/plain; charset=utf-8");
    }
}
