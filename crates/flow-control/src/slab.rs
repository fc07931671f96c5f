//! [`Slab`]: a table with reused slots, so that a request that does not wait needs no allocation.

/// The key of a value. After the value is removed, the key stays invalid until the slot was reused 2³² times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    place: u32,
    generation: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// A table that chooses the key of each new value.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(free) = self.free.pop() {
            let place = &mut self.places[free as usize];
            place.value = Some(value);
            return Key { place: free, generation: place.generation };
        }
        // The callers bound the number of values far below 4 billion.
        let place = self.places.len() as u32;
        self.places.push(Place { generation: 0, value: Some(value) });
        Key { place, generation: 0 }
    }

    fn place(&self, id: Key) -> Option<&Place<T>> {
        self.places.get(id.place as usize).filter(|place| place.generation == id.generation)
    }

    /// The values with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(at, place)| {
            Some((Key { place: at as u32, generation: place.generation }, place.value.as_ref()?))
        })
    }

    /// Iterates over the values for modification.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    pub(crate) fn get(&self, id: Key) -> Option<&T> {
        self.place(id)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: Key) -> Option<&mut T> {
        let place = self.places.get_mut(id.place as usize).filter(|place| place.generation == id.generation)?;
        place.value.as_mut()
    }

    pub(crate) fn remove(&mut self, id: Key) -> Option<T> {
        let place = self.places.get_mut(id.place as usize).filter(|place| place.generation == id.generation)?;
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.place);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_removed_value_is_invalid_after_reuse_of_its_slot() {
        let mut requests = Slab::default();
        let first = requests.insert("a");
        assert_eq!(requests.remove(first), Some("a"));
        let second = requests.insert("b");
        assert_eq!(second.place, first.place, "the place is reused");
        assert_eq!(requests.get(first), None);
        assert_eq!(requests.remove(first), None);
        assert_eq!(requests.get(second), Some(&"b"));
    }
}
