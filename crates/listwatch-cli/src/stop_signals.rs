//! The signals that ask this process to stop: Ctrl-C, and on Unix `SIGTERM`.

use std::io;

/// The handlers of the signals. While the value exists, a signal does not end the process, and none is missed between
/// two calls of [`StopSignals::received`].
pub(crate) struct StopSignals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The error of the operating system.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn install() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next signal. A dropped future has taken no signal.
    ///
    /// # Errors
    /// The handler cannot be installed. Never on Unix.
    pub(crate) async fn received(&mut self) -> io::Result<()> {
        #[cfg(unix)]
        {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            Ok(())
        }
        #[cfg(not(unix))]
        tokio::signal::ctrl_c().await
    }
}
