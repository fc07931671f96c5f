//! Answers as YAML: the JSON document, read once and printed the other way.

use bytes::Bytes;
use listwatch_meta::Status;

/// The YAML form of a JSON document.
///
/// # Errors
/// 500 when the document is no JSON, which would be this server's fault.
pub(crate) fn from_json(json: &[u8]) -> Result<Bytes, Status> {
    let document: serde_json::Value = serde_json::from_slice(json).map_err(Status::internal)?;
    let yaml = yaml_serde::to_string(&document).map_err(Status::internal)?;
    Ok(yaml.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_something_else_stays_a_string() {
        let json = br#"{"a":{"b":["true","1","x: y",1,null,""]}}"#;
        let yaml = from_json(json).unwrap();
        let back: serde_json::Value = yaml_serde::from_slice(&yaml).unwrap();
        assert_eq!(back, serde_json::from_slice::<serde_json::Value>(json).unwrap());
        assert!(from_json(b"{").is_err());
    }
}
