//! OwnerReferencesPermissionEnforcement: restricts owner references (`plugin/pkg/admission/gc`). Only users who may
//! delete an object can change its owners. The creator of an object can always set its owners. Only users who may
//! update the finalizers of an owner can set `blockOwnerDeletion`.

use listwatch_access::{Attributes, Authorization, AuthorizerChain};
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_validation::{Object, is_same, is_true, items, metadata, objects, text};

use super::plugin::Validator;
use super::{AdmissionRequest, KindName, Operation};

/// The plugin that checks owner references.
pub(super) struct OwnerReferencesPermissionEnforcement(AuthorizerChain);

impl OwnerReferencesPermissionEnforcement {
    /// Creates a plugin that checks permissions with these authorizers.
    pub(super) fn new(authorizers: AuthorizerChain) -> Self {
        OwnerReferencesPermissionEnforcement(authorizers)
    }

    /// Checks that the user may update the finalizers of an owner. A kind may have several resources.
    async fn check_owner(&self, request: &AdmissionRequest<'_>, owner: &Object) -> Result<(), String> {
        let (api_version, kind) = (text(owner, "apiVersion"), text(owner, "kind"));
        let unmapped = |why: String| {
            format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind {kind}: {why}"
            )
        };
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if version.contains('/') {
            return Err(unmapped(format!("unexpected GroupVersion string: {api_version}")));
        }
        let resources = request.objects.resources_of_kind(KindName { group, version, kind });
        if resources.is_empty() {
            let why = format!("no matches for kind {} in version {}", quote(kind), quote(api_version));
            return Err(unmapped(why));
        }
        for (resource, is_namespaced) in resources {
            let attributes = Attributes {
                api_version: version,
                // The owner is in the namespace of the object, or in none.
                namespace: request.namespace.filter(|_| is_namespaced).unwrap_or_default(),
                subresource: "finalizers",
                name: text(owner, "name"),
                ..Attributes::resource(request.user, "update", group, &resource)
            };
            let found = self.0.authorize(&attributes).await;
            if !found.is_allowed() {
                let why = reason(&found);
                return Err(format!(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {why}"
                ));
            }
        }
        Ok(())
    }
}

/// The reason and the error of a decision, as Go prints them.
fn reason(found: &Authorization) -> String {
    let error = if found.error.is_empty() { "<nil>" } else { &found.error };
    format!("{}, {error}", found.reason)
}

/// Whether a write changes the owners (`isChangingOwnerReference`).
fn changes_owners(object: &Object, old: Option<&Object>) -> bool {
    let owners = |object| items(metadata(object), "ownerReferences");
    let (new, old) = (owners(object), old.map(owners).unwrap_or_default());
    new.len() != old.len() || new.iter().zip(old).any(|(new, old)| !is_same(Some(new), Some(old)))
}

