//! [`Unreadable`]: the stored values that the collector cannot read, and what it therefore leaves alone.
//! Pure: what the store holds goes in.
//!
//! An unreadable object exists. It may own others, it may be owned, and it may block an owner; nobody can
//! say. kube-apiserver stores built-in kinds as protobuf (`k8s\0…`) or encrypted (`k8s:enc:…`), so a store
//! that both share is full of such values; one damaged value has the same effect.
//!
//! | while there are such values | the collector |
//! |---|---|
//! | at its start, of any kind that is served | does nothing at all |
//! | later, of one kind | deletes no object of that kind, and none because an owner of that kind is absent |
//! | later, of any kind | ends no deletion in the foreground and none that orphans |

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use listwatch_meta::Key;

use super::resource_of;
use crate::registry::Registry;

/// So many keys are logged each time that values become unreadable; the others are only counted.
const KEYS_LOGGED_MAX: usize = 10;

/// What the collector leaves alone, as a job is told when it begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocked {
    prefixes: Arc<HashSet<String>>,
}

impl Blocked {
    /// Are there unreadable values of any kind?
    pub(super) fn is_any(&self) -> bool {
        !self.prefixes.is_empty()
    }

    /// Are there unreadable values of the kind that is stored below this prefix?
    pub(super) fn covers(&self, storage_prefix: &str) -> bool {
        self.prefixes.contains(storage_prefix)
    }
}

/// Keys of unreadable values. One for each such value in the store, so the store bounds them.
#[derive(Default)]
pub(super) struct Unreadable {
    /// Of kinds that are served, by their storage prefix.
    served: BTreeMap<String, BTreeSet<Key>>,
    /// Below no kind that is served now: other servers' own keys, or kinds that are defined later.
    others: BTreeSet<Key>,
    registry: Option<Arc<Registry>>,
    blocked: Blocked,
    logged: usize,
}

impl Unreadable {
    /// A list of everything begins.
    pub(super) fn begin_sync(&mut self) {
        self.served.clear();
        self.others.clear();
        self.logged = 0;
        self.refresh();
    }

    /// Kinds may have come or gone: which keys are of a kind that is served?
    pub(super) fn handle_registry(&mut self, registry: &Arc<Registry>) {
        if self.registry.as_ref().is_some_and(|known| Arc::ptr_eq(known, registry)) {
            return;
        }
        self.registry = Some(Arc::clone(registry));
        let mut keys = std::mem::take(&mut self.others);
        std::mem::take(&mut self.served).into_values().for_each(|more| keys.extend(more));
        for key in keys {
            self.insert(registry, key);
        }
        self.refresh();
    }

    /// What is stored at this key cannot be read.
    pub(super) fn handle_unreadable(&mut self, registry: &Registry, key: &Key) {
        if self.insert(registry, key.clone()) && self.logged < KEYS_LOGGED_MAX {
            self.logged += 1;
            tracing::error!(%key, "the garbage collector cannot read the stored value");
        }
        self.refresh();
    }

    /// What is stored at this key can be read, or nothing is stored there.
    pub(super) fn handle_readable(&mut self, key: &Key) {
        if self.served.is_empty() && self.others.is_empty() {
            return;
        }
        self.others.remove(key);
        let held = |keys: &mut BTreeSet<Key>| keys.remove(key);
        if self.served.values_mut().any(held) {
            self.served.retain(|_, keys| !keys.is_empty());
            self.refresh();
        }
    }

    /// True when the key is new and of a kind that is served.
    fn insert(&mut self, registry: &Registry, key: Key) -> bool {
        match resource_of(registry, &key) {
            Some(resource) => self.served.entry(resource.storage_prefix.clone()).or_default().insert(key),
            None => {
                self.others.insert(key);
                false
            }
        }
    }

    fn refresh(&mut self) {
        if self.served.len() != self.blocked.prefixes.len()
            || !self.served.keys().all(|prefix| self.blocked.covers(prefix))
        {
            self.blocked = Blocked { prefixes: Arc::new(self.served.keys().cloned().collect()) };
        }
        if self.served.is_empty() {
            self.logged = 0;
        }
    }

    pub(super) fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// What `/readyz` says of it; `None` when everything can be read.
    pub(super) fn problem(&self) -> Option<String> {
        let first = self.served.values().next()?.first()?;
        let count: usize = self.served.values().map(BTreeSet::len).sum();
        let kinds: Vec<&str> = self.served.keys().map(String::as_str).collect();
        Some(format!("cannot read {count} of the stored values of {}; the first is {first}", kinds.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_block_their_kind_until_they_can_be_read() {
        let registry = Arc::new(Registry::builtin());
        let key = |path: &str| Key::from_path(path).unwrap();
        let mut unreadable = Unreadable::default();
        unreadable.handle_registry(&registry);
        let check = |unreadable: &Unreadable, pods: bool, nodes: bool, problem: Option<&str>| {
            let blocked = unreadable.blocked();
            assert_eq!((blocked.covers("pods"), blocked.covers("minions")), (pods, nodes));
            assert_eq!(blocked.is_any(), pods || nodes);
            assert_eq!(unreadable.problem().as_deref(), problem);
        };
        check(&unreadable, false, false, None);
        unreadable.handle_unreadable(&registry, &key("/ranges/serviceips"));
        unreadable.handle_unreadable(&registry, &key("/masterleases/10.0.0.1"));
        check(&unreadable, false, false, None);
        unreadable.handle_unreadable(&registry, &key("/pods/a/y"));
        unreadable.handle_unreadable(&registry, &key("/pods/a/x"));
        unreadable.handle_unreadable(&registry, &key("/minions/n"));
        check(
            &unreadable,
            true,
            true,
            Some("cannot read 3 of the stored values of minions, pods; the first is /minions/n"),
        );
        unreadable.handle_readable(&key("/minions/n"));
        unreadable.handle_readable(&key("/pods/a/x"));
        check(&unreadable, true, false, Some("cannot read 1 of the stored values of pods; the first is /pods/a/y"));
        unreadable.begin_sync();
        check(&unreadable, false, false, None);
    }

    #[test]
    fn a_kind_that_is_served_later_is_blocked_from_then_on() {
        let registry = Arc::new(Registry::builtin());
        let nothing = Arc::new(Registry::default());
        let mut unreadable = Unreadable::default();
        unreadable.handle_registry(&nothing);
        unreadable.handle_unreadable(&nothing, &Key::from_path("/pods/a/x").unwrap());
        assert!(!unreadable.blocked().is_any());
        unreadable.handle_registry(&registry);
        assert!(unreadable.blocked().covers("pods"));
        unreadable.handle_registry(&nothing);
        assert!(!unreadable.blocked().is_any());
    }
}
