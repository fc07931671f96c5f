//! The objects that a pod or a persistent volume refers to: [`PodReferences`], [`VolumeReferences`]
//! (`AddPod` and `AddPV` in `plugin/pkg/auth/authorizer/node/graph.go`, `pkg/api/v1/pod/util.go`,
//! `pkg/api/v1/persistentvolume/util.go`).

use listwatch_json::Map;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// The kinds of objects to which pods refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reference {
    Secret,
    ConfigMap,
    PersistentVolumeClaim,
    ServiceAccount,
    ResourceClaim,
}

/// The objects in the namespace of a scheduled pod that the pod refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodReferences {
    /// The node to which the pod is bound.
    pub(super) node: String,
    /// The names of the objects, sorted, without duplicates.
    pub(super) objects: Vec<(Reference, String)>,
}

/// The objects that a bound persistent volume refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeReferences {
    /// The namespace and the name of the claim.
    pub(super) claim: (String, String),
    /// The namespaces and names of the Secrets that a kubelet needs, sorted, without duplicates.
    pub(super) secrets: Vec<(String, String)>,
}

/// Reads `null` as the default value, as Go does.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

macro_rules! partial {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct $name {
            $(#[serde(deserialize_with = "null_as_default")] $field: $type,)*
        }
    )*};
}

partial! {
    Named { name: String }
    Pod { metadata: PodMetadata, spec: PodSpec, status: PodStatus }
    PodMetadata { annotations: Annotations }
    PodSpec {
        node_name: String,
        service_account_name: String,
        image_pull_secrets: Vec<Named>,
        init_containers: Vec<Container>,
        containers: Vec<Container>,
        ephemeral_containers: Vec<Container>,
        volumes: Vec<Volume>,
        resource_claims: Vec<PodResourceClaim>,
    }
    PodStatus { resource_claim_statuses: Vec<ClaimStatus>, extended_resource_claim_status: Option<ExtendedClaimStatus> }
    PodResourceClaim { name: String, resource_claim_name: Option<String>, resource_claim_template_name: Option<String> }
    ClaimStatus { name: String, resource_claim_name: Option<String> }
    ExtendedClaimStatus { resource_claim_name: String }
    Container { env: Vec<EnvVar>, env_from: Vec<EnvFrom> }
    EnvVar { value_from: Option<EnvSource> }
    EnvSource { secret_key_ref: Option<Named>, config_map_key_ref: Option<Named> }
    EnvFrom { secret_ref: Option<Named>, config_map_ref: Option<Named> }
    WithSecretRef { secret_ref: Option<Named> }
    AzureFile { secret_name: String, secret_namespace: Option<String> }
    SecretVolume { secret_name: String }
    ClaimVolume { claim_name: String }
    CsiVolume { node_publish_secret_ref: Option<Named> }
    Projected { sources: Vec<ProjectedSource> }
    ProjectedSource { secret: Option<Named>, config_map: Option<Named> }
    AttachmentObject { spec: AttachmentSpec }
    AttachmentSpec { node_name: String }
    SliceObject { spec: SliceSpec }
    SliceSpec { node_name: Option<String> }
    PersistentVolume { spec: PersistentVolumeSpec }
    SecretReference { name: String, namespace: String }
    WithSecretReference { secret_ref: Option<SecretReference> }
    CsiPersistentVolume {
        node_publish_secret_ref: Option<SecretReference>,
        node_stage_secret_ref: Option<SecretReference>,
        node_expand_secret_ref: Option<SecretReference>,
    }
}

