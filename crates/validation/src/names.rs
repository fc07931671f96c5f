//! Validates object names, and generates names from `generateName`.
//!
//! Rules and texts: `apimachinery/pkg/api/validation/name.go`, `pkg/util/validation`,
//! `pkg/storage/names/generate.go`.

use listwatch_meta::selector::{dns_1035_label_problems, dns_label_problems, dns_subdomain_problems};

/// The length of `generateName` in bytes after truncation, before the random suffix is appended.
const GENERATED_BASE_BYTES_MAX: usize = 58;
/// The number of characters of the random suffix.
const GENERATED_END_CHARS: usize = 5;
/// The characters of the random suffix: no vowels and no similar characters, so that the suffix
/// forms no words.
const GENERATED_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The validation rule for the names of a resource (`apimachinery/pkg/api/validation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain: most kinds.
    Subdomain,
    /// RFC 1123 label: namespaces.
    Label,
    /// RFC 1035 label: services.
    Rfc1035Label,
    /// One path element: RBAC kinds.
    PathSegment,
    /// An IP address in canonical notation: IPAddress.
    Address,
}

/// The problems of a name, in apimachinery's words; empty if it is valid. `prefix` is true for
/// `generateName`, because a suffix follows.
pub fn problems(rule: NameRule, name: &str, prefix: bool) -> Vec<String> {
    let masked;
    let name = if prefix && name.len() > 1 && name.ends_with('-') {
        // A generated suffix follows, so a trailing dash is valid.
        masked = format!("{}a", &name[..name.len() - 1]);
        &masked
    } else {
        name
    };
    match rule {
        NameRule::Subdomain => dns_subdomain_problems(name),
        NameRule::Label => dns_label_problems(name),
        NameRule::Rfc1035Label => dns_1035_label_problems(name),
        NameRule::PathSegment => path_segment(name, prefix),
        NameRule::Address => crate::formats::strict_ip_problems(name),
    }
}

/// The problems of a name that must be an RFC 1123 subdomain.
pub fn dns_subdomain(name: &str) -> Vec<String> {
    problems(NameRule::Subdomain, name, false)
}

/// Validates the rule for the names of all kinds: one element of a path.
fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    let mut problems = Vec::new();
    if !prefix && (name == "." || name == "..") {
        problems.push(format!("may not be '{name}'"));
    }
    for illegal in ["/", "%"] {
        if name.contains(illegal) {
            problems.push(format!("may not contain '{illegal}'"));
        }
    }
    problems
}

/// Generates a name from `generateName`. `random` returns numbers below its argument.
pub fn generate(base: &str, mut random: impl FnMut(usize) -> usize) -> String {
    let mut end = base.len().min(GENERATED_BASE_BYTES_MAX);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = String::with_capacity(end + GENERATED_END_CHARS);
    name.push_str(&base[..end]);
    name.extend((0..GENERATED_END_CHARS).map(|_| char::from(GENERATED_ALPHABET[random(GENERATED_ALPHABET.len())])));
    name
}

/// The problems of a key in a ConfigMap or Secret (`IsConfigMapKey`).
pub fn config_map_key_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if key.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(fine) {
        problems.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    match key {
        "." => problems.push("must not be '.'".to_owned()),
        ".." => problems.push("must not be '..'".to_owned()),
        key if key.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: NameRule, name: &str, prefix: bool, fine: bool) {
        assert_eq!(problems(rule, name, prefix).is_empty(), fine, "{rule:?} {name:?} prefix={prefix}");
    }

    #[test]
    fn names_are_validated_by_the_rule_of_their_kind() {
        use NameRule::{Label, PathSegment, Rfc1035Label, Subdomain};
        for (rule, name, fine) in [
            (Subdomain, "web-1.example", true),
            (Subdomain, "9", true),
            (Subdomain, "Web", false),
            (Subdomain, "web_1", false),
            (Subdomain, "-web", false),
            (Subdomain, "web-", false),
            (Subdomain, &"a".repeat(254), false),
            (Label, "web-1", true),
            (Label, "web.1", false),
            (Label, &"a".repeat(64), false),
            (Rfc1035Label, "web-1", true),
            (Rfc1035Label, "1-web", false),
            (Rfc1035Label, "web-", false),
            (Rfc1035Label, "", false),
            (Rfc1035Label, &"a".repeat(64), false),
            (Rfc1035Label, "äb", false),
            (PathSegment, "system:node:X", true),
            (PathSegment, "a/b", false),
            (PathSegment, "a%2fb", false),
            (PathSegment, "..", false),
        ] {
            check(rule, name, false, fine);
        }
        check(Subdomain, "web-", true, true);
        check(Subdomain, "Web-", true, false);
        check(PathSegment, "..", true, true);
    }

    #[test]
    fn generated_name_is_truncated_and_gets_a_random_suffix() {
        assert_eq!(generate("web-", |_| 0), "web-bbbbb");
        assert_eq!(generate("web-", |below| below - 1), "web-99999");
        assert_eq!(generate(&"a".repeat(100), |_| 0).len(), 63);
        assert_eq!(generate(&"ä".repeat(100), |_| 0).len(), 63);
        assert_eq!(generate(&format!("a{}", "ä".repeat(100)), |_| 0).len(), 62);
    }
}
