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
//! policies, which kube-apiserver stores in v1beta1, are converted to v1. The fields that kube-apiserver adds at each
//! read are added.
//!
//! A value that cannot be read is returned as a value with [`UNREADABLE_PREFIX`], which is not an object. A reader
//! therefore still finds the key and does not treat the object as absent.
//!
//! Source: `pkg/storage/etcd3/store.go` of k8s.io/apiserver (codec and transformer, in this order; the authenticated
//! data is the full key), `pkg/controlplane/apiserver/{apiextensions,aggregator}.go` of kube-apiserver.

mod recent;
mod rotation;
mod storage;
mod storage_version;
mod upgrade;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use listwatch_at_rest::{ENCRYPTED_PREFIX, Encryption, Transformer};
use listwatch_json::Map;
use listwatch_kinds::versions::SECOND_VERSIONS;
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::{Storage, StoreFault, UNREADABLE_PREFIX};
use listwatch_wire::protobuf;

use self::recent::{Conversion, RecentWrites};
pub use self::rotation::rewrite_stale_keys;
use self::storage::TransformedStorage;
pub(crate) use self::storage_version::storage_version;
use self::storage_version::{RENAMED_VERSIONS, renamed_version};
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
/// the kind in `v1` if this server writes the key. The keys below `listwatch` are secrets of the server.
const OTHER_KEYS: [(&str, &str, Option<&str>); 5] = [
    ("ranges/serviceips", "serviceipallocations", None),
    ("ranges/servicenodeports", "servicenodeportallocations", Some("RangeAllocation")),
    ("masterleases", "apiServerIPInfo", Some("Endpoints")),
    ("peerserverleases", "apiServerPeerIPInfo", None),
    ("listwatch", "secrets", None),
];

/// The encoding and encryption of values in the store.
#[derive(Debug)]
pub struct StoredForm {
    /// The entries by key prefix. A prefix has one or two path elements.
    entries: HashMap<String, Entry>,
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
    transformer: Arc<Transformer>,
    /// `apiVersion` and `kind` in protobuf; `None` for a resource that is stored as JSON.
    protobuf: Option<(String, String)>,
}

