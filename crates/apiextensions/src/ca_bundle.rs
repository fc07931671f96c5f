//! Checks the CA bundle of a conversion webhook: [`ca_bundle_error`].
//!
//! Source: apiserver `pkg/util/webhook/validation.go`, `ValidateCABundle`; client-go `transport/transport.go`,
//! `rootCertPool` and `createErrorParsingCAData`; Go's `encoding/pem`, `Decode`.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// A decoder that ignores the unused bits of the last character, like Go's.
const GO_BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";

/// Returns the reason why a CA bundle (PEM in base64) cannot be used. `None` for an absent bundle, and for one with at
/// least one certificate.
pub(crate) fn ca_bundle_error(encoded: &str) -> Option<String> {
    const NO_BLOCK: &str = "unable to parse bytes as PEM block";
    let Some(pem) = decoded(encoded.as_bytes(), b"\r\n") else { return Some(unusable(NO_BLOCK)) };
    if pem.is_empty() {
        return None;
    }
    let mut rest = pem.as_slice();
    let mut why = None;
    while !rest.is_empty() {
        let Some(block) = next_block(rest) else {
            why = why.or(Some(NO_BLOCK));
            break;
        };
        rest = block.rest;
        if block.kind != b"CERTIFICATE" || block.has_headers {
            continue;
        }
        if Certificate::from_der(&block.bytes).is_ok() {
            return None;
        }
        why = why.or(Some("failed to parse certificate: x509: malformed certificate"));
    }
    Some(unusable(why.unwrap_or("no valid certificate authority data seen")))
}

fn unusable(why: &str) -> String {
    format!("unable to load root certificates: {why}")
}

/// Decodes base64 without the bytes in `ignored`.
fn decoded(text: &[u8], ignored: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !ignored.contains(byte)).collect();
    GO_BASE64.decode(text).ok()
}

/// A block of PEM.
struct Block<'p> {
    kind: &'p [u8],
    has_headers: bool,
    bytes: Vec<u8>,
    /// The text behind the block.
    rest: &'p [u8],
}

/// Finds the next well-formed block. Malformed blocks before it are skipped, so a broken certificate does not hide the
/// others. The time is linear, because each step continues behind the end line of the previous one.
fn next_block(pem: &[u8]) -> Option<Block<'_>> {
    let mut text = pem;
    loop {
        let end = text.windows(END.len()).position(|window| window == END)?;
        let behind = text.get(end + END.len()..)?;
        // The line break of the end line also ends the line above it.
        if let Some(block) = block(text.get(..=end)?, behind) {
            return Some(block);
        }
        text = behind;
    }
}

/// Reads the block before an end line. `before` is the text up to that line, `behind` the text from its kind on.
fn block<'p>(before: &'p [u8], behind: &'p [u8]) -> Option<Block<'p>> {
    // A beginning without an end is skipped.
    let begin = before.windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    if begin.checked_sub(1).is_some_and(|at| before.get(at) != Some(&b'\n')) {
        return None;
    }
    let (first, mut body) = line(before.get(begin + BEGIN.len()..)?);
    let kind = first.strip_suffix(DASHES)?;
    let mut has_headers = false;
    while !body.is_empty() {
        let (header, next) = line(body);
        if !header.contains(&b':') {
            break;
        }
        (has_headers, body) = (true, next);
    }
    let (garbage, rest) = line(behind.strip_prefix(kind)?.strip_prefix(DASHES)?);
    if !garbage.is_empty() {
        return None;
    }
    let bytes = decoded(body, b" \t\r\n")?;
    Some(Block { kind, has_headers, bytes, rest })
}

