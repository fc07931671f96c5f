//! TLS options that follow their files: [`ReloadedTls`].
//!
//! client-go reads the client certificate again every 5 minutes and at each handshake
//! (transport/cert_rotation.go), and the certificate authorities every 5 minutes, when a request is sent
//! (transport/ca_rotation.go). This module reads both at most once per [`TLS_FILES_INTERVAL`], when a request is sent
//! or a connection is opened. No task runs in the background, except one read that a file system does not answer.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Protocols;
use super::tls::Tls;
use crate::config::{Certificate, ConfigError, Identity, TlsFiles, TlsOptions};

/// The shortest time between two reads of [`TlsFiles`].
pub const TLS_FILES_INTERVAL: Duration = Duration::from_secs(60);

/// The time for which callers wait for a read of all files. Then the old contents are used until the read ends. A network
/// file system may not answer.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The TLS options of connections to one server.
pub(super) struct ReloadedTls {
    host: String,
    protocols: Protocols,
    /// The options for new connections.
    current: Mutex<Tls>,
    /// Counts the replacements of `current`.
    number: AtomicU64,
    /// `None` if no option comes from a file.
    source: Option<tokio::sync::Mutex<Source>>,
    /// Whether the first read ended or took too long. Until then callers wait for it.
    has_read: AtomicBool,
}

struct Source {
    options: TlsOptions,
    next_read: Instant,
    /// The read that has not ended. It occupies a blocking thread and cannot be cancelled, so there is never a second one.
    /// It outlives a caller that gives up.
    reading: Option<Reading>,
}

struct Reading {
    /// The changed options; `None` if nothing changed.
    result: JoinHandle<Option<TlsOptions>>,
    wait_until: Instant,
}

impl ReloadedTls {
    pub(super) fn new(host: &str, options: TlsOptions, protocols: Protocols) -> Result<Self, ConfigError> {
        let follows_files = options.files != TlsFiles::default();
        let source = follows_files.then(|| {
            // The first use reads: the options may be older than this transport, e.g. when a plugin renews its certificate.
            tokio::sync::Mutex::new(Source { options: options.clone(), next_read: Instant::now(), reading: None })
        });
        let current = Mutex::new(Tls::offering(host, options, protocols)?);
        Ok(ReloadedTls {
            host: host.to_owned(),
            protocols,
            current,
            number: AtomicU64::new(0),
            source,
            has_read: AtomicBool::new(false),
        })
    }

    /// The options for a new connection.
    pub(super) fn current(&self) -> Tls {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of replacements so far.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Reads the files if that is due. All callers wait for the first read. Later, callers do not wait for the read of
    /// another one; they use the old options.
    pub(super) async fn refresh(&self) {
        let Some(source) = &self.source else { return };
        let mut source = if self.has_read.load(Ordering::Acquire) {
            let Ok(source) = source.try_lock() else { return };
            source
        } else {
            source.lock().await
        };
        let now = Instant::now();
        if source.reading.is_none() {
            if now < source.next_read {
                return;
            }
            source.next_read = now + TLS_FILES_INTERVAL;
            let options = source.options.clone();
            let result = tokio::task::spawn_blocking(move || reread(&options));
            source.reading = Some(Reading { result, wait_until: now + READ_LIMIT });
        }
        let Some(reading) = &mut source.reading else { return };
        if now >= reading.wait_until && !reading.result.is_finished() {
            return;
        }
        let Ok(result) = tokio::time::timeout_at(reading.wait_until, &mut reading.result).await else {
            tracing::warn!(limit = ?READ_LIMIT, "TLS files cannot be read in time; their old contents are kept");
            self.has_read.store(true, Ordering::Release);
            return;
        };
        source.reading = None;
        // The runtime of the read may have ended before the read began.
        let changed = result.inspect_err(|error| tracing::warn!(%error, "TLS files were not read")).ok().flatten();
        if let Some(options) = changed {
            self.replace(&mut source, options);
        }
        self.has_read.store(true, Ordering::Release);
    }

    fn replace(&self, source: &mut Source, options: TlsOptions) {
        match Tls::offering(&self.host, options.clone(), self.protocols) {
            Ok(tls) => {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = tls;
                self.number.fetch_add(1, Ordering::Release);
                source.options = options;
                tracing::info!(host = self.host, "TLS files changed; new connections use them");
            }
            // The files may be in the middle of a replacement.
            Err(error) => tracing::warn!(%error, "changed TLS files cannot be used; the old ones are kept"),
        }
    }
}

/// The options with the present contents of their files; `None` if nothing changed. A part whose file cannot be read
/// keeps its old value. Blocks while the file system does not answer.
fn reread(old: &TlsOptions) -> Option<TlsOptions> {
    let mut new = old.clone();
    if let Some(path) = &old.files.authorities
        && let Some(pem) = read(path)
    {
        match Certificate::from_pem(&pem) {
            Ok(authorities) => new.authorities = authorities,
            Err(error) => kept(path, &error),
        }
    }
    if let Some((chain, key)) = &old.files.identity
        && let (Some(chain_pem), Some(key_pem)) = (read(chain), read(key))
    {
        match Identity::from_pem(&chain_pem, &key_pem) {
            Ok(identity) => new.identity = Some(identity),
            Err(error) => kept(chain, &error),
        }
    }
    let is_changed = new.authorities != old.authorities || new.identity != old.identity;
    is_changed.then_some(new)
}

fn read(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).inspect_err(|error| kept(path, error)).ok()
}

