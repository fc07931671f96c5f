//! Keys of service account tokens: reading them from PEM, signatures, key ids and their published form
//! (`pkg/serviceaccount/jwt.go`, `pkg/serviceaccount/openidmetadata.go`, client-go `util/keyutil/key.go`).
//!
//! | key | algorithm |
//! |---|---|
//! | RSA, 2048 to 8192 bits | RS256 |
//! | P-256 | ES256 |
//! | P-384 | ES384 |
//!
//! kube-apiserver also has ES512. The library of this server has no P-521, so such a key is an error.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_json::{Value, json};
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, UnparsedPublicKey};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode as _, Encode as _, Reader as _, SliceReader, Tag, TagNumber, Tagged as _};

const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

/// The error of a key file. The text contains no part of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The file has no private key that this server can use.
    #[error("data does not contain a valid RSA or ECDSA private key: RSA with 2048 to 8192 bits, P-256 or P-384")]
    NoPrivateKey,
    /// The file has no public key that this server can use.
    #[error("data does not contain any valid RSA or ECDSA public keys: RSA with 2048 to 8192 bits, P-256 or P-384")]
    NoPublicKey,
}

/// The algorithm of a key (RFC 7518, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Es256,
    Es384,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
        }
    }

    fn of_curve(curve: ObjectIdentifier) -> Option<Self> {
        [(P256, Algorithm::Es256), (P384, Algorithm::Es384)]
            .into_iter()
            .find_map(|(oid, algorithm)| (oid == curve).then_some(algorithm))
    }

    fn verification(self) -> &'static dyn signature::VerificationAlgorithm {
        match self {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        }
    }

    /// The signing algorithm, and the bytes of a coordinate; `None` for RSA.
    fn ecdsa(self) -> Option<(&'static EcdsaSigningAlgorithm, usize)> {
        match self {
            Algorithm::Rs256 => None,
            Algorithm::Es256 => Some((&signature::ECDSA_P256_SHA256_FIXED_SIGNING, 32)),
            Algorithm::Es384 => Some((&signature::ECDSA_P384_SHA384_FIXED_SIGNING, 48)),
        }
    }
}

/// A public key that verifies tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct VerificationKey {
    algorithm: Algorithm,
    /// RSA: the `RSAPublicKey` of PKCS #1. ECDSA: the uncompressed point.
    key: Vec<u8>,
    id: String,
}

