//! Checks that a certificate and a private key in PEM belong together.
//!
//! Source: Go's `tls.X509KeyPair`, whose errors kube-apiserver returns as warnings. The texts are those of Go. There are
//! these differences:
//! - All certificates that cannot be decoded have one text. Go has a text for each reason.
//! - Go also rejects an RSA key whose parts are inconsistent.
//! - For curves other than P-256 and P-384, only the public key in the file of the private key is compared, if the file
//!   has one. Go compares all of its curves, and rejects others.

use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
};
use x509_cert::Certificate;
use x509_cert::der::asn1::{AnyRef, BitString, OctetStringRef, UintRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::{rfc5912, rfc8410};
use x509_cert::der::{Decode as _, Error, Reader, SliceReader, Tag, Tagged as _};
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

/// The number of blocks of an input that are read.
const BLOCKS_MAX: usize = 100;
const CERTIFICATE: &str = "CERTIFICATE";
/// The end of the labels of private keys.
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// The reason why a certificate and a private key are not a key pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyPairError {
    NoCertificateBlock,
    SwitchedInputs,
    /// The labels of the blocks before the end of the input.
    NoCertificateAmong(Vec<String>),
    NoKeyBlock,
    CertificateAsKey,
    /// The labels of the blocks before the end of the input.
    NoKeyAmong(Vec<String>),
    MalformedCertificate,
    MalformedKey,
    UnknownWrappedKey,
    UnknownPublicKey,
    OtherKeyType,
    Mismatch,
}

impl fmt::Display for KeyPairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyPairError::NoCertificateBlock => "tls: failed to find any PEM data in certificate input",
            KeyPairError::SwitchedInputs => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
            }
            KeyPairError::NoCertificateAmong(labels) => {
                return write!(
                    f,
                    "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
                    labels.join(" ")
                );
            }
            KeyPairError::NoKeyBlock => "tls: failed to find any PEM data in key input",
            KeyPairError::CertificateAsKey => "tls: found a certificate rather than a key in the PEM for the private key",
            KeyPairError::NoKeyAmong(labels) => {
                return write!(
                    f,
                    "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
                    labels.join(" ")
                );
            }
            KeyPairError::MalformedCertificate => "x509: malformed certificate",
            KeyPairError::MalformedKey => "tls: failed to parse private key",
            KeyPairError::UnknownWrappedKey => "tls: found unknown private key type in PKCS#8 wrapping",
            KeyPairError::UnknownPublicKey => "tls: unknown public key algorithm",
            KeyPairError::OtherKeyType => "tls: private key type does not match public key type",
            KeyPairError::Mismatch => "tls: private key does not match public key",
        })
    }
}

/// Checks that the first certificate and the first private key of two texts in PEM belong together.
///
/// # Errors
/// The first problem that Go would find.
pub(crate) fn check_key_pair(certificate: &[u8], key: &[u8]) -> Result<(), KeyPairError> {
    let found = first_block(certificate, |label| label == CERTIFICATE);
    let certificate = found.map_err(|labels| match labels.as_slice() {
        [] => KeyPairError::NoCertificateBlock,
        [label] if label.ends_with(PRIVATE_KEY) => KeyPairError::SwitchedInputs,
        _ => KeyPairError::NoCertificateAmong(labels),
    })?;
    let is_key =
        |label: &str| label.strip_suffix(PRIVATE_KEY).is_some_and(|start| start.is_empty() || start.ends_with(' '));
    let key = first_block(key, is_key).map_err(|labels| match labels.as_slice() {
        [] => KeyPairError::NoKeyBlock,
        [label] if label == CERTIFICATE => KeyPairError::CertificateAsKey,
        _ => KeyPairError::NoKeyAmong(labels),
    })?;
    let certificate = Certificate::from_der(&certificate).map_err(|_| KeyPairError::MalformedCertificate)?;
    PrivateKey::decode(&key)?.check(certificate.tbs_certificate().subject_public_key_info())
}

