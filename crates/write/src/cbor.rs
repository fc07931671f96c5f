//! Converts CBOR bodies to JSON before a write begins, and charges the work to the fuel of the write.

use bytes::Bytes;
use listwatch_meta::{Status, fuel};
use listwatch_wire::{cbor, media_type};

use super::memory::bytes_max as document_bytes_max;
use super::request::WriteRequest;

/// Maximum bytes of JSON per byte of CBOR. In the worst case, a time of 2 bytes becomes 23 bytes of text.
const JSON_BYTES_PER_BYTE: usize = 12;

/// Bytes of CBOR converted per unit of fuel. Work beyond this estimate is charged by elapsed time.
const CBOR_BYTES_PER_UNIT: usize = 4;

/// Returns the media type of a CBOR body after its conversion to JSON; `None` for other media types.
fn json_type(content_type: Option<&str>) -> Option<&'static str> {
    match content_type?.split(';').next()?.trim() {
        media_type::CBOR => Some("application/json"),
        "application/apply-patch+cbor" => Some("application/apply-patch+yaml"),
        _ => None,
    }
}

/// Converts a CBOR body to JSON. Returns requests of other media types unchanged.
///
/// # Errors
/// 400 when the body is not valid CBOR, 504 when the fuel runs out.
pub fn to_json(request: WriteRequest<'_>) -> Result<WriteRequest<'_>, Status> {
    let Some(json_type) = json_type(request.content_type) else { return Ok(request) };
    let body = Bytes::from(convert(&request.body)?);
    Ok(WriteRequest { content_type: Some(json_type), body, ..request })
}

fn convert(body: &[u8]) -> Result<Vec<u8>, Status> {
    if !fuel::charge_bytes(body.len(), CBOR_BYTES_PER_UNIT) {
        return Err(Status::request_timed_out());
    }
    let decoded = fuel::timed(|| cbor::decode(body)).ok_or_else(Status::request_timed_out)?;
    decoded.map_err(|error| Status::bad_request(format!("error decoding CBOR: {error}")))
}

/// Returns the maximum bytes of memory that a body of `body_bytes` bytes may take after parsing.
pub fn parsed_bytes_max(content_type: Option<&str>, body_bytes: usize) -> usize {
    match json_type(content_type) {
        None => document_bytes_max(body_bytes),
        Some(_) => {
            let json_bytes = body_bytes.saturating_mul(JSON_BYTES_PER_BYTE);
            document_bytes_max(json_bytes).saturating_add(json_bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::fuel::Tank;

    use super::*;

    #[test]
    fn cbor_body_becomes_at_most_twelve_times_its_bytes_of_json() {
        // One item each: a time, control characters, a simple value, numbers with large exponents, bytes as text.
        for item in [
            &[0xc1, 0x00][..],
            &[
                0x78, 0x20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1,
            ],
            &[0xf4],
            &[0xf9, 0x00, 0x01],
            &[0xfa, 0x00, 0x00, 0x00, 0x01],
            &[0x60],
            &[0x00],
            &[0xd7, 0x44, 1, 2, 3, 4],
        ] {
            let count = 1_000u16;
            let mut body = vec![0x99];
            body.extend(count.to_be_bytes());
            (0..count).for_each(|_| body.extend_from_slice(item));
            let json = cbor::decode(&body).unwrap();
            assert!(json.len() <= body.len() * JSON_BYTES_PER_BYTE, "{item:?}: {} of {}", json.len(), body.len());
        }
    }

    #[test]
    fn cbor_conversion_charges_fuel_and_times_out_when_fuel_runs_out() {
        let mut body = vec![0x9a, 0, 1, 0, 0];
        body.resize(5 + (1 << 16), 0xf4);
        let mut tank = Tank::new(16_000);
        assert_eq!(tank.run(|| convert(&body)), Err(Status::request_timed_out()));
        assert!(tank.is_exhausted());
        let mut tank = Tank::new(200_000_000);
        assert_eq!(tank.run(|| convert(&body)).map(|json| json.len()), Ok(1 + 6 * (1 << 16)));
        let left = tank.run(fuel::left);
        assert!(left.is_some_and(|left| left < 200_000_000 - 16_384), "{left:?}");
    }

    #[test]
    fn memory_limit_of_cbor_body_includes_its_json() {
        assert_eq!(parsed_bytes_max(Some("application/json"), 1_000), document_bytes_max(1_000));
        assert_eq!(parsed_bytes_max(None, 1_000), document_bytes_max(1_000));
        for cbor in ["application/cbor", "application/cbor; charset=x", "application/apply-patch+cbor"] {
            assert_eq!(parsed_bytes_max(Some(cbor), 1_000), document_bytes_max(12_000) + 12_000, "{cbor}");
        }
    }
}
