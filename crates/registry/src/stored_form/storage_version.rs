//! Built-in kinds whose storage version in kube-apiserver differs from the version that this server validates.
//!
//! Source: `NewStorageFactoryConfigEffectiveVersion` in `pkg/kubeapiserver/default_storage_factory_builder.go` and
//! `pkg/controlplane/apiserver/apiextensions.go` of Kubernetes v1.36. All other kinds are stored in the version that
//! this server validates.

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_wire::protobuf;

/// Group, plural and storage version of the kinds whose storage version differs from the validated version.
const STORAGE_VERSIONS: [(&str, &str, &str); 3] = [
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", "v1beta1"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "v1beta1"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "v1beta1"),
];

/// Returns the version in which kube-apiserver stores a built-in kind, if it differs from the validated version.
pub(crate) fn storage_version(group: &str, plural: &str) -> Option<&'static str> {
    let found = STORAGE_VERSIONS.iter().find(|(of, kind, _)| *of == group && *kind == plural);
    found.map(|(_, _, version)| *version)
}

/// A kind whose storage version has the same fields as the validated version. Only `apiVersion` differs.
pub(super) struct RenamedVersion {
    /// The prefix of the keys.
    prefix: &'static str,
    kind: &'static str,
}

const VALIDATED: &str = "admissionregistration.k8s.io/v1";
const STORED: &str = "admissionregistration.k8s.io/v1beta1";

/// All kinds with a renamed version.
const RENAMED_VERSIONS: [RenamedVersion; 2] = [
    RenamedVersion { prefix: "mutatingadmissionpolicies", kind: "MutatingAdmissionPolicy" },
    RenamedVersion { prefix: "mutatingadmissionpolicybindings", kind: "MutatingAdmissionPolicyBinding" },
];

/// Returns the kind whose keys have this prefix.
pub(super) fn renamed_version(prefix: &str) -> Option<&'static RenamedVersion> {
    RENAMED_VERSIONS.iter().find(|renamed| renamed.prefix == prefix)
}

impl RenamedVersion {
    /// Converts a stored value to the validated version. A value in another version stays unchanged.
    pub(super) fn to_validated(&self, stored: Bytes) -> Bytes {
        self.convert(stored, STORED, VALIDATED)
    }

    /// Converts a value to the storage version.
    pub(super) fn to_stored(&self, value: Bytes) -> Bytes {
        self.convert(value, VALIDATED, STORED)
    }

    fn convert(&self, value: Bytes, from: &str, to: &str) -> Bytes {
        if value.starts_with(protobuf::MAGIC) {
            return match value.strip_prefix(self.head(from).as_slice()) {
                Some(rest) => [&self.head(to), rest].concat().into(),
                None => value,
            };
        }
        match serde_json::from_slice::<Map>(&value) {
            Ok(mut object) if object.get("apiVersion").and_then(Value::as_str) == Some(from) => {
                object.insert("apiVersion", Value::from(to));
                serde_json::to_vec(&object).map_or(value, Bytes::from)
            }
            _ => value,
        }
    }

    /// Returns the first bytes of the protobuf envelope, up to the end of the type (field 1 of `runtime.Unknown`). All
    /// lengths are below 128.
    fn head(&self, api_version: &str) -> Vec<u8> {
        let text = |field: u8, text: &str| [&[field << 3 | 2, text.len() as u8], text.as_bytes()].concat();
        let type_meta = [text(1, api_version), text(2, self.kind)].concat();
        [protobuf::MAGIC, &[1 << 3 | 2, type_meta.len() as u8], &type_meta].concat()
    }
}
