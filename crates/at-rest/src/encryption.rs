//! [`Encryption`]: the transformer of each resource. [`Transformer`]: the providers of a resource, in their order.
//!
//! Source: `pkg/storage/value/transformer.go`, `encrypt/identity/identity.go` and
//! `pkg/server/options/encryptionconfig/config.go` of k8s.io/apiserver.

use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use crate::cipher::{Cipher, TooLong};
use crate::config::{self, GroupResource, Key, Provider};
use crate::error::{Cause, ConfigError, DecryptError};

/// The prefix of all encrypted values.
pub const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

/// The transformers of all resources.
#[derive(Clone)]
pub struct Encryption {
    rules: Vec<(GroupResource, Arc<Transformer>)>,
}

impl Encryption {
    /// Parses an `EncryptionConfiguration`. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// [`ConfigError`]; no error contains a secret.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, ConfigError> {
        let mut rules: Vec<(GroupResource, Vec<Arc<Prefixed>>)> = Vec::new();
        for rule in config::parse(file, text)? {
            let providers: Vec<Arc<Prefixed>> =
                rule.providers.into_iter().map(|provider| Arc::new(Prefixed::new(provider))).collect();
            for resource in rule.resources {
                let any = |group: &str| GroupResource { group: group.to_owned(), resource: "*".to_owned() };
                for by in [any(&resource.group), any("*")] {
                    if rules.iter().any(|(earlier, _)| *earlier == by) {
                        return Err(ConfigError::Masked { resource: resource.to_yaml(), by: by.to_yaml() });
                    }
                }
                match rules.iter_mut().find(|(earlier, _)| *earlier == resource) {
                    Some((_, all)) => all.extend(providers.iter().cloned()),
                    None => rules.push((resource, providers.clone())),
                }
            }
        }
        let transformer = |(resource, providers)| (resource, Arc::new(Transformer { providers, is_default: false }));
        Ok(Encryption { rules: rules.into_iter().map(transformer).collect() })
    }

    /// Returns the transformer of a resource: that of its own rule, else of `*.<group>`, else of `*.*`, else one that
    /// reads and writes plain values only.
    pub fn transformer(&self, group: &str, resource: &str) -> Arc<Transformer> {
        let find = |group: &str, resource: &str| {
            let is = |rule: &GroupResource| rule.group == group && rule.resource == resource;
            self.rules.iter().find(|(rule, _)| is(rule)).map(|(_, transformer)| Arc::clone(transformer))
        };
        find(group, resource)
            .or_else(|| find(group, "*"))
            .or_else(|| find("*", "*"))
            .unwrap_or_else(|| Transformer::plain().clone())
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.rules.iter().map(|(rule, transformer)| (rule.to_yaml(), transformer))).finish()
    }
}

/// The providers of a resource. The first one writes, all of them read.
pub struct Transformer {
    providers: Vec<Arc<Prefixed>>,
    is_default: bool,
}

/// A decrypted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decrypted {
    /// The value.
    pub value: Bytes,
    /// True if the first key of the first provider would write the value in another form. The next update writes it
    /// again, even if nothing else changes.
    pub stale: bool,
}

