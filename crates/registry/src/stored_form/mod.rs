//! [`StoredForm`]: encoding and encryption of values in the store. Readers and writers in the server use JSON.
//!
//! ```text
//!  store   k8s:enc:aescbc:v1:key1:… ──decrypt──▶ k8s\0… ──decode──▶ {"kind":"Pod",…}   reader
//!                                   ◀──encrypt──        ◀──encode──                     writer
//! ```
//!
//! Both encodings are read for every built-in kind. The configuration decides only which encoding is written. Custom
//! resources, CustomResourceDefinitions and APIServices are always written as JSON, as kube-apiserver does.
//!
//! Readers receive the same value as readers in kube-apiserver. CustomResourceDefinitions and mutating admission
//! policies, which kube-apiserver stores in v1beta1, are converted to v1. Objects in versions of older releases are
//! converted to the current version, and get the defaults that were added since ([`upgrade`]).
//!
//! A value that cannot be read is returned as a value with [`UNREADABLE_PREFIX`], which is not an object. A reader
//! therefore still finds the key and does not treat the object as absent.
//!
//! Source: `pkg/storage/etcd3/store.go` of k8s.io/apiserver (codec and transformer, in this order; the authenticated
//! data is the full key), `pkg/controlplane/apiserver/{apiextensions,aggregator}.go` of kube-apiserver.

mod former_message;
mod recent;
mod requests;
mod rotation;
mod storage;
mod storage_version;
mod upgrade;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use foldhash::fast::RandomState;
use listwatch_at_rest::{ENCRYPTED_PREFIX, Encryption, Transformer};
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::{Storage, StoreFault, UNREADABLE_PREFIX};
use listwatch_wire::protobuf;

use self::recent::{Conversion, RecentWrites};
use self::requests::{CustomRequests, Operation, RequestTimer, ResourceRequests};
pub use self::rotation::rewrite_stale_keys;
use self::storage::TransformedStorage;
use self::storage_version::renamed_version;
pub(crate) use self::storage_version::storage_version;
use self::upgrade::KindUpgrade;
use crate::registry::Registry;

/// The encoding in which objects of built-in kinds are written (`--storage-media-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageMediaType {
    /// `application/json`.
    #[default]
    Json,
    /// `application/vnd.kubernetes.protobuf`, kube-apiserver's default.
    Protobuf,
}

/// The key prefix in the authenticated data of encrypted values, for stores without a key prefix. The prefix is the
/// default of etcd, so that a copy of such a store in etcd remains readable.
const KEY_PREFIX: &str = "/registry";

/// Groups whose built-in kinds kube-apiserver stores as JSON.
const JSON_GROUPS: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Key prefixes that belong to no resource. Each has the resource that selects the encryption in kube-apiserver, and
/// the kind in `v1` if this server writes the key. The keys below [`OWN_KEYS`] are secrets of the server.
const OTHER_KEYS: [(&str, &str, Option<&str>); 5] = [
    ("ranges/serviceips", "serviceipallocations", None),
    ("ranges/servicenodeports", "servicenodeportallocations", Some("RangeAllocation")),
    ("masterleases", "apiServerIPInfo", Some("Endpoints")),
    ("peerserverleases", "apiServerPeerIPInfo", None),
    (OWN_KEYS, "secrets", None),
];

/// The prefix of keys that kube-apiserver does not have.
const OWN_KEYS: &str = "listwatch";

/// The encoding and encryption of values in the store. The stores that [`StoredForm::storage`] returns also time their
/// requests, because the prefix of a key determines both the form and the labels of the metrics.
#[derive(Debug)]
pub struct StoredForm {
    /// The entries by key prefix. A prefix has one or two path elements.
    entries: HashMap<String, Entry, RandomState>,
    custom_requests: CustomRequests,
    encryption: Option<Encryption>,
    media_type: StorageMediaType,
    key_prefix: String,
    recent: RecentWrites,
    /// Whether a warning about fields that this release does not support was logged.
    has_warned: AtomicBool,
}

