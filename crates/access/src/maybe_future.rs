//! [`MaybeFuture`]: a ready value or a boxed future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A ready value or a boxed future of it.
///
/// Most requests are decided without I/O. An `async` method of a `dyn` trait would allocate a
/// future for each of them.
#[must_use = "a future does nothing unless it is awaited"]
pub struct MaybeFuture<'a, T>(State<'a, T>);

enum State<'a, T> {
    Ready(Option<T>),
    Future(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> MaybeFuture<'a, T> {
    /// A ready value.
    pub fn ready(answer: T) -> Self {
        MaybeFuture(State::Ready(Some(answer)))
    }

    /// A future that performs I/O.
    pub fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        MaybeFuture(State::Future(Box::pin(future)))
    }
}

impl<T: Unpin> Future for MaybeFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            State::Ready(answer) => Poll::Ready(answer.take().expect("a future is not polled after its end")),
            State::Future(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> std::fmt::Debug for MaybeFuture<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "Ready",
            State::Future(_) => "Future",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn maybe_future_yields_its_value_ready_or_pending() {
        assert_eq!(MaybeFuture::ready(1).await, 1);
        let later = MaybeFuture::new(async {
            tokio::task::yield_now().await;
            2
        });
        assert_eq!(later.await, 2);
    }
}
