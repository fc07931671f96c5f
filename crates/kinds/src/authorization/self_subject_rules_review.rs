//! SelfSubjectRulesReview (`authorization.k8s.io/v1`): lists the permissions of the user who sends it in a namespace.
//!
//! Source: `pkg/registry/authorization/selfsubjectrulesreview/rest.go`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
};