/// Splits off a line. Its end and the blanks before it are removed.
fn line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n');
    let (line, rest) = end.and_then(|at| text.split_at_checked(at)).unwrap_or((text, &[]));
    let mut line = line.strip_suffix(b"\r").unwrap_or(line);
    while let [shorter @ .., b' ' | b'\t'] = line {
        line = shorter;
    }
    (line, rest.strip_prefix(b"\n").unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;

    /// A certificate authority with a key of P-256: the lines between the first and the last one.
    const CERTIFICATE: &str = "\
MIIBcjCCARegAwIBAgIUTa/NqalyVeE5bVXjo3xnQmO0rm8wCgYIKoZIzj0EAwIw\n\
DTELMAkGA1UEAwwCY2EwIBcNMjYxMTMwMDA0NTMzWhgPMjEyNjExMDYwMDQ1MzNa\n\
MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEKXiSfNC6\n\
cV3ClF6RIAmabBaSkteZTvvgNiaR12wYf09AoDGTSHXKADgPRLyOzXDRr86E/vWt\n\
pZFTVbvEV7Z+qKNTMFEwHQYDVR0OBBYEFM/OyE2/THY0iknotTmWOSdnaNU7MB8G\n\
A1UdIwQYMBaAFM/OyE2/THY0iknotTmWOSdnaNU7MA8GA1UdEwEB/wQFMAMBAf8w\n\
CgYIKoZIzj0EAwIDSQAwRgIhAPTKe3dOZgO4/kEnhq3MaDqYf3f6iS79bgWZgXVS\n\
vEExAiEAxYCXrZp4KpWlVJtb0D5FsJ5RQH4dt63S93eIEotzKnM=";

    fn block_of(kind: &str, body: &str) -> String {
        format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n")
    }

    #[test]
    fn ca_bundle_with_one_certificate_is_usable_whatever_else_it_contains() {
        let good = block_of("CERTIFICATE", CERTIFICATE);
        for pem in [
            good.clone(),
            good.trim_end().to_owned(),
            good.replace('\n', "\r\n"),
            good.replace('\n', " \t\n"),
            format!("a comment\n{good}another"),
            format!("{}{good}", block_of("CERTIFICATE", "!!!!")),
            format!("{good}{}", block_of("CERTIFICATE", "!!!!")),
            format!("{}{good}", block_of("CERTIFICATE", "AAAA")),
            format!("{}{good}", block_of("PRIVATE KEY", "AAAA")),
            format!("{}{good}", block_of("CERTIFICATE", "A: b\n\nAAAA")),
            format!("-----BEGIN CERTIFICATE-----\nAAAA\n{good}"),
            format!("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n{good}"),
            format!("-----BEGIN A-----\nAAAA\n-----END B-----\n{good}"),
            format!("-----BEGIN A\nAAAA\n-----END A-----\n{good}"),
        ] {
            assert_eq!(ca_bundle_error(&BASE64.encode(&pem)), None, "{pem}");
        }
    }

    #[test]
    fn ca_bundle_without_a_certificate_has_the_error_of_client_go() {
        const NO_BLOCK: &str = "unable to parse bytes as PEM block";
        const MALFORMED: &str = "failed to parse certificate: x509: malformed certificate";
        const NO_CERTIFICATE: &str = "no valid certificate authority data seen";
        for (pem, why) in [
            ("text".to_owned(), NO_BLOCK),
            (block_of("CERTIFICATE", "!!!!"), NO_BLOCK),
            (format!("x{}", block_of("CERTIFICATE", CERTIFICATE)), NO_BLOCK),
            (block_of("CERTIFICATE", "AAAA"), MALFORMED),
            (format!("{}text", block_of("CERTIFICATE", "AAAA")), MALFORMED),
            (block_of("CERTIFICATE", ""), MALFORMED),
            (block_of("PRIVATE KEY", "AAAA"), NO_CERTIFICATE),
            (format!("{}text", block_of("PRIVATE KEY", "AAAA")), NO_BLOCK),
            (block_of("CERTIFICATE", &format!("A: b\n\n{CERTIFICATE}")), NO_CERTIFICATE),
        ] {
            assert_eq!(ca_bundle_error(&BASE64.encode(&pem)), Some(unusable(why)), "{pem}");
        }
    }

    #[test]
    fn base64_of_a_ca_bundle_is_read_as_in_go() {
        let mut pem = block_of("CERTIFICATE", CERTIFICATE);
        while pem.len() % 3 != 1 {
            pem.push('\n');
        }
        let encoded = BASE64.encode(&pem);
        let lines: Vec<_> = encoded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        for separator in ["\n", "\r\n"] {
            assert_eq!(ca_bundle_error(&lines.join(separator)), None, "{separator:?}");
        }
        let with_unused_bits = encoded.replace("Cg==", "Ch==");
        assert_ne!(with_unused_bits, encoded);
        assert_eq!(ca_bundle_error(&with_unused_bits), None);
        for (encoded, is_usable) in [("", true), ("\n", true), ("!", false)] {
            assert_eq!(ca_bundle_error(encoded).is_none(), is_usable, "{encoded:?}");
        }
    }

    #[test]
    fn large_ca_bundle_of_malformed_blocks_is_read_to_its_end() {
        for part in ["-----BEGIN A-----\n", "\n-----END A-----", "-----BEGIN A-----\nA:\n-----END B-----\n", "A:\n"] {
            let pem = format!("-----BEGIN A-----\n{}", part.repeat((1 << 20) / part.len()));
            assert!(ca_bundle_error(&BASE64.encode(pem)).is_some(), "{part:?}");
        }
    }
}
