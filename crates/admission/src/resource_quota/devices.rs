//! [`DeviceObjects`]: the stored objects on which the quota usage of ResourceClaims depends
//! (`pkg/quota/v1/evaluator/core/resource_claims.go`).
//!
//! A device class is also an extended resource: `deviceclass.resource.kubernetes.io/<class>`, and the name in its
//! `extendedResourceName`. The scheduler creates the claim of a pod that requests such a resource. The usage of that
//! pod is already charged, so the claim is charged only beyond that usage.

use std::collections::BTreeMap;

use listwatch_meta::quantity::Quantity;
use listwatch_validation::{Object, child, is_true, metadata, objects, text};
use time::OffsetDateTime;

use super::usage::{OF_DEVICE_CLASS, pod_usage};
use crate::amounts::Amounts;

/// The prefix of the implicit extended resource of a device class (`ResourceDeviceClassPrefix`).
pub(super) const CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The annotation of claims that the scheduler creates for extended resources (`ExtendedResourceClaimAnnotation`).
pub(super) const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// The device classes, and the pods and claims of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceObjects {
    /// The `extendedResourceName` of each device class; empty without one.
    classes: BTreeMap<String, String>,
    /// The pods by name.
    pods: BTreeMap<String, PodUsage>,
    claims: Vec<OwnedClaim>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PodUsage {
    uid: String,
    /// The claim in the status of the pod; `None` without one.
    claim: Option<String>,
    used: Amounts,
}

/// A stored claim for the extended resources of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnedClaim {
    name: String,
    created: String,
    pod_uid: String,
}

/// Returns the name and the UID of the pod for whose extended resources a claim was created.
pub(super) fn pod_of_claim(claim: &Object) -> Option<(&str, &str)> {
    let metadata = metadata(claim);
    if text(child(metadata, "annotations"), EXTENDED_RESOURCE_CLAIM) != "true" {
        return None;
    }
    let (_, owner) = objects(metadata, "ownerReferences").find(|(_, owner)| is_true(owner, "controller"))?;
    let is_pod = text(owner, "kind") == "Pod" && text(owner, "apiVersion") == "v1";
    is_pod.then(|| (text(owner, "name"), text(owner, "uid")))
}

impl DeviceObjects {
    /// Whether the usage of a claim depends on the pods and claims of its namespace.
    pub fn is_claim_of_pod(claim: &Object) -> bool {
        pod_of_claim(claim).is_some()
    }

    /// Reads the device classes, and the pods and claims of one namespace. Claims that were not created for extended
    /// resources are ignored.
    pub fn new<'a>(
        classes: impl IntoIterator<Item = &'a Object>,
        pods: impl IntoIterator<Item = &'a Object>,
        claims: impl IntoIterator<Item = &'a Object>,
        now: OffsetDateTime,
    ) -> Self {
        let name = |object: &Object| text(metadata(object), "name").to_owned();
        let class = |class: &Object| (name(class), text(child(class, "spec"), "extendedResourceName").to_owned());
        let pod = |pod: &Object| {
            let claim = text(child(child(pod, "status"), "extendedResourceClaimStatus"), "resourceClaimName");
            let usage = PodUsage {
                uid: text(metadata(pod), "uid").to_owned(),
                claim: Some(claim.to_owned()).filter(|claim| !claim.is_empty()),
                used: pod_usage(pod, now),
            };
            (name(pod), usage)
        };
        let claim = |claim: &Object| {
            let (_, pod_uid) = pod_of_claim(claim)?;
            let created = text(metadata(claim), "creationTimestamp").to_owned();
            Some(OwnedClaim { name: name(claim), created, pod_uid: pod_uid.to_owned() })
        };
        DeviceObjects {
            classes: classes.into_iter().map(class).collect(),
            pods: pods.into_iter().map(pod).collect(),
            claims: claims.into_iter().filter_map(claim).collect(),
        }
    }

    /// Whether an extended resource has a device class (`GetDeviceClass`).
    pub(super) fn has_class_of(&self, resource: &str) -> bool {
        match resource.strip_prefix(CLASS_RESOURCE_PREFIX) {
            Some(class) => self.classes.contains_key(class),
            None => self.classes.values().any(|name| name == resource),
        }
    }

    /// Adds the usage of the extended resources of the claim's devices (`addExtendedResourceQuota`).
    pub(super) fn add_extended_resources(&self, claim: &Object, used: &mut Amounts) {
        let mut extended = Amounts::new();
        for (name, amount) in used.iter() {
            let Some(class) = name.strip_suffix(OF_DEVICE_CLASS).filter(|class| !class.is_empty()) else { continue };
            extended.insert(format!("requests.{CLASS_RESOURCE_PREFIX}{class}"), *amount);
            if let Some(name) = self.classes.get(class).filter(|name| !name.is_empty()) {
                let most = extended.entry(format!("requests.{name}")).or_insert(*amount);
                *most = (*most).max(*amount);
            }
        }
        let by_pod = self.usage_of_pod(claim);
        for (name, amount) in extended {
            let charged = by_pod.and_then(|by_pod| by_pod.get(&name)).copied().unwrap_or(Quantity::ZERO);
            let rest = amount.minus(charged);
            if rest.nanos() > 0 {
                used.insert(name, rest);
            }
        }
    }

    /// Returns the usage of the pod for which the claim was created (`getVerifiedPodUsage`). Returns `None` if the pod
    /// does not exist, or has another claim.
    fn usage_of_pod(&self, claim: &Object) -> Option<&Amounts> {
        let (pod_name, pod_uid) = pod_of_claim(claim)?;
        let pod = self.pods.get(pod_name).filter(|pod| pod.uid == pod_uid)?;
        let name = text(metadata(claim), "name");
        let is_own = match &pod.claim {
            Some(of_pod) => of_pod == name,
            None => self.is_first_claim(claim, name, pod_uid),
        };
        is_own.then_some(&pod.used)
    }

    /// Whether a claim is the oldest one of its pod. Among claims of one second, the lower name counts as older. A claim
    /// that is being created is the youngest one.
    fn is_first_claim(&self, claim: &Object, name: &str, pod_uid: &str) -> bool {
        let created = text(metadata(claim), "creationTimestamp");
        let is_stored = self.claims.iter().any(|found| found.name == name);
        let is_earlier = |found: &OwnedClaim| match is_stored {
            true => (found.created.as_str(), found.name.as_str()) < (created, name),
            false => true,
        };
        !self.claims.iter().any(|found| found.pod_uid == pod_uid && is_earlier(found))
    }
}