impl VerificationKey {
    /// Reads all public keys of a PEM file. The public keys of private keys and certificates are included; other
    /// sections are ignored (`ParsePublicKeysPEM`).
    ///
    /// # Errors
    /// The file has no usable key.
    pub fn read_all(pem: &[u8]) -> Result<Vec<Self>, InvalidKey> {
        let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem);
        let keys = sections.map_while(Result::ok).filter_map(|(kind, der)| match kind {
            SectionKind::PublicKey => Self::from_subject_public_key_info(&der),
            SectionKind::Certificate => {
                let certificate = x509_cert::Certificate::from_der(&der).ok()?;
                Self::from_subject_public_key_info(
                    &certificate.tbs_certificate().subject_public_key_info().to_der().ok()?,
                )
            }
            _ => Some(SigningKey::from_section(kind, &der)?.public),
        });
        let keys: Vec<Self> = keys.collect();
        if keys.is_empty() { Err(InvalidKey::NoPublicKey) } else { Ok(keys) }
    }

    /// The `kid` of tokens: the hash of the key as a `SubjectPublicKeyInfo` (`keyIDFromPublicKey`).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name of the algorithm.
    pub(crate) fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Whether this key signed the message. `algorithm` is the `alg` of the token, which must be that of the key.
    pub(crate) fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        algorithm == self.algorithm.name()
            && UnparsedPublicKey::new(self.algorithm.verification(), &self.key).verify(message, signature).is_ok()
    }

    /// The key as a JSON Web Key, with the order of fields of go-jose.
    pub(crate) fn to_jwk(&self) -> Option<Value> {
        let (id, algorithm) = (&self.id, self.algorithm.name());
        match self.algorithm {
            Algorithm::Rs256 => {
                let (n, e) = rsa_numbers(&self.key)?;
                let [n, e] = [n, e].map(|number| BASE64.encode(number));
                Some(json!({"use": "sig", "kty": "RSA", "kid": id, "alg": algorithm, "n": n, "e": e}))
            }
            Algorithm::Es256 | Algorithm::Es384 => {
                let curve = if self.algorithm == Algorithm::Es256 { "P-256" } else { "P-384" };
                let (x, y) = self.key.get(1..)?.split_at_checked(self.algorithm.ecdsa()?.1)?;
                let [x, y] = [x, y].map(|number| BASE64.encode(number));
                Some(json!({
                    "use": "sig", "kty": "EC", "kid": id, "crv": curve, "alg": algorithm, "x": x, "y": y,
                }))
            }
        }
    }

    fn new(algorithm: Algorithm, key: &[u8]) -> Self {
        let null = [0x05, 0x00];
        let oid = |oid: ObjectIdentifier| tlv(0x06, &[oid.as_bytes()]);
        let identifier = match algorithm {
            Algorithm::Rs256 => tlv(0x30, &[&oid(RSA_ENCRYPTION), &null]),
            Algorithm::Es256 => tlv(0x30, &[&oid(EC_PUBLIC_KEY), &oid(P256)]),
            Algorithm::Es384 => tlv(0x30, &[&oid(EC_PUBLIC_KEY), &oid(P384)]),
        };
        let info = tlv(0x30, &[&identifier, &tlv(0x03, &[&[0], key])]);
        let id = BASE64.encode(ring::digest::digest(&ring::digest::SHA256, &info));
        VerificationKey { algorithm, key: key.to_vec(), id }
    }

    /// A public key of PKIX (RFC 5280, section 4.1.2.7).
    fn from_subject_public_key_info(der: &[u8]) -> Option<Self> {
        let [algorithm, key] = sequence(der)?.try_into().ok()?;
        let algorithm = algorithm_of(algorithm.value())?;
        let (Tag::BitString, [0, key @ ..]) = (key.tag(), key.value()) else { return None };
        let is_usable = match algorithm {
            Algorithm::Rs256 => rsa_numbers(key).is_some_and(|(n, _)| (256..=1024).contains(&n.len())),
            Algorithm::Es256 | Algorithm::Es384 => {
                algorithm.ecdsa().is_some_and(|(_, bytes)| key.len() == 1 + 2 * bytes && key[0] == 4)
            }
        };
        is_usable.then(|| VerificationKey::new(algorithm, key))
    }
}

impl std::fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerificationKey({}, {})", self.algorithm.name(), self.id)
    }
}

/// A private key that signs tokens.
#[derive(Clone)]
pub struct SigningKey {
    private: Arc<Private>,
    public: VerificationKey,
}

enum Private {
    Rsa(rsa::KeyPair),
    Ecdsa(EcdsaKeyPair),
}

