//! [`RecentWrites`]: caches the conversions of recently written values, so that each value is converted only once.
//!
//! An update encodes the value to compare it with the stored value, then writes the encoded value. Later, the watch
//! cache receives the encoded value in an event. Only the first step converts the value.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use listwatch_meta::Key;

/// The maximum number of cached conversions. A conversion is removed when its event arrives.
const CONVERSIONS_MAX: usize = 64;
/// The maximum size of all cached conversions, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// One value in its three forms.
#[derive(Clone, Debug)]
pub(super) struct Conversion {
    pub(super) key: Key,
    /// The JSON of the writer.
    pub(super) json: Bytes,
    /// The encoding of `json`, without encryption.
    pub(super) encoded: Bytes,
    /// The JSON that a read of `encoded` returns.
    pub(super) normal: Bytes,
}

impl Conversion {
    fn bytes(&self) -> usize {
        self.json.len() + self.encoded.len() + self.normal.len()
    }
}

/// The latest conversions, oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentWrites(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    conversions: VecDeque<Conversion>,
    bytes: usize,
}

impl RecentWrites {
    /// Adds a conversion, and removes the oldest conversions above the limits.
    pub(super) fn remember(&self, conversion: Conversion) {
        let mut state = self.lock();
        state.bytes += conversion.bytes();
        state.conversions.push_back(conversion);
        while state.conversions.len() > CONVERSIONS_MAX || state.bytes > BYTES_MAX {
            let Some(oldest) = state.conversions.pop_front() else { break };
            state.bytes -= oldest.bytes();
        }
    }

    /// Returns the encoding of a writer's JSON. The lookup compares the address and length of the buffer. The entry
    /// keeps the buffer alive, so no other value can have the same address.
    pub(super) fn encoded(&self, json: &Bytes) -> Option<Bytes> {
        let same = |other: &Bytes| other.as_ptr() == json.as_ptr() && other.len() == json.len();
        let state = self.lock();
        state.conversions.iter().rev().find(|known| same(&known.json)).map(|known| known.encoded.clone())
    }

    /// Removes the conversion of an encoded value at a key, and returns the decoded JSON.
    pub(super) fn take_decoded(&self, key: &Key, encoded: &[u8]) -> Option<Bytes> {
        let mut state = self.lock();
        let at = state.conversions.iter().position(|known| known.key == *key && known.encoded == encoded)?;
        let known = state.conversions.remove(at)?;
        state.bytes -= known.bytes();
        Some(known.normal)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves a valid state, so a panic elsewhere in the thread has broken nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversion(name: &str, json: Bytes) -> Conversion {
        let key = Key::new("pods", Some("default"), name).unwrap();
        let encoded = Bytes::from([b"k8s\0", &json[..]].concat());
        Conversion { key, json, encoded, normal: Bytes::from_static(b"{}") }
    }

    #[test]
    fn recent_write_is_encoded_once_per_buffer_and_decoded_once_per_key_and_value() {
        let recent = RecentWrites::default();
        let known = conversion("a", Bytes::from(b"{\"a\":1}".to_vec()));
        recent.remember(known.clone());
        assert_eq!(recent.encoded(&known.json), Some(known.encoded.clone()));
        assert_eq!(recent.encoded(&Bytes::copy_from_slice(&known.json)), None, "an equal text in another buffer");
        let other = Key::new("pods", Some("default"), "b").unwrap();
        assert_eq!(recent.take_decoded(&other, &known.encoded), None, "another key");
        assert_eq!(recent.take_decoded(&known.key, b"k8s\0{}"), None, "another value");
        assert_eq!(recent.take_decoded(&known.key, &known.encoded), Some(known.normal.clone()));
        assert_eq!(recent.take_decoded(&known.key, &known.encoded), None, "it was taken");
        assert_eq!(recent.lock().bytes, 0);
    }

    #[test]
    fn number_and_bytes_of_cached_conversions_are_bounded() {
        let recent = RecentWrites::default();
        for n in 0..3 * CONVERSIONS_MAX {
            recent.remember(conversion(&format!("a{n}"), Bytes::from(n.to_string())));
        }
        assert_eq!(recent.lock().conversions.len(), CONVERSIONS_MAX);
        recent.remember(conversion("large", Bytes::from(vec![b' '; BYTES_MAX / 3])));
        assert!(recent.lock().bytes <= BYTES_MAX);
        recent.remember(conversion("too-large", Bytes::from(vec![b' '; BYTES_MAX])));
        let state = recent.lock();
        assert_eq!((state.conversions.len(), state.bytes), (0, 0));
    }
}
