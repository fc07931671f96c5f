//! [`Expected`]: the kind that a request body must have.

use listwatch_k8s_types::{Id, message_of};
use listwatch_meta::go::Words;
use listwatch_registry::{Form, Resource};

/// The kind that a request body must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    /// Whether the kind is that of a custom resource.
    pub(super) custom: bool,
    /// The version of a custom resource, with its schema; `None` for built-in kinds.
    pub(super) form: Option<&'a Form>,
    /// The wording of errors about values of the wrong type.
    pub(super) words: Words,
}

impl<'a> Expected<'a> {
    /// Returns the kind of the objects of a resource.
    pub(super) fn of(resource: &'a Resource) -> Self {
        Expected {
            group: &resource.group,
            version: &resource.version,
            kind: &resource.kind,
            custom: resource.custom,
            form: resource.form.as_ref(),
            words: Words::Decoder,
        }
    }

    /// Returns the type of a built-in kind; `None` for a custom resource.
    pub(super) fn message(&self) -> Option<Id> {
        if self.custom { None } else { message_of(&self.api_version(), self.kind) }
    }

    /// Returns the `apiVersion` of the kind, e.g. `v1` or `apps/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}
