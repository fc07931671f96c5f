//! Knowledge about one server that its reflectors share: [`ServerMemory`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a server is treated as not supporting WatchList.
pub const WATCH_LIST_MEMORY: Duration = Duration::from_secs(30 * 60);

/// The number of WatchLists in a row without an end marker after which a server is treated as not
/// supporting WatchList. A server that ever sent an end marker is exempt. Simultaneous streams
/// count as one.
pub const SILENT_WATCH_LISTS: u32 = 2;

/// Knowledge about one server that its reflectors share. Clones share it, including the clones in a
/// cloned [`ReflectorConfig`](super::ReflectorConfig).
///
/// A server is treated as not supporting WatchList after it rejects one and returns the list instead, or after it omits the end
/// marker [`SILENT_WATCH_LISTS`] times in a row. One silent stream does not count against the
/// server, because a broken network silences all streams at the same time. Streams that overlap in
/// time therefore count once, and none counts after the server has sent an end marker.
#[derive(Clone, Debug, Default)]
pub struct ServerMemory(Arc<Mutex<Memory>>);

#[derive(Debug, Default)]
struct Memory {
    refused_until: Option<Instant>,
    /// Whether an end marker was received.
    knows_watch_list: bool,
    silences: u32,
    last_silence: Option<Instant>,
}

impl ServerMemory {
    /// Creates a memory without any knowledge about the server.
    pub fn new() -> Self {
        ServerMemory::default()
    }

    /// True while the server is treated as not supporting WatchList.
    pub(crate) fn refuses_watch_list(&self, now: Instant) -> bool {
        self.lock().refused_until.is_some_and(|until| now < until)
    }

    /// Records a rejected WatchList, after the list that replaced it. No reflector requests another one for [`WATCH_LIST_MEMORY`].
    pub(crate) fn remember_refusal(&self, now: Instant) {
        *self.lock() = Memory { refused_until: Some(now + WATCH_LIST_MEMORY), ..Memory::default() };
    }

    /// Records the end marker of a WatchList.
    pub(crate) fn remember_end_marker(&self) {
        *self.lock() = Memory { knows_watch_list: true, ..Memory::default() };
    }

    /// Records a WatchList that was requested at `asked` and became silent before its end marker,
    /// detected at `now`.
    pub(crate) fn remember_silence(&self, asked: Instant, now: Instant) {
        let mut memory = self.lock();
        let overlaps = memory.last_silence.is_some_and(|last| asked <= last);
        if memory.knows_watch_list || overlaps {
            return;
        }
        memory.silences += 1;
        memory.last_silence = Some(now);
        if memory.silences >= SILENT_WATCH_LISTS {
            *memory = Memory { refused_until: Some(now + WATCH_LIST_MEMORY), ..Memory::default() };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerMemory, WATCH_LIST_MEMORY};
    use std::time::{Duration, Instant};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn overlapping_silent_watch_lists_count_as_one() {
        let (memory, start) = (ServerMemory::new(), Instant::now());
        for asked in 0..10 {
            memory.remember_silence(start + seconds(asked), start + seconds(asked + 15));
        }
        assert!(!memory.refuses_watch_list(start + seconds(30)), "one loss of the network was taken for a refusal");
        memory.remember_silence(start + seconds(40), start + seconds(55));
        assert!(memory.refuses_watch_list(start + seconds(55)), "the marker is waited for in every WatchList");
        assert!(!memory.refuses_watch_list(start + seconds(55) + WATCH_LIST_MEMORY));
    }

    #[test]
    fn silence_of_a_server_that_sent_an_end_marker_does_not_count() {
        let (memory, start) = (ServerMemory::new(), Instant::now());
        memory.remember_end_marker();
        for round in 0..10 {
            memory.remember_silence(start + seconds(100 * round), start + seconds(100 * round + 15));
        }
        assert!(!memory.refuses_watch_list(start + seconds(1_000)));
        // A rejection by the server counts.
        memory.remember_refusal(start + seconds(1_000));
        assert!(memory.refuses_watch_list(start + seconds(1_001)));
        memory.remember_end_marker();
        assert!(!memory.refuses_watch_list(start + seconds(1_001)), "a marker from a server that was upgraded");
    }
}
