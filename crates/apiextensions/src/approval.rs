//! The approval of definitions in the groups `k8s.io`, `kubernetes.io` and their subdomains, which belong to the
//! Kubernetes community. An annotation contains the URL of the approval. The condition
//! `KubernetesAPIApprovalPolicyConformant` reports the result.
//!
//! Source: `apiextensions-apiserver/pkg/apihelpers/helpers.go`,
//! `apiextensions-apiserver/pkg/controller/apiapproval/apiapproval_controller.go`.

use crate::definition::{APPROVAL_ANNOTATION, Condition, Definition};
use crate::status::condition;

const POLICY: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// The state of the annotation (`APIApprovalState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approval {
    /// The annotation is the URL of the approval.
    Approved,
    /// The annotation begins with `unapproved`, and a reason can follow.
    Bypassed,
    /// The annotation is absent.
    Missing,
    /// The annotation has any other value.
    Invalid,
}

/// Whether a group needs approval (`IsProtectedCommunityGroup`).
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// Classifies an annotation and returns a message about it (`GetAPIApprovalState`).
pub(crate) fn approval(annotation: &str) -> (Approval, String) {
    if annotation.is_empty() {
        let text = format!("protected groups must have approval annotation {APPROVAL_ANNOTATION:?}, {POLICY}");
        (Approval::Missing, text)
    } else if annotation.starts_with("unapproved") {
        (Approval::Bypassed, format!("not approved: {annotation:?}"))
    } else if is_absolute_url(annotation) {
        (Approval::Approved, format!("approved in {annotation}"))
    } else {
        let text = format!(
            "protected groups must have approval annotation {APPROVAL_ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", {POLICY}"
        );
        (Approval::Invalid, text)
    }
}

fn is_absolute_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some_and(|host| !host.is_empty()))
}

/// The approval condition for the status of a definition; `None` if its group needs no approval.
pub fn approval_condition(definition: &Definition) -> Option<Condition> {
    if !is_protected(&definition.spec.group) {
        return None;
    }
    let (approval, text) = approval(definition.metadata.annotations.approval.as_deref().unwrap_or_default());
    let (truth, reason) = match approval {
        Approval::Approved => (true, "ApprovedAnnotation"),
        Approval::Bypassed => (false, "UnapprovedAnnotation"),
        Approval::Missing => (false, "MissingAnnotation"),
        Approval::Invalid => (false, "InvalidAnnotation"),
    };
    Some(condition("KubernetesAPIApprovalPolicyConformant", truth, reason, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn community_groups_and_their_subdomains_are_protected() {
        for (group, protected) in [
            ("k8s.io", true),
            ("gateway.networking.k8s.io", true),
            ("x.kubernetes.io", true),
            ("notk8s.io", false),
            ("k8s.io.example.com", false),
        ] {
            assert_eq!(is_protected(group), protected, "{group}");
        }
    }

    #[test]
    fn approval_annotation_must_be_a_url_or_begin_with_unapproved() {
        for (annotation, expected) in [
            ("", Approval::Missing),
            ("unapproved, experimental-only", Approval::Bypassed),
            ("https://github.com/kubernetes-sigs/gateway-api/pull/1", Approval::Approved),
            ("yes", Approval::Invalid),
            ("/relative", Approval::Invalid),
        ] {
            assert_eq!(approval(annotation).0, expected, "{annotation}");
        }
    }
}
