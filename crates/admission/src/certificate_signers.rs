//! CertificateApproval and CertificateSigning: users who approve or sign certificates need permission for the signer
//! (`plugin/pkg/admission/certificates/{approval,signing}`).

use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_json::Map;
use listwatch_meta::go::quote;
use listwatch_meta::{Status, UserInfo};
use listwatch_validation::{child, is_same, text};

use super::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

const GROUP: &str = "certificates.k8s.io";

/// The plugin that requires the permission `approve` on the signer to approve or deny a certificate request.
pub(super) struct CertificateApproval(AuthorizerChain);

/// The plugin that requires the permission `sign` on the signer to write the certificate or the conditions to the
/// status.
pub(super) struct CertificateSigning(AuthorizerChain);

impl CertificateApproval {
    /// Creates a plugin that asks these authorizers for the verb `approve` on signers.
    pub(super) fn new(authorizers: AuthorizerChain) -> Self {
        CertificateApproval(authorizers)
    }
}

impl CertificateSigning {
    /// Creates a plugin that asks these authorizers for the verb `sign` on signers.
    pub(super) fn new(authorizers: AuthorizerChain) -> Self {
        CertificateSigning(authorizers)
    }
}

/// Whether a user may use a verb on a signer, or on all signers of its domain (`IsAuthorizedForSignerName`).
async fn is_permitted(authorizers: &AuthorizerChain, user: &UserInfo, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer, &format!("{domain}/*")] {
        let attributes = Attributes { api_version: "*", name, ..Attributes::resource(user, verb, GROUP, "signers") };
        if authorizers.authorize(&attributes).await.is_allowed() {
            return true;
        }
    }
    false
}

async fn check(
    authorizers: &AuthorizerChain,
    request: &AdmissionRequest<'_>,
    object: &Map,
    verb: &str,
) -> Result<(), Status> {
    // The stored signer decides; it cannot be changed.
    let signer = text(child(request.old_object.unwrap_or(object), "spec"), "signerName");
    if is_permitted(authorizers, request.user, verb, signer).await {
        return Ok(());
    }
    let why = format_args!("user not permitted to {verb} requests with signerName {}", quote(signer));
    Err(request.forbid(object, why))
}

fn updates(request: &AdmissionRequest<'_>, subresource: &str) -> bool {
    request.operation == Operation::Update
        && request.resource == "certificatesigningrequests"
        && request.group == GROUP
        && request.subresource == Some(subresource)
}

impl ValidatingAdmission for CertificateApproval {
    fn name(&self) -> &str {
        "CertificateApproval"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        updates(request, "approval")
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(check(&self.0, request, object, "approve"))
    }
}

impl ValidatingAdmission for CertificateSigning {
    fn name(&self) -> &str {
        "CertificateSigning"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        updates(request, "status")
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        let status = |object: &'a Map, member: &str| child(object, "status").get(member);
        let is_unchanged = request.old_object.is_some_and(|old| {
            ["certificate", "conditions"].iter().all(|member| is_same(status(object, member), status(old, member)))
        });
        if is_unchanged {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(check(&self.0, request, object, "sign"))
    }
}

#[cfg(test)]
mod tests {
    use listwatch_access::{Authorization, Authorizer, MaybeFuture};
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    /// An authorizer that allows one verb on one signer name.
    struct Allow(&'static str, &'static str);

    impl Authorizer for Allow {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let is_signer = attributes.resource == "signers" && attributes.api_group == GROUP;
            let allowed = is_signer && (attributes.verb, attributes.name) == (self.0, self.1);
            MaybeFuture::ready(if allowed { Authorization::allow("") } else { Authorization::no_opinion() })
        }
    }

    #[tokio::test]
    async fn approval_and_signing_need_permission_for_the_signer_or_its_domain() {
        let old = object(json!({"metadata": {"name": "r"}, "spec": {"signerName": "example.com/a"}}));
        let mut new = old.clone();
        new.insert("status", json!({"certificate": "x"}));
        let fixture = Fixture::new(&[]);
        let request = AdmissionRequest {
            operation: Operation::Update,
            old_object: Some(&old),
            ..create(&fixture, GROUP, "certificatesigningrequests", "", "r")
        };
        for (verb, name, approves, signs) in [
            ("approve", "example.com/a", true, false),
            ("approve", "example.com/*", true, false),
            ("sign", "example.com/*", false, true),
            ("sign", "example.com/b", false, false),
        ] {
            let authorizers = || AuthorizerChain::new().with(Allow(verb, name));
            let approval = CertificateApproval::new(authorizers()).validate(&request, &new).await;
            let signing = CertificateSigning::new(authorizers());
            assert_eq!(
                (approval.is_ok(), signing.validate(&request, &new).await.is_ok()),
                (approves, signs),
                "{verb} {name}"
            );
            assert!(signing.validate(&request, &old).await.is_ok(), "nothing is signed");
        }
        let refused = CertificateApproval::new(AuthorizerChain::new()).validate(&request, &new).await.unwrap_err();
        assert_eq!(
            refused.message,
            "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: user not permitted to approve requests with signerName \"example.com/a\""
        );
    }
}
