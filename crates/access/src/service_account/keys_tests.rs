//! Tests of keys. OpenSSL made the files of `test_keys`, which are for tests only, and computed the key ids.

use listwatch_json::JsonString;

use super::*;

const RSA: &str = include_str!("test_keys/rsa.pem");
const RSA_PKCS8: &str = include_str!("test_keys/rsa-pkcs8.pem");
const RSA_PUBLIC: &str = include_str!("test_keys/rsa-public.pem");
const P256_KEY: &str = include_str!("test_keys/p256.pem");
const P256_PUBLIC: &str = include_str!("test_keys/p256-public.pem");
const P256_CERTIFICATE: &str = include_str!("test_keys/p256-certificate.pem");
const P384_KEY: &str = include_str!("test_keys/p384-pkcs8.pem");

const RSA_ID: &str = "04PDw_OjCnhDhMndXuB_8b_AwzXLOQR_M3IV8rgPfK0";
const P256_ID: &str = "K3Y9ApIIxj6DmgLWMoW-feydIquAvHsdch1kW46fxwQ";
const P384_ID: &str = "6inuRmpgZHlethYR72UB5nATAng1KRtqMg44jIEdJzY";

#[test]
fn private_keys_are_read_from_pkcs1_pkcs8_and_sec1() {
    for (pem, algorithm, id) in [
        (RSA, "RS256", RSA_ID),
        (RSA_PKCS8, "RS256", RSA_ID),
        (P256_KEY, "ES256", P256_ID),
        (P384_KEY, "ES384", P384_ID),
    ] {
        let key = SigningKey::read(pem.as_bytes()).unwrap();
        assert_eq!((key.public().algorithm(), key.public().id()), (algorithm, id));
        let signature = key.sign(b"message").unwrap();
        assert!(key.public().verify(algorithm, b"message", &signature));
        assert!(!key.public().verify(algorithm, b"massage", &signature));
        for other in ["none", "HS256", "RS512", "ES256K", ""] {
            assert!(!key.public().verify(other, b"message", &signature), "{other} is not the algorithm of the key");
        }
        assert_eq!(format!("{key:?}"), format!("SigningKey({algorithm}, {id})"), "no log shows the key");
    }
}

#[test]
fn public_keys_are_read_from_files_with_several_keys() {
    let ids = |pem: &str| {
        let keys = VerificationKey::read_all(pem.as_bytes());
        keys.map(|keys| keys.iter().map(|key| key.id().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(ids(&format!("{RSA_PUBLIC}\n# a comment\n{P256_PUBLIC}")), Ok(vec![RSA_ID.into(), P256_ID.into()]));
    assert_eq!(ids(&format!("{RSA}{P384_KEY}")), Ok(vec![RSA_ID.into(), P384_ID.into()]), "private keys count too");
    assert_eq!(ids(P256_CERTIFICATE), Ok(vec![P256_ID.into()]));
    for unusable in [
        include_str!("test_keys/rsa-1024-public.pem"),
        include_str!("test_keys/p521-public.pem"),
        "",
        "no key",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\n",
    ] {
        assert_eq!(ids(unusable), Err(InvalidKey::NoPublicKey), "{unusable}");
    }
    assert_eq!(SigningKey::read(RSA_PUBLIC.as_bytes()).unwrap_err(), InvalidKey::NoPrivateKey);
}

#[test]
fn truncated_and_altered_keys_are_rejected_without_a_panic() {
    let key = SigningKey::generate().unwrap();
    assert!(SigningKey::from_pkcs8(&key).is_some());
    for end in 0..key.len() {
        assert!(SigningKey::from_pkcs8(&key[..end]).is_none(), "{end} bytes");
    }
    for at in 0..key.len() {
        let mut altered = key.clone();
        altered[at] ^= 0x55;
        // Some bytes, such as the version, do not matter. None of them may panic.
        let _ = SigningKey::from_pkcs8(&altered);
        let _ = VerificationKey::from_subject_public_key_info(&altered);
    }
}

#[test]
fn published_jwk_has_the_parameters_of_the_public_key() {
    let jwk = |pem: &str| VerificationKey::read_all(pem.as_bytes()).unwrap()[0].to_jwk().unwrap();
    let rsa = jwk(RSA_PUBLIC);
    let fields: Vec<&str> = rsa.as_object().unwrap().keys().map(JsonString::as_str).collect();
    assert_eq!(fields, ["use", "kty", "kid", "alg", "n", "e"]);
    assert_eq!((&rsa["kty"], &rsa["alg"], &rsa["e"]), (&json!("RSA"), &json!("RS256"), &json!("AQAB")));
    assert_eq!(BASE64.decode(rsa["n"].as_str().unwrap()).unwrap().len(), 256, "without a leading zero");
    for (pem, curve, algorithm, bytes) in [(P256_PUBLIC, "P-256", "ES256", 32), (P384_KEY, "P-384", "ES384", 48)] {
        let ec = jwk(pem);
        assert_eq!((&ec["kty"], &ec["crv"], &ec["alg"]), (&json!("EC"), &json!(curve), &json!(algorithm)));
        for number in ["x", "y"] {
            assert_eq!(BASE64.decode(ec[number].as_str().unwrap()).unwrap().len(), bytes);
        }
        let key = &VerificationKey::read_all(pem.as_bytes()).unwrap()[0];
        let numbers = ["x", "y"].map(|number| BASE64.decode(ec[number].as_str().unwrap()).unwrap()).concat();
        assert_eq!(key.key[1..], numbers);
    }
}
