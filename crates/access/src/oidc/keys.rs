//! [`KeySet`]: the public keys of an issuer (RFC 7517), and the signatures that they verify (RFC 7518).
//!
//! ES512 is absent: the library of this server has no P-521.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;

/// The number of keys of an issuer. Further ones are ignored.
pub(crate) const KEYS_MAX: usize = 100;

/// The public keys of an issuer.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: String,
    /// The only algorithm for which the key may be used. If empty, any algorithm of the key type is valid.
    algorithm: String,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    Ec {
        curve: Curve,
        point: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<JsonWebKey>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonWebKey {
    kty: String,
    kid: String,
    alg: String,
    #[serde(rename = "use")]
    usage: String,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

/// The reason why a signature is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unverified {
    /// The algorithm is not one of RS, PS and ES.
    Algorithm,
    /// No key of this set verifies the token; a newer key set may.
    Key,
}

impl KeySet {
    /// Reads a key set. Keys for other purposes and of other kinds are ignored.
    ///
    /// # Errors
    /// The document is not a key set.
    pub(super) fn parse(document: &[u8]) -> Result<KeySet, String> {
        let Document { keys } = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        let usable = keys.into_iter().filter(|key| matches!(key.usage.as_str(), "" | "sig")).filter_map(key);
        Ok(KeySet(usable.take(KEYS_MAX).collect()))
    }

    /// Checks a signature. A token with a key id is verified by keys of this id only.
    ///
    /// # Errors
    /// [`Unverified`].
    pub(super) fn verify(&self, algorithm: &str, id: &str, message: &[u8], signature: &[u8]) -> Result<(), Unverified> {
        let scheme = Scheme::find(algorithm).ok_or(Unverified::Algorithm)?;
        let fits =
            |key: &&Key| (id.is_empty() || key.id == id) && (key.algorithm.is_empty() || key.algorithm == algorithm);
        let is_valid = self.0.iter().filter(fits).any(|key| scheme.verify(&key.material, message, signature));
        if is_valid { Ok(()) } else { Err(Unverified::Key) }
    }
}

fn key(jwk: JsonWebKey) -> Option<Key> {
    let number = |text: &str| BASE64.decode(text.trim_end_matches('=')).ok();
    let material = match jwk.kty.as_str() {
        "RSA" => {
            let (n, e) = (number(&jwk.n)?, number(&jwk.e)?);
            Material::Rsa { n: without_zeros(n), e: without_zeros(e) }
        }
        "EC" => {
            let (curve, bytes) = match jwk.crv.as_str() {
                "P-256" => (Curve::P256, 32),
                "P-384" => (Curve::P384, 48),
                _ => return None,
            };
            let (x, y) = (number(&jwk.x)?, number(&jwk.y)?);
            if x.len() != bytes || y.len() != bytes {
                return None;
            }
            Material::Ec { curve, point: [&[4], x.as_slice(), y.as_slice()].concat() }
        }
        _ => return None,
    };
    Some(Key { id: jwk.kid, algorithm: jwk.alg, material })
}

fn without_zeros(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number[zeros..].to_vec()
}

/// An algorithm of a token.
enum Scheme {
    Rsa(&'static RsaParameters),
    Ec(Curve, &'static dyn VerificationAlgorithm),
}

impl Scheme {
    fn find(name: &str) -> Option<Scheme> {
        Some(match name {
            "RS256" => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            "PS384" => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            "PS512" => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            "ES256" => Scheme::Ec(Curve::P256, &signature::ECDSA_P256_SHA256_FIXED),
            "ES384" => Scheme::Ec(Curve::P384, &signature::ECDSA_P384_SHA384_FIXED),
            _ => return None,
        })
    }

    fn verify(&self, key: &Material, message: &[u8], signature: &[u8]) -> bool {
        match (self, key) {
            (Scheme::Rsa(parameters), Material::Rsa { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (Scheme::Ec(of_scheme, algorithm), Material::Ec { curve, point }) if of_scheme == curve => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}
