//! The permission checks of ResourceClaims, which upstream has in the strategies of the resources.
//!
//! Source: `pkg/registry/resource/utils.go`, and its callers in `pkg/registry/resource/{resourceclaim,
//! resourceclaimtemplate}/strategy.go`.
//!
//! | write | needs |
//! |---|---|
//! | create with `adminAccess` | the label `resource.kubernetes.io/admin-access: true` of the namespace |
//! | status: first result with `adminAccess` | the same label |
//! | status: `allocation`, `reservedFor` | the verb of the request on `resourceclaims/binding` in all namespaces |
//! | status: `devices` of a driver | `associated-node:<verb>` or `arbitrary-node:<verb>` on `resourceclaims/driver` with the name of the driver; the first only for a service account on the allocated node |

use std::collections::{BTreeSet, HashMap};

use listwatch_access::{Attributes, AuthorizerChain, forbidden};
use listwatch_json::{Map, Value};
use listwatch_meta::{FieldError, Status, UserInfo};
use listwatch_validation::names::{self, NameRule};
use listwatch_validation::{child, given, is_same, items, metadata, objects, text};

use super::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
const TEMPLATES: &str = "resourceclaimtemplates";
/// The label of a namespace whose users may request admin access to devices.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
/// The attribute of a user that names the node of the pod of a service account token.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The plugin that checks the permissions for writes of ResourceClaims and ResourceClaimTemplates. Each server with
/// these resources needs the plugin.
#[derive(Debug)]
pub struct ResourceClaimAuthorization {
    authorizers: AuthorizerChain,
}

impl ResourceClaimAuthorization {
    /// Creates a plugin. The authorizers decide on the permissions for the status.
    pub fn new(authorizers: AuthorizerChain) -> Self {
        ResourceClaimAuthorization { authorizers }
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Map) -> Result<(), Status> {
        let mut errors = Vec::new();
        if request.subresource.is_some() {
            self.check_status(request, object, &mut errors).await;
        } else if let Some(at) = requested_admin_access(request, object) {
            errors.extend(check_label(request, at).await);
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(GROUP, request.kind, text(metadata(object), "name"), &errors))
    }

    async fn check_status(&self, request: &AdmissionRequest<'_>, claim: &Map, errors: &mut Vec<FieldError>) {
        let empty = Map::new();
        let (new, old) = (child(claim, "status"), child(request.old_object.unwrap_or(&empty), "status"));
        if granted_admin_access(old).is_none()
            && let Some(at) = granted_admin_access(new)
        {
            errors.extend(check_label(request, at).await);
        }
        let verb = match request.details.verb() {
            "" => "update",
            verb => verb,
        };
        if !["allocation", "reservedFor"].iter().all(|field| is_same(new.get(field), old.get(field))) {
            let binding =
                Attributes { subresource: "binding", ..Attributes::resource(request.user, verb, GROUP, CLAIMS) };
            if let Err(why) = self.authorize(request, binding).await {
                let why = format_args!(
                    "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
                     verb=\"{verb}\" permission: {why}"
                );
                errors.push(FieldError::forbidden("status.allocation", why));
            }
        }
        if given(new, "allocation").is_some() {
            self.check_devices(request, verb, (new, old), errors).await;
        }
    }

    /// Checks the permission for each driver whose device status changes.
    async fn check_devices(
        &self,
        request: &AdmissionRequest<'_>,
        verb: &str,
        (new, old): (&Map, &Map),
        errors: &mut Vec<FieldError>,
    ) {
        let mut verbs = vec![format!("arbitrary-node:{verb}")];
        if is_on_allocated_node(request.user, child(new, "allocation")) {
            verbs.insert(0, format!("associated-node:{verb}"));
        }
        for driver in changed_drivers(new, old) {
            let mut first = None;
            let mut is_allowed = false;
            for verb in &verbs {
                let attributes = Attributes {
                    namespace: request.namespace.unwrap_or_default(),
                    name: driver,
                    subresource: "driver",
                    ..Attributes::resource(request.user, verb, GROUP, CLAIMS)
                };
                match self.authorize(request, attributes).await {
                    Ok(()) => {
                        is_allowed = true;
                        break;
                    }
                    Err(why) => first = first.or(Some(why)),
                }
            }
            if let (false, Some(why)) = (is_allowed, first) {
                let why = format_args!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                    verbs.join(" ")
                );
                errors.push(FieldError::forbidden("status.devices", why));
            }
        }
    }

    /// Returns the text of the 403 unless an authorizer allows the access.
    async fn authorize(&self, request: &AdmissionRequest<'_>, attributes: Attributes<'_>) -> Result<(), String> {
        let attributes = Attributes { api_version: request.version, ..attributes };
        let answer = self.authorizers.authorize(&attributes).await;
        if answer.is_allowed() {
            return Ok(());
        }
        let why = match (&*answer.error, &*answer.reason) {
            ("", reason) => reason.to_owned(),
            (error, "") => error.to_owned(),
            (error, reason) => format!("{error}: {reason}"),
        };
        Err(forbidden(&attributes, &why).message)
    }
}

