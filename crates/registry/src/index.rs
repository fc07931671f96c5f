//! [`Index`]: positions of resources by names.

use std::hash::{BuildHasher as _, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::resource::Resource;

/// The position of the first resource with each name, or with each tuple of names. It holds no names: a name is a borrowed
/// part of a resource, so a lookup allocates nothing, and building an index of thousands of resources copies no text.
#[derive(Debug, Default)]
pub(crate) struct Index {
    positions: HashTable<u32>,
    hasher: RandomState,
}

impl Index {
    /// Indexes these resources by the name that `name_of` returns.
    pub(crate) fn new<'a, N: Hash + Eq>(resources: &'a [Arc<Resource>], name_of: impl Fn(&'a Resource) -> N) -> Self {
        let hasher = RandomState::default();
        let mut positions = HashTable::with_capacity(resources.len());
        let hash_at = |position: &u32| hasher.hash_one(name_of(&resources[*position as usize]));
        for (position, resource) in (0_u32..).zip(resources) {
            let name = name_of(resource);
            let hash = hasher.hash_one(&name);
            let is_same = |other: &u32| name_of(&resources[*other as usize]) == name;
            positions.entry(hash, is_same, hash_at).or_insert(position);
        }
        Index { positions, hasher }
    }

    /// Returns the position of the first resource with this name. `resources` and `name_of` are those of [`Index::new`].
    pub(crate) fn position<'a, N: Hash + Eq>(
        &self,
        resources: &'a [Arc<Resource>],
        name_of: impl Fn(&'a Resource) -> N,
        name: N,
    ) -> Option<usize> {
        let is_same = |position: &u32| name_of(&resources[*position as usize]) == name;
        self.positions.find(self.hasher.hash_one(&name), is_same).map(|position| *position as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::registry::Registry;

    proptest! {
        #[test]
        fn index_finds_the_first_resource_with_a_name_as_a_linear_search_does(
            names in prop::collection::vec(("[ab]{0,2}", "[ab]", any::<bool>()), 0..40),
            wanted in ("[ab]{0,2}", "[ab]", any::<bool>()),
        ) {
            let pods = Registry::builtin().find("", "v1", "pods").cloned().expect("pods are served");
            let resource = |(group, version, namespaced): &(String, String, bool)| {
                let mut resource = Resource::clone(&pods);
                resource.group.clone_from(group);
                resource.version.clone_from(version);
                resource.namespaced = *namespaced;
                Arc::new(resource)
            };
            let resources: Vec<Arc<Resource>> = names.iter().map(resource).collect();
            let name_of = |resource: &Resource| (resource.group.clone(), resource.version.clone(), resource.namespaced);
            let index = Index::new(&resources, name_of);
            for name in names.iter().chain([&wanted]) {
                let expected = resources.iter().position(|resource| name_of(resource) == *name);
                prop_assert_eq!(index.position(&resources, name_of, name.clone()), expected);
            }
        }
    }
}
