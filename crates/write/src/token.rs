//! Serves `/token` of service accounts: a POST of a TokenRequest returns a token
//! (`pkg/registry/core/serviceaccount/storage/token.go`). Nothing is stored.

use listwatch_access::{
    BoundObjectReference, Claims, EXTENDABLE_SECONDS, EXTENDED_SECONDS, KubernetesClaims, service_account_username,
};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, GroupResource, Status};
use time::Duration;

use super::action::{Action, ActionFuture};
use super::expected::Expected;
use super::pipeline::Write;
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::store::{self, new_uid};
use super::subresource_body::{SubresourceBody, body};
use listwatch_validation::clock::timestamp;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const REQUEST: Expected<'static> = Expected::builtin(GROUP, "v1", KIND);
/// The group and resource in conflict errors. kube-apiserver uses the kind in place of the resource.
const REQUESTS: GroupResource<'_> = GroupResource { group: GROUP, resource: KIND };

/// The default lifetime of a token, in seconds.
const EXPIRATION_SECONDS: i64 = 3600;
/// The minimum lifetime of a token, in seconds.
const EXPIRATION_SECONDS_MIN: i64 = 600;
/// The maximum lifetime of a token, in seconds.
const EXPIRATION_SECONDS_MAX: i64 = 1 << 32;

/// The action for a POST of a TokenRequest.
pub(super) struct IssueToken;

impl Action for IssueToken {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(issue(write, request))
    }
}

/// Issues a token for the service account.
///
/// # Errors
/// 404 when the service account or the bound object is absent; 409 when the uid of the bound object differs; 422 when
/// the body names another service account or the lifetime is out of range; 400 when a token cannot be bound to objects
/// of this kind.
async fn issue(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let SubresourceBody { object: asked, mut warnings, .. } = body(write, request, REQUEST).await?;
    let namespace = write.namespace.unwrap_or_default();
    let given = meta::text(metadata(&asked), "name");
    if !given.is_empty() && given != write.name {
        let why = "must match the service account name if specified";
        let error = FieldError::invalid("metadata.name", json!(given), why);
        return Err(Status::invalid(GROUP, KIND, write.name, &[error]));
    }
    let account = found(write, "serviceaccounts", Some(namespace), write.name).await?;
    let uid = meta::text(metadata(&account), "uid");
    let asked_uid = meta::text(metadata(&asked), "uid");
    if !asked_uid.is_empty() && asked_uid != uid {
        let why = format_args!(
            "the UID in the token request ({asked_uid}) does not match the UID of the service account ({uid})"
        );
        return Err(Status::conflict(REQUESTS, write.name, why));
    }
    let options = write.backend.tokens().options();
    let nothing = Map::new();
    let spec = asked.get("spec").and_then(Value::as_object).unwrap_or(&nothing);
    let seconds = spec.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(EXPIRATION_SECONDS);
    let refused = |why: &str| {
        let error = FieldError::invalid("spec.expirationSeconds", seconds, why);
        Err(Status::invalid(GROUP, KIND, "", &[error]))
    };
    if seconds < EXPIRATION_SECONDS_MIN {
        return refused("may not specify a duration less than 10 minutes");
    }
    if seconds > EXPIRATION_SECONDS_MAX {
        return refused("may not specify a duration larger than 2^32 seconds");
    }
    let audiences = spec.get("audiences").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut audiences: Vec<String> = audiences.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect();
    if audiences.is_empty() {
        audiences.extend_from_slice(options.audiences());
    }

    let seconds = match options.max_expiration_seconds.filter(|max| seconds > *max) {
        Some(max) => {
            warnings.push(format!("requested expiration of {seconds} seconds shortened to {max} seconds"));
            max
        }
        None => seconds,
    };
    let now = write.clock.time();
    let serviceaccount = BoundObjectReference { name: write.name.to_owned(), uid: uid.to_owned() };
    let mut kubernetes =
        KubernetesClaims { namespace: namespace.to_owned(), serviceaccount, ..KubernetesClaims::default() };
    let bound = spec.get("boundObjectRef").and_then(Value::as_object);
    if let Some(reference) = bound {
        bind(write, namespace, reference, &mut kubernetes).await?;
    }
    let issued = now.unix_timestamp();
    let mut lifetime = seconds;
    let is_own = audiences.iter().all(|audience| options.audiences().contains(audience));
    if options.extend_expiration && kubernetes.pod.is_some() && seconds == EXTENDABLE_SECONDS && is_own {
        // Old clients in pods do not read a renewed token. The status still says the requested time.
        kubernetes.warnafter = Some(issued.saturating_add(seconds));
        lifetime = EXTENDED_SECONDS;
    }
    let claims = Claims {
        aud: audiences.clone(),
        exp: Some(issued.saturating_add(lifetime)),
        iat: Some(issued),
        iss: options.issuer().to_owned(),
        jti: new_uid(write.clock),
        kubernetes,
        nbf: Some(issued),
        sub: service_account_username(namespace, write.name),
    };
    let mut answered = json!({"audiences": audiences, "expirationSeconds": seconds});
    if let Some(reference) = bound {
        answered["boundObjectRef"] = Value::Object(reference.clone());
    }
    let answer = json!({
        "kind": KIND,
        "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": write.name, "namespace": namespace, "uid": uid, "creationTimestamp": timestamp(now)},
        "spec": answered,
        "status": {
            "token": write.backend.tokens().sign(write.backend.storage(), &claims).await?,
            "expirationTimestamp": timestamp(now.saturating_add(Duration::seconds(seconds))),
        },
    });
    write.context.recorder.annotate("authentication.kubernetes.io/issued-credential-id", format!("JTI={}", claims.jti));
    warnings.dedup();
    let json = serde_json::to_vec(&answer).map_err(Status::internal)?;
    Ok(WriteResponse { code: 201, body: WriteBody::Json(json.into()), warnings })
}

