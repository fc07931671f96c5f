//! [`AnswerCache`]: caches responses of webhooks, with a lifetime and a bounded number of entries.

use std::collections::{HashMap, VecDeque};

/// The largest number of cached responses. When the cache is full, the oldest entry is evicted.
pub(crate) const ANSWERS_MAX: usize = 8192;

/// Responses by the hash of the review. The caller chooses the unit of times.
#[derive(Debug)]
pub(super) struct AnswerCache<V> {
    answers: HashMap<[u8; 32], (V, u64)>,
    /// The keys in the order of their insertion, each once.
    order: VecDeque<[u8; 32]>,
}

impl<V> Default for AnswerCache<V> {
    fn default() -> Self {
        AnswerCache { answers: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V: Clone> AnswerCache<V> {
    /// Returns the cached response, if it has not expired.
    pub(super) fn get(&self, key: &[u8; 32], now: u64) -> Option<V> {
        self.answers.get(key).filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    /// Caches a response until the time `until`, in the unit of the caller.
    pub(super) fn insert(&mut self, key: [u8; 32], answer: V, until: u64) {
        if self.answers.insert(key, (answer, until)).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_response_expires_and_full_cache_evicts_the_oldest() {
        let key = |number: usize| crate::webhook::hash(&[&number.to_le_bytes()]);
        let mut cache = AnswerCache::default();
        cache.insert(key(0), 'a', 10);
        assert_eq!((cache.get(&key(0), 9), cache.get(&key(0), 10), cache.get(&key(1), 0)), (Some('a'), None, None));
        cache.insert(key(0), 'b', 20);
        assert_eq!(cache.get(&key(0), 10), Some('b'));
        for number in 1..=ANSWERS_MAX {
            cache.insert(key(number), 'c', 20);
        }
        assert_eq!((cache.get(&key(0), 10), cache.get(&key(1), 10)), (None, Some('c')));
        assert_eq!((cache.answers.len(), cache.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
    }
}
