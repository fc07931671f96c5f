//! What is asked of other objects before one is created: is its namespace open, does its priority
//! class exist? (admission plugins NamespaceLifecycle and Priority)

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::status::StatusCause;
use listwatch_meta::{Change, GroupResource, Status};
use serde_json::{Map, Value, json};

use super::store;
use crate::backend::{Backend, CreatingIn};
use crate::registry::{Registry, Resource};
use listwatch_kinds::certificate_request::CertificateRequest;
use listwatch_validation::object_meta as meta;

const NAMESPACES: GroupResource<'_> = GroupResource { group: "", resource: "namespaces" };

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that the namespace exists and is not on its way out. Looks into the namespaces' cache
/// first and asks the store only when that knows nothing of the namespace. While the answer is kept,
/// this server does not let the namespace go.
///
/// # Errors
/// 404 when there is no such namespace, 403 when it is being terminated.
pub(super) async fn namespace_is_open<'b>(
    backend: &'b Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<CreatingIn<'b>>, Status> {
    // A server of custom kinds alone knows no namespaces, and so has none to guard.
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(None) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    let cacher = backend.running_cacher(namespaces);
    let cached = || cacher.as_ref().and_then(|cacher| cacher.peek(&key));
    // Who is refused here is never counted: a storm of creations must not hold the namespace up.
    if cached().is_some_and(|cached| cached.is_being_deleted()) {
        return Err(terminating_namespace(resource, namespace, name));
    }
    let creating = backend.creating_in(namespace);
    let terminating = match cached() {
        Some(object) => object.is_being_deleted(),
        None => {
            let (found, _) =
                backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, NAMESPACES))?;
            let found = found.ok_or_else(|| Status::not_found(NAMESPACES, namespace))?;
            store::object(namespaces, &key, found.modified, Change::Added, &found.value)?.is_being_deleted()
        }
    };
    if terminating { Err(terminating_namespace(resource, namespace, name)) } else { Ok(Some(creating)) }
}

/// Checks that a request to the signer of client certificates does not name the group `system:masters`
/// (admission plugin CertificateSubjectRestriction).
///
/// # Errors
/// 403 when it does, and when the request cannot be read.
pub(super) fn signer_may_be_asked(resource: &Resource, object: &Map<String, Value>) -> Result<(), Status> {
    const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
    const MASTERS: &str = "system:masters";
    if (&*resource.group, &*resource.kind) != ("certificates.k8s.io", "CertificateSigningRequest") {
        return Ok(());
    }
    let spec = |field: &str| object.get("spec").and_then(|spec| spec.get(field)?.as_str()).unwrap_or_default();
    if spec("signerName") != SIGNER {
        return Ok(());
    }
    let organizations = BASE64
        .decode(spec("request"))
        .map_err(|error| error.to_string())
        .and_then(|text| CertificateRequest::from_pem(&text)?.organizations());
    let why = match organizations {
        Ok(names) if names.iter().all(|name| name != MASTERS) => return Ok(()),
        Ok(_) => format!("use of {SIGNER} signer with {MASTERS} group is not allowed"),
        Err(error) => format!("failed to parse CSR: {error}"),
    };
    Err(Status::forbidden(resource.gr(), meta::text(listwatch_validation::metadata(object), "name"), why))
}

/// Checks that the definition of a custom resource is not on its way out: what is served now counts,
/// not what was served when the request came.
///
/// # Errors
/// 403 when it is being deleted, 404 when it is gone.
pub(super) fn definition_is_open(backend: &Backend, resource: &Resource, name: &str) -> Result<(), Status> {
    if resource.form.is_none() {
        return Ok(());
    }
    let registry = backend.registry();
    let Some(present) = registry.find(&resource.group, &resource.version, &resource.plural) else {
        return Err(Status::no_such_resource());
    };
    if present.terminating {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(Status::forbidden(resource.gr(), name, why));
    }
    Ok(())
}

/// What the class that a pod names gives it.
#[derive(Clone, Debug)]
pub(super) struct PriorityClass {
    name: String,
    value: i64,
    preemption_policy: String,
}

impl PriorityClass {
    /// What a class that a pod may name without its being stored gives, and no class at all.
    fn built_in(name: &str) -> Option<Self> {
        let value = match name {
            "" => 0,
            "system-cluster-critical" => 2_000_000_000,
            "system-node-critical" => 2_000_001_000,
            _ => return None,
        };
        Some(PriorityClass { name: name.to_owned(), value, preemption_policy: PREEMPT.to_owned() })
    }

