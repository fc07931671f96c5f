//! The three ciphers of Kubernetes' encryption at rest, and the layout of their bytes.
//!
//! | cipher | bytes | authenticated data |
//! |---|---|---|
//! | AES-CBC | 16 bytes initialization vector, ciphertext with PKCS #7 padding | none |
//! | AES-GCM | 12 bytes nonce, ciphertext, 16 bytes tag | the key of the value in etcd |
//! | secretbox | 24 bytes nonce, 16 bytes tag, ciphertext (XSalsa20 and Poly1305) | none |
//!
//! Source: `pkg/storage/value/encrypt/aes/aes.go` and `encrypt/secretbox/secretbox.go` of k8s.io/apiserver.

use aes::cipher::block_padding::{NoPadding, Pkcs7};
use aes::cipher::{BlockDecryptMut as _, BlockEncryptMut as _, InnerIvInit as _};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::consts::U12;
use aes_gcm::{AeadInPlace as _, AesGcm, KeyInit as _};
use crypto_secretbox::XSalsa20Poly1305;

use crate::error::Cause;

/// The size of an AES block and of the initialization vector of AES-CBC, in bytes.
const BLOCK_BYTES: usize = 16;
/// The size of a nonce of AES-GCM, in bytes.
const GCM_NONCE_BYTES: usize = 12;
/// The size of an authentication tag of AES-GCM and of secretbox, in bytes.
const TAG_BYTES: usize = 16;
/// The size of a nonce of secretbox, in bytes.
const SECRETBOX_NONCE_BYTES: usize = 24;

/// A cipher with its key. Each variant is boxed, because an expanded key has several hundred bytes.
pub(crate) enum Cipher {
    Cbc128(Box<Aes128>),
    Cbc192(Box<Aes192>),
    Cbc256(Box<Aes256>),
    Gcm128(Box<AesGcm<Aes128, U12>>),
    Gcm192(Box<AesGcm<Aes192, U12>>),
    Gcm256(Box<AesGcm<Aes256, U12>>),
    Secretbox(Box<XSalsa20Poly1305>),
}

/// Matches on a cipher with one expression per algorithm, for all AES key sizes.
macro_rules! with_key {
    ($self:expr, cbc($cbc:ident) => $by_cbc:expr, gcm($gcm:ident) => $by_gcm:expr, secretbox($secretbox:ident) => $by_secretbox:expr) => {
        match $self {
            Cipher::Cbc128($cbc) => $by_cbc,
            Cipher::Cbc192($cbc) => $by_cbc,
            Cipher::Cbc256($cbc) => $by_cbc,
            Cipher::Gcm128($gcm) => $by_gcm,
            Cipher::Gcm192($gcm) => $by_gcm,
            Cipher::Gcm256($gcm) => $by_gcm,
            Cipher::Secretbox($secretbox) => $by_secretbox,
        }
    };
}

