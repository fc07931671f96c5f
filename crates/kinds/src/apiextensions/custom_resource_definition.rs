//! `CustomResourceDefinition (apiextensions.k8s.io/v1)`: customresourcedefinitions.

use crate::Kind;
use crate::Subresource;

pub(crate) static KIND: Kind = Kind {
    short_names: &["crd", "crds"],
    storage_prefix: "apiextensions.k8s.io/customresourcedefinitions",
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    ..Kind::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
};
