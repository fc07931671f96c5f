//! References of container images, e.g. `registry.example.com:5000/team/app:1.2@sha256:…`.
//!
//! Source: `ParseImageName` in `pkg/util/parsers/parsers.go`, which calls `ParseNormalizedNamed` of
//! `github.com/distribution/reference`.

/// The largest size of the path of a repository, in bytes.
const PATH_BYTES_MAX: usize = 255;
/// The largest size of a tag, in bytes.
const TAG_BYTES_MAX: usize = 128;
const DOCKER_HUB: &str = "docker.io";
/// The repository of images of Docker Hub without a path.
const OFFICIAL: &str = "library/";

/// Whether an image has the tag `latest`, or neither tag nor digest, which means `latest`. A reference that does not
/// parse has no tag.
pub fn is_latest(image: &str) -> bool {
    parse(image).is_some_and(|(tag, digest)| tag.map_or(digest.is_none(), |tag| tag == "latest"))
}

/// Parses a reference: its tag and its digest. Returns `None` for an invalid reference.
fn parse(image: &str) -> Option<(Option<&str>, Option<&str>)> {
    if image.len() == 64 && is_lower_hex(image) {
        // The text is the identifier of an image.
        return None;
    }
    let (domain, remainder) = match image.split_once('/') {
        None => (DOCKER_HUB, image),
        Some(("index.docker.io", rest)) => (DOCKER_HUB, rest),
        Some((domain, rest))
            if domain == "localhost" || domain.contains(['.', ':']) || domain.chars().any(char::is_uppercase) =>
        {
            (domain, rest)
        }
        Some(_) => (DOCKER_HUB, image),
    };
    let is_official = domain == DOCKER_HUB && !remainder.contains('/');
    let (name, digest) = match remainder.split_once('@') {
        Some((name, digest)) if is_digest(digest) => (name, Some(digest)),
        Some(_) => return None,
        None => (remainder, None),
    };
    let last = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[last..].split_once(':') {
        Some((segment, tag)) if is_tag(tag) => (&name[..last + segment.len()], Some(tag)),
        Some(_) => return None,
        None => (name, None),
    };
    let mut path_bytes = path.len() + if is_official { OFFICIAL.len() } else { 0 };
    if !is_host(domain) {
        // The first segment is not a host name, but may be a part of the path.
        if !is_path_component(domain) {
            return None;
        }
        path_bytes += domain.len() + 1;
    }
    (path_bytes <= PATH_BYTES_MAX && path.split('/').all(is_path_component)).then_some((tag, digest))
}

/// Whether a text is lower-case words with separators: `.`, `_`, `__` or dashes.
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    is_word(*first)
        && is_word(*last)
        && bytes.chunk_by(|left, right| is_word(*left) == is_word(*right)).all(|part| {
            is_word(part[0]) || matches!(part, b"." | b"_" | b"__") || part.iter().all(|byte| *byte == b'-')
        })
}

/// Whether a text is a host name or an IPv6 address in brackets, with an optional port.
fn is_host(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    if port.is_some_and(|port| port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return false;
    }
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    }
    host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=TAG_BYTES_MAX).contains(&tag.len())
        && tag.bytes().enumerate().all(|(at, byte)| is_word(byte) || (at > 0 && matches!(byte, b'.' | b'-')))
}

/// Whether a text is a digest of a known algorithm (`github.com/opencontainers/go-digest`).
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == digits && is_lower_hex(hex)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results were recorded with kube-apiserver v1.36.2, as the default of `imagePullPolicy`.
    #[test]
    fn latest_is_a_tag_or_the_absence_of_tag_and_digest() {
        let hex = "a".repeat(64);
        let digest = format!("sha256:{hex}");
        let with_digest = |image: &str| format!("{image}@{digest}");
        for image in [
            "nginx",
            "nginx:latest",
            "host:5000/a",
            "host:5000/a:latest",
            "a_b",
            "a__b",
            "a-b",
            "a---b",
            "HOST.io/a",
            "HOST/a",
            "localhost/a",
            "docker.io/nginx",
            "index.docker.io/a",
            "a.b/c",
            "a.b",
            "[::1]:5/a",
            "[::1]/a",
            "A:5/b",
            "a/b:latest",
            "a_b.c/d",
            &with_digest("nginx:latest"),
            &with_digest("h.io:5/a/b:latest"),
            &"a".repeat(247),
        ] {
            assert!(is_latest(image), "{image} is not latest");
        }
        for image in [
            "",
            "nginx:1",
            "UPPER",
            "a b",
            "a@b",
            "a:",
            ":latest",
            "a@sha256:ab",
            "a//b",
            "a___b",
            "a/B",
            "-a",
            "a-",
            "a..b",
            "a:latest:latest",
            "a.b:x/c",
            "a:.x",
            "a:_x",
            "http://a/b",
            "a/",
            "/a",
            "é",
            "h.io/é:latest",
            "a:latest@sha256:ab",
            "a:latest@md5:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            &hex,
            &with_digest("nginx"),
            &with_digest("nginx:1"),
            &format!("a:latest@{}", digest.to_uppercase()),
            &"a".repeat(248),
            &format!("a:{}", "x".repeat(129)),
            "[::1/a",
            "-a.io/b",
            "a_b.C/d",
        ] {
            assert!(!is_latest(image), "{image} is latest");
        }
    }
}