impl Cipher {
    /// AES-CBC; `None` for a key whose size is not 16, 24 or 32 bytes.
    pub(crate) fn cbc(key: &[u8]) -> Option<Self> {
        use aes::cipher::KeyInit as _;
        Some(match key.len() {
            16 => Cipher::Cbc128(Box::new(Aes128::new_from_slice(key).ok()?)),
            24 => Cipher::Cbc192(Box::new(Aes192::new_from_slice(key).ok()?)),
            32 => Cipher::Cbc256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    /// AES-GCM; `None` for a key whose size is not 16, 24 or 32 bytes.
    pub(crate) fn gcm(key: &[u8]) -> Option<Self> {
        Some(match key.len() {
            16 => Cipher::Gcm128(Box::new(AesGcm::new_from_slice(key).ok()?)),
            24 => Cipher::Gcm192(Box::new(AesGcm::new_from_slice(key).ok()?)),
            32 => Cipher::Gcm256(Box::new(AesGcm::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    /// Secretbox; `None` for a key whose size is not 32 bytes.
    pub(crate) fn secretbox(key: &[u8]) -> Option<Self> {
        Some(Cipher::Secretbox(Box::new(XSalsa20Poly1305::new_from_slice(key).ok()?)))
    }

    /// Decrypts the bytes after an envelope's prefix.
    pub(crate) fn decrypt(&self, data: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Cause> {
        with_key!(self,
            cbc(key) => {
                let (vector, data) = data.split_at_checked(BLOCK_BYTES).ok_or(Cause::Short)?;
                if data.len() % BLOCK_BYTES != 0 {
                    return Err(Cause::BlockSize);
                }
                let mut plain = data.to_vec();
                cbc::Decryptor::inner_iv_init(&**key, vector.into())
                    .decrypt_padded_mut::<NoPadding>(&mut plain)
                    .map_err(|_| Cause::BlockSize)?;
                let length = unpadded(&plain)?;
                plain.truncate(length);
                Ok(plain)
            },
            gcm(key) => {
                let (nonce, data) = data.split_at_checked(GCM_NONCE_BYTES).ok_or(Cause::Short)?;
                let at = data.len().checked_sub(TAG_BYTES).ok_or(Cause::Authentication)?;
                let (data, tag) = data.split_at(at);
                let mut plain = data.to_vec();
                key.decrypt_in_place_detached(nonce.into(), authenticated, &mut plain, tag.into())
                    .map_err(|_| Cause::Authentication)?;
                Ok(plain)
            },
            secretbox(key) => {
                if data.len() < SECRETBOX_NONCE_BYTES + TAG_BYTES {
                    return Err(Cause::Short);
                }
                let (nonce, data) = data.split_at(SECRETBOX_NONCE_BYTES);
                let (tag, data) = data.split_at(TAG_BYTES);
                let mut plain = data.to_vec();
                key.decrypt_in_place_detached(nonce.into(), b"", &mut plain, tag.into())
                    .map_err(|_| Cause::Secretbox)?;
                Ok(plain)
            }
        )
    }

    /// Appends the encrypted form of `plain` to `out`. `random` fills the nonce, which must never repeat for a key.
    pub(crate) fn encrypt(
        &self,
        plain: &[u8],
        authenticated: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
        out: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        with_key!(self,
            cbc(key) => {
                let mut vector = [0; BLOCK_BYTES];
                random(&mut vector);
                out.extend_from_slice(&vector);
                let start = out.len();
                out.extend_from_slice(plain);
                out.resize(start + plain.len() + BLOCK_BYTES - plain.len() % BLOCK_BYTES, 0);
                cbc::Encryptor::inner_iv_init(&**key, &vector.into())
                    .encrypt_padded_mut::<Pkcs7>(&mut out[start..], plain.len())
                    .map_err(|_| TooLong)?;
            },
            gcm(key) => {
                let mut nonce = [0; GCM_NONCE_BYTES];
                random(&mut nonce);
                out.extend_from_slice(&nonce);
                let start = out.len();
                out.extend_from_slice(plain);
                let tag = key
                    .encrypt_in_place_detached(&nonce.into(), authenticated, &mut out[start..])
                    .map_err(|_| TooLong)?;
                out.extend_from_slice(&tag);
            },
            secretbox(key) => {
                let mut nonce = [0; SECRETBOX_NONCE_BYTES];
                random(&mut nonce);
                out.extend_from_slice(&nonce);
                let tag_at = out.len();
                out.extend_from_slice(&[0; TAG_BYTES]);
                out.extend_from_slice(plain);
                let (tag, data) = out[tag_at..].split_at_mut(TAG_BYTES);
                let computed = key.encrypt_in_place_detached(&nonce.into(), b"", data).map_err(|_| TooLong)?;
                tag.copy_from_slice(&computed);
            }
        );
        Ok(())
    }

    /// The largest number of bytes that encryption adds to a value.
    pub(crate) const OVERHEAD_BYTES: usize = SECRETBOX_NONCE_BYTES + TAG_BYTES;
}

/// The error of a plaintext above a cipher's limit, which is at least 64 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is too long for the cipher")]
pub struct TooLong;

/// The length of a decrypted value without its PKCS #7 padding. As upstream, the padding may be longer than a block.
fn unpadded(plain: &[u8]) -> Result<usize, Cause> {
    let last = *plain.last().ok_or(Cause::NotPadded)?;
    let padding = usize::from(last);
    if padding == 0 || padding > plain.len() {
        return Err(Cause::NotPadded);
    }
    let length = plain.len() - padding;
    if plain[length..].iter().any(|byte| *byte != last) { Err(Cause::Padding) } else { Ok(length) }
}
