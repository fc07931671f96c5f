//! [`Expected`]: the kind that a request body must have.

use listwatch_k8s_types::{Id, message_of};
use listwatch_meta::go::TypeErrorStyle;
use listwatch_registry::{Form, Resource};
use listwatch_wire::media_type::Served;

/// The kind that a request body must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    /// An older version with the same fields, which bodies may have as well.
    pub(super) older_version: Option<&'a str>,
    /// The version of a custom resource, with its schema; `None` for built-in kinds.
    pub(super) form: Option<&'a Form>,
    /// The wording of errors about values of the wrong type.
    pub(super) error_style: TypeErrorStyle,
}

impl<'a> Expected<'a> {
    /// Returns the kind of the objects of a resource.
    pub(super) fn of(resource: &'a Resource) -> Self {
        let form = resource.form.as_ref();
        Expected { form, ..Self::builtin(&resource.group, &resource.version, &resource.kind) }
    }

    /// Returns a built-in kind.
    pub(super) const fn builtin(group: &'a str, version: &'a str, kind: &'a str) -> Self {
        Expected { group, version, kind, older_version: None, form: None, error_style: TypeErrorStyle::Decoder }
    }

    /// Whether this is the kind of a custom resource.
    pub(super) fn is_custom(&self) -> bool {
        self.form.is_some()
    }

    /// Returns the accepted media types of bodies. Custom resources do not accept protobuf.
    pub(super) fn served(&self) -> Served {
        if self.is_custom() { Served::CUSTOM_JSON } else { Served::BUILTIN }
    }

    /// Returns the type of a built-in kind; `None` for a custom resource.
    pub(super) fn message(&self) -> Option<Id> {
        if self.is_custom() { None } else { message_of(&self.api_version(), self.kind) }
    }

    /// Whether `api_version` is the `apiVersion` of the kind, or of its older version.
    pub(super) fn is_api_version(&self, api_version: &str) -> bool {
        let is_of = |version: &str| match api_version.strip_suffix(version) {
            Some("") => self.group.is_empty(),
            Some(group) => !self.group.is_empty() && group.strip_suffix('/') == Some(self.group),
            None => false,
        };
        is_of(self.version) || self.older_version.is_some_and(is_of)
    }

    /// Returns the `apiVersion` of the kind, e.g. `v1` or `apps/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_api_version_accepts_only_the_api_version_of_the_kind() {
        for (group, version) in [("", "v1"), ("apps", "v1"), ("a.example.com", "v1beta1"), ("v1", "v1")] {
            let expected = Expected::builtin(group, version, "A");
            for other in
                ["", "v1", "/v1", "1", "xv1", "apps/v1", "apps/v2", "apps//v1", "v1/v1", "a.example.com/v1beta1"]
            {
                assert_eq!(
                    expected.is_api_version(other),
                    other == expected.api_version(),
                    "{group} {version} {other}"
                );
            }
        }
        let older = Expected { older_version: Some("v1beta1"), ..Expected::builtin("policy", "v1", "A") };
        for (api_version, is_accepted) in
            [("policy/v1", true), ("policy/v1beta1", true), ("v1beta1", false), ("policy/v1beta2", false)]
        {
            assert_eq!(older.is_api_version(api_version), is_accepted, "{api_version}");
        }
    }
}
