//! Certificate signing requests as they come: PEM around DER, signed by the key they are for (PKCS #10,
//! RFC 2986). Read as far as a server has to: is it one, is its signature its own, and for which
//! organizations is it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::crypto::ring;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The attribute of a name that says an organization, 2.5.4.10.
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// RSA keys of less than 2048 bits are shorter than this, and are not checked here.
const RSA_KEY_BYTES_MIN: usize = 256;
/// `rsaEncryption`, as the content of an algorithm identifier begins with it.
const RSA: [u8; 11] = [OBJECT_IDENTIFIER, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// Checks a request.
///
/// # Errors
/// Why it is none, in Go's words where those do not depend on its parser.
pub(super) fn check(pem: &[u8]) -> Result<(), String> {
    Request::parse(&der(pem)?).ok_or("asn1: structure error: malformed certificate request")?.check_signature()
}

/// The organizations that the subject of a request names; none, where it cannot be read.
pub(super) fn organizations(pem: &[u8]) -> Vec<String> {
    let Ok(der) = der(pem) else { return Vec::new() };
    let Some(request) = Request::parse(&der) else { return Vec::new() };
    // A name is a sequence of sets of attributes, and those are pairs of a type and a value.
    let attributes = elements(request.subject).flat_map(|set| elements(set.content));
    attributes
        .filter_map(|attribute| {
            let mut pair = elements(attribute.content);
            let (kind, value) = (pair.next()?, pair.next()?);
            (kind.content == ORGANIZATION).then(|| String::from_utf8_lossy(value.content).into_owned())
        })
        .collect()
}

fn der(pem: &[u8]) -> Result<Vec<u8>, String> {
    match blocks(pem).next() {
        Some((label, der)) if label == "CERTIFICATE REQUEST" => Ok(der),
        _ => Err("PEM block type must be CERTIFICATE REQUEST".to_owned()),
    }
}

/// A block of PEM: lines of 64 characters, as Go writes them.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    const LINE_CHARS: usize = 64;
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = BASE64.encode(der);
    for at in (0..encoded.len()).step_by(LINE_CHARS) {
        text.push_str(&encoded[at..encoded.len().min(at + LINE_CHARS)]);
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// The tag and the content of the value that some bytes begin with, and the bytes behind it.
pub(crate) fn der_element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    element(bytes).map(|found| (found.tag, found.content, found.rest))
}

/// The blocks of a PEM text, by their labels. What is no block is passed over.
pub(crate) fn blocks(pem: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    let text = String::from_utf8_lossy(pem).into_owned();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = &text[at..];
            let begin = rest.find("-----BEGIN ")? + "-----BEGIN ".len();
            let (label, body) = rest[begin..].split_once("-----")?;
            let end = format!("-----END {label}-----");
            let length = body.find(&end)?;
            at = text.len() - body.len() + length + end.len();
            let encoded: String = body[..length].chars().filter(|c| !c.is_ascii_whitespace()).collect();
            if let Ok(der) = BASE64.decode(encoded) {
                return Some((label.to_owned(), der));
            }
        }
    })
}

/// One value of DER.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// With its head.
    whole: &'a [u8],
    rest: &'a [u8],
}

/// The value that some bytes begin with.
pub(super) fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (tag, length) = (*bytes.first()?, *bytes.get(1)?);
    let (length, head) = match length {
        0..=0x7f => (usize::from(length), 2),
        0x81..=0x84 => {
            let digits = usize::from(length & 0x7f);
            let length = bytes.get(2..2 + digits)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, 2 + digits)
        }
        _ => return None,
    };
    let end = head.checked_add(length)?;
    Some(Element { tag, content: bytes.get(head..end)?, whole: bytes.get(..end)?, rest: bytes.get(end..)? })
}

fn elements(bytes: &[u8]) -> impl Iterator<Item = Element<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let found = element(rest)?;
        rest = found.rest;
        Some(found)
    })
}

