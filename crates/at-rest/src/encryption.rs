//! [`Encryption`]: the transformer of each resource. [`Transformer`]: the providers of a resource, in their order.
//!
//! Source: `pkg/storage/value/transformer.go`, `encrypt/identity/identity.go` and
//! `pkg/server/options/encryptionconfig/config.go` of k8s.io/apiserver.

use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use crate::cipher::{Cipher, TooLong};
use crate::config::{self, GroupResource, Key, Provider, Rule};
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
        Encryption::of_rules(config::parse(file, text)?)
    }

    /// Builds the transformers. A key that cannot encrypt is an error, so that no resource is written as plaintext by
    /// mistake.
    fn of_rules(parsed: Vec<Rule>) -> Result<Self, ConfigError> {
        let mut rules: Vec<(GroupResource, Vec<Arc<Prefixed>>)> = Vec::new();
        for rule in parsed {
            let providers = rule.providers.into_iter().map(|provider| Prefixed::new(provider).map(Arc::new));
            let providers = providers.collect::<Result<Vec<_>, _>>()?;
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
        let transformer = |(resource, providers): (_, Vec<_>)| {
            let mut providers = providers.into_iter();
            let writer = providers.next().ok_or(ConfigError::NoKey)?;
            Ok((resource, Arc::new(Transformer { writer, others: providers.collect(), is_default: false })))
        };
        Ok(Encryption { rules: rules.into_iter().map(transformer).collect::<Result<_, _>>()? })
    }

    /// Returns the transformer of a resource: that of its own rule, else of `*.<group>`, else of `*.*`. Without a rule,
    /// the transformer reads and writes only plain values.
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

/// The providers of a resource. The first provider encrypts; each can decrypt.
pub struct Transformer {
    writer: Arc<Prefixed>,
    others: Vec<Arc<Prefixed>>,
    is_default: bool,
}

/// A decrypted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decrypted {
    /// The plaintext.
    pub value: Bytes,
    /// True if the first key of the first provider would write the value in another form. The next update rewrites the
    /// value, even if the object does not change.
    pub stale: bool,
}

impl Transformer {
    /// Returns the transformer of resources without a rule: it writes plain values, and does not read encrypted ones.
    pub fn plain() -> &'static Arc<Transformer> {
        static PLAIN: LazyLock<Arc<Transformer>> = LazyLock::new(|| {
            Arc::new(Transformer { writer: Arc::new(Prefixed::Identity), others: Vec::new(), is_default: true })
        });
        &PLAIN
    }

    /// Reports whether values are written as plaintext. Then a value without [`ENCRYPTED_PREFIX`] is returned unchanged
    /// and is not stale.
    pub fn writes_plain(&self) -> bool {
        matches!(*self.writer, Prefixed::Identity)
    }

    fn providers(&self) -> impl Iterator<Item = &Arc<Prefixed>> {
        std::iter::once(&self.writer).chain(&self.others)
    }

    /// Decrypts a stored value. `authenticated` is the full key of the value in etcd.
    ///
    /// # Errors
    /// [`DecryptError`] when no provider can read the value: the value is damaged or encrypted with an unknown key, or
    /// the configuration lacks its provider.
    pub fn decrypt(&self, stored: &Bytes, authenticated: &[u8]) -> Result<Decrypted, DecryptError> {
        let mut causes = Vec::new();
        for (at, provider) in self.providers().enumerate() {
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
        match &*self.writer {
            Prefixed::Identity => Ok(value.clone()),
            Prefixed::Keys { prefix, first: key, .. } => {
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
        f.debug_list().entries(self.providers()).finish()
    }
}

/// A provider with the prefix of its values. A provider with keys has at least one key.
enum Prefixed {
    Identity,
    Keys { prefix: &'static [u8], first: NamedCipher, others: Vec<NamedCipher>, no_key: Cause },
}

/// Creates a cipher from a secret; `None` for a secret of a wrong length.
type NewCipher = fn(&[u8]) -> Option<Cipher>;

struct NamedCipher {
    /// The name of the key and a colon.
    prefix: Vec<u8>,
    cipher: Cipher,
}

impl Prefixed {
    fn new(provider: Provider) -> Result<Self, ConfigError> {
        let (prefix, keys, cipher, no_key): (&'static [u8], _, NewCipher, _) = match provider {
            Provider::Identity => return Ok(Prefixed::Identity),
            Provider::AesCbc(keys) => (b"k8s:enc:aescbc:v1:", keys, Cipher::cbc, Cause::NoAesKey),
            Provider::AesGcm(keys) => (b"k8s:enc:aesgcm:v1:", keys, Cipher::gcm, Cause::NoAesKey),
            Provider::Secretbox(keys) => (b"k8s:enc:secretbox:v1:", keys, Cipher::secretbox, Cause::NoSecretboxKey),
        };
        let mut named = keys.into_iter().map(|key: Key| match cipher(&key.secret) {
            Some(cipher) => Ok(NamedCipher { prefix: format!("{}:", key.name).into_bytes(), cipher }),
            None => Err(ConfigError::UnusableKey { name: key.name }),
        });
        let first = named.next().ok_or(ConfigError::NoKey)??;
        Ok(Prefixed::Keys { prefix, first, others: named.collect::<Result<_, _>>()?, no_key })
    }

    /// Decrypts a value; `None` if the value has another prefix.
    fn decrypt(&self, stored: &Bytes, authenticated: &[u8]) -> Option<Result<Decrypted, DecryptError>> {
        let (prefix, first, others, no_key) = match self {
            Prefixed::Identity if stored.starts_with(ENCRYPTED_PREFIX) => {
                return Some(Err(DecryptError::new([Cause::Identity])));
            }
            Prefixed::Identity => return Some(Ok(Decrypted { value: stored.clone(), stale: false })),
            Prefixed::Keys { prefix, first, others, no_key } => (prefix, first, others, *no_key),
        };
        let rest = stored.strip_prefix(*prefix)?;
        let mut causes = Vec::new();
        for (at, key) in std::iter::once(first).chain(others).enumerate() {
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
            Prefixed::Keys { prefix, first, others, .. } => {
                f.write_str(&String::from_utf8_lossy(prefix))?;
                let keys = std::iter::once(first).chain(others);
                f.debug_list().entries(keys.map(|key| String::from_utf8_lossy(&key.prefix))).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_without_a_usable_key_is_rejected() {
        let key = |bytes: usize| Key { name: "k".to_owned(), secret: vec![7; bytes].into() };
        let build = |providers: Vec<Provider>| {
            let resources = vec![GroupResource { group: String::new(), resource: "secrets".to_owned() }];
            Encryption::of_rules(vec![Rule { resources, providers }]).map(drop)
        };
        let unusable = || Err(ConfigError::UnusableKey { name: "k".to_owned() });
        assert_eq!(build(Vec::new()), Err(ConfigError::NoKey));
        for provider in [Provider::AesCbc, Provider::AesGcm, Provider::Secretbox] {
            assert_eq!(build(vec![provider(Vec::new())]), Err(ConfigError::NoKey));
            assert_eq!(build(vec![provider(vec![key(5)])]), unusable());
            assert_eq!(build(vec![provider(vec![key(32), key(5)])]), unusable());
            assert_eq!(build(vec![provider(vec![key(32)])]), Ok(()));
        }
    }
}