/// Whether the annotation of mirror pods is present, with any value. A node can create such pods itself, so they must
/// not grant anything.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.mirror", deserialize_with = "present")]
    is_mirror: bool,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// A volume of a pod. Members with other types are not read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: String,
    azure_file: Option<AzureFile>,
    cephfs: Option<WithSecretRef>,
    cinder: Option<WithSecretRef>,
    flex_volume: Option<WithSecretRef>,
    projected: Option<Projected>,
    rbd: Option<WithSecretRef>,
    secret: Option<SecretVolume>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<WithSecretRef>,
    iscsi: Option<WithSecretRef>,
    storageos: Option<WithSecretRef>,
    csi: Option<CsiVolume>,
    config_map: Option<Named>,
    persistent_volume_claim: Option<ClaimVolume>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PersistentVolumeSpec {
    claim_ref: Option<SecretReference>,
    azure_file: Option<AzureFile>,
    cephfs: Option<WithSecretReference>,
    cinder: Option<WithSecretReference>,
    flex_volume: Option<WithSecretReference>,
    rbd: Option<WithSecretReference>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<WithSecretReference>,
    iscsi: Option<WithSecretReference>,
    storageos: Option<WithSecretReference>,
    csi: Option<CsiPersistentVolume>,
}

impl PodReferences {
    /// Reads the references of the pod `name`. `None` for a pod without a node.
    ///
    /// # Errors
    /// The error of the JSON reader.
    pub(super) fn parse(name: &str, json: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let pod: Pod = serde_json::from_slice(json)?;
        if pod.spec.node_name.is_empty() {
            return Ok(None);
        }
        // A mirror pod grants access to itself only.
        let objects = if pod.metadata.annotations.is_mirror { Vec::new() } else { collect(&pod, name) };
        Ok(Some(PodReferences { node: pod.spec.node_name, objects }))
    }

    /// Reads the references of a pod that is not stored, including those of a mirror pod.
    ///
    /// # Errors
    /// The error of the JSON reader.
    pub(super) fn of(pod: &Map) -> Result<Vec<(Reference, String)>, serde_json::Error> {
        Ok(collect(&Pod::deserialize(pod)?, ""))
    }
}

fn collect(pod: &Pod, pod_name: &str) -> Vec<(Reference, String)> {
    let (spec, mut objects) = (&pod.spec, Vec::new());
    let mut add = |kind: Reference, name: &str| objects.push((kind, name.to_owned()));
    add(Reference::ServiceAccount, &spec.service_account_name);
    spec.image_pull_secrets.iter().for_each(|secret| add(Reference::Secret, &secret.name));
    for container in spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers) {
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            source.secret_key_ref.iter().for_each(|secret| add(Reference::Secret, &secret.name));
            source.config_map_key_ref.iter().for_each(|map| add(Reference::ConfigMap, &map.name));
        }
        for source in &container.env_from {
            source.secret_ref.iter().for_each(|secret| add(Reference::Secret, &secret.name));
            source.config_map_ref.iter().for_each(|map| add(Reference::ConfigMap, &map.name));
        }
    }
    for volume in &spec.volumes {
        if let Some(secret) = volume.secret_name() {
            add(Reference::Secret, secret);
        }
        if let Some(projected) = &volume.projected {
            for source in &projected.sources {
                source.secret.iter().for_each(|secret| add(Reference::Secret, &secret.name));
                source.config_map.iter().for_each(|map| add(Reference::ConfigMap, &map.name));
            }
        } else if let Some(map) = &volume.config_map {
            add(Reference::ConfigMap, &map.name);
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            add(Reference::PersistentVolumeClaim, &claim.claim_name);
        } else if volume.ephemeral.is_some() {
            add(Reference::PersistentVolumeClaim, &format!("{pod_name}-{}", volume.name));
        }
    }
    for claim in &spec.resource_claims {
        // A claim from a template has its name in the status, once it exists.
        let name = match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(name), _) => Some(name),
            (None, Some(_)) => {
                let status = pod.status.resource_claim_statuses.iter().find(|status| status.name == claim.name);
                status.and_then(|status| status.resource_claim_name.as_ref())
            }
            (None, None) => None,
        };
        if let Some(name) = name {
            add(Reference::ResourceClaim, name);
        }
    }
    if let Some(extended) = &pod.status.extended_resource_claim_status {
        add(Reference::ResourceClaim, &extended.resource_claim_name);
    }
    objects.retain(|(_, name)| !name.is_empty());
    objects.sort_unstable();
    objects.dedup();
    objects
}