/// The encryption and encoding of the values of a built-in resource.
#[derive(Debug)]
struct Entry {
    requests: Arc<ResourceRequests>,
    transformer: Arc<Transformer>,
    /// `apiVersion` and `kind` in protobuf; `None` for a resource that is stored as JSON.
    protobuf: Option<(String, String)>,
    /// The upgrades of values of older releases; `None` for keys that belong to no resource.
    upgrade: Option<KindUpgrade>,
    /// The JSON values that are read as they are stored.
    plain_json: PlainJson,
}

/// The plaintext JSON values of a resource that readers receive unchanged.
#[derive(Clone, Debug)]
enum PlainJson {
    /// All JSON values.
    All,
    /// The values with one of these first bytes, which contain the kind and the version.
    WithHead(Arc<[String]>),
    /// None. A closer look at a value decides.
    None,
}

impl PlainJson {
    /// Whether a stored value is one of these values.
    fn has(&self, stored: &[u8]) -> bool {
        match self {
            PlainJson::All => stored.first() == Some(&b'{'),
            PlainJson::WithHead(heads) => heads.iter().any(|head| stored.starts_with(head.as_bytes())),
            PlainJson::None => false,
        }
    }
}

/// The prefix of the resource at a path, and the entry of a built-in resource.
type Located<'a> = (&'a str, Option<&'a Entry>);

/// The encryption and encoding of the values at one path.
struct Form<'a> {
    /// The prefix of the resource.
    prefix: &'a str,
    transformer: Arc<Transformer>,
    /// `apiVersion` and `kind` in protobuf; `None` for a resource that is stored as JSON.
    message: Option<&'a (String, String)>,
    /// The upgrades of values of older releases, for a built-in kind.
    upgrade: Option<&'a KindUpgrade>,
}

/// A value as readers receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadValue {
    value: Bytes,
    stale: bool,
}

impl Default for StoredForm {
    fn default() -> Self {
        StoredForm::new(None, StorageMediaType::Json, KEY_PREFIX)
    }
}

impl StoredForm {
    /// Creates the value. Without `encryption`, values are written as plaintext. `key_prefix` is the prefix of all keys
    /// in etcd, and `/registry` for other stores.
    pub fn new(encryption: Option<Encryption>, media_type: StorageMediaType, key_prefix: &str) -> Self {
        let transformer = |group: &str, resource: &str| match &encryption {
            Some(encryption) => encryption.transformer(group, resource),
            None => Arc::clone(Transformer::plain()),
        };
        let mut entries = HashMap::default();
        let registry = Registry::builtin();
        for resource in registry.resources().iter().filter(|resource| resource.stored_as.is_none()) {
            let is_json = JSON_GROUPS.contains(&resource.group.as_str());
            let protobuf = (!is_json).then(|| (resource.api_version(), resource.kind.clone()));
            let transformer = transformer(&resource.group, &resource.plural);
            let requests = ResourceRequests::new(&resource.group, &resource.plural);
            let prefix = resource.storage_prefix.clone();
            let upgrade = resource.builtin.map(KindUpgrade::new);
            let plain_json = match &upgrade {
                _ if prefix == upgrade::DEFINITIONS || renamed_version(&prefix).is_some() => PlainJson::None,
                Some(upgrade) => upgrade.plain_json(),
                None => PlainJson::All,
            };
            entries.insert(prefix, Entry { requests, transformer, protobuf, upgrade, plain_json });
        }
        for (prefix, resource, kind) in OTHER_KEYS {
            let protobuf = kind.map(|kind| ("v1".to_owned(), kind.to_owned()));
            // The server's own keys are no objects of the resource `secrets`.
            let requests = ResourceRequests::new("", if prefix == OWN_KEYS { OWN_KEYS } else { resource });
            let transformer = transformer("", resource);
            let entry = Entry { requests, transformer, protobuf, upgrade: None, plain_json: PlainJson::All };
            entries.insert(prefix.to_owned(), entry);
        }
        let key_prefix = format!("/{}", key_prefix.trim_matches('/'));
        let key_prefix = key_prefix.trim_end_matches('/').to_owned();
        let recent = RecentWrites::default();
        let custom_requests = CustomRequests::default();
        let has_warned = AtomicBool::new(false);
        StoredForm { entries, custom_requests, encryption, media_type, key_prefix, recent, has_warned }
    }

