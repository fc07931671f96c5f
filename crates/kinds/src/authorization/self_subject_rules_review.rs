//! `SelfSubjectRulesReview (authorization.k8s.io/v1)`: selfsubjectrulesreviews.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    stored: false,
    ..Kind::cluster("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
};