/// The encryption and encoding of the values at one path.
struct Form<'a> {
    /// The prefix of the resource.
    prefix: &'a str,
    transformer: Arc<Transformer>,
    /// `apiVersion` and `kind` in protobuf; `None` for a resource that is stored as JSON.
    message: Option<&'a (String, String)>,
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
        let mut entries = HashMap::new();
        let registry = Registry::builtin();
        for resource in registry.resources().iter().filter(|resource| resource.stored_as.is_none()) {
            let is_json = JSON_GROUPS.contains(&resource.group.as_str());
            let protobuf = (!is_json).then(|| (resource.api_version(), resource.kind.clone()));
            let transformer = transformer(&resource.group, &resource.plural);
            entries.insert(resource.storage_prefix.clone(), Entry { transformer, protobuf });
        }
        for (prefix, resource, kind) in OTHER_KEYS {
            let protobuf = kind.map(|kind| ("v1".to_owned(), kind.to_owned()));
            entries.insert(prefix.to_owned(), Entry { transformer: transformer("", resource), protobuf });
        }
        let key_prefix = format!("/{}", key_prefix.trim_matches('/'));
        let key_prefix = key_prefix.trim_end_matches('/').to_owned();
        let recent = RecentWrites::default();
        StoredForm { entries, encryption, media_type, key_prefix, recent, has_warned: AtomicBool::new(false) }
    }

    /// Wraps `inner` so that values are converted between JSON and the stored form. Keys and revisions stay the same.
    pub fn storage(self: &Arc<Self>, inner: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(TransformedStorage::new(inner, Arc::clone(self)))
    }

    /// Returns the encryption and encoding of the values at a path below the store's prefix.
    fn find<'a>(&'a self, path: &'a str) -> Form<'a> {
        let (prefix, entry) = self.locate(path);
        let transformer = match (entry, &self.encryption) {
            (Some(entry), _) => Arc::clone(&entry.transformer),
            (None, Some(encryption)) => {
                let (group, resource) = prefix.split_once('/').unwrap_or(("", prefix));
                encryption.transformer(group, resource)
            }
            (None, None) => Arc::clone(Transformer::plain()),
        };
        Form { prefix, transformer, message: entry.and_then(|entry| entry.protobuf.as_ref()) }
    }

    /// Returns the first path element if that is the prefix of a resource, otherwise the first two.
    fn resource_prefix<'a>(&self, path: &'a str) -> &'a str {
        self.locate(path).0
    }

    /// Returns the prefix of the resource at a path (see [`StoredForm::resource_prefix`]) and the entry of that prefix.
    fn locate<'a>(&self, path: &'a str) -> (&'a str, Option<&Entry>) {
        let path = path.strip_prefix('/').unwrap_or(path);
        let first = path.find('/').unwrap_or(path.len());
        if let Some(entry) = self.entries.get(&path[..first]) {
            return (&path[..first], Some(entry));
        }
        let rest = path.get(first + 1..).unwrap_or_default();
        let second = rest.find('/').unwrap_or(rest.len());
        let prefix = &path[..(first + 1 + second).min(path.len())];
        (prefix, self.entries.get(prefix))
    }

    /// Reports whether reads return all stored JSON values of the range unchanged.
    fn reads_plain_json(&self, range: &KeyRange) -> bool {
        let definitions = KeyRange::resource(upgrade::DEFINITIONS);
        let renamed = RENAMED_VERSIONS.iter().map(|renamed| KeyRange::resource(renamed.prefix));
        let mut converted = renamed.chain([definitions]);
        if converted.any(|converted| range.start() < converted.end() && converted.start() < range.end()) {
            return false;
        }
        self.encryption.is_none()
            || self.is_of_one_resource(range) && self.find(range.start()).transformer.writes_plain()
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
        let Form { prefix, transformer, message } = self.find(key.as_str());
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
            if prefix == upgrade::DEFINITIONS
                && let Some(value) = upgrade::upgraded_definition(&plain)
            {
                return ReadValue { value, stale: true };
            }
            let other_form =
                |(api_version, kind): &(String, String)| protobuf::encode_strict(api_version, kind, &plain).is_ok();
            // A value that protobuf cannot hold stays JSON, and is not stale because of it.
            let is_json = with_stale && !stale && self.media_type == StorageMediaType::Protobuf;
            let stale = stale || is_json && message.is_some_and(other_form);
            return ReadValue { value: as_object(plain), stale };
        }
        match self.decode(key, &plain) {
            Ok(json) => {
                let is_current = message.is_some() && self.media_type == StorageMediaType::Protobuf;
                ReadValue { value: json, stale: stale || !is_current }
            }
            Err(why) => ReadValue { value: unreadable(&why), stale: false },
        }
    }

    fn decode(&self, key: &Key, stored: &[u8]) -> Result<Bytes, String> {
        match self.recent.take_decoded(key, stored) {
            Some(json) => Ok(json),
            None => self.decode_anew(key, stored),
        }
    }

    fn decode_anew(&self, key: &Key, stored: &[u8]) -> Result<Bytes, String> {
        let decoded = match protobuf::decode_strict(stored) {
            // As kube-apiserver does, fields of another release are left out. The next write drops them.
            Err(unknown @ protobuf::DecodeError::UnknownField { .. }) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%key, "the store has fields that this release does not know; writes drop them: {unknown}");
                }
                protobuf::decode(stored)
            }
            decoded => decoded,
        };
        let decoded = decoded.map_err(|error| error.to_string())?;
        let is_second = |version: &&&listwatch_kinds::versions::SecondVersion| {
            version.kind == decoded.kind && version.api_version() == decoded.api_version
        };
        match SECOND_VERSIONS.iter().find(is_second) {
            Some(version) => {
                let tree: Map = serde_json::from_slice(&decoded.json).map_err(|error| error.to_string())?;
                let stored = version.to_storage_version(tree);
                serde_json::to_vec(&stored).map(Bytes::from).map_err(|error| error.to_string())
            }
            None => {
                upgrade::completed(&decoded.api_version, &decoded.kind, decoded.json).map_err(|error| error.to_string())
            }
        }
    }

    /// Returns the JSON that a read will return after this value is written.
    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        let message = self.find(key.as_str()).message;
        let encoded = self.encode(message, value.clone());
        if !encoded.starts_with(protobuf::MAGIC) {
            return value;
        }
        let Ok(normal) = self.decode_anew(key, &encoded) else { return value };
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

    /// Converts the JSON of a writer to the stored form.
    fn write(&self, key: &Key, value: Bytes) -> Result<Bytes, StoreFault> {
        if value.starts_with(UNREADABLE_PREFIX) {
            return Err(StoreFault::Corrupt(format!("the value of {key} was not readable and is not written back")));
        }
        let Form { prefix, transformer, message } = self.find(key.as_str());
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
