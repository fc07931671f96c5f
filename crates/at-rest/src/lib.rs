//! Kubernetes' encryption at rest: an `EncryptionConfiguration` selects the providers of each resource, and a provider
//! converts between a value and its form in the store.
//!
//! | provider | prefix of a value | protects against |
//! |---|---|---|
//! | `identity` | none | nothing |
//! | `aescbc` | `k8s:enc:aescbc:v1:<key>:` | reading |
//! | `aesgcm` | `k8s:enc:aesgcm:v1:<key>:` | reading, changing, moving to another key |
//! | `secretbox` | `k8s:enc:secretbox:v1:<key>:` | reading, changing |
//!
//! The first key of the first provider encrypts new values. To read, the providers are tried in their order. A value of
//! any other key is stale ([`Decrypted::stale`]). `kms` is refused.
//!
//! The crate is pure: the caller reads the file, and passes random bytes and the etcd key of a value.
//!
//! # Example
//! ```
//! use bytes::Bytes;
//! use listwatch_at_rest::Encryption;
//!
//! let config = "
//! apiVersion: apiserver.config.k8s.io/v1
//! kind: EncryptionConfiguration
//! resources:
//! - resources: [secrets]
//!   providers:
//!   - aesgcm: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}
//!   - identity: {}
//! ";
//! let encryption = Encryption::parse("config.yaml", config.as_bytes())?;
//! let secrets = encryption.transformer("", "secrets");
//! let key = b"/registry/secrets/default/web";
//! let stored = secrets.encrypt(&Bytes::from("{}"), key, &mut |nonce| nonce.fill(7))?;
//! assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:key1:"));
//! assert_eq!(secrets.decrypt(&stored, key)?.value, "{}");
//! assert!(secrets.decrypt(&stored, b"/registry/secrets/default/other").is_err());
//! assert!(encryption.transformer("", "pods").writes_plain());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cipher;
mod config;
mod encryption;
mod error;

pub use crate::cipher::TooLong;
pub use crate::config::{CONFIG_BYTES_MAX, KEYS_MAX};
pub use crate::encryption::{Decrypted, ENCRYPTED_PREFIX, Encryption, Transformer};
pub use crate::error::{ConfigError, DecryptError};
