//! The errors of reading an encrypted value and of reading an `EncryptionConfiguration`, with upstream's texts.

use std::fmt;

use listwatch_meta::FieldError;

/// The reason why one provider or key cannot read a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Short,
    BlockSize,
    NotPadded,
    Padding,
    Authentication,
    Secretbox,
    NoAesKey,
    NoSecretboxKey,
    NoPrefix,
    Identity,
}

impl Cause {
    fn text(self) -> &'static str {
        match self {
            Cause::Short => "the stored data was shorter than the required size",
            Cause::BlockSize => "the stored data is not a multiple of the block size",
            Cause::NotPadded => "invalid PKCS7 data (empty or not padded)",
            Cause::Padding => "invalid padding on input",
            Cause::Authentication => "cipher: message authentication failed",
            Cause::Secretbox => "output array was not large enough for encryption",
            Cause::NoAesKey => "no matching key was found for the provided AES transformer",
            Cause::NoSecretboxKey => "no matching key was found for the provided Secretbox transformer",
            Cause::NoPrefix => "no matching prefix found",
            Cause::Identity => "identity transformer tried to read encrypted data",
        }
    }
}

/// The error of a value that no provider of its resource can read. The text is upstream's, and contains neither the
/// value nor a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DecryptError {
    causes: Vec<Cause>,
}

impl DecryptError {
    /// Creates the error. `causes` are in the order of the providers, without duplicates, as in upstream's aggregated
    /// error.
    pub(crate) fn new(causes: impl IntoIterator<Item = Cause>) -> Self {
        let mut distinct = Vec::new();
        for cause in causes {
            if !distinct.contains(&cause) {
                distinct.push(cause);
            }
        }
        DecryptError { causes: distinct }
    }

    pub(crate) fn causes(&self) -> &[Cause] {
        &self.causes
    }
}

impl fmt::Display for DecryptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.causes.iter().map(|cause| cause.text()).collect();
        match texts[..] {
            [text] => f.write_str(text),
            _ => write!(f, "[{}]", texts.join(", ")),
        }
    }
}

/// An error in an `EncryptionConfiguration`. The server must not start with this configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The file has no bytes.
    #[error(
        "error while parsing file: error while loading file: encryption provider configuration file {file:?} is empty"
    )]
    Empty {
        /// The name of the file.
        file: String,
    },
    /// The file exceeds [`CONFIG_BYTES_MAX`](crate::CONFIG_BYTES_MAX).
    #[error(
        "error while parsing file: the encryption provider configuration file {file:?} has {bytes} bytes, the limit is {}",
        crate::CONFIG_BYTES_MAX
    )]
    TooLarge {
        /// The name of the file.
        file: String,
        /// The size of the file, in bytes.
        bytes: usize,
    },
    /// The file is not an `EncryptionConfiguration`.
    #[error("error while parsing file: error decoding encryption provider configuration file {file:?}: {why}")]
    Undecodable {
        /// The name of the file.
        file: String,
        /// The problem.
        why: String,
    },
    /// Fields have invalid values.
    #[error("error while parsing file: {}", aggregate(.0))]
    Invalid(Vec<FieldError>),
    /// An earlier rule covers the resource, so the later one would never apply.
    #[error("error while building transformers: resource {resource:?} is masked by earlier rule {by:?}")]
    Masked {
        /// The resource of the later rule.
        resource: String,
        /// The resource of the earlier rule.
        by: String,
    },
    /// A provider uses a key management service.
    #[error(
        "error while building transformers: provider {name:?} at {field}: kms {version} is not supported by this server. \
         To read values that it has encrypted, let a kube-apiserver with the provider rewrite them first: put identity, \
         aescbc, aesgcm or secretbox before kms, run `kubectl get <resource> -A -o json | kubectl replace -f -`, and \
         remove kms"
    )]
    Kms {
        /// The path of the provider.
        field: String,
        /// The provider's name.
        name: String,
        /// The version of its API.
        version: String,
    },
    /// A key has no secret of the length that its provider needs.
    #[error("error while building transformers: the secret of key {name:?} cannot be used")]
    UnusableKey {
        /// The name of the key.
        name: String,
    },
    /// A rule has no provider, or a provider has no key.
    #[error("error while building transformers: a resource has no provider with a key")]
    NoKey,
    /// The configuration has more keys than [`KEYS_MAX`](crate::KEYS_MAX).
    #[error("error while building transformers: the configuration has {keys} keys, the limit is {}", crate::KEYS_MAX)]
    TooManyKeys {
        /// The number of keys.
        keys: usize,
    },
}

/// Formats errors as apimachinery's aggregate does.
fn aggregate(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = format!("{}: {}", error.field, error.message);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match &texts[..] {
        [text] => text.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}
