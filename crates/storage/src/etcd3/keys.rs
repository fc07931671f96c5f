//! Maps the store's keys to etcd keys (`<prefix><key>`) and back.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};

use super::proto;
use crate::types::KeyValue;

/// The number of foreign keys that are each logged. Further keys are logged only at powers of two,
/// so that many foreign keys cannot fill the disk.
const FOREIGN_NAMED_MAX: u64 = 10;

/// The key prefix of this store, and a counter of foreign keys found below it.
#[derive(Debug)]
pub(super) struct Keyspace {
    /// The prefix, which begins with `/` and does not end with `/`; empty for all keys of etcd.
    prefix: String,
    foreign: AtomicU64,
}

impl Keyspace {
    /// Creates a keyspace below `prefix`, normalized as by kube-apiserver (`path.Join("/",
    /// prefix)`): `registry`, `/registry/` and `/a/..//./registry` are equal, and an empty prefix
    /// covers all keys of etcd.
    pub(super) fn new(prefix: &str) -> Self {
        let mut elements = Vec::new();
        for element in prefix.split('/') {
            match element {
                "" | "." => {}
                ".." => drop(elements.pop()),
                element => elements.push(element),
            }
        }
        let prefix = elements.iter().map(|element| format!("/{element}")).collect();
        Keyspace { prefix, foreign: AtomicU64::new(0) }
    }

    /// The prefix of all keys.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The full key in etcd.
    pub(super) fn full(&self, key: &str) -> Vec<u8> {
        let mut full = Vec::with_capacity(self.prefix.len() + key.len());
        full.extend_from_slice(self.prefix.as_bytes());
        full.extend_from_slice(key.as_bytes());
        full
    }

    /// The range of full keys, half open.
    pub(super) fn full_range(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        (self.full(range.start()), self.full(range.end()))
    }

    /// A key that no object can have, because every valid [`Key`] continues after the slash. A read
    /// of this key is cheap and returns the store's revision.
    pub(super) fn never(&self) -> Vec<u8> {
        self.full("/")
    }

    /// The range of all keys below the prefix, half open.
    pub(super) fn everything(&self) -> (Vec<u8>, Vec<u8>) {
        self.full_range(&KeyRange::below("/"))
    }

    /// The key after the prefix; `None` for a foreign key, which this store cannot have written.
    /// Such a key is logged and counted, and hides no other key.
    pub(super) fn relative(&self, full: &[u8]) -> Option<Key> {
        let key = full
            .strip_prefix(self.prefix.as_bytes())
            .and_then(|rest| std::str::from_utf8(rest).ok())
            .and_then(|rest| Key::from_path(rest).ok());
        if key.is_none() {
            self.report(full);
        }
        key
    }

    /// Converts an entry; the value's bytes are moved, not copied.
    pub(super) fn entry(&self, kv: proto::KeyValue) -> Option<KeyValue> {
        let key = self.relative(&kv.key)?;
        Some(KeyValue {
            key,
            value: Bytes::from(kv.value),
            created: revision(kv.create_revision),
            modified: revision(kv.mod_revision),
            stale: false,
        })
    }

    /// The number of foreign keys found so far.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    fn report(&self, full: &[u8]) {
        let met = self.foreign.fetch_add(1, Ordering::Relaxed) + 1;
        if met <= FOREIGN_NAMED_MAX || met.is_power_of_two() {
            tracing::warn!(
                key = %String::from_utf8_lossy(full),
                met,
                "etcd has a key that is no object's key; the key is skipped"
            );
        }
    }
}

/// etcd's revisions are signed and never negative.
pub(super) fn revision(number: i64) -> Revision {
    Revision::new(u64::try_from(number).unwrap_or(0))
}

/// Converts a revision to etcd's number. A revision beyond etcd's range becomes the largest number,
/// which exceeds every store.
pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_prefix_is_normalized_as_a_path() {
        for prefix in
            ["registry", "/registry", "/registry/", "//registry//", "/./registry/.", "a/../registry", "../registry"]
        {
            assert_eq!(Keyspace::new(prefix).full("/pods/a/b"), b"/registry/pods/a/b", "{prefix:?}");
        }
        for whole in ["", "/", "..", "a/..", "/."] {
            assert_eq!(Keyspace::new(whole).full("/pods/a/b"), b"/pods/a/b", "{whole:?}");
        }
        assert_eq!(Keyspace::new("/a//b").full("/pods/a/b"), b"/a/b/pods/a/b");
        assert_eq!(Keyspace::new("a/../b").full("/pods/a/b"), b"/b/pods/a/b");
        assert_eq!(Keyspace::new("/a/..b/...").full("/pods/a/b"), b"/a/..b/.../pods/a/b");
        assert_eq!(Keyspace::new("/a/b").never(), b"/a/b/");
        assert_eq!(Keyspace::new("/a").everything(), (b"/a/".to_vec(), b"/a0".to_vec()));
    }

    #[test]
    fn foreign_keys_are_counted() {
        let keys = Keyspace::new("/registry");
        assert_eq!(keys.relative(b"/registry/pods/a/b").unwrap().as_str(), "/pods/a/b");
        for foreign in
            [&b"/registry/"[..], b"/registry/pods//x", b"/other/pods/a", b"/registry/\xff", b"/registry/a/.."]
        {
            assert_eq!(keys.relative(foreign), None, "{}", String::from_utf8_lossy(foreign));
        }
        assert_eq!(keys.foreign(), 5);
    }
}