/// Returns the owner references whose `blockOwnerDeletion` the write newly sets to true
/// (`newBlockingOwnerDeletionRefs`).
fn newly_blocked<'a>(object: &'a Object, old: Option<&'a Object>) -> impl Iterator<Item = &'a Object> {
    let blocked = |object| objects(metadata(object), "ownerReferences").map(|(_, owner)| owner).filter(is_blocked);
    let before: Vec<&str> = old.into_iter().flat_map(blocked).map(|owner| text(owner, "uid")).collect();
    blocked(object).filter(move |owner| !before.contains(&text(owner, "uid")))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature of a filter")]
fn is_blocked(owner: &&Object) -> bool {
    is_true(owner, "blockOwnerDeletion")
}

impl Validator for OwnerReferencesPermissionEnforcement {
    const NAME: &'static str = "OwnerReferencesPermissionEnforcement";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        // The status of a pod keeps its owners, and old kubelets send wrong ones.
        let is_pod_status = request.resource == "pods" && request.subresource == Some("status");
        matches!(request.operation, Operation::Create | Operation::Update)
            && !(is_pod_status && request.group.is_empty())
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        if !changes_owners(object, request.old_object) {
            return Ok(());
        }
        // A user who creates an object could also not create it.
        if request.operation != Operation::Create {
            let attributes = Attributes {
                api_version: request.version,
                namespace: request.namespace.unwrap_or_default(),
                subresource: request.subresource.unwrap_or_default(),
                name: request.name,
                ..Attributes::resource(request.user, "delete", request.group, request.resource)
            };
            let found = self.0.authorize(&attributes).await;
            if !found.is_allowed() {
                let why = reason(&found);
                return Err(request
                    .forbid(object, format_args!("cannot set an ownerRef on a resource you can't delete: {why}")));
            }
        }
        let mut blocked = newly_blocked(object, request.old_object).peekable();
        if blocked.peek().is_none() {
            return Ok(());
        }
        // A user who may update all finalizers needs no lookup of the owner's kind, which discovery may not know yet.
        let any = Attributes {
            api_version: "*",
            subresource: "finalizers",
            name: "*",
            ..Attributes::resource(request.user, "update", "*", "*")
        };
        if self.0.authorize(&any).await.is_allowed() {
            return Ok(());
        }
        for owner in blocked {
            self.check_owner(request, owner).await.map_err(|why| request.forbid(object, why))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use listwatch_access::{Authorizer, MaybeFuture};
    use listwatch_json::{Value, json};

    use super::super::testing::{Fixture, create, object};
    use super::*;

    /// Allows the requests `<verb> <resource>/<subresource> <namespace>/<name>` of the list.
    struct Allowed(&'static [&'static str]);

    impl Authorizer for Allowed {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let Attributes { verb, resource, subresource, namespace, name, .. } = attributes;
            let request = format!("{verb} {resource}/{subresource} {namespace}/{name}");
            MaybeFuture::ready(match self.0.contains(&request.as_str()) {
                true => Authorization::allow(""),
                false => Authorization::no_opinion(),
            })
        }
    }

    async fn checked(
        allowed: &'static [&'static str],
        owners: Value,
        old_owners: Option<Value>,
        subresource: Option<&str>,
    ) -> Result<(), String> {
        let plugin = OwnerReferencesPermissionEnforcement::new(AuthorizerChain::new().with(Allowed(allowed)));
        let fixture = Fixture::new(&[]);
        let with = |owners: Value| object(json!({"metadata": {"name": "p", "ownerReferences": owners}}));
        let old = old_owners.map(with);
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let request = AdmissionRequest {
            operation,
            subresource,
            old_object: old.as_ref(),
            ..create(&fixture, "", "pods", "Pod", "p")
        };
        if !OwnerReferencesPermissionEnforcement::concerns(&request) {
            return Ok(());
        }
        let found = plugin.check(&request, &with(owners)).await;
        found.map_err(|status| status.message.replace("pods \"p\" is forbidden: ", ""))
    }

    fn owner(kind: &str, uid: &str, block: Option<bool>) -> Value {
        json!({"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": uid, "blockOwnerDeletion": block})
    }

    const MAY_DELETE: &str = "delete pods/ ns/p";
    const MAY_FINALIZE: &str = "update replicasets/finalizers ns/o";
    const MAY_FINALIZE_ALL: &str = "update */finalizers /*";

    #[tokio::test]
    async fn owners_are_changed_only_by_users_who_may_delete_the_object() {
        let set = json!([owner("ReplicaSet", "1", None)]);
        let refused = "cannot set an ownerRef on a resource you can't delete: , <nil>";
        assert_eq!(checked(&[], set.clone(), None, None).await, Ok(()), "the creator may set owners");
        assert_eq!(checked(&[], set.clone(), Some(json!([])), None).await, Err(refused.to_owned()));
        assert_eq!(checked(&[], json!([]), Some(set.clone()), None).await, Err(refused.to_owned()), "or removed");
        assert_eq!(checked(&[MAY_DELETE], set.clone(), Some(json!([])), None).await, Ok(()));
        assert_eq!(checked(&[], set.clone(), Some(set.clone()), None).await, Ok(()), "nothing changes");
        assert_eq!(checked(&[], json!([]), None, None).await, Ok(()));
        assert_eq!(checked(&[], set, Some(json!([])), Some("status")).await, Ok(()), "the status keeps the owners");
    }

    #[tokio::test]
    async fn deletion_of_an_owner_is_blocked_only_by_users_who_may_update_its_finalizers() {
        let blocking = json!([owner("ReplicaSet", "1", Some(true))]);
        let refused = Err(
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"
                .to_owned(),
        );
        assert_eq!(checked(&[], blocking.clone(), None, None).await, refused, "a creator needs the permission too");
        let before = json!([owner("ReplicaSet", "1", Some(false))]);
        assert_eq!(checked(&[MAY_DELETE], blocking.clone(), Some(before), None).await, refused);
        assert_eq!(checked(&[MAY_DELETE, MAY_FINALIZE], blocking.clone(), None, None).await, Ok(()));
        let more = json!([owner("ReplicaSet", "1", Some(true)), owner("ReplicaSet", "2", Some(false))]);
        assert_eq!(checked(&[MAY_DELETE], more, Some(blocking), None).await, Ok(()), "it was blocked before");
        let cluster_scoped = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "blockOwnerDeletion": true}]);
        let allowed = checked(&[MAY_DELETE, "update nodes/finalizers /n"], cluster_scoped, None, None).await;
        assert_eq!(allowed, Ok(()), "a node has no namespace");
    }

    #[tokio::test]
    async fn user_who_may_update_all_finalizers_blocks_deletion_of_an_owner_of_an_unknown_kind() {
        let owners = json!([{"apiVersion": "example.com/v1", "kind": "Nope", "name": "o", "blockOwnerDeletion": true}]);
        assert_eq!(checked(&[MAY_FINALIZE_ALL], owners.clone(), None, None).await, Ok(()));
        let both = &[MAY_FINALIZE_ALL, MAY_DELETE];
        assert_eq!(checked(both, owners.clone(), Some(json!([])), None).await, Ok(()));
        let updated = checked(&[MAY_FINALIZE_ALL], owners, Some(json!([])), None).await;
        assert!(updated.is_err(), "an update needs permission to delete");
    }

    #[tokio::test]
    async fn owner_of_an_unknown_kind_is_rejected() {
        for (api_version, why) in [
            ("apps/v1", "no matches for kind \"Nope\" in version \"apps/v1\""),
            ("a/b/c", "unexpected GroupVersion string: a/b/c"),
        ] {
            let owners = json!([{"apiVersion": api_version, "kind": "Nope", "name": "o", "blockOwnerDeletion": true}]);
            let expected = format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind Nope: {why}"
            );
            assert_eq!(checked(&[MAY_DELETE], owners, None, None).await, Err(expected));
        }
    }
}
