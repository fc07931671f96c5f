//! SubjectAccessReview (`authorization.k8s.io/v1`): checks whether a user can do something.
//!
//! Source: `pkg/registry/authorization/subjectaccessreview/rest.go`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")
};
