//! [`VersionInfo`]: the document of `/version`.

use bytes::Bytes;
use serde::Serialize;

/// The Kubernetes release whose behavior the server implements.
pub const KUBERNETES_VERSION: &str = "v1.36.0";

/// The document of `/version`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// The major version, `1`.
    pub major: String,
    /// The minor version of [`KUBERNETES_VERSION`], such as `36`.
    pub minor: String,
    /// The major version whose behavior the server emulates: that of the server.
    pub emulation_major: String,
    /// The minor version whose behavior the server emulates: that of the server.
    pub emulation_minor: String,
    /// The major version of the oldest release to which the server can be rolled back.
    pub min_compatibility_major: String,
    /// The minor version of the oldest release to which the server can be rolled back: one less than that of the server, as
    /// in kube-apiserver (`k8s.io/component-base/compatibility/version.go`).
    pub min_compatibility_minor: String,
    /// A version that clients parse as semver, e.g. `v1.36.0+listwatch-0.1.0`.
    pub git_version: String,
    /// The commit of the build; empty if it is unknown.
    pub git_commit: String,
    /// `clean`, `dirty`, or empty if it is unknown.
    pub git_tree_state: String,
    /// The time of the build (RFC 3339); empty if it is unknown.
    pub build_date: String,
    /// Always `none`, because Go does not build this server. Clients only print this value.
    pub go_version: String,
    /// The compiler of the build, which clients only print.
    pub compiler: String,
    /// `<os>/<arch>` with Go's names, such as `linux/amd64`.
    pub platform: String,
}

impl VersionInfo {
    /// The version of this build. The text contains [`KUBERNETES_VERSION`].
    pub fn current() -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        VersionInfo {
            major: "1".to_owned(),
            minor: "36".to_owned(),
            emulation_major: "1".to_owned(),
            emulation_minor: "36".to_owned(),
            min_compatibility_major: "1".to_owned(),
            min_compatibility_minor: "35".to_owned(),
            git_version: format!("{KUBERNETES_VERSION}+listwatch-{}", env!("CARGO_PKG_VERSION")),
            git_commit: String::new(),
            git_tree_state: String::new(),
            build_date: String::new(),
            go_version: "none".to_owned(),
            compiler: "rustc".to_owned(),
            platform: format!("{}/{arch}", std::env::consts::OS),
        }
    }

    /// The body of `/version`: JSON with the same indent as in kube-apiserver.
    pub fn body(&self) -> Bytes {
        serde_json::to_vec_pretty(self).expect("texts serialize").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_kubernetes_version_equals_that_of_the_types() {
        let release = listwatch_k8s_types::RELEASE;
        assert!(
            KUBERNETES_VERSION.starts_with(&format!("{release}.")),
            "{KUBERNETES_VERSION} serves types of {release}"
        );
    }

    #[test]
    fn version_document_is_indented_and_has_a_semver_version() {
        let body = VersionInfo::current().body();
        let text = std::str::from_utf8(&body).unwrap();
        let begin = "{
  \"major\": \"1\",
  \"minor\": \"36\",
  \"emulationMajor\": \"1\",
  \"emulationMinor\": \"36\",
  \"minCompatibilityMajor\": \"1\",
  \"minCompatibilityMinor\": \"35\",
  \"gitVersion\": \"v1.36.";
        assert!(text.starts_with(begin), "{text}");
        let version: listwatch_json::Value = serde_json::from_slice(&body).unwrap();
        let plain = version["gitVersion"].as_str().unwrap().split('+').next().unwrap().to_owned();
        assert_eq!(plain.trim_start_matches('v').split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3);
    }
}
