//! CertificateSubjectRestriction: rejects requests for client certificates in the group `system:masters`
//! (`plugin/pkg/admission/certificates/subjectrestriction`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_kinds::certificate_request::CertificateRequest;
use listwatch_meta::Status;
use listwatch_meta::user::SYSTEM_MASTERS;
use listwatch_validation::Object;

use super::AdmissionRequest;
use super::plugin::Validator;

/// The name of the signer that issues client certificates for the API server.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The plugin that rejects requests for client certificates in the group `system:masters`.
pub(super) struct CertificateSubjectRestriction;

impl Validator for CertificateSubjectRestriction {
    const NAME: &'static str = "CertificateSubjectRestriction";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("certificates.k8s.io", "certificatesigningrequests")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        check(object).map_err(|why| request.forbidden(why))
    }
}

/// Checks that a CertificateSigningRequest for [`SIGNER`] does not contain the group `system:masters`. Requests that
/// cannot be parsed are also rejected.
///
/// # Errors
/// The message of kube-apiserver's 403 if the request is rejected.
fn check(object: &Object) -> Result<(), String> {
    let spec = |field: &str| object.get("spec").and_then(|spec| spec.get(field)?.as_str()).unwrap_or_default();
    if spec("signerName") != SIGNER {
        return Ok(());
    }
    let organizations = BASE64
        .decode(spec("request"))
        .map_err(|error| error.to_string())
        .and_then(|text| CertificateRequest::from_pem(&text)?.organizations());
    match organizations {
        Ok(names) if names.iter().all(|name| name != SYSTEM_MASTERS) => Ok(()),
        Ok(_) => Err(format!("use of {SIGNER} signer with {SYSTEM_MASTERS} group is not allowed")),
        Err(error) => Err(format!("failed to parse CSR: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;

    fn checked(request: Value, signer: &str) -> Result<(), String> {
        let object = json!({"metadata": {"name": "r"}, "spec": {"request": request, "signerName": signer}});
        let Value::Object(object) = object else { unreachable!("it is an object") };
        check(&object)
    }

    #[test]
    fn unparsable_request_to_the_client_signer_is_forbidden() {
        for (request, why) in [
            (json!("!"), "Invalid symbol 33, offset 0."),
            (json!(""), "PEM block type must be CERTIFICATE REQUEST"),
            (json!(null), "PEM block type must be CERTIFICATE REQUEST"),
            (json!(BASE64.encode("hello")), "PEM block type must be CERTIFICATE REQUEST"),
        ] {
            assert_eq!(checked(request.clone(), SIGNER), Err(format!("failed to parse CSR: {why}")));
            assert_eq!(checked(request, "example.com/signer"), Ok(()));
        }
    }

    #[test]
    fn client_certificate_for_system_masters_is_forbidden() {
        let request = |group: &str| json!(BASE64.encode(listwatch_kinds::certificate_request::testing::request(group)));
        assert_eq!(checked(request("dev"), SIGNER), Ok(()));
        assert!(checked(request(SYSTEM_MASTERS), SIGNER).is_err());
    }
}
