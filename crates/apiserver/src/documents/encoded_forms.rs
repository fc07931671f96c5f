//! [`FormCache`]: caches the encoded forms of documents, up to a number of forms and of bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use listwatch_discovery::openapi::V3Form;
use listwatch_meta::Status;
use listwatch_wire::media_type::Encoding;
use parking_lot::Mutex;

/// Maximum number of forms in one cache. At the limit, the form that was not used for the longest time is dropped.
const FORMS_MAX: usize = 1024;
/// Maximum size of all forms in one cache with their keys, in bytes. At the limit, the forms that were not used for the
/// longest time are dropped. A form above the limit is not cached.
const FORMS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The forms of discovery documents: protobuf, YAML, CBOR and indented JSON.
pub(crate) type EncodedForms = FormCache<DiscoveryForm>;

/// A form of a discovery document. The JSON of the document is a part of the key. A changed document therefore has other
/// forms, and the forms of the old document leave the cache at its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiscoveryForm {
    pub(super) json: Bytes,
    pub(super) encoding: Encoding,
    pub(super) pretty: bool,
}

/// The number of bytes at the start of the JSON that are hashed. They contain the name of the group and the version.
const HASHED_BYTES: usize = 256;

impl Hash for DiscoveryForm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.json.len().hash(state);
        self.json[..self.json.len().min(HASHED_BYTES)].hash(state);
    }
}

/// A form of an OpenAPI v3 document of custom resources. The ETag names the generations of all definitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CustomOpenApiForm {
    pub(super) path: String,
    pub(super) etag: String,
    pub(super) form: V3Form,
}

/// The key of a cached form.
pub(crate) trait FormKey: Clone + Eq + Hash {
    /// The memory of the key, in bytes.
    fn bytes(&self) -> usize;
}

impl FormKey for DiscoveryForm {
    fn bytes(&self) -> usize {
        self.json.len()
    }
}

impl FormKey for CustomOpenApiForm {
    fn bytes(&self) -> usize {
        self.path.len() + self.etag.len()
    }
}

/// A cache of encoded forms.
#[derive(Debug)]
pub(crate) struct FormCache<K>(Mutex<Forms<K>>);

#[derive(Debug)]
struct Forms<K> {
    by_key: HashMap<K, CachedForm>,
    /// The keys by the time of their last use.
    by_use: BTreeMap<u64, K>,
    /// The number of lookups and insertions so far: the clock of `by_use`.
    uses: u64,
    /// The size of all forms and their keys, in bytes.
    bytes: usize,
}

#[derive(Debug)]
struct CachedForm {
    body: Bytes,
    last_use: u64,
}

impl<K> Default for FormCache<K> {
    fn default() -> Self {
        FormCache(Mutex::new(Forms { by_key: HashMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0 }))
    }
}

impl<K: FormKey> FormCache<K> {
    /// Returns a form, and calls `encode` for a form that is not cached. Concurrent calls for one form may each call
    /// `encode`, and return the form that is cached first.
    ///
    /// # Errors
    /// The errors of `encode`.
    pub(super) fn get_or_encode(
        &self,
        key: &K,
        encode: impl FnOnce() -> Result<Bytes, Status>,
    ) -> Result<Bytes, Status> {
        match self.get(key) {
            Some(body) => Ok(body),
            None => Ok(self.insert(key, encode()?)),
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<Bytes> {
        self.0.lock().get(key)
    }

    /// Caches a form, and returns the cached form. A form that another thread has cached meanwhile stays.
    pub(super) fn insert(&self, key: &K, body: Bytes) -> Bytes {
        let bytes = key.bytes() + body.len();
        let mut forms = self.0.lock();
        if let Some(cached) = forms.get(key) {
            return cached;
        }
        if bytes <= FORMS_BYTES_MAX {
            forms.insert(key, body.clone(), bytes);
        }
        body
    }

    /// The number of cached forms.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().by_key.len()
    }
}

impl<K: FormKey> Forms<K> {
    fn get(&mut self, key: &K) -> Option<Bytes> {
        let cached = self.by_key.get_mut(key)?;
        let key = self.by_use.remove(&cached.last_use)?;
        self.uses += 1;
        cached.last_use = self.uses;
        self.by_use.insert(self.uses, key);
        Some(cached.body.clone())
    }

