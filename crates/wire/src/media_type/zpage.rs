//! Negotiation of the pages `/statusz` and `/flagz`: plain text for people, or an object for programs
//! (`apiserver/pkg/server/statusz/statusz.go`, `apiserver/pkg/server/flagz/flagz.go`).

use listwatch_meta::Status;

use super::{Encoding, Negotiated, ONLY_ACCEPTED, View, not_acceptable, parse_accept};

/// The API group of the objects.
pub const ZPAGE_GROUP: &str = "config.k8s.io";

/// The form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZpageForm {
    /// Plain text.
    Text,
    /// An object of [`ZPAGE_GROUP`].
    Object {
        /// The encoding of the object.
        negotiated: Negotiated,
        /// The version of the object.
        version: ZpageVersion,
    },
}

/// A version of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZpageVersion {
    /// `v1alpha1`, which is deprecated.
    V1alpha1,
    /// `v1beta1`.
    V1beta1,
}

impl ZpageVersion {
    /// The name of the version.
    pub const fn name(self) -> &'static str {
        match self {
            ZpageVersion::V1alpha1 => "v1alpha1",
            ZpageVersion::V1beta1 => "v1beta1",
        }
    }
}

/// Chooses the form of a page from the `Accept` header. `kind` is the kind of the object. A clause with all of `as`, `g`
/// and `v` selects an object. A clause with none of them selects the text. Other clauses select nothing. Without a
/// header, the page is text.
///
/// # Errors
/// 406 with kube-apiserver's message when nothing matches.
pub fn negotiate_zpage(accept: Option<&str>, kind: &str, cbor: bool) -> Result<ZpageForm, Status> {
    let accept = accept.unwrap_or_default();
    if accept.trim().is_empty() {
        return Ok(ZpageForm::Text);
    }
    let encodings = || [Encoding::Json, Encoding::Yaml].into_iter().chain(cbor.then_some(Encoding::Cbor));
    for clause in parse_accept(accept) {
        // A page is no stream, and has no version of the server's own types.
        if ["stream", "sv"].iter().any(|name| clause.param(name).is_some_and(|value| !value.is_empty())) {
            continue;
        }
        let version = match ["as", "g", "v"].map(|name| clause.param(name)) {
            [None, None, None] if clause.range_matches("text/plain") => return Ok(ZpageForm::Text),
            [Some(wanted), Some(ZPAGE_GROUP), Some("v1beta1")] if wanted == kind => ZpageVersion::V1beta1,
            [Some(wanted), Some(ZPAGE_GROUP), Some("v1alpha1")] if wanted == kind => ZpageVersion::V1alpha1,
            _ => continue,
        };
        if let Some(encoding) = encodings().find(|encoding| clause.range_matches(encoding.media_type())) {
            let pretty = clause.param("pretty") == Some("1");
            return Ok(ZpageForm::Object { negotiated: Negotiated { encoding, view: View::Full, pretty }, version });
        }
    }
    let cbor = if cbor { ", application/cbor" } else { "" };
    Err(not_acceptable(format!("{ONLY_ACCEPTED}application/json, application/yaml, text/plain{cbor}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zpage_is_text_unless_a_clause_names_its_object() {
        const BETA: &str = "v=v1beta1;g=config.k8s.io;as=Flagz";
        const ALPHA: &str = "v=v1alpha1;g=config.k8s.io;as=Flagz";
        let check = |accept: &str, cbor: bool, expected: &str| {
            let found = match negotiate_zpage(Some(accept), "Flagz", cbor) {
                Ok(ZpageForm::Text) => "text".to_owned(),
                Ok(ZpageForm::Object { negotiated, version }) => {
                    format!("{} {}", negotiated.encoding.media_type(), version.name())
                }
                Err(status) => format!("{} {}", status.code, status.message),
            };
            assert_eq!(found, expected, "{accept:?}");
        };
        let refused = "406 only the following media types are accepted: application/json, application/yaml, text/plain";
        for text in ["", " ", "text/plain", "text/*", "*/*", "text/plain;charset=utf-8", "application/json, */*;q=0"] {
            check(text, false, "text");
        }
        check("application/json;v=foo;g=config.k8s.io;as=Flagz,*/*", false, "text");
        check(&format!("application/json;{BETA}"), false, "application/json v1beta1");
        check(&format!("application/yaml;{BETA}"), false, "application/yaml v1beta1");
        check(&format!("*/*;{BETA}"), false, "application/json v1beta1");
        check(&format!("application/json;{ALPHA},application/json;{BETA}"), false, "application/json v1alpha1");
        check(&format!("application/json;{BETA},application/json;{ALPHA}"), false, "application/json v1beta1");
        check(&format!("application/cbor;{BETA}"), true, "application/cbor v1beta1");
        check(&format!("application/cbor;{BETA}"), false, refused);
        for unmatched in [
            "application/xml",
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io",
            "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/json;v=v1beta1;g=meta.k8s.io;as=Flagz",
            "application/json;stream=watch;v=v1beta1;g=config.k8s.io;as=Flagz",
            "application/vnd.kubernetes.protobuf;v=v1beta1;g=config.k8s.io;as=Flagz",
            "text/plain;v=v1beta1;g=config.k8s.io;as=Flagz",
        ] {
            check(unmatched, false, refused);
        }
        check("application/json", true, &format!("{refused}, application/cbor"));
        assert_eq!(negotiate_zpage(None, "Statusz", false), Ok(ZpageForm::Text));
    }
}
