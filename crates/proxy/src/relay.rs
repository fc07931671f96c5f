//! Copies bytes between two upgraded connections, until both directions end or the idle limit expires.
//!
//! ```text
//!  client ──bytes──▶ backend      one side ends: its direction is closed on the other side, and the
//!  client ◀──bytes── backend      other direction goes on for as long as bytes move
//! ```

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::Instant;

/// The buffer of one direction, in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// The reason for the end of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayEnd {
    /// Both sides closed their directions.
    Closed,
    /// Reading from or writing to one side failed.
    Broken,
    /// No byte moved within the idle limit.
    Idle,
}

/// Copies bytes in both directions. `idle_timeout` limits the time without a byte. `half_closed_timeout` replaces that
/// limit as soon as one side has closed its direction.
pub(crate) async fn relay<C, B>(
    client: C,
    backend: B,
    idle_timeout: Duration,
    half_closed_timeout: Duration,
) -> RelayEnd
where
    C: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (client_read, client_write) = tokio::io::split(client);
    let (backend_read, backend_write) = tokio::io::split(backend);
    let clock = Clock { start: Instant::now(), moved_millis: AtomicU64::new(0) };
    let mut up = std::pin::pin!(copy(client_read, backend_write, &clock));
    let mut down = std::pin::pin!(copy(backend_read, client_write, &clock));
    let (mut up_ended, mut down_ended) = (false, false);
    loop {
        let timeout = if up_ended || down_ended { half_closed_timeout } else { idle_timeout };
        let idle_at = clock.moved() + timeout;
        tokio::select! {
            ended = &mut up, if !up_ended => match ended {
                Ok(()) => up_ended = true,
                Err(_) => return RelayEnd::Broken,
            },
            ended = &mut down, if !down_ended => match ended {
                Ok(()) => down_ended = true,
                Err(_) => return RelayEnd::Broken,
            },
            () = tokio::time::sleep_until(idle_at) => {
                if clock.moved() + timeout <= Instant::now() {
                    return RelayEnd::Idle;
                }
            }
        }
        if up_ended && down_ended {
            return RelayEnd::Closed;
        }
    }
}

/// The time of the last copied byte.
struct Clock {
    start: Instant,
    moved_millis: AtomicU64,
}

impl Clock {
    fn tick(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_millis.store(millis, Relaxed);
    }

    fn moved(&self) -> Instant {
        self.start + Duration::from_millis(self.moved_millis.load(Relaxed))
    }
}

/// Copies one direction until its end, and then closes that direction on the other side.
async fn copy<R, W>(mut from: ReadHalf<R>, mut to: WriteHalf<W>, clock: &Clock) -> io::Result<()>
where
    R: AsyncRead,
    W: AsyncWrite,
{
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        clock.tick();
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        to.flush().await?;
        clock.tick();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);

    fn start() -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<RelayEnd>) {
        let (client, client_end) = duplex(64);
        let (backend, backend_end) = duplex(64);
        let task = tokio::spawn(relay(client_end, backend_end, HOUR, MINUTE));
        (client, backend, task)
    }

    #[tokio::test(start_paused = true)]
    async fn half_closed_relay_finishes_the_other_direction() {
        let (mut client, mut backend, task) = start();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = Vec::new();
        backend.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question");
        backend.write_all(&[7; 1000][..60]).await.unwrap();
        drop(backend);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [7; 60]);
        assert_eq!(task.await.unwrap(), RelayEnd::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn half_closed_relay_ends_after_the_half_closed_timeout() {
        let (mut client, _backend, task) = start();
        let begun = Instant::now();
        client.shutdown().await.unwrap();
        assert_eq!(task.await.unwrap(), RelayEnd::Idle);
        let taken = begun.elapsed();
        assert!(taken >= MINUTE && taken < MINUTE * 2, "ended after {taken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn relay_with_traffic_in_one_direction_is_not_idle() {
        let (mut client, mut backend, task) = start();
        let begun = Instant::now();
        let mut byte = [0];
        for turn in 0..4 {
            tokio::time::sleep(HOUR * 3 / 4).await;
            if turn % 2 == 0 {
                client.write_all(b"a").await.unwrap();
                backend.read_exact(&mut byte).await.unwrap();
            } else {
                backend.write_all(b"b").await.unwrap();
                client.read_exact(&mut byte).await.unwrap();
            }
        }
        assert_eq!(task.await.unwrap(), RelayEnd::Idle);
        assert!(begun.elapsed() >= HOUR * 4, "cut after {:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn relay_to_a_stalled_receiver_ends_after_the_idle_timeout() {
        let (mut client, _backend, task) = start();
        // The backend reads nothing: the 64 bytes of its pipe and one buffer fill up, and then the copy stalls.
        let flood = tokio::spawn(async move { while client.write_all(&[1; 64]).await.is_ok() {} });
        assert_eq!(task.await.unwrap(), RelayEnd::Idle);
        flood.await.unwrap();
    }
}
