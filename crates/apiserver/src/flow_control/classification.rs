//! [`Classification`]: the flow schema and the flow of a request. [`CachedClassifier`]: caches the classifications of
//! requests with equal attributes.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;
use http::header::{HeaderMap, HeaderName};
use listwatch_flow_control::{ActiveSchema, Classifier, RequestDigest};
use listwatch_meta::user::SYSTEM_MASTERS;
use parking_lot::Mutex;

/// The UID of the flow schema of a request.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
/// The UID of the priority level of a request.
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The number of cached classifications. A new entry replaces the entry at its position.
const CACHED: usize = 1_024;
/// Maximum size of the key of a cached classification, in bytes. The key contains the names of user, groups and
/// resource.
const CACHED_KEY_BYTES_MAX: usize = 1_024;

/// A flow schema with its headers.
#[derive(Debug)]
struct Class {
    schema: Arc<ActiveSchema>,
    schema_uid: HeaderValue,
    level_uid: HeaderValue,
}

/// The flow schema and the flow of a request.
#[derive(Clone, Debug)]
pub(crate) struct Classification {
    class: Arc<Class>,
    /// The hash of the flow.
    pub(super) flow: u64,
}

impl Classification {
    pub(super) fn schema(&self) -> &Arc<ActiveSchema> {
        &self.class.schema
    }

    /// Whether the priority level has no limit.
    pub(super) fn is_exempt(&self) -> bool {
        self.class.schema.is_exempt()
    }

    /// Adds the headers that identify the flow schema and the priority level. The headers contain UIDs, because names
    /// would reveal the priority to users.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        headers.insert(FLOW_SCHEMA_UID, self.class.schema_uid.clone());
        headers.insert(PRIORITY_LEVEL_UID, self.class.level_uid.clone());
    }
}

/// The classifier of one configuration, with a cache of recent classifications.
#[derive(Debug)]
pub(super) struct CachedClassifier {
    classifier: Classifier,
    /// The classes by the addresses of their schemas.
    classes: HashMap<usize, Arc<Class>>,
    /// The position of an entry is its hash modulo [`CACHED`].
    entries: Mutex<Vec<Option<Entry>>>,
    /// A random number that makes the positions unpredictable.
    seed: u64,
}

#[derive(Debug)]
struct Entry {
    /// The attributes that determine the classification, each preceded by its length.
    key: Vec<u8>,
    found: Classification,
}

impl CachedClassifier {
    pub(super) fn new(classifier: Classifier) -> Self {
        let class = |schema: &Arc<ActiveSchema>| {
            let uid = |uid: &str| HeaderValue::from_str(uid).unwrap_or_else(|_| HeaderValue::from_static(""));
            let (schema_uid, level_uid) = (uid(schema.uid()), uid(schema.level_uid()));
            (address(schema), Arc::new(Class { schema: Arc::clone(schema), schema_uid, level_uid }))
        };
        let classes = classifier.schemas().map(class).collect();
        let entries = Mutex::new(std::iter::repeat_with(|| None).take(CACHED).collect());
        CachedClassifier { classifier, classes, entries, seed: rand::random() }
    }

    /// The flow schema and the flow of a request.
    pub(super) fn classify(&self, digest: &RequestDigest<'_>) -> Classification {
        // The first schema matches administrators, and paths have too many values.
        if !digest.is_resource_request || digest.user.groups.iter().any(|group| group == SYSTEM_MASTERS) {
            return self.find(digest);
        }
        let position = (hash(self.seed, digest) % CACHED as u64) as usize;
        if let Some(entry) = &self.entries.lock()[position]
            && is_key(&entry.key, digest)
        {
            return entry.found.clone();
        }
        let found = self.find(digest);
        let bytes: usize = texts(digest).map(|text| text.len() + LENGTH_BYTES).sum();
        if bytes <= CACHED_KEY_BYTES_MAX {
            let mut key = Vec::with_capacity(bytes);
            for text in texts(digest) {
                key.extend_from_slice(&length(text));
                key.extend_from_slice(text.as_bytes());
            }
            self.entries.lock()[position] = Some(Entry { key, found: found.clone() });
        }
        found
    }

    fn find(&self, digest: &RequestDigest<'_>) -> Classification {
        let schema = self.classifier.classify(digest);
        let flow = schema.flow_hash(digest);
        let class = self.classes.get(&address(schema)).expect("each schema has a class");
        Classification { class: Arc::clone(class), flow }
    }
}

