//! Tests the public API of the crate: golden envelopes, configurations, rotation, damaged values.

mod config;
mod envelopes;

use std::fmt::Write as _;

use listwatch_at_rest::Encryption;

/// Parses a configuration; each rule is (resources, providers in flow style).
fn encryption(rules: &[(&str, &[&str])]) -> Encryption {
    Encryption::parse("test.yaml", yaml(rules).as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn yaml(rules: &[(&str, &[&str])]) -> String {
    let mut text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n".to_owned();
    for (resources, providers) in rules {
        let _ = writeln!(text, "- resources: [{resources}]\n  providers:");
        providers.iter().for_each(|provider| text.push_str(&format!("  - {provider}\n")));
    }
    text
}

/// A provider in flow style, with keys of `bytes` bytes: name and first byte.
fn provider(name: &str, bytes: u8, keys: &[(&str, u8)]) -> String {
    use base64::Engine as _;
    let key = |(name, first): &(&str, u8)| {
        let secret: Vec<u8> = (0..bytes).map(|at| first.wrapping_add(at)).collect();
        format!("{{name: {name:?}, secret: {:?}}}", base64::engine::general_purpose::STANDARD.encode(secret))
    };
    let keys: Vec<String> = keys.iter().map(key).collect();
    format!("{name}: {{keys: [{}]}}", keys.join(", "))
}

const IDENTITY: &str = "identity: {}";