    fn insert(&mut self, key: &K, body: Bytes, bytes: usize) {
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, key.clone());
        self.by_key.insert(key.clone(), CachedForm { body, last_use: self.uses });
        while self.by_key.len() > FORMS_MAX || self.bytes > FORMS_BYTES_MAX {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some(dropped) = self.by_key.remove(&oldest) {
                self.bytes -= oldest.bytes() + dropped.body.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn key(json: impl Into<Bytes>, encoding: Encoding) -> DiscoveryForm {
        DiscoveryForm { json: json.into(), encoding, pretty: false }
    }

    /// Returns the form of a document, and whether it was encoded.
    fn get(forms: &EncodedForms, json: &'static str, encoding: Encoding, size: usize) -> (Bytes, bool) {
        let mut encoded = false;
        let form = forms.get_or_encode(&key(json, encoding), || {
            encoded = true;
            Ok(Bytes::from(vec![b'a'; size]))
        });
        (form.unwrap(), encoded)
    }

    #[test]
    fn form_is_encoded_again_only_after_the_document_or_the_encoding_changes() {
        let forms = EncodedForms::default();
        for (json, encoding, expected) in [
            ("{}", Encoding::Yaml, true),
            ("{}", Encoding::Yaml, false),
            ("{}", Encoding::Protobuf, true),
            ("[]", Encoding::Yaml, true),
            ("{}", Encoding::Yaml, false),
        ] {
            assert_eq!(get(&forms, json, encoding, 5), (Bytes::from_static(b"aaaaa"), expected), "{json} {encoding:?}");
        }
        let failed = Err(Status::internal("why"));
        assert_eq!(forms.get_or_encode(&key("", Encoding::Yaml), || failed.clone()), failed);
        assert_eq!(forms.len(), 3, "an error is not cached");
    }

    #[test]
    fn forms_of_documents_with_the_same_hash_are_distinct() {
        let forms = EncodedForms::default();
        let start = "a".repeat(HASHED_BYTES);
        for end in ["b", "c"] {
            let key = key(format!("{start}{end}"), Encoding::Yaml);
            let body = forms.get_or_encode(&key, || Ok(Bytes::from_static(end.as_bytes())));
            assert_eq!(body.unwrap(), end);
        }
    }

    #[test]
    fn encoded_forms_are_limited_in_number_and_bytes() {
        let forms = EncodedForms::default();
        let limit = FORMS_BYTES_MAX / 2;
        assert!(get(&forms, "1", Encoding::Yaml, limit - 1).1 && get(&forms, "2", Encoding::Yaml, limit - 1).1);
        assert!(!get(&forms, "1", Encoding::Yaml, 0).1, "both forms fit");
        assert!(get(&forms, "3", Encoding::Yaml, 0).1);
        assert!(!get(&forms, "1", Encoding::Yaml, 0).1, "the form that was used last was dropped");
        assert!(get(&forms, "2", Encoding::Yaml, 1).1, "the limit in bytes is exceeded");
        assert_eq!(get(&forms, "4", Encoding::Yaml, FORMS_BYTES_MAX).0.len(), FORMS_BYTES_MAX);
        assert!(!get(&forms, "2", Encoding::Yaml, 1).1, "a form above the limit evicts another form");
        for n in 0..=FORMS_MAX {
            forms.get_or_encode(&key(n.to_string(), Encoding::Json), || Ok(Bytes::new())).unwrap();
        }
        assert_eq!(forms.len(), FORMS_MAX);
        let cached = forms.0.lock();
        let bytes: usize = cached.by_key.iter().map(|(key, form)| key.bytes() + form.body.len()).sum();
        assert_eq!((cached.by_use.len(), cached.bytes), (FORMS_MAX, bytes));
    }

    #[test]
    fn concurrent_misses_cache_one_form() {
        let (forms, both_miss) = (EncodedForms::default(), Barrier::new(2));
        let get = || {
            let encode = || {
                both_miss.wait();
                Ok(Bytes::from(vec![b'a'; 5]))
            };
            forms.get_or_encode(&key("{}", Encoding::Yaml), encode).unwrap()
        };
        let (one, other) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(get), scope.spawn(get));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(one.as_ptr(), other.as_ptr(), "the responses have different buffers");
        assert_eq!((forms.len(), forms.0.lock().bytes), (1, 7));
    }
}