    /// Wraps `inner` so that values are converted between JSON and the stored form. Keys and revisions stay the same.
    pub fn storage(self: &Arc<Self>, inner: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(TransformedStorage::new(inner, Arc::clone(self)))
    }

    /// Returns the durations of the requests to the store in the text format of Prometheus. Custom resources that
    /// `registry` does not have are forgotten; kube-apiserver keeps their series. The text of many custom resources
    /// takes milliseconds.
    pub fn metrics_text(&self, registry: &Registry) -> String {
        self.custom_requests.retain(|prefix| registry.custom_kind(prefix).is_some());
        let custom = self.custom_requests.all();
        requests::text(self.entries.values().map(|entry| &entry.requests).chain(custom.values()))
    }

    /// Starts the timer of a request for a key. A key that belongs to no resource has none.
    fn start_request(&self, operation: Operation, path: &str) -> Option<RequestTimer> {
        self.start_request_of(operation, self.locate(path))
    }

    /// Starts the timer of a request for the resource that [`StoredForm::locate`] has found.
    fn start_request_of(&self, operation: Operation, found: Located<'_>) -> Option<RequestTimer> {
        let requests = match found {
            (_, Some(entry)) => Some(Arc::clone(&entry.requests)),
            (prefix, None) => self.custom_requests.of(prefix),
        };
        requests.map(|requests| requests.start(operation))
    }

    /// Starts the timer of a list. A list of the whole store, whose range ends behind the last `/`, has none.
    fn start_list(&self, operation: Operation, range: &KeyRange) -> Option<RequestTimer> {
        if range.end().starts_with('/') { self.start_request(operation, range.start()) } else { None }
    }

    /// Returns the encryption and encoding of the values at a path below the store's prefix.
    fn find<'a>(&'a self, path: &'a str) -> Form<'a> {
        self.form_of(self.locate(path))
    }

    fn form_of<'a>(&'a self, (prefix, entry): Located<'a>) -> Form<'a> {
        let transformer = match (entry, &self.encryption) {
            (Some(entry), _) => Arc::clone(&entry.transformer),
            (None, Some(encryption)) => {
                let (group, resource) = prefix.split_once('/').unwrap_or(("", prefix));
                encryption.transformer(group, resource)
            }
            (None, None) => Arc::clone(Transformer::plain()),
        };
        let message = entry.and_then(|entry| entry.protobuf.as_ref());
        Form { prefix, transformer, message, upgrade: entry.and_then(|entry| entry.upgrade.as_ref()) }
    }

