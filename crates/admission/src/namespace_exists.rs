//! NamespaceExists: rejects writes in namespaces that do not exist (`plugin/pkg/admission/namespace/exists`).

use listwatch_meta::{GroupResource, Status};
use listwatch_validation::Object;

use super::plugin::Validator;
use super::{AdmissionRequest, Operation};

/// The plugin that requires that the namespace of a write exists.
pub(super) struct NamespaceExists;

impl Validator for NamespaceExists {
    const NAME: &'static str = "NamespaceExists";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.operation != Operation::Connect && request.namespace.is_some() && request.resource != "namespaces"
    }

    async fn check(&self, request: &AdmissionRequest<'_>, _: &Object) -> Result<(), Status> {
        let name = request.namespace.unwrap_or_default();
        match request.get_cached("", "namespaces", None, name).await? {
            Some(_) => Ok(()),
            None => Err(Status::not_found(GroupResource { group: "", resource: "namespaces" }, name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create};
    use super::*;

    #[tokio::test]
    async fn write_in_a_missing_namespace_returns_404() {
        let object = Object::new();
        let none = Fixture::new(&[]);
        let refused = NamespaceExists.check(&create(&none, "", "pods", "Pod", "p"), &object).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (404, "namespaces \"ns\" not found"));
        let one = Fixture::new(&[("namespaces", json!({"metadata": {"name": "ns"}}))]);
        assert!(NamespaceExists.check(&create(&one, "", "pods", "Pod", "p"), &object).await.is_ok());
    }
}