/// Returns the content of the first PEM block with a label. Otherwise returns the labels of all blocks. Skips malformed
/// blocks, as Go's `pem.Decode` does.
fn first_block(text: &[u8], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";

    let text = String::from_utf8_lossy(text);
    let mut labels = Vec::new();
    // A block ends before the begin of the next one.
    for part in text.split(BEGIN).skip(1).take(BLOCKS_MAX) {
        let Some((_, after_end)) = part.split_once(END) else { continue };
        let end = part.len() - after_end.len() + after_end.find('\n').unwrap_or(after_end.len());
        let mut block = format!("{BEGIN}{}", &part[..end]);
        if !block.contains(':') {
            // Without headers, Go ignores empty lines.
            block = block.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n");
        }
        let Ok(block) = pem::parse(block) else { continue };
        if is_wanted(block.tag()) {
            return Ok(block.into_contents());
        }
        labels.push(block.tag().to_owned());
    }
    Err(labels)
}

/// The parts of a private key that identify its public key.
enum PrivateKey<'a> {
    Rsa { modulus: Vec<u8> },
    Ec { scalar: &'a [u8], public: Option<Vec<u8>> },
    Ed25519 { seed: &'a [u8] },
}

impl<'a> PrivateKey<'a> {
    /// Decodes a key in PKCS #8, PKCS #1 (RSA) or SEC 1 (elliptic curves).
    fn decode(der: &'a [u8]) -> Result<Self, KeyPairError> {
        if let Ok((algorithm, key)) = wrapped(der) {
            return match algorithm {
                rfc5912::RSA_ENCRYPTION => PrivateKey::rsa(key),
                rfc5912::ID_EC_PUBLIC_KEY => PrivateKey::elliptic(key),
                rfc8410::ID_ED_25519 => {
                    <&OctetStringRef>::from_der(key).map(|seed| PrivateKey::Ed25519 { seed: seed.as_bytes() })
                }
                _ => return Err(KeyPairError::UnknownWrappedKey),
            }
            .map_err(|_| KeyPairError::MalformedKey);
        }
        PrivateKey::rsa(der).or_else(|_| PrivateKey::elliptic(der)).map_err(|_| KeyPairError::MalformedKey)
    }

    /// Decodes an `RSAPrivateKey` (RFC 8017).
    fn rsa(der: &'a [u8]) -> Result<Self, Error> {
        in_sequence(der, |parts| {
            let _version: UintRef<'_> = parts.decode()?;
            let modulus: UintRef<'_> = parts.decode()?;
            skip_rest(parts)?;
            Ok(PrivateKey::Rsa { modulus: modulus.as_bytes().to_vec() })
        })
    }

    /// Decodes an `ECPrivateKey` (RFC 5915).
    fn elliptic(der: &'a [u8]) -> Result<Self, Error> {
        in_sequence(der, |parts| {
            let _version: UintRef<'_> = parts.decode()?;
            let scalar: &'a OctetStringRef = parts.decode()?;
            let mut public = None;
            while !parts.is_finished() {
                let part: AnyRef<'_> = parts.decode()?;
                if matches!(part.tag(), Tag::ContextSpecific { number, .. } if number.value() == 1) {
                    public = BitString::from_der(part.value())?.as_bytes().map(<[u8]>::to_vec);
                }
            }
            Ok(PrivateKey::Ec { scalar: scalar.as_bytes(), public })
        })
    }

    /// Checks that this is the private key of a public key.
    fn check(&self, public: &SubjectPublicKeyInfoOwned) -> Result<(), KeyPairError> {
        let point = public.subject_public_key.as_bytes().unwrap_or_default();
        let matches = match (public.algorithm.oid, self) {
            (rfc5912::RSA_ENCRYPTION, PrivateKey::Rsa { modulus }) => {
                let found = in_sequence(point, |parts| {
                    let found: UintRef<'_> = parts.decode()?;
                    skip_rest(parts)?;
                    Ok(found.as_bytes() == modulus.as_slice())
                });
                found.map_err(|_| KeyPairError::MalformedCertificate)?
            }
            (rfc5912::ID_EC_PUBLIC_KEY, PrivateKey::Ec { scalar, public: known }) => {
                match signing_algorithm(&public.algorithm) {
                    Some(algorithm) => {
                        let rng = SystemRandom::new();
                        EcdsaKeyPair::from_private_key_and_public_key(algorithm, scalar, point, &rng).is_ok()
                    }
                    None => known.as_ref().is_none_or(|known| known == point),
                }
            }
            (rfc8410::ID_ED_25519, PrivateKey::Ed25519 { seed }) => {
                Ed25519KeyPair::from_seed_and_public_key(seed, point).is_ok()
            }
            (rfc5912::RSA_ENCRYPTION | rfc5912::ID_EC_PUBLIC_KEY | rfc8410::ID_ED_25519, _) => {
                return Err(KeyPairError::OtherKeyType);
            }
            _ => return Err(KeyPairError::UnknownPublicKey),
        };
        if matches { Ok(()) } else { Err(KeyPairError::Mismatch) }
    }
}

/// The curve of a public key; `None` if this server lacks it.
fn signing_algorithm(algorithm: &AlgorithmIdentifierOwned) -> Option<&'static EcdsaSigningAlgorithm> {
    match algorithm.parameters.as_ref()?.decode_as::<ObjectIdentifier>().ok()? {
        rfc5912::SECP_256_R_1 => Some(&ECDSA_P256_SHA256_ASN1_SIGNING),
        rfc5912::SECP_384_R_1 => Some(&ECDSA_P384_SHA384_ASN1_SIGNING),
        _ => None,
    }
}

