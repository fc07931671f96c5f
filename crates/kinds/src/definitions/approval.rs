//! Groups below `k8s.io` and `kubernetes.io` belong to the Kubernetes community: a definition there
//! must say who approved it (`KubernetesAPIApprovalPolicyConformant`).
//!
//! Rules and texts: `apiextensions-apiserver/pkg/apihelpers`, `…/controller/apiapproval`.

use super::definition::{APPROVAL_ANNOTATION, Condition, Definition};
use super::status::condition;

const POLICY: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What the annotation comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approval {
    /// It names the place of the approval.
    Approved,
    /// It says that nobody approved, and why.
    Bypassed,
    /// There is none.
    Missing,
    /// It is neither a place nor a reason.
    Invalid,
}

/// Does a group need approval?
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// What an annotation comes to, and a text about it.
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

/// The condition that a definition's status is to have, if its group needs approval.
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
    fn the_groups_of_the_community_are_protected() {
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
    fn an_annotation_is_a_place_or_an_excuse() {
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
