//! [`Unreadable`]: the stored values that the collector cannot read, and the jobs that they block. Performs no I/O: the
//! input is the content of the store.
//!
//! The collector cannot know whether an unreadable object owns others, has owners, or blocks the deletion of an owner.
//! A store contains many such values if the server lacks the encryption keys of a kube-apiserver (`k8s:enc:…`). One
//! damaged value has the same effect.
//!
//! | unreadable values | the collector |
//! |---|---|
//! | at the start, of any served kind | starts no job |
//! | later, of one kind | deletes no object of that kind, and no dependent of an absent owner of that kind |
//! | later, of any kind | completes no foreground deletion and no orphan deletion |

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use listwatch_meta::Key;

use listwatch_registry::Registry;

/// Maximum number of keys that are logged when values become unreadable. Further keys are only counted.
const KEYS_LOGGED_MAX: usize = 10;

/// The kinds that the collector must not change, as known when a job starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocked {
    prefixes: Arc<HashSet<String>>,
}

impl Blocked {
    /// Reports whether values of any kind are unreadable.
    pub(super) fn is_any(&self) -> bool {
        !self.prefixes.is_empty()
    }

    /// Reports whether values of the kind stored below this prefix are unreadable.
    pub(super) fn covers(&self, storage_prefix: &str) -> bool {
        self.prefixes.contains(storage_prefix)
    }
}

/// The keys of all unreadable values. Holds one key per unreadable value, so the size of the store bounds the
/// memory.
#[derive(Default)]
pub(super) struct Unreadable {
    /// The keys by directory, which is a key without its last element. The kind depends only on the directory, so a
    /// registry change needs one lookup per directory.
    directories: BTreeMap<String, Directory>,
    /// The served kinds with unreadable values, by storage prefix.
    served: BTreeMap<String, Kind>,
    registry: Option<Arc<Registry>>,
    blocked: Blocked,
    logged: usize,
}

struct Directory {
    /// The storage prefix of the kind. `None` for a kind that is not served, such as another server's own keys or a
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
    /// Starts a list of the whole store and clears all keys.
    pub(super) fn begin_sync(&mut self) {
        self.directories.clear();
        self.served.clear();
        self.logged = 0;
        self.refresh();
    }

    /// Updates the kinds of all directories if the registry has changed.
    pub(super) fn handle_registry(&mut self, registry: &Arc<Registry>) {
        if self.registry.as_ref().is_some_and(|known| Arc::ptr_eq(known, registry)) {
            return;
        }
        self.registry = Some(Arc::clone(registry));
        if self.directories.is_empty() {
            // No value is unreadable, so no kind is blocked.
            return;
        }
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

    /// Records that the value at this key is unreadable.
    pub(super) fn handle_unreadable(&mut self, registry: &Registry, key: &Key) {
        let path = directory_of(key);
        let directory = self.directories.entry(path.to_owned()).or_insert_with(|| Directory {
            prefix: registry.find_stored_at(key).map(|resource| resource.storage_prefix.clone()),
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

    /// Records that the value at this key is readable or deleted.
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

    /// Returns the text for `/readyz`, or `None` if every value is readable.
    pub(super) fn problem(&self) -> Option<String> {
        let first = self.directories.get(self.served.values().next()?.directories.first()?)?.keys.first()?;
        let count: usize = self.served.values().map(|kind| kind.keys).sum();
        let kinds: Vec<&str> = self.served.keys().map(String::as_str).collect();
        Some(format!("cannot read {count} of the stored values of {}; the first is {first}", kinds.join(", ")))
    }
}

/// Returns a key without its last element.
fn directory_of(key: &Key) -> &str {
    key.as_str().rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Returns the storage prefix of the kind whose objects are in this directory. `kinds` maps each prefix to true if
/// its objects are namespaced.
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
    fn unreadable_key_blocks_its_kind_until_the_value_is_readable() {
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
    fn unreadable_key_blocks_a_kind_once_that_kind_is_served() {
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
    fn registry_change_costs_one_lookup_per_directory_of_unreadable_keys() {
        let registries = [Arc::new(Registry::builtin()), Arc::new(Registry::builtin()), Arc::new(Registry::default())];
        let pod = |number: usize| Key::from_path(&format!("/pods/ns-{}/x-{number}", number % 10)).unwrap();
        // The shortest of many rounds excludes other load on the machine.
        let shortest_round = |unreadable: &mut Unreadable| {
            let mut shortest = std::time::Duration::MAX;
            for _ in 0..300 {
                let begun = std::time::Instant::now();
                for (registry, blocked) in registries.iter().zip([true, true, false]) {
                    unreadable.handle_registry(registry);
                    let covered = (unreadable.blocked().covers("pods"), unreadable.blocked().covers("minions"));
                    assert_eq!(covered, (blocked, blocked));
                }
                shortest = shortest.min(begun.elapsed());
            }
            shortest
        };
        let mut unreadable = Unreadable::default();
        unreadable.handle_unreadable(&registries[0], &Key::from_path("/minions/n").unwrap());
        for number in 0..10 {
            unreadable.handle_unreadable(&registries[0], &pod(number));
        }
        let with_few = shortest_round(&mut unreadable);
        for number in 10..20_000 {
            unreadable.handle_unreadable(&registries[0], &pod(number));
        }
        let with_many = shortest_round(&mut unreadable);
        // A lookup for each key would take hundreds of times as long, because the directories are the same.
        assert!(with_many < 10 * with_few, "it took {with_many:?} with 20,000 keys, and {with_few:?} with 11");
        for number in 0..20_000 {
            unreadable.handle_readable(&pod(number));
        }
        unreadable.handle_readable(&Key::from_path("/minions/n").unwrap());
        assert!(unreadable.directories.is_empty() && unreadable.problem().is_none());
    }
}
