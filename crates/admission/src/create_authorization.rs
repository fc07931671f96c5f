//! Authorizes the verb `create` before an update, patch or apply creates an object (`withAuthorization` in
//! `endpoints/handlers/update.go`).

use listwatch_access::{Attributes, AuthorizerChain, forbidden};
use listwatch_json::Map;
use listwatch_meta::{Status, UserInfo};

use super::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

/// The plugin that authorizes the creation of an object by a request with the object's name in the path. The server has
/// authorized `create` for a POST before, without a name.
#[derive(Debug)]
pub struct CreateAuthorization(AuthorizerChain);

impl CreateAuthorization {
    /// Creates a plugin that asks these authorizers.
    pub fn new(authorizers: AuthorizerChain) -> Self {
        CreateAuthorization(authorizers)
    }
}

impl ValidatingAdmission for CreateAuthorization {
    fn name(&self) -> &str {
        "CreateAuthorization"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        // The server's own writes need no permission. A client with the same name has a copy of this value.
        let is_own = std::ptr::eq(request.user, UserInfo::admin());
        let is_create = request.operation == Operation::Create && request.subresource.is_none();
        is_create && !is_own && !request.details.path_name().is_empty()
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            let name = request.details.path_name();
            let is_namespace = request.resource == "namespaces" && request.group.is_empty();
            let namespace = if is_namespace { name } else { request.namespace.unwrap_or_default() };
            let attributes = Attributes {
                api_version: request.version,
                namespace,
                name,
                ..Attributes::resource(request.user, "create", request.group, request.resource)
            };
            let answer = self.0.authorize(&attributes).await;
            match (answer.is_allowed(), &*answer.error) {
                (true, _) => Ok(()),
                (false, "") => Err(forbidden(&attributes, &answer.reason)),
                (false, error) => Err(Status::internal(error)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use listwatch_access::{Authorization, Authorizer, MaybeFuture};

    use super::super::details::NoDetails;
    use super::super::testing::{Fixture, create};
    use super::*;

    /// Allows requests for the name `allowed`, fails for `failed`, and has no opinion on others.
    struct ByName;

    impl Authorizer for ByName {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            assert_eq!((attributes.verb, attributes.namespace), ("create", "ns"));
            MaybeFuture::ready(match attributes.name {
                "allowed" => Authorization::allow("").with_error("another authorizer failed"),
                "failed" => Authorization::no_opinion().with_error("the webhook is down"),
                _ => Authorization::no_opinion(),
            })
        }
    }

    #[tokio::test]
    async fn only_a_create_with_a_name_in_the_path_is_authorized_again() {
        let plugin = CreateAuthorization::new(AuthorizerChain::new().with(ByName));
        let fixture = Fixture::new(&[]);
        let answer = async |path_name: &'static str| {
            let details = NoDetails { path_name, ..NoDetails::default() };
            let request = AdmissionRequest { details: &details, ..create(&fixture, "", "pods", "Pod", "p") };
            match plugin.handles(&request) {
                true => plugin.validate(&request, &Map::new()).await.map_err(|status| (status.code, status.message)),
                false => Err((0, "not asked".to_owned())),
            }
        };
        assert_eq!(answer("").await, Err((0, "not asked".to_owned())), "the POST was authorized without a name");
        assert_eq!(answer("allowed").await, Ok(()));
        let text = "pods \"p\" is forbidden: User \"alice\" cannot create resource \"pods\" in API group \"\" in the namespace \"ns\"";
        assert_eq!(answer("p").await, Err((403, text.to_owned())));
        assert_eq!(answer("failed").await, Err((500, "Internal error occurred: the webhook is down".to_owned())));
    }
}