/// A request, taken apart.
struct Request<'a> {
    /// What is signed.
    signed: &'a [u8],
    subject: &'a [u8],
    key_algorithm: &'a [u8],
    key: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(der: &'a [u8]) -> Option<Self> {
        let tagged = |found: Option<Element<'a>>, tag: u8| found.filter(|found| found.tag == tag);
        // The first byte of a bit string says how many bits of the last are none: here all are some.
        let bits = |found: Option<Element<'a>>| tagged(found, BIT_STRING)?.content.strip_prefix(&[0]);
        let outer = tagged(element(der), SEQUENCE).filter(|outer| outer.rest.is_empty())?;
        let mut parts = elements(outer.content);
        let info = tagged(parts.next(), SEQUENCE)?;
        let (algorithm, signature) = (tagged(parts.next(), SEQUENCE)?, bits(parts.next())?);
        let mut fields = elements(info.content);
        tagged(fields.next(), INTEGER)?;
        let subject = tagged(fields.next(), SEQUENCE)?;
        let mut key = elements(tagged(fields.next(), SEQUENCE)?.content);
        let (key_algorithm, key) = (tagged(key.next(), SEQUENCE)?, bits(key.next())?);
        Some(Request {
            signed: info.whole,
            subject: subject.content,
            key_algorithm: key_algorithm.content,
            key,
            algorithm: algorithm.content,
            signature,
        })
    }

    /// Is the signature that of the key? One by an algorithm that this server does not have is believed:
    /// whoever signs the certificate checks it anyway.
    fn check_signature(&self) -> Result<(), String> {
        let rsa = self.key_algorithm.starts_with(&RSA);
        if rsa && self.key.len() < RSA_KEY_BYTES_MIN {
            return Ok(());
        }
        let known = ring::default_provider().signature_verification_algorithms.all;
        let mut fitting = known.iter().filter(|known| {
            known.public_key_alg_id().as_ref() == self.key_algorithm
                && known.signature_alg_id().as_ref() == self.algorithm
        });
        match fitting.next() {
            Some(known) => known
                .verify_signature(self.key, self.signed, self.signature)
                .map_err(
                    |_| if rsa { "crypto/rsa: verification error" } else { "x509: signature verification failure" },
                )
                .map_err(str::to_owned),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A request in PEM.
    pub(in crate::write) fn request(organization: &str) -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        params.distinguished_name.push(rcgen::DnType::CommonName, "bob");
        params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[test]
    fn a_request_is_signed_by_its_own_key() {
        let pem = request("dev");
        assert_eq!(check(pem.as_bytes()), Ok(()));
        assert_eq!(organizations(pem.as_bytes()), ["dev"]);
        let (label, der) = blocks(pem.as_bytes()).next().unwrap();
        assert_eq!(label, "CERTIFICATE REQUEST");
        let armoured = |label: &str, der: &[u8]| {
            format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der))
        };
        for at in 0..der.len() {
            let mut broken = der.clone();
            broken[at] ^= 1;
            // Every byte is either structure or signed, but for the identifier of the algorithm: one that
            // nobody knows is believed.
            let found = check(armoured("CERTIFICATE REQUEST", &broken).as_bytes());
            let algorithm = Request::parse(&broken).is_some_and(|found| {
                let good = Request::parse(&der).unwrap();
                found.algorithm != good.algorithm || found.key_algorithm != good.key_algorithm
            });
            assert!(found.is_err() || algorithm, "byte {at} may be changed");
        }
        for cut in 0..der.len() {
            let short = armoured("CERTIFICATE REQUEST", &der[..cut]);
            assert!(check(short.as_bytes()).is_err(), "a request of {cut} bytes is one");
        }
        let wrong = Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
        assert_eq!(check(b"hello"), wrong);
        assert_eq!(check(armoured("CERTIFICATE", &der).as_bytes()), wrong);
    }
}
