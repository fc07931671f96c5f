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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
    /// By directory, which is a key without its last element. The kind depends on the directory alone, so a new
    /// registry costs one look-up for each directory.
    directories: BTreeMap<String, Directory>,
    /// The kinds that are served and have such values, by their storage prefix.
    served: BTreeMap<String, Kind>,
    registry: Option<Arc<Registry>>,
    blocked: Blocked,
    logged: usize,
}

struct Directory {
    /// The storage prefix of its kind. `None` for a kind that is not served: another server's own keys, or a
    /// kind that is defined later.
    prefix: Option<String>,
    keys: BTreeSet<Key>,
}

#[derive(Default)]
struct Kind {
    directories: BTreeSet<String>,
    keys: usize,
}

impl Unreadable {
    /// A list of everything begins.
    pub(super) fn begin_sync(&mut self) {
        self.directories.clear();
        self.served.clear();
        self.logged = 0;
        self.refresh();
    }

    /// Kinds may have come or gone.
    pub(super) fn handle_registry(&mut self, registry: &Arc<Registry>) {
        if self.registry.as_ref().is_some_and(|known| Arc::ptr_eq(known, registry)) {
            return;
        }
        self.registry = Some(Arc::clone(registry));
        self.served.clear();
        let resources = registry.resources().iter();
        let kinds: HashMap<&str, bool> =
            resources.map(|resource| (resource.storage_prefix.as_str(), resource.namespaced)).collect();
        for (path, directory) in &mut self.directories {
            directory.prefix = prefix_of(&kinds, path);
            if let Some(prefix) = &directory.prefix {
                let kind = self.served.entry(prefix.clone()).or_default();
                kind.directories.insert(path.clone());
                kind.keys += directory.keys.len();
            }
        }
        self.refresh();
    }

    /// The value at this key cannot be read.
    pub(super) fn handle_unreadable(&mut self, registry: &Registry, key: &Key) {
        let path = directory_of(key);
        let directory = self.directories.entry(path.to_owned()).or_insert_with(|| Directory {
            prefix: resource_of(registry, key).map(|resource| resource.storage_prefix.clone()),
            keys: BTreeSet::new(),
        });
        if !directory.keys.insert(key.clone()) {
            return;
        }
        let Some(prefix) = &directory.prefix else { return };
        let kind = self.served.entry(prefix.clone()).or_default();
        kind.directories.insert(path.to_owned());
        kind.keys += 1;
        if self.logged < KEYS_LOGGED_MAX {
            self.logged += 1;
            tracing::error!(%key, "the garbage collector cannot read the stored value");
        }
        self.refresh();
    }

    /// The value at this key can be read, or there is none.
    pub(super) fn handle_readable(&mut self, key: &Key) {
        if self.directories.is_empty() {
            return;
        }
        let path = directory_of(key);
        let Some(directory) = self.directories.get_mut(path) else { return };
        if !directory.keys.remove(key) {
            return;
        }
        let is_empty = directory.keys.is_empty();
        if let Some(prefix) = &directory.prefix
            && let Some(kind) = self.served.get_mut(prefix)
        {
            kind.keys -= 1;
            if is_empty {
                kind.directories.remove(path);
            }
            if kind.keys == 0 {
                self.served.remove(prefix);
            }
        }
        if is_empty {
            self.directories.remove(path);
        }
        self.refresh();
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

    /// The text of `/readyz`; `None` when everything can be read.
    pub(super) fn problem(&self) -> Option<String> {
        let first = self.directories.get(self.served.values().next()?.directories.first()?)?.keys.first()?;
        let count: usize = self.served.values().map(|kind| kind.keys).sum();
        let kinds: Vec<&str> = self.served.keys().map(String::as_str).collect();
        Some(format!("cannot read {count} of the stored values of {}; the first is {first}", kinds.join(", ")))
    }
}

/// A key without its last element.
fn directory_of(key: &Key) -> &str {
    key.as_str().rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The storage prefix of the kind whose objects are in this directory. `kinds` says of each prefix whether its
/// objects are namespaced.
fn prefix_of(kinds: &HashMap<&str, bool>, directory: &str) -> Option<String> {
    let of_cluster = directory.strip_prefix('/')?;
    let of_namespace = of_cluster.rsplit_once('/').map(|(prefix, _)| prefix);
    let found = [(Some(of_cluster), false), (of_namespace, true)].into_iter();
    found
        .filter_map(|(prefix, namespaced)| Some((prefix?, namespaced)))
        .find(|(prefix, namespaced)| kinds.get(prefix) == Some(namespaced))
        .map(|(prefix, _)| prefix.to_owned())
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

    #[test]
    fn new_registry_does_not_look_at_each_unreadable_key() {
        let registries = [Arc::new(Registry::builtin()), Arc::new(Registry::builtin()), Arc::new(Registry::default())];
        let mut unreadable = Unreadable::default();
        for number in 0..20_000 {
            let key = Key::from_path(&format!("/pods/ns-{}/x-{number}", number % 10)).unwrap();
            unreadable.handle_unreadable(&registries[0], &key);
        }
        unreadable.handle_unreadable(&registries[0], &Key::from_path("/minions/n").unwrap());
        let begun = std::time::Instant::now();
        for _ in 0..300 {
            for (registry, blocked) in registries.iter().zip([true, true, false]) {
                unreadable.handle_registry(registry);
                let covered = (unreadable.blocked().covers("pods"), unreadable.blocked().covers("minions"));
                assert_eq!(covered, (blocked, blocked));
            }
        }
        // One look at each key is 18 million, with each resource.
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "it took {:?}", begun.elapsed());
        for number in 0..20_000 {
            let key = Key::from_path(&format!("/pods/ns-{}/x-{number}", number % 10)).unwrap();
            unreadable.handle_readable(&key);
        }
        unreadable.handle_readable(&Key::from_path("/minions/n").unwrap());
        assert!(unreadable.directories.is_empty() && unreadable.problem().is_none());
    }
}