fn address(schema: &Arc<ActiveSchema>) -> usize {
    Arc::as_ptr(schema) as usize
}

/// The size of a length field in a key, in bytes.
const LENGTH_BYTES: usize = 4;

fn length(text: &str) -> [u8; LENGTH_BYTES] {
    // Keys are far shorter than 4 GiB.
    (text.len() as u32).to_le_bytes()
}

/// Returns the attributes of a resource request that determine the flow schema and the flow.
fn texts<'a>(digest: &RequestDigest<'a>) -> impl Iterator<Item = &'a str> {
    let RequestDigest { user, verb, api_group, resource, subresource, namespace, .. } = *digest;
    let of_request = [verb, api_group, resource, subresource, namespace, &user.username];
    of_request.into_iter().chain(user.groups.iter().map(String::as_str))
}

/// Whether `key` is the key of this request.
fn is_key(key: &[u8], digest: &RequestDigest<'_>) -> bool {
    let mut rest = key;
    for text in texts(digest) {
        let Some(after) = rest.strip_prefix(&length(text)) else { return false };
        let Some(after) = after.strip_prefix(text.as_bytes()) else { return false };
        rest = after;
    }
    rest.is_empty()
}

/// Computes the hash that determines the position of an entry. If two requests have the same position, the later one
/// replaces the entry.
fn hash(seed: u64, digest: &RequestDigest<'_>) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let hash = texts(digest).fold(seed, |hash, text| {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let rest = rest.iter().fold(text.len() as u64, |word, byte| word << 8 | u64::from(*byte));
        mix(hash, rest)
    });
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use listwatch_flow_control::FlowController;
    use listwatch_meta::UserInfo;

    use super::*;

    fn digest<'a>(user: &'a UserInfo, verb: &'a str, resource: &'a str, namespace: &'a str) -> RequestDigest<'a> {
        let (api_group, subresource, path) = ("", "", "/");
        RequestDigest { user, is_resource_request: true, verb, api_group, resource, subresource, namespace, path }
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        UserInfo { username: name.to_owned(), groups, ..UserInfo::default() }
    }

    #[test]
    fn cached_flow_classification_equals_the_uncached_one() {
        let (mut controller, _) = FlowController::<()>::new(std::time::Instant::now(), 600, 1);
        let objects = listwatch_flow_control::BootstrapObject::all();
        let of = |kind| objects.iter().filter(move |object| object.kind() == kind);
        let json = |object: &listwatch_flow_control::BootstrapObject| object.manifest().to_string().into_bytes();
        let levels = of(listwatch_flow_control::BootstrapKind::PriorityLevel);
        let levels =
            levels.map(|object| listwatch_flow_control::PriorityLevel::parse(&json(object)).unwrap()).collect();
        let schemas = of(listwatch_flow_control::BootstrapKind::FlowSchema);
        let schemas = schemas.map(|object| listwatch_flow_control::FlowSchema::parse(&json(object)).unwrap()).collect();
        let configured = controller.configure(std::time::Instant::now(), levels, schemas);
        let cached = CachedClassifier::new(configured.classifier);
        let everyone = "system:authenticated";
        let users = [
            user("ann", &[everyone]),
            user("ann", &["system:authenticate", "d"]),
            user("bob", &[everyone]),
            user("system:node:a", &["system:nodes", everyone]),
            user("system:serviceaccount:kube-system:a", &["system:serviceaccounts", everyone]),
            user("system:kube-scheduler", &[everyone]),
            user("system:kube-schedule", &["r", everyone]),
            user("root", &["system:masters"]),
            user(&"n".repeat(CACHED_KEY_BYTES_MAX), &[everyone]),
        ];
        for _ in 0..2 {
            for user in &users {
                for (verb, resource, namespace) in [
                    ("get", "pods", "a"),
                    ("get", "pods", "b"),
                    ("list", "pods", ""),
                    ("get", "podsa", ""),
                    ("get", "nodes", ""),
                ] {
                    let digest = digest(user, verb, resource, namespace);
                    let schema = cached.classifier.classify(&digest);
                    let found = cached.classify(&digest);
                    let expected = (schema.name(), schema.flow_hash(&digest));
                    assert_eq!((found.schema().name(), found.flow), expected, "{user:?} {verb} {resource} {namespace}");
                }
            }
        }
        assert!(cached.entries.lock().iter().flatten().all(|entry| entry.key.len() <= CACHED_KEY_BYTES_MAX));
        assert!(cached.entries.lock().iter().flatten().count() > 20, "nothing is kept");
    }
}