/// Binds a token to an object. The deletion of the object invalidates the token.
async fn bind(
    write: &Write<'_>,
    namespace: &str,
    reference: &Map,
    kubernetes: &mut KubernetesClaims,
) -> Result<(), Status> {
    let [api_version, kind, name] = ["apiVersion", "kind", "name"].map(|field| meta::text(reference, field));
    let (group, version) = group_version(api_version);
    let (plural, place) = match (group, kind) {
        ("", "Pod") => ("pods", Some(namespace)),
        ("", "Secret") => ("secrets", Some(namespace)),
        ("", "Node") => ("nodes", None),
        _ => {
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(why));
        }
    };
    let object = found(write, plural, place, name).await?;
    let uid = meta::text(metadata(&object), "uid");
    if kind == "Pod" {
        let of_pod = |field: &str| object.get("spec").and_then(|spec| spec.get(field)?.as_str()).unwrap_or_default();
        if of_pod("serviceAccountName") != write.name {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                write.name
            )));
        }
        let node = of_pod("nodeName");
        if !node.is_empty() {
            let uid = match found(write, "nodes", None, node).await {
                Ok(node) => meta::text(metadata(&node), "uid").to_owned(),
                Err(status) if status.code == 404 => String::new(),
                Err(status) => return Err(status),
            };
            kubernetes.node = Some(BoundObjectReference { name: node.to_owned(), uid });
        }
    }
    let wanted = meta::text(reference, "uid");
    if !wanted.is_empty() && wanted != uid {
        let why = format_args!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(GroupResource { group: "", resource: kind }, name, why));
    }
    let named = Some(BoundObjectReference { name: name.to_owned(), uid: uid.to_owned() });
    match kind {
        "Pod" => kubernetes.pod = named,
        "Secret" => kubernetes.secret = named,
        _ => kubernetes.node = named,
    }
    Ok(())
}

/// Splits an API version; a malformed one is empty, and any version of the core group is accepted
/// (`schema.FromAPIVersionAndKind`).
fn group_version(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(split) => split,
    }
}

/// Reads an object of a core kind.
///
/// # Errors
/// 404 when the object is absent.
async fn found(write: &Write<'_>, plural: &str, namespace: Option<&str>, name: &str) -> Result<Map, Status> {
    let resource = write.registry.find("", "v1", plural).ok_or_else(Status::no_such_resource)?;
    let key = resource.key(namespace, name)?;
    let read = write.backend.storage().get(&key).await;
    let (found, _) = read.map_err(|error| store::read_failed(&error, resource.gr()))?;
    store::parse(&found.ok_or_else(|| Status::not_found(resource.gr(), name))?)
}