fn kept(path: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(path = %path.display(), %error, "a TLS file cannot be read; its old contents are kept");
}

#[cfg(all(test, unix, feature = "tls"))]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;

    /// A named pipe with certificate authorities: a read blocks until the test answers, as with a hung file system.
    struct Pipe {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl Pipe {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ca.crt");
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            Pipe { _folder: folder, path }
        }

        fn tls(&self) -> Arc<ReloadedTls> {
            let files = TlsFiles { authorities: Some(self.path.clone()), identity: None };
            let options = TlsOptions { authorities: authorities().1, files, ..TlsOptions::default() };
            Arc::new(ReloadedTls::new("localhost", options, Protocols::Any).unwrap())
        }

        /// Answers the read with another authority. Blocks until a read begins.
        async fn answer(&self) {
            let path = self.path.clone();
            tokio::task::spawn_blocking(move || std::fs::write(path, authorities().0)).await.unwrap().unwrap();
        }
    }

    fn authorities() -> (String, Vec<Certificate>) {
        let pem = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
        let authorities = Certificate::from_pem(pem.as_bytes()).unwrap();
        (pem, authorities)
    }

    async fn reading(tls: &ReloadedTls) -> Option<tokio::task::Id> {
        tls.source.as_ref().unwrap().lock().await.reading.as_ref().map(|reading| reading.result.id())
    }

    #[tokio::test]
    async fn concurrent_callers_wait_for_the_first_read() {
        let pipe = Pipe::new();
        let tls = pipe.tls();
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let tls = tls.clone();
                tokio::spawn(async move {
                    tls.refresh().await;
                    tls.number()
                })
            })
            .collect();
        tokio::task::yield_now().await;
        pipe.answer().await;
        for caller in callers {
            assert_eq!(caller.await.unwrap(), 1, "a caller uses options that were not read");
        }
    }

    #[tokio::test]
    async fn read_of_a_cancelled_caller_is_used_by_the_next_one() {
        let pipe = Pipe::new();
        let tls = pipe.tls();
        let cancelled = tokio::time::timeout(Duration::from_millis(20), tls.refresh()).await;
        assert!(cancelled.is_err(), "the read does not block");
        pipe.answer().await;
        tls.refresh().await;
        assert_eq!(tls.number(), 1, "the read of a cancelled caller is lost");
        assert_eq!(reading(&tls).await, None);
    }

    #[tokio::test]
    async fn hung_file_system_occupies_one_thread() {
        let pipe = Pipe::new();
        let tls = pipe.tls();
        let first = tokio::spawn({
            let tls = tls.clone();
            async move { tls.refresh().await }
        });
        tokio::task::yield_now().await;
        tokio::time::pause();
        // A timer may be a millisecond late.
        tokio::time::advance(READ_LIMIT + Duration::from_secs(1)).await;
        first.await.unwrap();
        let hung = reading(&tls).await;
        assert!(hung.is_some());
        for _ in 0..3 {
            tokio::time::advance(TLS_FILES_INTERVAL).await;
            let begun = Instant::now();
            tls.refresh().await;
            assert_eq!(begun.elapsed(), Duration::ZERO, "a caller waits for a hung read again");
            assert_eq!(reading(&tls).await, hung, "a second read begins while the first one hangs");
        }
        assert_eq!(tls.number(), 0);
        tokio::time::resume();
        pipe.answer().await;
        // The read ends soon after the answer. Its result is used although it is late.
        while tls.number() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            tls.refresh().await;
        }
    }
}