impl ValidatingAdmission for ResourceClaimAuthorization {
    fn name(&self) -> &str {
        "ResourceClaimAuthorization"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        // The spec is immutable, so that an update cannot request admin access.
        request.group == GROUP
            && match (request.operation, request.subresource) {
                (Operation::Create, None) => matches!(request.resource, CLAIMS | TEMPLATES),
                (Operation::Update, Some("status")) => request.resource == CLAIMS,
                _ => false,
            }
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}

fn is_admin_access(holder: &Map) -> bool {
    holder.get("adminAccess") == Some(&Value::Bool(true))
}

/// The path of the first request for admin access. Upstream has the same path for both resources.
fn requested_admin_access(request: &AdmissionRequest<'_>, object: &Map) -> Option<String> {
    let spec = child(object, "spec");
    let spec = if request.resource == TEMPLATES { child(spec, "spec") } else { spec };
    let (at, _) = objects(child(spec, "devices"), "requests").find(|(_, of)| is_admin_access(child(of, "exactly")))?;
    Some(format!("spec.devices.requests[{at}].adminAccess"))
}

/// The path of the first allocated device with admin access.
fn granted_admin_access(status: &Map) -> Option<String> {
    let devices = child(child(status, "allocation"), "devices");
    let (at, _) = objects(devices, "results").find(|(_, result)| is_admin_access(result))?;
    Some(format!("status.allocation.devices.results[{at}].adminAccess"))
}

/// Requires the label of the namespace. The store decides, because a cache may still have a removed label.
async fn check_label(request: &AdmissionRequest<'_>, at: String) -> Option<FieldError> {
    let name = request.namespace.unwrap_or_default();
    let why = match request.objects.get("", "v1", "namespaces", None, name).await {
        Ok(Some(namespace)) if text(child(metadata(&namespace), "labels"), ADMIN_LABEL) == "true" => return None,
        Ok(Some(_)) => {
            let why = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the \
                       containing namespace";
            return Some(FieldError::forbidden(at, why));
        }
        Ok(None) => format!("namespaces {name:?} not found"),
        Err(error) => error.message,
    };
    let message = format!("Internal error: could not retrieve namespace to verify admin access: {why}");
    Some(FieldError { field: at, reason: "InternalError", message })
}

/// The drivers whose device status is added, removed or changed, in order.
fn changed_drivers<'a>(new: &'a Map, old: &'a Map) -> BTreeSet<&'a str> {
    fn key(device: &Map) -> (&str, &str, &str, &str) {
        (text(device, "driver"), text(device, "pool"), text(device, "device"), text(device, "shareID"))
    }
    let devices = |status: &'a Map| items(status, "devices").iter().filter_map(Value::as_object);
    let mut before: HashMap<_, &Map> = devices(old).map(|device| (key(device), device)).collect();
    let mut drivers = BTreeSet::new();
    for device in devices(new) {
        if before.remove(&key(device)) != Some(device) {
            drivers.insert(text(device, "driver"));
        }
    }
    drivers.extend(before.values().map(|device| text(device, "driver")));
    drivers
}

/// Whether the user is a service account on the node of the allocation.
fn is_on_allocated_node(user: &UserInfo, allocation: &Map) -> bool {
    let account = user.username.strip_prefix("system:serviceaccount:").and_then(|name| name.split_once(':'));
    let is_account = account.is_some_and(|(namespace, name)| {
        names::problems(NameRule::Label, namespace, false).is_empty()
            && names::problems(NameRule::Subdomain, name, false).is_empty()
    });
    let Some([node]) = user.extra.get(NODE_NAME).map(Vec::as_slice) else { return false };
    is_account
        && names::problems(NameRule::Subdomain, node, false).is_empty()
        && allocated_node(allocation) == Some(node)
}

/// The node of an allocation whose node selector has one term, which selects one name.
fn allocated_node(allocation: &Map) -> Option<&str> {
    let [Value::Object(term)] = items(child(allocation, "nodeSelector"), "nodeSelectorTerms") else { return None };
    let ([], [Value::Object(field)]) = (items(term, "matchExpressions"), items(term, "matchFields")) else {
        return None;
    };
    match (text(field, "key"), text(field, "operator"), items(field, "values")) {
        ("metadata.name", "In", [Value::String(node)]) => Some(node.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::details::NoDetails;
    use listwatch_access::{Authorization, Authorizer, MaybeFuture};
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    /// An authorizer that allows each `verb subresource namespace/name` of a list.
    struct Allow(Vec<&'static str>);

    impl Authorizer for Allow {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let Attributes { verb, subresource, namespace, name, .. } = attributes;
            let wanted = format!("{verb} {subresource} {namespace}/{name}");
            let is_claim = (attributes.api_group, attributes.resource) == (GROUP, CLAIMS);
            let is_allowed = is_claim && self.0.contains(&&*wanted);
            MaybeFuture::ready(if is_allowed { Authorization::allow("") } else { Authorization::no_opinion() })
        }
    }

    fn fixture(label: &str) -> Fixture {
        let labels = json!({"resource.kubernetes.io/admin-access": label});
        Fixture::new(&[("namespaces", json!({"metadata": {"name": "ns", "labels": labels}}))])
    }

    async fn verdict(allowed: &[&'static str], request: &AdmissionRequest<'_>, new: Value) -> Vec<String> {
        let plugin = ResourceClaimAuthorization::new(AuthorizerChain::new().with(Allow(allowed.to_vec())));
        assert!(plugin.handles(request), "{request:?}");
        let Err(status) = plugin.validate(request, &object(new)).await else { return Vec::new() };
        assert_eq!(status.code, 422);
        let causes = status.details.unwrap_or_default().causes;
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    const NO_LABEL: &str = "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";

    #[tokio::test]
    async fn admin_access_requires_the_label_of_the_namespace() {
        let devices =
            json!({"devices": {"requests": [{"name": "a"}, {"name": "b", "exactly": {"adminAccess": true}}]}});
        let plain = json!({"devices": {"requests": [{"name": "b", "exactly": {"adminAccess": false}}]}});
        for (resource, kind, spec, unused) in [
            (CLAIMS, "ResourceClaim", devices.clone(), plain.clone()),
            (TEMPLATES, "ResourceClaimTemplate", json!({"spec": devices}), json!({"spec": plain})),
        ] {
            let claim = json!({"metadata": {"name": "c"}, "spec": spec});
            for (label, expected) in [("true", None), ("false", Some(NO_LABEL)), ("", Some(NO_LABEL))] {
                let fixture = fixture(label);
                let request = create(&fixture, GROUP, resource, kind, "c");
                let expected: Vec<String> =
                    expected.iter().map(|why| format!("spec.devices.requests[1].adminAccess: {why}")).collect();
                assert_eq!(verdict(&[], &request, claim.clone()).await, expected, "{resource} with label {label:?}");
            }
            let fixture = Fixture::default();
            let request = create(&fixture, GROUP, resource, kind, "c");
            let why =
                "Internal error: could not retrieve namespace to verify admin access: namespaces \"ns\" not found";
            let expected = [format!("spec.devices.requests[1].adminAccess: {why}")];
            assert_eq!(verdict(&[], &request, claim).await, expected, "{resource}");
            assert_eq!(verdict(&[], &request, json!({"spec": unused})).await, [""; 0], "{resource}");
        }
    }

    fn allocation(admin: bool) -> Value {
        json!({"devices": {"results": [{"driver": "d.io", "adminAccess": admin}]}, "nodeSelector": {"nodeSelectorTerms":
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}})
    }

    fn device(driver: &str, data: u8) -> Value {
        json!({"driver": driver, "pool": "p", "device": "x", "data": {"a": data}})
    }

    async fn status_verdict(
        allowed: &[&'static str],
        user: &UserInfo,
        verb: &'static str,
        new: Value,
        old: Value,
    ) -> Vec<String> {
        let fixture = fixture("");
        let details = NoDetails { verb, ..NoDetails::default() };
        let old = object(json!({"metadata": {"name": "c"}, "status": old}));
        let request = AdmissionRequest {
            operation: Operation::Update,
            subresource: Some("status"),
            old_object: Some(&old),
            user,
            details: &details,
            ..create(&fixture, GROUP, CLAIMS, "ResourceClaim", "c")
        };
        verdict(allowed, &request, json!({"metadata": {"name": "c"}, "status": new})).await
    }

    #[tokio::test]
    async fn status_with_admin_access_requires_the_label_of_the_namespace() {
        let user = UserInfo::default();
        let all = &["update binding /", "update binding /"];
        let check = async |new: Value, old: Value, expected: &[&str]| {
            assert_eq!(status_verdict(all, &user, "update", new, old).await, expected);
        };
        let granted = || json!({"allocation": allocation(true)});
        let why = format!("status.allocation.devices.results[0].adminAccess: {NO_LABEL}");
        check(granted(), json!({}), &[&why]).await;
        check(granted(), granted(), &[]).await;
        check(json!({"allocation": allocation(false)}), json!({}), &[]).await;
    }

    #[tokio::test]
    async fn allocation_and_reservation_require_permission_for_bindings() {
        let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let allocated = || json!({"allocation": allocation(false)});
        let reserved = || json!({"allocation": allocation(false), "reservedFor": [{"uid": "u"}]});
        let why = |verb: &str| {
            format!(
                "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires \
                 resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: resourceclaims.resource.k8s.io is \
                 forbidden: User \"bob\" cannot {verb} resource \"resourceclaims/binding\" in API group \
                 \"resource.k8s.io\" at the cluster scope"
            )
        };
        let check = async |allowed: &[&'static str], verb, new, old, expected: &[String]| {
            assert_eq!(status_verdict(allowed, &bob, verb, new, old).await, expected, "{verb}");
        };
        check(&[], "update", allocated(), json!({}), &[why("update")]).await;
        check(&[], "patch", reserved(), allocated(), &[why("patch")]).await;
        check(&[], "update", json!({}), allocated(), &[why("update")]).await;
        check(&["update binding /"], "update", allocated(), json!({}), &[]).await;
        check(&["update binding /"], "patch", allocated(), json!({}), &[why("patch")]).await;
        // A permission in the namespace of the claim does not suffice.
        check(&["update binding ns/"], "update", allocated(), json!({}), &[why("update")]).await;
        check(&[], "update", reserved(), reserved(), &[]).await;
    }

    #[tokio::test]
    async fn device_status_requires_permission_for_its_driver() {
        let extra = [(NODE_NAME.to_owned(), vec!["n1".to_owned()])];
        let user = |username: &str| UserInfo {
            username: username.to_owned(),
            extra: extra.clone().into(),
            ..UserInfo::default()
        };
        let (account, bob) = (user("system:serviceaccount:a:driver"), user("bob"));
        let status = |devices: Value| json!({"allocation": allocation(false), "devices": devices});
        let why = |user: &UserInfo, verbs: &str, verb: &str, driver: &str| {
            format!(
                "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", \
                 verb=\"[{verbs}]\" permission: resourceclaims.resource.k8s.io \"{driver}\" is forbidden: User \"{}\" \
                 cannot {verb} resource \"resourceclaims/driver\" in API group \"resource.k8s.io\" in the namespace \"ns\"",
                user.username
            )
        };
        let check = async |user: &UserInfo, allowed: &[&'static str], new: Value, old: Value, expected: &[String]| {
            let found = status_verdict(allowed, user, "update", status(new), status(old)).await;
            assert_eq!(found, expected, "{} with {allowed:?}", user.username);
        };
        let (old, new) = (|| json!([device("d.io", 1)]), || json!([device("d.io", 2)]));
        let (associated, arbitrary) = ("associated-node:update", "arbitrary-node:update");
        let both = format!("{associated} {arbitrary}");
        check(&bob, &[], new(), old(), &[why(&bob, arbitrary, arbitrary, "d.io")]).await;
        check(&bob, &["arbitrary-node:update driver ns/d.io"], new(), old(), &[]).await;
        check(
            &bob,
            &["associated-node:update driver ns/d.io"],
            new(),
            old(),
            &[why(&bob, arbitrary, arbitrary, "d.io")],
        )
        .await;
        check(&account, &["associated-node:update driver ns/d.io"], new(), old(), &[]).await;
        check(&account, &["arbitrary-node:update driver ns/d.io"], new(), old(), &[]).await;
        check(&account, &[], new(), old(), &[why(&account, &both, associated, "d.io")]).await;
        check(&bob, &[], old(), old(), &[]).await;
        // Added and removed devices also need the permission, in the order of the drivers.
        let expected = ["a.io", "d.io"].map(|driver| why(&bob, arbitrary, arbitrary, driver));
        check(&bob, &[], json!([device("a.io", 1)]), old(), &expected).await;
        // A claim without allocation has no device status.
        let found = status_verdict(&[], &bob, "update", json!({}), json!({"devices": old()})).await;
        assert_eq!(found, [""; 0]);
    }
}