    /// Looks up a class in the store, for the pod of this name.
    ///
    /// # Errors
    /// 403 when there is no such class, and what a store that cannot be read is answered with.
    pub(super) async fn look_up(
        backend: &Backend,
        registry: &Registry,
        class: &str,
        (pods, name): (&Resource, &str),
    ) -> Result<Self, Status> {
        let missing = || {
            let why = format!("no PriorityClass with name {class} was found");
            Err(Status::forbidden(pods.gr(), name, why))
        };
        let classes = registry.find("scheduling.k8s.io", "v1", "priorityclasses");
        let Some(key) = classes.and_then(|classes| classes.key(None, class).ok()) else { return missing() };
        let (found, _) = backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, pods.gr()))?;
        let Some(found) = found else { return missing() };
        let object = store::parse(&found)?;
        let policy = listwatch_validation::object_meta::text(&object, "preemptionPolicy");
        Ok(PriorityClass {
            name: class.to_owned(),
            value: object.get("value").and_then(Value::as_i64).unwrap_or(0),
            preemption_policy: if policy.is_empty() { PREEMPT.to_owned() } else { policy.to_owned() },
        })
    }
}

/// What a pod has that says nothing of preemption.
const PREEMPT: &str = "PreemptLowerPriority";

/// Why a new pod was not given its priority.
pub(super) enum NoPriority {
    /// The class of this name is to be looked up first.
    Unknown(String),
    /// The pod contradicts its class.
    Refused(Box<Status>),
}

/// Gives a new pod the priority of its class, which it may not contradict; `known` is what was looked up
/// before. Other kinds are left alone. Pure.
///
/// # Errors
/// [`NoPriority::Unknown`] when the pod names a class that is not known yet; 403 when the pod says
/// something else than its class.
pub(super) fn set_priority(
    resource: &Resource,
    pod: &mut Map<String, Value>,
    name: &str,
    known: Option<&PriorityClass>,
) -> Result<(), NoPriority> {
    let (true, Some(Value::Object(spec))) = (resource.group.is_empty() && resource.kind == "Pod", pod.get_mut("spec"))
    else {
        return Ok(());
    };
    let forbidden = |why: String| Err(NoPriority::Refused(Box::new(Status::forbidden(resource.gr(), name, why))));
    let named = listwatch_validation::object_meta::text(spec, "priorityClassName");
    let class = PriorityClass::built_in(named).or_else(|| known.filter(|known| known.name == named).cloned());
    let Some(PriorityClass { value, preemption_policy, .. }) = class else {
        return Err(NoPriority::Unknown(named.to_owned()));
    };
    let given = spec.get("priority").and_then(Value::as_i64);
    if let Some(given) = given.filter(|given| *given != value) {
        return forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    let given = listwatch_validation::object_meta::text(spec, "preemptionPolicy");
    if !given.is_empty() && given != preemption_policy {
        return forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {preemption_policy} from the given PriorityClass name"
        ));
    }
    spec.insert("priority".to_owned(), json!(value));
    spec.insert("preemptionPolicy".to_owned(), json!(preemption_policy));
    Ok(())
}

fn terminating_namespace(resource: &Resource, namespace: &str, name: &str) -> Status {
    let why = format_args!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::forbidden(resource.gr(), name, why);
    if let Some(details) = &mut status.details {
        details.causes.push(StatusCause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    status
}

/// Refuses to delete the namespaces that a cluster cannot do without.
///
/// # Errors
/// 403 for one of them.
pub(super) fn namespace_may_go(name: &str) -> Result<(), Status> {
    if IMMORTAL.contains(&name) {
        return Err(Status::forbidden(NAMESPACES, name, "this namespace may not be deleted"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_request_that_cannot_be_read_is_forbidden_to_the_client_signer() {
        let registry = Registry::builtin();
        let resource = registry.find("certificates.k8s.io", "v1", "certificatesigningrequests").unwrap();
        let check = |request: Value, signer: &str| {
            let object = json!({"metadata": {"name": "r"}, "spec": {"request": request, "signerName": signer}});
            let Value::Object(object) = object else { unreachable!("it is an object") };
            signer_may_be_asked(resource, &object).map_err(|status| (status.code, status.message))
        };
        let client = "kubernetes.io/kube-apiserver-client";
        for (request, why) in [
            (json!("!"), "Invalid symbol 33, offset 0."),
            (json!(""), "PEM block type must be CERTIFICATE REQUEST"),
            (json!(null), "PEM block type must be CERTIFICATE REQUEST"),
            (json!(BASE64.encode("hello")), "PEM block type must be CERTIFICATE REQUEST"),
        ] {
            let text = format!(
                "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: failed to parse CSR: {why}"
            );
            assert_eq!(check(request.clone(), client), Err((403, text)));
            assert_eq!(check(request, "example.com/signer"), Ok(()));
        }
        let valid = |organization: &str| {
            json!(BASE64.encode(listwatch_kinds::certificate_request::testing::request(organization)))
        };
        assert_eq!(check(valid("dev"), client), Ok(()));
        assert_eq!(check(valid("system:masters"), client).unwrap_err().0, 403);
    }
}
