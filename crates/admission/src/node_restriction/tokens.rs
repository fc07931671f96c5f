//! Tokens that a node requests. A token must be bound to one of the node's pods, for an audience in a volume of the pod
//! (`admitServiceAccount`, `validateNodeServiceAccountAudience`).

use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;

use super::{NodeWrite, Object, text};

/// The verb with which roles allow additional audiences.
const AUDIENCE_VERB: &str = "request-serviceaccounts-token-audience";

/// The CSI drivers that replaced the volume sources of Kubernetes itself (`csi-translation-lib`), as pairs of the
/// volume source and the driver.
const MIGRATED_SOURCES: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

impl NodeWrite<'_> {
    /// Checks a write of a service account or one of its subresources.
    pub(super) async fn token(&self, authorizers: &AuthorizerChain) -> Result<(), Status> {
        if !self.is_create() || self.request.subresource != Some("token") {
            return Ok(());
        }
        let nothing = Value::Null;
        let spec = self.object.get("spec").unwrap_or(&nothing);
        let reference = |field: &str| spec["boundObjectRef"][field].as_str().unwrap_or_default();
        let name = reference("name");
        if reference("apiVersion") != "v1" || reference("kind") != "Pod" || name.is_empty() {
            return self.forbidden("node requested token not bound to a pod");
        }
        let uid = reference("uid");
        if uid.is_empty() {
            return self.forbidden("node requested token with a pod binding without a uid");
        }
        let pod = self.stored("pods", self.request.namespace, name).await?;
        if uid != meta::text(metadata(&pod), "uid") {
            return self.forbidden(format_args!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ));
        }
        if !self.runs(&pod) {
            return self.forbidden("node requested token bound to a pod scheduled on a different node");
        }
        self.audience(spec, &pod, authorizers).await
    }

    async fn audience(&self, spec: &Value, pod: &Object, authorizers: &AuthorizerChain) -> Result<(), Status> {
        let audience = match spec["audiences"].as_array().map(Vec::as_slice).unwrap_or_default() {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return self.forbidden("node may only request 0 or 1 audiences"),
        };
        match self.pod_names_audience(pod, audience).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(why) => {
                return self.forbidden(format_args!("error validating audience {}: {why}", quote(audience)));
            }
        }
        let attributes = Attributes {
            api_version: "v1",
            namespace: self.request.namespace.unwrap_or_default(),
            name: self.request.name,
            ..Attributes::resource(self.request.user, AUDIENCE_VERB, "", audience)
        };
        if authorizers.authorize(&attributes).await.is_allowed() {
            return Ok(());
        }
        self.forbidden(format_args!(
            "audience {} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            quote(audience),
            self.request.user.username
        ))
    }

    /// Whether a volume of the pod requests tokens for the audience, directly or through its CSI driver.
    ///
    /// # Errors
    /// The errors of volumes whose driver cannot be found, if no other volume requests the audience.
    async fn pod_names_audience(&self, pod: &Object, audience: &str) -> Result<bool, String> {
        let mut errors = Vec::new();
        let volumes = pod.get("spec").and_then(|spec| spec.get("volumes")?.as_array());
        for volume in volumes.into_iter().flatten() {
            let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
            let mut tokens = sources.filter_map(|source| source["serviceAccountToken"].as_object());
            if tokens.any(|token| meta::text(token, "audience") == audience) {
                return Ok(true);
            }
            let named = async {
                let driver = self.driver_of_volume(meta::text(metadata(pod), "name"), volume).await?;
                if driver.is_empty() {
                    return Ok(false);
                }
                let driver = self.stored_of("storage.k8s.io", "csidrivers", None, &driver).await?;
                let requests = driver.get("spec").and_then(|spec| spec.get("tokenRequests")?.as_array());
                let audience_of = |request: &Value| request["audience"].as_str().unwrap_or_default() == audience;
                Ok::<_, Status>(requests.into_iter().flatten().any(audience_of))
            };
            match named.await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(status) => errors.push(status.message),
            }
        }
        errors.dedup();
        match errors.as_slice() {
            [] => Ok(false),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    /// Returns the CSI driver of a volume; empty if the volume has none.
    async fn driver_of_volume(&self, pod_name: &str, volume: &Value) -> Result<String, Status> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if !volume["ephemeral"]["volumeClaimTemplate"].is_null() {
            return self.driver_of_claim(&format!("{pod_name}-{}", text(&volume["name"]))).await;
        }
        if !volume["persistentVolumeClaim"].is_null() {
            return self.driver_of_claim(&text(&volume["persistentVolumeClaim"]["claimName"])).await;
        }
        if !volume["csi"].is_null() {
            return Ok(text(&volume["csi"]["driver"]));
        }
        Ok(migrated_driver(volume))
    }

    async fn driver_of_claim(&self, claim: &str) -> Result<String, Status> {
        let claim = self.stored("persistentvolumeclaims", self.request.namespace, claim).await?;
        let volume = self.stored("persistentvolumes", None, text(&claim, "spec", "volumeName")).await?;
        let spec = volume.get("spec").unwrap_or(&Value::Null);
        Ok(match spec["csi"]["driver"].as_str() {
            Some(driver) => driver.to_owned(),
            None => migrated_driver(spec),
        })
    }
}

fn migrated_driver(source: &Value) -> String {
    let found = MIGRATED_SOURCES.iter().find(|(name, _)| !source[*name].is_null());
    found.map_or(String::new(), |(_, driver)| (*driver).to_owned())
}