    /// Returns the first path element if that is the prefix of a resource, otherwise the first two.
    fn resource_prefix<'a>(&self, path: &'a str) -> &'a str {
        self.locate(path).0
    }

    /// Returns the prefix of the resource at a path (see [`StoredForm::resource_prefix`]) and the entry of that prefix.
    fn locate<'a>(&self, path: &'a str) -> (&'a str, Option<&Entry>) {
        let path = path.strip_prefix('/').unwrap_or(path);
        let first = memchr::memchr(b'/', path.as_bytes()).unwrap_or(path.len());
        if let Some(entry) = self.entries.get(&path[..first]) {
            return (&path[..first], Some(entry));
        }
        let rest = path.get(first + 1..).unwrap_or_default();
        let second = memchr::memchr(b'/', rest.as_bytes()).unwrap_or(rest.len());
        let prefix = &path[..(first + 1 + second).min(path.len())];
        (prefix, self.entries.get(prefix))
    }

    /// Returns the stored JSON values of the range that reads return unchanged.
    fn plain_json(&self, range: &KeyRange) -> PlainJson {
        if self.is_of_one_resource(range) {
            return match self.locate(range.start()).1 {
                _ if self.encryption.is_some() && !self.find(range.start()).transformer.writes_plain() => {
                    PlainJson::None
                }
                Some(entry) => entry.plain_json.clone(),
                None => PlainJson::All,
            };
        }
        let overlaps = |prefix: &str| {
            let resource = KeyRange::resource(prefix);
            range.start() < resource.end() && resource.start() < range.end()
        };
        let is_plain = |entry: &Entry| matches!(entry.plain_json, PlainJson::All);
        match self.encryption.is_none()
            && self.entries.iter().all(|(prefix, entry)| is_plain(entry) || !overlaps(prefix))
        {
            true => PlainJson::All,
            false => PlainJson::None,
        }
    }

    /// Reports whether all keys of the range belong to the same resource.
    fn is_of_one_resource(&self, range: &KeyRange) -> bool {
        let prefix = self.resource_prefix(range.start());
        !prefix.is_empty() && range.end() <= KeyRange::resource(prefix).end()
    }

    fn full_key(&self, key: &Key) -> String {
        format!("{}{key}", self.key_prefix)
    }

    /// Converts a stored value for readers. If `with_stale` is set, also determines whether the stored form is
    /// outdated. This can require an encoding of the value.
    fn read(&self, key: &Key, stored: Bytes, with_stale: bool) -> ReadValue {
        let form = self.find(key.as_str());
        let Form { prefix, transformer, message, upgrade } = &form;
        let (plain, stale) = if transformer.writes_plain() && !stored.starts_with(ENCRYPTED_PREFIX) {
            (stored, false)
        } else {
            match transformer.decrypt(&stored, self.full_key(key).as_bytes()) {
                Ok(decrypted) => (decrypted.value, decrypted.stale),
                Err(error) => return ReadValue { value: unreadable(&error.to_string()), stale: false },
            }
        };
        let (plain, stale) = match renamed_version(prefix) {
            Some(renamed) => {
                let converted = renamed.to_validated(plain.clone());
                // A former build stored the validated version.
                let is_converted = converted != plain;
                (converted, stale || !is_converted)
            }
            None => (plain, stale),
        };
        if !plain.starts_with(protobuf::MAGIC) {
            if *prefix == upgrade::DEFINITIONS
                && let Some(value) = upgrade::upgraded_definition(&plain)
            {
                return ReadValue { value, stale: true };
            }
            match upgrade.map(|upgrade| upgrade.upgraded_json(&plain)) {
                Some(Ok(Some(value))) => return ReadValue { value, stale: true },
                Some(Err(why)) => return ReadValue { value: unreadable(&why), stale: false },
                Some(Ok(None)) | None => {}
            }
            let other_form =
                |(api_version, kind): &(String, String)| protobuf::encode_strict(api_version, kind, &plain).is_ok();
            // A value that protobuf cannot hold stays JSON, and is not stale because of it.
            let is_json = with_stale && !stale && self.media_type == StorageMediaType::Protobuf;
            let stale = stale || is_json && message.is_some_and(other_form);
            return ReadValue { value: as_object(plain), stale };
        }
        match self.decode(key, &form, &plain) {
            Ok((json, is_upgraded)) => {
                let is_current = message.is_some() && self.media_type == StorageMediaType::Protobuf && !is_upgraded;
                ReadValue { value: json, stale: stale || !is_current }
            }
            Err(why) => ReadValue { value: unreadable(&why), stale: false },
        }
    }

    /// Decodes a protobuf value to JSON. The flag is set if the stored value is in another version or lacks defaults.
    fn decode(&self, key: &Key, form: &Form<'_>, stored: &[u8]) -> Result<(Bytes, bool), String> {
        match self.recent.take_decoded(key, stored) {
            Some(json) => Ok((json, false)),
            None => self.decode_anew(key, form, stored),
        }
    }

    fn decode_anew(&self, key: &Key, form: &Form<'_>, stored: &[u8]) -> Result<(Bytes, bool), String> {
        let (decoded, former) = match self.decode_current(key, stored) {
            Err(unknown @ protobuf::DecodeError::UnknownKind { .. }) => {
                let current = former_message::current_body(stored).map_err(|error| error.to_string())?;
                let Some((body, former)) = current else { return Err(unknown.to_string()) };
                (self.decode_current(key, &body), Some(former))
            }
            decoded => (decoded, None),
        };
        let decoded = decoded.map_err(|error| error.to_string())?;
        let Some(upgrade) = form.upgrade else { return Ok((decoded.json.into(), false)) };
        let is_stored_version =
            form.message.is_some_and(|(version, kind)| *version == decoded.api_version && *kind == decoded.kind);
        match is_stored_version && former.is_none() {
            true => upgrade.completed(decoded.json).map_err(|error| error.to_string()),
            false => upgrade.upgraded_version(&decoded.json, former.as_ref()).map(|json| (json, true)),
        }
    }

    /// Decodes a protobuf value of a type that the table has.
    fn decode_current(&self, key: &Key, stored: &[u8]) -> Result<protobuf::Decoded, protobuf::DecodeError> {
        match protobuf::decode_strict(stored) {
            // As kube-apiserver does, fields of another release are left out. The next write drops them.
            Err(unknown @ protobuf::DecodeError::UnknownField { .. }) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%key, "the store has fields that this release does not know; writes drop them: {unknown}");
                }
                protobuf::decode(stored)
            }
            decoded => decoded,
        }
    }

    /// Returns the JSON that a read will return after this value is written.
    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        let form = self.find(key.as_str());
        let encoded = self.encode(form.message, value.clone());
        if !encoded.starts_with(protobuf::MAGIC) {
            let upgraded = form.upgrade.and_then(|upgrade| upgrade.upgraded_json(&value).ok().flatten());
            return upgraded.unwrap_or(value);
        }
        let Ok((normal, _)) = self.decode_anew(key, &form, &encoded) else { return value };
        self.recent.remember(Conversion { key: key.clone(), json: value, encoded, normal: normal.clone() });
        normal
    }

    /// Encodes the JSON of an object. A value that protobuf cannot represent stays JSON, which every release can read.
    fn encode(&self, message: Option<&(String, String)>, value: Bytes) -> Bytes {
        match message {
            Some((api_version, kind)) if self.media_type == StorageMediaType::Protobuf => {
                if let Some(encoded) = self.recent.encoded(&value) {
                    return encoded;
                }
                protobuf::encode_strict(api_version, kind, &value).map_or(value, Bytes::from)
            }
            _ => value,
        }
    }

    /// Converts the JSON of a writer to the stored form, and starts the timer of the request that writes the value.
    fn start_write(
        &self,
        operation: Operation,
        key: &Key,
        value: Bytes,
    ) -> Result<(Bytes, Option<RequestTimer>), StoreFault> {
        let found = self.locate(key.as_str());
        let value = self.write(key, self.form_of(found), value)?;
        Ok((value, self.start_request_of(operation, found)))
    }

    /// Converts the JSON of a writer to the stored form.
    fn write(&self, key: &Key, form: Form<'_>, value: Bytes) -> Result<Bytes, StoreFault> {
        if value.starts_with(UNREADABLE_PREFIX) {
            return Err(StoreFault::Corrupt(format!("the value of {key} was not readable and is not written back")));
        }
        let Form { prefix, transformer, message, .. } = form;
        let plain = self.encode(message, value);
        let plain = match renamed_version(prefix) {
            Some(renamed) => renamed.to_stored(plain),
            None => plain,
        };
        if transformer.writes_plain() {
            return Ok(plain);
        }
        transformer
            .encrypt(&plain, self.full_key(key).as_bytes(), &mut |nonce| rand::fill(nonce))
            .map_err(|error| StoreFault::TooLarge(error.to_string()))
    }
}

/// Checks a decrypted value. A value that starts with [`UNREADABLE_PREFIX`] is replaced, because readers would report
/// its text as the reason why the object is unreadable.
fn as_object(plain: Bytes) -> Bytes {
    if plain.starts_with(UNREADABLE_PREFIX) { unreadable("the stored value is not an object") } else { plain }
}

fn unreadable(why: &str) -> Bytes {
    [UNREADABLE_PREFIX, why.as_bytes()].concat().into()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