impl SigningKey {
    /// Reads the first private key of a PEM file (`ParsePrivateKeyPEM`).
    ///
    /// # Errors
    /// The file has no usable key. A key on a curve needs its public key in the file, as OpenSSL and Go write it.
    pub fn read(pem: &[u8]) -> Result<Self, InvalidKey> {
        let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).map_while(Result::ok);
        sections.find_map(|(kind, der)| Self::from_section(kind, &der)).ok_or(InvalidKey::NoPrivateKey)
    }

    /// Creates a key for ES256, in PKCS #8. `None` if the system has no random numbers.
    pub fn generate() -> Option<Vec<u8>> {
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).ok()?;
        Some(key.as_ref().to_vec())
    }

    /// Reads a key in PKCS #8.
    pub fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let parts = sequence(der)?;
        let [_version, algorithm, key, ..] = parts.as_slice() else { return None };
        match (algorithm_of(algorithm.value())?, key.tag()) {
            (Algorithm::Rs256, Tag::OctetString) => Self::from_pkcs1(key.value()),
            (curve, Tag::OctetString) => Self::from_sec1(key.value(), Some(curve)),
            _ => None,
        }
    }

    /// The public key.
    pub fn public(&self) -> &VerificationKey {
        &self.public
    }

    /// Signs a message. `None` if the system has no random numbers.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &*self.private {
            Private::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
            Private::Ecdsa(pair) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
        }
    }

    fn from_section(kind: SectionKind, der: &[u8]) -> Option<Self> {
        match kind {
            SectionKind::RsaPrivateKey => Self::from_pkcs1(der),
            SectionKind::EcPrivateKey => Self::from_sec1(der, None),
            SectionKind::PrivateKey => Self::from_pkcs8(der),
            _ => None,
        }
    }

    fn from_pkcs1(der: &[u8]) -> Option<Self> {
        let pair = rsa::KeyPair::from_der(der).ok()?;
        let public = VerificationKey::new(Algorithm::Rs256, pair.public().as_ref());
        Some(SigningKey { private: Arc::new(Private::Rsa(pair)), public })
    }

    /// A private key of RFC 5915. The curve is in the key or in the enclosing PKCS #8 structure.
    fn from_sec1(der: &[u8], around: Option<Algorithm>) -> Option<Self> {
        let parts = sequence(der)?;
        let field = |number| {
            let tag = Tag::ContextSpecific { constructed: true, number: TagNumber(number) };
            elements(parts.iter().find(|part| part.tag() == tag)?.value())?.into_iter().next()
        };
        let named = field(0).and_then(|curve| Algorithm::of_curve(oid_of(&curve)?));
        let algorithm = around.or(named)?;
        let (signing, bytes) = algorithm.ecdsa()?;
        let secret = parts.get(1).filter(|part| part.tag() == Tag::OctetString)?.value();
        // A shorter number lacks its leading zeros.
        let mut padded = zeroize::Zeroizing::new(vec![0; bytes.checked_sub(secret.len())?]);
        padded.extend_from_slice(secret);
        let public = field(1).filter(|part| part.tag() == Tag::BitString)?;
        let [0, public @ ..] = public.value() else { return None };
        let pair = EcdsaKeyPair::from_private_key_and_public_key(signing, &padded, public, &SystemRandom::new());
        let pair = pair.ok()?;
        let public = VerificationKey::new(algorithm, pair.public_key().as_ref());
        Some(SigningKey { private: Arc::new(Private::Ecdsa(pair)), public })
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The private key must not reach a log.
        write!(f, "SigningKey({}, {})", self.public.algorithm.name(), self.public.id)
    }
}

/// The keys of a server: one signs, all verify.
#[derive(Clone, Debug)]
pub struct TokenKeys {
    /// The key that signs new tokens.
    pub signing: SigningKey,
    /// The keys that verify tokens.
    pub verification: Vec<VerificationKey>,
}

/// The elements of a DER sequence; `None` if these bytes are not exactly one sequence.
fn sequence(der: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let sequence = AnyRef::from_der(der).ok().filter(|any| any.tag() == Tag::Sequence)?;
    elements(sequence.value())
}

fn elements(der: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(der).ok()?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(AnyRef::decode(&mut reader).ok()?);
    }
    Some(elements)
}

fn oid_of(any: &AnyRef<'_>) -> Option<ObjectIdentifier> {
    if any.tag() == Tag::ObjectIdentifier { ObjectIdentifier::from_bytes(any.value()).ok() } else { None }
}

/// The algorithm of the contents of an `AlgorithmIdentifier`.
fn algorithm_of(identifier: &[u8]) -> Option<Algorithm> {
    let parts = elements(identifier)?;
    let oid = oid_of(parts.first()?)?;
    match oid {
        RSA_ENCRYPTION => Some(Algorithm::Rs256),
        EC_PUBLIC_KEY => Algorithm::of_curve(oid_of(parts.get(1)?)?),
        _ => None,
    }
}

/// The modulus and the exponent of an `RSAPublicKey`, without leading zeros.
fn rsa_numbers(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let [n, e] = sequence(key)?.try_into().ok()?;
    Some((number(n)?, number(e)?))
}

fn number(any: AnyRef<'_>) -> Option<&[u8]> {
    let zeros = any.value().iter().take_while(|byte| **byte == 0).count();
    (any.tag() == Tag::Integer).then(|| &any.value()[zeros..])
}

/// One DER element.
fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let length = contents.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    match contents.len() {
        0..=127 => out.push(contents.len() as u8),
        _ => {
            out.push(0x80 | length.len() as u8);
            out.extend_from_slice(length);
        }
    }
    out.extend(contents);
    out
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
