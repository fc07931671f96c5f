//! DenyServiceExternalIPs: rejects new external addresses of services
//! (`plugin/pkg/admission/network/denyserviceexternalips`).

use listwatch_meta::Status;
use listwatch_validation::{Object, child, texts};

use super::AdmissionRequest;
use super::plugin::Validator;

const WHY: &str = "Use of external IPs is denied by admission control";

/// The plugin that denies new external addresses.
pub(super) struct DenyServiceExternalIps;

fn addresses(service: &Object) -> impl Iterator<Item = &str> {
    texts(child(service, "spec"), "externalIPs")
}

impl Validator for DenyServiceExternalIps {
    const NAME: &'static str = "DenyServiceExternalIPs";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "services")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let old: Vec<&str> = request.old_object.map(|old| addresses(old).collect()).unwrap_or_default();
        let adds = addresses(object).any(|address| !old.contains(&address));
        if adds { Err(request.forbid(object, WHY)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::super::testing::{Fixture, create, object};
    use super::*;

    #[tokio::test]
    async fn service_update_that_adds_an_external_address_is_rejected() {
        let fixture = Fixture::new(&[]);
        for (old, new, allowed) in [
            (json!(null), json!(null), true),
            (json!(null), json!(["1.1.1.1"]), false),
            (json!(["1.1.1.1", "2.2.2.2"]), json!(["2.2.2.2"]), true),
            (json!(["1.1.1.1"]), json!(["2.2.2.2"]), false),
        ] {
            let service =
                |addresses: Value| object(json!({"metadata": {"name": "s"}, "spec": {"externalIPs": addresses}}));
            let (old, new) = (service(old), service(new));
            let request = AdmissionRequest { old_object: Some(&old), ..create(&fixture, "", "services", "", "s") };
            let found = DenyServiceExternalIps.check(&request, &new).await.map_err(|status| status.message);
            let expected = Err(format!("services \"s\" is forbidden: {WHY}"));
            assert_eq!(found, if allowed { Ok(()) } else { expected }, "{new:?}");
        }
    }
}
