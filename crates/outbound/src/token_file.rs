//! [`TokenFile`]: the header of a bearer token that another program renews in a file
//! (`client-go/transport/token_source.go`).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// How long a token is used before the file is read again: a minute less the 10 s that client-go subtracts.
const REREAD_AFTER: Duration = Duration::from_secs(50);

/// How long the last token is used after a read that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The token of a file, in memory. If a later read fails, the last token stays in use.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Arc<Mutex<LastRead>>,
}

#[derive(Debug)]
struct LastRead {
    header: HeaderValue,
    /// The next call at or after this time reads the file again.
    read_again: Instant,
}

impl TokenFile {
    /// Creates the source of a token. `header` is the value of `Authorization` until the first read, which is due at
    /// once if the token is not of the file.
    pub(crate) fn new(path: PathBuf, header: HeaderValue, is_of_file: bool) -> Self {
        let read_again = Instant::now() + if is_of_file { REREAD_AFTER } else { Duration::ZERO };
        TokenFile { path, last: Arc::new(Mutex::new(LastRead { header, read_again })) }
    }

    /// Returns the value of `Authorization`. If a read is due, one caller reads and the others use the last token. The
    /// result of the read is stored even if the caller drops its future.
    pub(crate) async fn header(&self) -> HeaderValue {
        let now = Instant::now();
        {
            let mut last = lock(&self.last);
            if now < last.read_again {
                return last.header.clone();
            }
            last.read_again = now + REREAD_AFTER;
        }
        let (path, last) = (self.path.clone(), Arc::clone(&self.last));
        let read = spawn_blocking(move || {
            let read = read(&path);
            let mut last = lock(&last);
            match read {
                Some(header) => last.header = header,
                None => last.read_again = now + RETRY_AFTER,
            }
        });
        // An error means a panic, after which the last token stays in use.
        let _ = read.await;
        lock(&self.last).header.clone()
    }

    /// Makes the next call read the file, because the server rejected the token.
    pub(crate) fn reject(&self) {
        lock(&self.last).read_again = Instant::now();
    }
}

fn lock(last: &Mutex<LastRead>) -> MutexGuard<'_, LastRead> {
    // Each change is one assignment, so a panic leaves no half change.
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the header of the token in a file. `None` if the file is unreadable or empty, or no valid header.
fn read(path: &Path) -> Option<HeaderValue> {
    let text = std::fs::read_to_string(path).ok()?;
    let token = text.trim();
    bearer(token).filter(|_| !token.is_empty())
}

/// The value of `Authorization` for a bearer token. `None` if the token is not valid in a header.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn token_file_is_reread_after_50_seconds_and_after_a_rejection() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let write = |token: &str| std::fs::write(&path, token).unwrap();
        write("first\n");
        let source = TokenFile::new(path.clone(), bearer("first").unwrap(), true);
        write("second\n");
        tokio::time::advance(Duration::from_secs(49)).await;
        assert_eq!(source.header().await, "Bearer first", "the first token is 49 s old");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(source.header().await, "Bearer second", "the first token is 50 s old");
        write("third");
        assert_eq!(source.header().await, "Bearer second");
        source.reject();
        assert_eq!(source.header().await, "Bearer third", "the server rejected the second token");
        for useless in ["", "line\nbreak"] {
            write(useless);
            source.reject();
            assert_eq!(source.header().await, "Bearer third", "{useless:?} is no token");
        }
        std::fs::remove_file(&path).unwrap();
        source.reject();
        assert_eq!(source.header().await, "Bearer third", "the file is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn token_file_is_reread_one_second_after_a_failed_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let source = TokenFile::new(path.clone(), bearer("first").unwrap(), false);
        assert_eq!(source.header().await, "Bearer first", "the file does not exist yet");
        std::fs::write(&path, "second").unwrap();
        assert_eq!(source.header().await, "Bearer first", "the next read is due after a second");
        tokio::time::advance(RETRY_AFTER).await;
        assert_eq!(source.header().await, "Bearer second");
    }

    #[tokio::test]
    async fn token_read_for_a_cancelled_call_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "second").unwrap();
        let source = TokenFile::new(path, bearer("first").unwrap(), false);
        // The call begins the read, and is dropped before it takes the result.
        let _ = std::pin::pin!(source.header()).poll(&mut Context::from_waker(Waker::noop()));
        let stored = async {
            while source.header().await != "Bearer second" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // The next regular read is due after 50 s. It must not hide a lost token.
        let limit = REREAD_AFTER - Duration::from_secs(10);
        tokio::time::timeout(limit, stored).await.expect("the token is stored");
    }

    #[tokio::test]
    async fn token_beside_a_file_is_used_until_the_file_is_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let source = TokenFile::new(path.clone(), bearer("token").unwrap(), false);
        assert_eq!(source.header().await, "Bearer token");
        std::fs::write(&path, "of the file").unwrap();
        let source = TokenFile::new(path, bearer("token").unwrap(), false);
        assert_eq!(source.header().await, "Bearer of the file");
    }
}
