//! Connects to the first reachable address of a host, so that one dead address does not make the host
//! unreachable.
//!
//! RFC 8305, sections 4 and 5: addresses of both families alternate, attempts start [`ATTEMPT_DELAY`] apart, and
//! the first connection wins. Go's `net.Dialer` waits as long (`FallbackDelay`) before the second family.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The time between the starts of two attempts. A failed attempt starts the next one at once.
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// Connects to a host by name or address. The caller limits the time. Cancel-safe: dropping the future ends every
/// attempt.
///
/// # Errors
/// The resolver's error, or the error of the first attempt that failed.
pub(super) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?.collect();
    connect_first(alternate_families(addresses), TcpStream::connect).await
}

/// Orders addresses by turns of their families. Otherwise they keep the order of the resolver (RFC 6724).
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_ipv6_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let count = addresses.len();
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == is_ipv6_first);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(count);
    while ordered.len() < count {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered
}

/// Starts the attempts in this order and returns the first connection. The other attempts are aborted.
async fn connect_first<T, F>(addresses: Vec<SocketAddr>, connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut first_error = None;
    loop {
        match waiting.next() {
            Some(address) => drop(attempts.spawn(connect(address))),
            None if attempts.is_empty() => {
                let unresolved = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                return Err(first_error.unwrap_or_else(unresolved));
            }
            None => {}
        }
        tokio::select! {
            biased;
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(connection))) => return Ok(connection),
                Some(Ok(Err(error))) => drop(first_error.get_or_insert(error)),
                Some(Err(error)) => drop(first_error.get_or_insert_with(|| io::Error::other(error))),
                None => {}
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_of_both_families_alternate_from_the_family_of_the_first() {
        fn check(resolved: &[&str], expected: &[&str]) {
            assert_eq!(alternate_families(addresses(resolved)), addresses(expected), "{resolved:?}");
        }
        check(&[], &[]);
        check(&["10.0.0.1:1", "10.0.0.2:1"], &["10.0.0.1:1", "10.0.0.2:1"]);
        check(
            &["[fd::1]:1", "[fd::2]:1", "[fd::3]:1", "10.0.0.1:1"],
            &["[fd::1]:1", "10.0.0.1:1", "[fd::2]:1", "[fd::3]:1"],
        );
        check(&["10.0.0.1:1", "[fd::1]:1", "[fd::2]:1"], &["10.0.0.1:1", "[fd::1]:1", "[fd::2]:1"]);
    }

    /// What an address does, by its port.
    fn outcome(address: SocketAddr) -> (Option<Duration>, bool) {
        match address.port() {
            // A lost SYN: no answer ever.
            1 => (None, false),
            2 => (Some(Duration::ZERO), false),
            3 => (Some(Duration::from_millis(10)), true),
            port => (Some(Duration::from_millis(u64::from(port))), true),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn host_with_a_dead_address_is_reached_by_its_next_address() {
        async fn check(list: &[&str], expected: Result<(&str, u64), &str>, started_ms: &[u64]) {
            let begun = tokio::time::Instant::now();
            let starts: Arc<Mutex<Vec<u64>>> = Arc::default();
            let noted = starts.clone();
            let connect = move |address: SocketAddr| {
                let noted = noted.clone();
                async move {
                    noted.lock().unwrap().push(begun.elapsed().as_millis() as u64);
                    let (wait, succeeds) = outcome(address);
                    match wait {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => std::future::pending().await,
                    }
                    if succeeds { Ok(address) } else { Err(io::Error::other(format!("{} refused", address.ip()))) }
                }
            };
            let found = connect_first(addresses(list), connect).await;
            let found = found.map(|address| (address.to_string(), begun.elapsed().as_millis() as u64));
            let found = found.map_err(|error| error.to_string());
            let expected = expected.map(|(address, ms)| (address.to_owned(), ms)).map_err(str::to_owned);
            assert_eq!(found, expected, "{list:?}");
            assert_eq!(*starts.lock().unwrap(), started_ms, "{list:?}");
        }
        check(&["10.0.0.1:3", "10.0.0.2:3"], Ok(("10.0.0.1:3", 10)), &[0]).await;
        check(&["10.0.0.1:1", "10.0.0.2:3"], Ok(("10.0.0.2:3", 310)), &[0, 300]).await;
        check(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:3"], Ok(("10.0.0.3:3", 610)), &[0, 300, 600]).await;
        // A refused attempt starts the next one at once.
        check(&["10.0.0.1:2", "10.0.0.2:3"], Ok(("10.0.0.2:3", 10)), &[0, 0]).await;
        // A slow address wins while the next one is dead.
        check(&["10.0.0.1:500", "10.0.0.2:1"], Ok(("10.0.0.1:500", 500)), &[0, 300]).await;
        check(&["10.0.0.1:2", "10.0.0.2:2"], Err("10.0.0.1 refused"), &[0, 0]).await;
        check(&[], Err("the host has no address"), &[]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_when_one_succeeds() {
        let dead = Arc::new(());
        let held = dead.clone();
        let connect = move |address: SocketAddr| {
            let held = held.clone();
            async move {
                let _held = held;
                if address.port() == 1 { std::future::pending().await } else { Ok(()) }
            }
        };
        connect_first(addresses(&["10.0.0.1:1", "10.0.0.2:3"]), connect).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&dead), 1, "an attempt without a reader goes on");
    }

    #[tokio::test]
    async fn host_is_resolved_and_connected() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // `localhost` often has an IPv6 address too, where nobody listens.
        connect("localhost", port).await.unwrap();
        // A bound socket that does not listen. The port of a listener that was closed may be taken by another process.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = silent.local_addr().unwrap().port();
        assert!(connect("127.0.0.1", port).await.is_err());
    }
}