impl Volume {
    /// The Secret that the volume names itself, without the sources of a projected volume.
    fn secret_name(&self) -> Option<&str> {
        // The order of upstream's switch: the first source decides.
        if let Some(azure) = &self.azure_file {
            return Some(&azure.secret_name);
        }
        if let Some(source) = [&self.cephfs, &self.cinder, &self.flex_volume].into_iter().flatten().next() {
            return source.name();
        }
        if self.projected.is_some() {
            return None;
        }
        if let Some(source) = &self.rbd {
            return source.name();
        }
        if let Some(secret) = &self.secret {
            return Some(&secret.secret_name);
        }
        if let Some(source) = [&self.scale_io, &self.iscsi, &self.storageos].into_iter().flatten().next() {
            return source.name();
        }
        Some(&self.csi.as_ref()?.node_publish_secret_ref.as_ref()?.name)
    }
}

impl WithSecretRef {
    fn name(&self) -> Option<&str> {
        Some(&self.secret_ref.as_ref()?.name)
    }
}

impl VolumeReferences {
    /// Reads the references of a persistent volume. `None` for a volume without a claim.
    ///
    /// # Errors
    /// The error of the JSON reader.
    pub(super) fn parse(json: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let spec = serde_json::from_slice::<PersistentVolume>(json)?.spec;
        let Some(claim) = &spec.claim_ref else { return Ok(None) };
        let mut secrets = spec.secrets(&claim.namespace);
        secrets.retain(|(_, name)| !name.is_empty());
        secrets.sort_unstable();
        secrets.dedup();
        Ok(Some(VolumeReferences { claim: (claim.namespace.clone(), claim.name.clone()), secrets }))
    }
}

impl PersistentVolumeSpec {
    /// The Secrets that a kubelet needs. Some sources without a namespace use that of the claim.
    fn secrets(&self, claim_namespace: &str) -> Vec<(String, String)> {
        let own = |secret: &SecretReference| (secret.namespace.clone(), secret.name.clone());
        let or_claims = |secret: &SecretReference| match secret.namespace.is_empty() {
            true => (claim_namespace.to_owned(), secret.name.clone()),
            false => own(secret),
        };
        let of = |source: &WithSecretReference, read: &dyn Fn(&SecretReference) -> (String, String)| {
            source.secret_ref.iter().map(read).collect()
        };
        // The order of upstream's switch: the first source decides.
        if let Some(azure) = &self.azure_file {
            let namespace = azure.secret_namespace.as_deref().filter(|namespace| !namespace.is_empty());
            return vec![(namespace.unwrap_or(claim_namespace).to_owned(), azure.secret_name.clone())];
        }
        if let Some(source) = &self.cephfs {
            return of(source, &or_claims);
        }
        if let Some(source) = &self.cinder {
            return of(source, &own);
        }
        if let Some(source) = [&self.flex_volume, &self.rbd, &self.scale_io, &self.iscsi].into_iter().flatten().next() {
            return of(source, &or_claims);
        }
        if let Some(source) = &self.storageos {
            return of(source, &own);
        }
        let Some(csi) = &self.csi else { return Vec::new() };
        let node = [&csi.node_publish_secret_ref, &csi.node_stage_secret_ref, &csi.node_expand_secret_ref];
        node.into_iter().flatten().map(own).collect()
    }
}

/// Reads the node of a VolumeAttachment.
///
/// # Errors
/// The error of the JSON reader.
pub(super) fn attachment_node(json: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let node = serde_json::from_slice::<AttachmentObject>(json)?.spec.node_name;
    Ok((!node.is_empty()).then_some(node))
}

/// Reads the node of a ResourceSlice.
///
/// # Errors
/// The error of the JSON reader.
pub(super) fn slice_node(json: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let node = serde_json::from_slice::<SliceObject>(json)?.spec.node_name;
    Ok(node.filter(|node| !node.is_empty()))
}
