//! Tests encrypted values: golden bytes, rotation, wrong keys, damage.

use base64::Engine as _;
use bytes::Bytes;
use listwatch_at_rest::{Decrypted, Transformer};
use proptest::prelude::*;

use crate::{IDENTITY, encryption, provider};

const KEY: &[u8] = b"/registry/secrets/default/web";
const OBJECT: &str = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"web"}}"#;

fn transformer(providers: &[&str]) -> std::sync::Arc<Transformer> {
    encryption(&[("secrets", providers)]).transformer("", "secrets")
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Fills a nonce with ascending bytes.
fn ascending(first: u8) -> impl FnMut(&mut [u8]) {
    move |nonce| nonce.iter_mut().enumerate().for_each(|(at, byte)| *byte = first.wrapping_add(at as u8))
}

/// The ciphertexts were made with OpenSSL (Python's `cryptography`): AES of 128, 192 and 256 bits with keys of
/// ascending bytes, padded by PKCS #7, and GCM with [`KEY`] as associated data.
#[test]
fn aes_envelopes_equal_those_of_openssl() {
    let check = |name: &str, key_bytes: u8, first: u8, hex: &str| {
        let transformer = transformer(&[&provider(name, key_bytes, &[("key1", 0)])]);
        let expected = [format!("k8s:enc:{name}:v1:key1:").as_bytes(), &unhex(hex)].concat();
        let written = transformer.encrypt(&OBJECT.into(), KEY, &mut ascending(first)).unwrap();
        assert_eq!(written, expected, "{name} with {key_bytes} bytes");
        let read = transformer.decrypt(&expected.into(), KEY);
        assert_eq!(read, Ok(Decrypted { value: OBJECT.into(), stale: false }), "{name} with {key_bytes} bytes");
    };
    check(
        "aescbc",
        16,
        0xa0,
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeafc15858287920aa138bca2074cc32f9c1f6ab1bf20b189049ed34234cb4e33651a46cdcffd10babc125581b5e4184b9006da58dd92adccec56ad23ec3439b7efd",
    );
    check(
        "aescbc",
        24,
        0xa0,
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeafaad927e76d38554214533452481a0b86956d36dcbae0bac1a3ec94fd9e76f0a724b149ba9c6174052a739e50fc8ca889f86b1054911867342c400441bc00e657",
    );
    check(
        "aescbc",
        32,
        0xa0,
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeafda54e881eafae68f34aa2ddb00e56b52372721a55a897321873ece06f719cdc86edf6e6f0765b15f45e8e9b2c532d312cffabd6761c8613317efc17abb31a47b",
    );
    check(
        "aesgcm",
        16,
        0xc0,
        "c0c1c2c3c4c5c6c7c8c9cacbc406be6238739d2f1eadaff9847de62b66e1a23bf50fcb96ecd41262513232d4c2c7ff2387cc40dc8d392cf6a8d37b8a288cc200e9beab87fe3f758368b9ec6cb2fe6a490ee624e8279463370b",
    );
    check(
        "aesgcm",
        24,
        0xc0,
        "c0c1c2c3c4c5c6c7c8c9cacbc3fc279bbd1db64d290daf31f0e58049b7afe2d1a77b055aced6192e527bb143770c8bb32819e37305418596767f3147b95f8f9ce8c37645050ce76792c8bb7bab8bfd7100498d83657cd3a696",
    );
    check(
        "aesgcm",
        32,
        0xc0,
        "c0c1c2c3c4c5c6c7c8c9cacb7b6a4c0e191cb464ba8a98c140c99c746051824f55b47ac859aa246415475dc08db4bb851fbe3162ac2c2078dbfe1eabe304b21ff0f7826ee1470cad9f3b86d2aeadb976dee6ce1db541f074be",
    );
}

/// The vector of NaCl's `tests/secretbox.c`.
#[test]
fn secretbox_envelope_equals_that_of_nacl() {
    let key = unhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
    let secret = base64::engine::general_purpose::STANDARD.encode(key);
    let transformer = transformer(&[&format!("secretbox: {{keys: [{{name: k, secret: {secret:?}}}]}}")]);
    let nonce = unhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37");
    let plain = unhex(
        "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f4\
         1db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52\
         f0a089bc76897040e082f937763848645e0705",
    );
    let sealed = unhex(
        "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b\
         4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da\
         99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
    );
    let expected = Bytes::from([b"k8s:enc:secretbox:v1:k:", &nonce[..], &sealed].concat());
    let written = transformer.encrypt(&plain.clone().into(), KEY, &mut |bytes| bytes.copy_from_slice(&nonce));
    assert_eq!(written.unwrap(), expected);
    assert_eq!(transformer.decrypt(&expected, b"/another/key").unwrap().value, plain, "secretbox binds no key");
}

#[test]
fn values_are_encrypted_with_the_first_key_and_decrypted_with_any_key() {
    let old = provider("aescbc", 32, &[("old", 1)]);
    let new = provider("aesgcm", 32, &[("new", 2)]);
    let stages: [&[&str]; 5] = [&[IDENTITY], &[&old, IDENTITY], &[&new, &old, IDENTITY], &[&new], &[IDENTITY, &new]];
    let mut stored = Bytes::from(OBJECT);
    for (stage, providers) in stages.iter().enumerate() {
        let transformer = transformer(providers);
        let read = transformer.decrypt(&stored, KEY).unwrap_or_else(|error| panic!("stage {stage}: {error}"));
        assert_eq!((read.value, read.stale), (OBJECT.into(), stage > 0 && stage != 3), "stage {stage}");
        stored = transformer.encrypt(&OBJECT.into(), KEY, &mut ascending(stage as u8)).unwrap();
        assert!(!transformer.decrypt(&stored, KEY).unwrap().stale, "stage {stage}");
    }
    assert_eq!(stored, OBJECT);
}

#[test]
fn value_of_a_second_key_is_stale_and_equally_named_keys_are_all_tried() {
    let one = transformer(&[&provider("aescbc", 16, &[("a", 1)])]);
    let stored = one.encrypt(&OBJECT.into(), KEY, &mut ascending(0)).unwrap();
    let rotated = transformer(&[&provider("aescbc", 16, &[("b", 2), ("a", 1)])]);
    assert_eq!(rotated.decrypt(&stored, KEY), Ok(Decrypted { value: OBJECT.into(), stale: true }));
    let (new, old) = (provider("aesgcm", 16, &[("a", 9)]), provider("aesgcm", 16, &[("a", 1)]));
    let stored = transformer(&[&old]).encrypt(&OBJECT.into(), KEY, &mut ascending(0)).unwrap();
    assert_eq!(transformer(&[&new, &old]).decrypt(&stored, KEY), Ok(Decrypted { value: OBJECT.into(), stale: true }));
}

#[test]
fn undecryptable_values_have_upstreams_errors() {
    let (cbc, gcm) = (provider("aescbc", 32, &[("k", 1)]), provider("aesgcm", 32, &[("k", 1)]));
    let secretbox = provider("secretbox", 32, &[("k", 1)]);
    let check = |providers: &[&str], stored: &[u8], expected: &str| {
        let found = transformer(providers).decrypt(&Bytes::copy_from_slice(stored), KEY);
        let text = String::from_utf8_lossy(stored);
        assert_eq!(found.map_err(|error| error.to_string()), Err(expected.to_owned()), "{text}");
    };
    let no_aes_key = "no matching key was found for the provided AES transformer";
    check(&[&cbc], OBJECT.as_bytes(), "no matching prefix found");
    check(&[&cbc], b"", "no matching prefix found");
    check(&[&cbc, IDENTITY], b"k8s:enc:kms:v2:p:xyz", "no matching prefix found");
    check(&[&cbc], b"k8s:enc:aescbc:v1:other:0123456789abcdef0123456789abcdef", no_aes_key);
    check(
        &[&secretbox],
        b"k8s:enc:secretbox:v1:x:",
        "no matching key was found for the provided Secretbox transformer",
    );
    check(&[&cbc], b"k8s:enc:aescbc:v1:k:0123456789abcde", "the stored data was shorter than the required size");
    check(&[&cbc], b"k8s:enc:aescbc:v1:k:0123456789abcdefg", "the stored data is not a multiple of the block size");
    check(&[&cbc], b"k8s:enc:aescbc:v1:k:0123456789abcdef", "invalid PKCS7 data (empty or not padded)");
    check(&[&gcm], b"k8s:enc:aesgcm:v1:k:0123456789a", "the stored data was shorter than the required size");
    check(&[&gcm], b"k8s:enc:aesgcm:v1:k:0123456789ab", "cipher: message authentication failed");
    check(&[&secretbox], b"k8s:enc:secretbox:v1:k:short", "the stored data was shorter than the required size");
    let box_of_zeros = [b"k8s:enc:secretbox:v1:k:", &[0; 40][..]].concat();
    check(&[&secretbox], &box_of_zeros, "output array was not large enough for encryption");
    let other = provider("aesgcm", 32, &[("x", 1)]);
    check(
        &[&gcm, &other],
        b"k8s:enc:aesgcm:v1:k:0123456789ab",
        &format!("[cipher: message authentication failed, {no_aes_key}]"),
    );
    let plain = Transformer::plain().decrypt(&Bytes::from_static(b"k8s:enc:aescbc:v1:k:"), KEY);
    assert_eq!(plain.unwrap_err().to_string(), "identity transformer tried to read encrypted data");
}

#[test]
fn value_that_was_moved_to_another_key_is_rejected_by_gcm() {
    let gcm = transformer(&[&provider("aesgcm", 32, &[("k", 1)])]);
    let stored = gcm.encrypt(&OBJECT.into(), KEY, &mut ascending(0)).unwrap();
    assert!(gcm.decrypt(&stored, b"/registry/secrets/default/other").is_err());
    let cbc = transformer(&[&provider("aescbc", 32, &[("k", 1)])]);
    let stored = cbc.encrypt(&OBJECT.into(), KEY, &mut ascending(0)).unwrap();
    assert!(cbc.decrypt(&stored, b"/registry/secrets/default/other").is_ok(), "aescbc binds no key, as upstream");
}

fn any_provider() -> impl Strategy<Value = (&'static str, u8)> {
    let aes = prop_oneof![Just("aescbc"), Just("aesgcm")];
    prop_oneof![(aes, prop_oneof![Just(16), Just(24), Just(32)]), Just(("secretbox", 32))]
}

proptest! {
    #[test]
    fn random_value_round_trips_under_any_key(
        (name, bytes) in any_provider(),
        first: u8,
        nonce: u8,
        value in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let transformer = transformer(&[&provider(name, bytes, &[("k", first)])]);
        let value = Bytes::from(value);
        let stored = transformer.encrypt(&value, KEY, &mut ascending(nonce)).unwrap();
        prop_assert_eq!(transformer.decrypt(&stored, KEY).unwrap().value, value);
    }

    /// AES-CBC has no authentication tag. Decryption therefore checks only the length and the padding of a value.
    #[test]
    fn authenticated_providers_reject_wrong_keys_flipped_bits_and_truncation(
        (name, bytes) in any_provider(),
        value in proptest::collection::vec(any::<u8>(), 0..100),
        at: proptest::sample::Index,
        bit in 0..8u8,
    ) {
        let prefix = format!("k8s:enc:{name}:v1:k:").len();
        let one = transformer(&[&provider(name, bytes, &[("k", 1)])]);
        let other = transformer(&[&provider(name, bytes, &[("k", 2)])]);
        let stored = one.encrypt(&value.into(), KEY, &mut ascending(0)).unwrap();
        let at = prefix + at.index(stored.len() - prefix);
        let mut flipped = stored.to_vec();
        flipped[at] ^= 1 << bit;
        let damaged = [one.decrypt(&flipped.into(), KEY), one.decrypt(&stored.slice(..at), KEY), other.decrypt(&stored, KEY)];
        if name != "aescbc" {
            prop_assert!(damaged.iter().all(Result::is_err), "{damaged:?}");
        }
    }

    #[test]
    fn decrypting_arbitrary_bytes_never_panics(
        (name, bytes) in any_provider(),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let transformer = transformer(&[&provider(name, bytes, &[("k", 1)]), IDENTITY]);
        let stored = [format!("k8s:enc:{name}:v1:k:").as_bytes(), &data].concat();
        let _ = transformer.decrypt(&stored.into(), KEY);
        let plain = transformer.decrypt(&data.clone().into(), KEY);
        prop_assert_eq!(plain.map(|read| read.value), Ok(data.into()), "identity reads what has no prefix");
    }
}