/// Decodes a `OneAsymmetricKey` (PKCS #8, RFC 5958): the algorithm and the key.
fn wrapped(der: &[u8]) -> Result<(ObjectIdentifier, &[u8]), Error> {
    in_sequence(der, |parts| {
        let _version: UintRef<'_> = parts.decode()?;
        let algorithm: AlgorithmIdentifierOwned = parts.decode()?;
        let key: &OctetStringRef = parts.decode()?;
        skip_rest(parts)?;
        Ok((algorithm.oid, key.as_bytes()))
    })
}

/// Decodes the parts of one sequence.
fn in_sequence<'a, T>(
    der: &'a [u8],
    decode: impl FnOnce(&mut SliceReader<'a>) -> Result<T, Error>,
) -> Result<T, Error> {
    let sequence = AnyRef::from_der(der)?;
    if sequence.tag() != Tag::Sequence {
        return Err(Tag::Sequence.value_error().into());
    }
    decode(&mut SliceReader::new(sequence.value())?)
}

fn skip_rest(parts: &mut SliceReader<'_>) -> Result<(), Error> {
    while !parts.is_finished() {
        AnyRef::decode(parts)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Keys and certificates of OpenSSL.
    const RSA_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBcTCCARugAwIBAgIUEotEIHRaf7hrWsNXHu8aHbt5bI0wDQYJKoZIhvcNAQEL\n\
        BQAwDDEKMAgGA1UEAwwBYTAgFw0yNjExMzAwNjI0MzFaGA8yMTI2MTEwNjA2MjQz\n\
        MVowDDEKMAgGA1UEAwwBYTBcMA0GCSqGSIb3DQEBAQUAA0sAMEgCQQDSGx/YejKG\n\
        XjTQjcONkHm37MlasCyX7HspB4dxXIwQzmGh/KV50kDLY8oCfP2Dqzs6o4bRDkHt\n\
        /7WloumytgkNAgMBAAGjUzBRMB0GA1UdDgQWBBQ1x+Mr45VOCh3za4xBfj0McO8m\n\
        zzAfBgNVHSMEGDAWgBQ1x+Mr45VOCh3za4xBfj0McO8mzzAPBgNVHRMBAf8EBTAD\n\
        AQH/MA0GCSqGSIb3DQEBCwUAA0EA0BkdJwDmiFnWFHqnxrebXaM336BaOOE/pKNz\n\
        j1Qk+u7nhpnWX7uaHBXMUF2ykdz7oicIqXN52M/bSp9nEjJ4NA==\n\
        -----END CERTIFICATE-----";
    const RSA_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIIBVgIBADANBgkqhkiG9w0BAQEFAASCAUAwggE8AgEAAkEA0hsf2Hoyhl400I3D\n\
        jZB5t+zJWrAsl+x7KQeHcVyMEM5hofyledJAy2PKAnz9g6s7OqOG0Q5B7f+1paLp\n\
        srYJDQIDAQABAkEAsv4YqzuvP3mSVPnw1vF2QJKhF3lvBB6a7eFUKedGDCm6e9Pr\n\
        3pCDqiuJlo4GizNPY7bH/G6XyMYJr9mV/ACKoQIhAPX1EEFxfilPUqtu3bnWIlVe\n\
        aNCDCR12b9gSpQnVotbzAiEA2q9QpIHVh8p+2mmybOb4LXeMDf7U0Ek04lo6/ug7\n\
        n/8CIH5HhEEVdCDhiSBbm5t+RcJu5oGnxVZLKMFXUUTrWt/hAiEA0oQsXIED/rmH\n\
        jlhrw/xAcvx/XcWwNmYSu8fivRrwsx8CIQCBlPauyo3MF7AGC1YmbPy84fKdtu+5\n\
        LazH3zZkVKUM8w==\n\
        -----END PRIVATE KEY-----";
    const RSA_KEY_PKCS1: &str = "-----BEGIN RSA PRIVATE KEY-----\n\
        MIIBPAIBAAJBANIbH9h6MoZeNNCNw42QebfsyVqwLJfseykHh3FcjBDOYaH8pXnS\n\
        QMtjygJ8/YOrOzqjhtEOQe3/taWi6bK2CQ0CAwEAAQJBALL+GKs7rz95klT58Nbx\n\
        dkCSoRd5bwQemu3hVCnnRgwpunvT696Qg6oriZaOBoszT2O2x/xul8jGCa/ZlfwA\n\
        iqECIQD19RBBcX4pT1Krbt251iJVXmjQgwkddm/YEqUJ1aLW8wIhANqvUKSB1YfK\n\
        ftppsmzm+C13jA3+1NBJNOJaOv7oO5//AiB+R4RBFXQg4YkgW5ubfkXCbuaBp8VW\n\
        SyjBV1FE61rf4QIhANKELFyBA/65h45Ya8P8QHL8f13FsDZmErvH4r0a8LMfAiEA\n\
        gZT2rsqNzBewBgtWJmz8vOHynbbvuS2sx982ZFSlDPM=\n\
        -----END RSA PRIVATE KEY-----";
    const OTHER_RSA_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIIBVAIBADANBgkqhkiG9w0BAQEFAASCAT4wggE6AgEAAkEAulKLTmZkAz2LOtOX\n\
        7ZTWV4IdAxofxdg1u6eQ5vPxW3l3hwj9c9XX6MKJA7EsPnbE//HeLGXGhygm4WfB\n\
        WIb1KQIDAQABAkEAl4qBYR+oInaQ4iSswgA3IO9jl11NEEYc1eag1Sb9XC6YvrBK\n\
        2BRBmMZXINXLwBSatzvCCzo3qGQFv3oWdFemMQIhANyssixgwoTjPNh9jp0bRih1\n\
        C7X5WxwOw95V82H5vU0VAiEA2CYWbvtTU7o4cps27LldY2o0X3vTZ/4lAH3kd/fB\n\
        FMUCIDmyUXd26QTzoOH9mf8LtYE4cRJoGuEwHxgPou3X7R2tAiAoN54A9F5iu8l4\n\
        +YxUq4DG2KH6Ci4hsVXtK39xGvYgCQIgFJjJqK9a+xKL3u9BccUAb/wUNVXxY2iP\n\
        cSrgtL5TTy4=\n\
        -----END PRIVATE KEY-----";
    const P521_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIB9jCCAVigAwIBAgIUWJA55jh1w9JaL3ITTeQfrH6JMTYwCgYIKoZIzj0EAwIw\n\
        DDEKMAgGA1UEAwwBYTAgFw0yNjExMzAwNjIzMTZaGA8yMTI2MTEwNjA2MjMxNlow\n\
        DDEKMAgGA1UEAwwBYTCBmzAQBgcqhkjOPQIBBgUrgQQAIwOBhgAEAN8x8QOhwZeR\n\
        Opxr5Tl4Y9pWfhFwtdBqInkEzcI0WzFbKZBq2XG4nSjbAPZBNSt2sFBqtv5ZFbKx\n\
        MS+jCz+3MtkqAQdhW8FPsa3zbK7GnSiWWDOj2VMPcEMAgdepnvgy9ysAJByRE2Jp\n\
        /P+S77rAnBeVUsvdHE4pS/zz8alrcGUY6Tibo1MwUTAdBgNVHQ4EFgQUg7OCvC8l\n\
        aA/WKKe+NuuSu8KtAmAwHwYDVR0jBBgwFoAUg7OCvC8laA/WKKe+NuuSu8KtAmAw\n\
        DwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgOBiwAwgYcCQgFb7kq3RWIFA15N\n\
        1uWjsHrOhkeXUTKSYDAWtaVynPo3AlFOMFIc2eLfPnA5aKRXJj93JeLWQ5o6/okV\n\
        Y0GruGIuYQJBZ8IVxOcREbNEr5/OGsSexIPWdPGU6C+gRanrMkc9GtudvkUZSZcu\n\
        ltICfxsb7N4cZumV4IkaSNpu+sDCoRT9LqI=\n\
        -----END CERTIFICATE-----";
    const P521_KEY: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MIHcAgEBBEIBb1fbYzEMyn6Tf7tvxHT/ovtQ1kp3fBUZCriaUF18Cfc5ZLcWGx7b\n\
        g7ulIHiddmfVvw5gHWcaacuSbTgt6lHpcn+gBwYFK4EEACOhgYkDgYYABADfMfED\n\
        ocGXkTqca+U5eGPaVn4RcLXQaiJ5BM3CNFsxWymQatlxuJ0o2wD2QTUrdrBQarb+\n\
        WRWysTEvows/tzLZKgEHYVvBT7Gt82yuxp0ollgzo9lTD3BDAIHXqZ74MvcrACQc\n\
        kRNiafz/ku+6wJwXlVLL3RxOKUv88/Gpa3BlGOk4mw==\n\
        -----END EC PRIVATE KEY-----";
    const OTHER_P521_KEY: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MIHcAgEBBEIBoKxCYG7OUH/U0eoU+SiBIg3RKTd+l+oEdsL/zt2OPJW4b7/pnExa\n\
        e38fBxNkXjEDQ26TQITxOHy/PcnvaoyUX26gBwYFK4EEACOhgYkDgYYABAAPPklE\n\
        vbMdLccyvw7FsEq56L5+mA5MUzmh8jp3K54tNfAZ9ZRsSw+tZ9N2RKwLyKBay+tB\n\
        FKyCuvlhpNBKP52CHgFrpbqJVgFTY4+lKsu2qajOkJw2lEUmOxsRtYuAElPZ/GSi\n\
        QqPCi7S6DtBw12ZMnk1yMsNW8HIzFSLX3s2HIBfmeQ==\n\
        -----END EC PRIVATE KEY-----";
    const P256_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBcDCCARWgAwIBAgIUJQICMxbOpp9c4l7W5dWlMxA93HowCgYIKoZIzj0EAwIw\n\
        DDEKMAgGA1UEAwwBYTAgFw0yNjExMzAwNjIzNTZaGA8yMTI2MTEwNjA2MjM1Nlow\n\
        DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKJlBevf6icS\n\
        9rmLlcnfGRxfihEXugqa5F8TTIPl9hgfCvdYRvz7mpAkVWmwan/BiCOCUSWSlX2l\n\
        2Gj3s02Dhq+jUzBRMB0GA1UdDgQWBBRt8ziIZnh3Fsnjv8zGmNv7p2fTzzAfBgNV\n\
        HSMEGDAWgBRt8ziIZnh3Fsnjv8zGmNv7p2fTzzAPBgNVHRMBAf8EBTADAQH/MAoG\n\
        CCqGSM49BAMCA0kAMEYCIQCAjFPT2CrM0kHnYYKPZ7xpD/mSakb6ES4yzHOAWXtd\n\
        8wIhALuRpt1LEt8ofYMHtq7espcLo2j9STq5rBdnYCHIPjWC\n\
        -----END CERTIFICATE-----";
    const P256_KEY_SEC1: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MHcCAQEEIMhYMSlGw3PvEmi2IcoKf9cjnWTsU8nQvzhE7ih3jZNOoAoGCCqGSM49\n\
        AwEHoUQDQgAEomUF69/qJxL2uYuVyd8ZHF+KERe6CprkXxNMg+X2GB8K91hG/Pua\n\
        kCRVabBqf8GII4JRJZKVfaXYaPezTYOGrw==\n\
        -----END EC PRIVATE KEY-----";
    const X25519_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VuBCIEIJj8O7BqI6x31MOaDPdYvvdPQJMFua9cZUIqE0lhVk9P\n\
        -----END PRIVATE KEY-----";

    fn check(certificate: &str, key: &str, expected: Result<(), &str>) {
        let found = check_key_pair(certificate.as_bytes(), key.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{certificate}\n{key}");
    }

    #[test]
    fn malformed_blocks_and_empty_lines_are_skipped() {
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        let with_empty_line = RSA_CERTIFICATE.replace("-----END", "\n-----END");
        let crlf = RSA_CERTIFICATE.replace('\n', "\r\n");
        let other_end = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END OTHER-----\n";
        for certificate in [
            &format!("{broken}{RSA_CERTIFICATE}"),
            &format!("{RSA_CERTIFICATE}\n{broken}"),
            &format!("{other_end}{RSA_CERTIFICATE}"),
            &format!("a text\n-----BEGIN CERTIFICATE-----\nAAAA\n{RSA_CERTIFICATE}"),
            &with_empty_line,
            &crlf,
        ] {
            check(certificate, RSA_KEY, Ok(()));
        }
        check(broken, RSA_KEY, Err("tls: failed to find any PEM data in certificate input"));
    }

    #[test]
    fn number_of_read_blocks_is_limited() {
        let other = "-----BEGIN OTHER-----\nAAAA\n-----END OTHER-----\n";
        check(&format!("{}{RSA_CERTIFICATE}", other.repeat(BLOCKS_MAX - 1)), RSA_KEY, Ok(()));
        let input = format!("{}{RSA_CERTIFICATE}", other.repeat(BLOCKS_MAX));
        assert!(check_key_pair(input.as_bytes(), RSA_KEY.as_bytes()).is_err());
    }

    #[test]
    fn certificate_and_its_private_key_are_a_key_pair() {
        check(RSA_CERTIFICATE, RSA_KEY, Ok(()));
        check(RSA_CERTIFICATE, RSA_KEY_PKCS1, Ok(()));
        check(P256_CERTIFICATE, P256_KEY_SEC1, Ok(()));
        check(P521_CERTIFICATE, P521_KEY, Ok(()));
        // Only the first certificate and the first key count, and other blocks are skipped.
        let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        check(
            &format!("a chain:\n{P256_CERTIFICATE}\n{RSA_CERTIFICATE}"),
            &format!("{parameters}{P256_KEY_SEC1}"),
            Ok(()),
        );
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let key = || rcgen::KeyPair::generate_for(algorithm).unwrap();
            let (own, other) = (key(), key());
            let params = rcgen::CertificateParams::new(vec!["example.com".to_owned()]).unwrap();
            let certificate = params.self_signed(&own).unwrap().pem();
            check(&certificate, &own.serialize_pem(), Ok(()));
            check(&certificate, &other.serialize_pem(), Err("tls: private key does not match public key"));
            check(&certificate, RSA_KEY, Err("tls: private key type does not match public key type"));
        }
    }

    #[test]
    fn key_pair_errors_equal_those_of_go() {
        check(RSA_CERTIFICATE, OTHER_RSA_KEY, Err("tls: private key does not match public key"));
        check(P521_CERTIFICATE, OTHER_P521_KEY, Err("tls: private key does not match public key"));
        check(P521_CERTIFICATE, P256_KEY_SEC1, Err("tls: private key does not match public key"));
        check(P256_CERTIFICATE, P521_KEY, Err("tls: private key does not match public key"));
        check(RSA_CERTIFICATE, P256_KEY_SEC1, Err("tls: private key type does not match public key type"));
        check("", "", Err("tls: failed to find any PEM data in certificate input"));
        check(RSA_CERTIFICATE, "x", Err("tls: failed to find any PEM data in key input"));
        check(
            RSA_KEY,
            RSA_CERTIFICATE,
            Err(
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
            ),
        );
        check(
            RSA_CERTIFICATE,
            RSA_CERTIFICATE,
            Err("tls: found a certificate rather than a key in the PEM for the private key"),
        );
        let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        let others = block("A B") + &block("NOPRIVATE KEY");
        check(
            &others,
            RSA_KEY,
            Err(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [A B NOPRIVATE KEY]",
            ),
        );
        check(
            RSA_CERTIFICATE,
            &others,
            Err(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [A B NOPRIVATE KEY]",
            ),
        );
        check(&block("CERTIFICATE"), RSA_KEY, Err("x509: malformed certificate"));
        check(RSA_CERTIFICATE, &block("PRIVATE KEY"), Err("tls: failed to parse private key"));
        check(RSA_CERTIFICATE, X25519_KEY, Err("tls: found unknown private key type in PKCS#8 wrapping"));
    }
}
