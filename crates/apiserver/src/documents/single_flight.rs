//! [`SingleFlight`]: builds a document once for all requests that wait for it.

use std::sync::Arc;

use listwatch_meta::Status;
use tokio::task::JoinError;

/// Runs long computations on a separate thread, one at a time. The computation stores its result where `ready` finds it.
///
/// ```text
///  request ─▶ is the result ready? ─┬─ yes ────────────────────────────────────────▶ return the result
///                                   └─ no ──▶ wait for the lock ─▶ is it ready? ─┬─▶ return the result
///                                                                                └─▶ compute on another thread
/// ```
///
/// Waiting requests occupy no thread. If the client disconnects, the computation completes for the next client.
#[derive(Debug, Default)]
pub(super) struct SingleFlight(Arc<tokio::sync::Mutex<()>>);

impl SingleFlight {
    /// Returns the result of `ready`, or otherwise that of `compute`.
    ///
    /// # Errors
    /// 500 if the computation failed. The next request computes again.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        ready: impl Fn() -> Option<T>,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        if let Some(result) = ready() {
            return Ok(result);
        }
        let lock = Arc::clone(&self.0).lock_owned().await;
        if let Some(result) = ready() {
            return Ok(result);
        }
        let compute = move || {
            let _lock = lock;
            compute()
        };
        tokio::task::spawn_blocking(compute).await.map_err(|error| build_failed(&error))
    }
}

/// Returns the status for a build that panicked. The panic hook has logged the message of the panic, which clients do
/// not receive.
pub(crate) fn build_failed(_: &JoinError) -> Status {
    Status::internal("building the document failed; look in the logs for details")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_after_a_panic_computes_again() {
        let flight = SingleFlight::default();
        let failed = flight.run(|| None::<u8>, || panic!("secret")).await.unwrap_err();
        assert!(failed.code == 500 && !format!("{failed:?}").contains("secret"), "{failed:?}");
        assert_eq!(flight.run(|| None, || 7).await, Ok(7));
    }
}