impl Transformer {
    /// Returns the transformer of resources without a rule: it writes plain values, and does not read encrypted ones.
    pub fn plain() -> &'static Arc<Transformer> {
        static PLAIN: LazyLock<Arc<Transformer>> = LazyLock::new(|| {
            let providers = vec![Arc::new(Prefixed::new(Provider::Identity))];
            Arc::new(Transformer { providers, is_default: true })
        });
        &PLAIN
    }

    /// Reports whether values are written in plain. Then a value without [`ENCRYPTED_PREFIX`] is read as it is, and is
    /// not stale.
    pub fn writes_plain(&self) -> bool {
        self.providers.first().is_some_and(|first| matches!(**first, Prefixed::Identity))
    }

    /// Decrypts a stored value. `authenticated` is the full key of the value in etcd.
    ///
    /// # Errors
    /// [`DecryptError`] when no provider can read the value: it is damaged, belongs to another key, or is of a provider
    /// that the configuration does not name.
    pub fn decrypt(&self, stored: &Bytes, authenticated: &[u8]) -> Result<Decrypted, DecryptError> {
        let mut causes = Vec::new();
        for (at, provider) in self.providers.iter().enumerate() {
            match provider.decrypt(stored, authenticated) {
                Some(Ok(Decrypted { value, stale })) => return Ok(Decrypted { value, stale: stale || at != 0 }),
                // Another provider may read what identity rejects.
                Some(Err(_)) if matches!(**provider, Prefixed::Identity) => {}
                Some(Err(error)) => causes.extend_from_slice(error.causes()),
                None => {}
            }
        }
        if causes.is_empty() {
            causes.push(if self.is_default { Cause::Identity } else { Cause::NoPrefix });
        }
        Err(DecryptError::new(causes))
    }

    /// Encrypts a value with the first key of the first provider. `authenticated` is the full key of the value in etcd.
    /// `random` fills nonces from a cryptographic source.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn encrypt(
        &self,
        value: &Bytes,
        authenticated: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Bytes, TooLong> {
        match self.providers.first().map(|first| &**first) {
            None | Some(Prefixed::Identity) => Ok(value.clone()),
            Some(Prefixed::Keys { prefix, keys, .. }) => {
                let Some(key) = keys.first() else { return Ok(value.clone()) };
                let head = prefix.len() + key.prefix.len();
                let mut out = Vec::with_capacity(head + value.len() + Cipher::OVERHEAD_BYTES);
                out.extend_from_slice(prefix);
                out.extend_from_slice(&key.prefix);
                key.cipher.encrypt(value, authenticated, random, &mut out)?;
                Ok(out.into())
            }
        }
    }
}

impl fmt::Debug for Transformer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.providers.iter()).finish()
    }
}

/// A provider with the prefix of its values.
enum Prefixed {
    Identity,
    Keys { prefix: &'static [u8], keys: Vec<NamedCipher>, no_key: Cause },
}

struct NamedCipher {
    /// The name of the key and a colon.
    prefix: Vec<u8>,
    cipher: Cipher,
}

impl Prefixed {
    fn new(provider: Provider) -> Self {
        let named = |keys: Vec<Key>, cipher: fn(&[u8]) -> Option<Cipher>| {
            let named = |key: Key| {
                let prefix = format!("{}:", key.name).into_bytes();
                Some(NamedCipher { prefix, cipher: cipher(&key.secret)? })
            };
            keys.into_iter().filter_map(named).collect()
        };
        match provider {
            Provider::Identity => Prefixed::Identity,
            Provider::AesCbc(keys) => Prefixed::Keys {
                prefix: b"k8s:enc:aescbc:v1:",
                keys: named(keys, Cipher::cbc),
                no_key: Cause::NoAesKey,
            },
            Provider::AesGcm(keys) => Prefixed::Keys {
                prefix: b"k8s:enc:aesgcm:v1:",
                keys: named(keys, Cipher::gcm),
                no_key: Cause::NoAesKey,
            },
            Provider::Secretbox(keys) => Prefixed::Keys {
                prefix: b"k8s:enc:secretbox:v1:",
                keys: named(keys, Cipher::secretbox),
                no_key: Cause::NoSecretboxKey,
            },
        }
    }

    /// Decrypts a value; `None` if the value has another prefix.
    fn decrypt(&self, stored: &Bytes, authenticated: &[u8]) -> Option<Result<Decrypted, DecryptError>> {
        let (prefix, keys, no_key) = match self {
            Prefixed::Identity if stored.starts_with(ENCRYPTED_PREFIX) => {
                return Some(Err(DecryptError::new([Cause::Identity])));
            }
            Prefixed::Identity => return Some(Ok(Decrypted { value: stored.clone(), stale: false })),
            Prefixed::Keys { prefix, keys, no_key } => (prefix, keys, *no_key),
        };
        let rest = stored.strip_prefix(*prefix)?;
        let mut causes = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let Some(data) = rest.strip_prefix(&key.prefix[..]) else { continue };
            match key.cipher.decrypt(data, authenticated) {
                Ok(value) => return Some(Ok(Decrypted { value: value.into(), stale: at != 0 })),
                Err(cause) => causes.push(cause),
            }
        }
        if causes.is_empty() {
            causes.push(no_key);
        }
        Some(Err(DecryptError::new(causes)))
    }
}

impl fmt::Debug for Prefixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefixed::Identity => f.write_str("identity"),
            Prefixed::Keys { prefix, keys, .. } => {
                f.write_str(&String::from_utf8_lossy(prefix))?;
                f.debug_list().entries(keys.iter().map(|key| String::from_utf8_lossy(&key.prefix))).finish()
            }
        }
    }
}
