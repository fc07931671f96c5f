//! Warnings about secrets.
//!
//! Source: `warningsForSecret` in `pkg/registry/core/secret/strategy.go`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::fuel;
use listwatch_validation::{Object, child, text};

use crate::Warnings;
use crate::key_pair::check_key_pair;

/// The largest certificate or private key that is checked, in bytes of base64. A larger one gets no warning.
const CHECKED_BYTES_MAX: usize = 128 * 1024;

/// The number of bytes that are decoded for one unit of fuel.
const BYTES_PER_UNIT: usize = 16;

/// Warns about a certificate and a private key that do not belong together. Charges fuel.
pub fn of_secret(secret: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    if text(secret, "type") != "kubernetes.io/tls" {
        return;
    }
    let data = child(secret, "data");
    let (certificate, key) = (text(data, "tls.crt"), text(data, "tls.key"));
    if certificate.len().max(key.len()) > CHECKED_BYTES_MAX
        || !fuel::charge_bytes(certificate.len() + key.len(), BYTES_PER_UNIT)
    {
        return;
    }
    let decoded = |text: &str| BASE64.decode(text).unwrap_or_default();
    if let Err(problem) = check_key_pair(&decoded(certificate), &decoded(key)) {
        warnings.add(format_args!("{problem}"));
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;

    #[test]
    fn tls_secret_without_a_key_pair_has_a_warning() {
        let check = |type_: &str, certificate: &str, key: &str, expected: &[&str]| {
            let data = json!({"tls.crt": BASE64.encode(certificate), "tls.key": BASE64.encode(key)});
            let mut found = Warnings::default();
            let Value::Object(secret) = json!({"type": type_, "data": data}) else { unreachable!() };
            of_secret(&secret, None, &mut found);
            assert_eq!(Vec::from(found), expected, "{type_}");
        };
        let own = rcgen::KeyPair::generate().unwrap();
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&own).unwrap().pem();
        check("kubernetes.io/tls", &certificate, &own.serialize_pem(), &[]);
        check("kubernetes.io/tls", &certificate, &other, &["tls: private key does not match public key"]);
        check("kubernetes.io/tls", "", "", &["tls: failed to find any PEM data in certificate input"]);
        check("Opaque", &certificate, &other, &[]);
        let large = "x".repeat(CHECKED_BYTES_MAX);
        check("kubernetes.io/tls", &large, &large, &[]);
    }
}
