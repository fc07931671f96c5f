//! [`api_reference`]: finds the first API object that a pod refers to (`HasAPIObjectReference` in
//! `pkg/api/pod/util.go`).

use listwatch_json::Map;

use super::references::{PodReferences, Reference};

/// The volume sources that refer to no API object.
const LOCAL_SOURCES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// The volume sources that refer to an API object, with upstream's description of the reference.
const SOURCES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

/// The sources of projected volumes that refer to an API object, with upstream's description of the reference.
const PROJECTED_SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Returns the first kind of API object to which the pod refers, in upstream's wording. Returns `None` for a pod
/// without references, which a kubelet can run without the API.
///
/// # Errors
/// Upstream's text for a volume of an unknown type; the text of the JSON reader for a malformed pod.
pub fn api_reference(pod: &Map) -> Result<Option<&'static str>, String> {
    let references = PodReferences::of(pod).map_err(|error| error.to_string())?;
    let has = |kind: Reference| references.iter().any(|(one, _)| *one == kind);
    for (kind, name) in [
        (Reference::ServiceAccount, "serviceaccounts"),
        (Reference::Secret, "secrets"),
        (Reference::ConfigMap, "configmaps"),
    ] {
        if has(kind) {
            return Ok(Some(name));
        }
    }
    let list = |field: &str| pod.get("spec").and_then(|spec| spec.get(field)?.as_array()).into_iter().flatten();
    if list("resourceClaims").next().is_some() {
        return Ok(Some("resourceclaims"));
    }
    for volume in list("volumes") {
        let name = volume["name"].as_str().unwrap_or_default();
        let has = |source: &str| !volume[source].is_null();
        if LOCAL_SOURCES.into_iter().any(has) {
            continue;
        }
        if let Some((_, object)) = SOURCES.into_iter().find(|(source, _)| has(source)) {
            return Ok(Some(object));
        }
        if !has("projected") {
            return Err(format!("unknown volume type for volume  {name:?}"));
        }
        for source in volume["projected"]["sources"].as_array().into_iter().flatten() {
            let has = |kind: &str| !source[kind].is_null();
            if let Some((_, object)) = PROJECTED_SOURCES.into_iter().find(|(kind, _)| has(kind)) {
                return Ok(Some(object));
            }
            if !has("downwardAPI") {
                return Err(format!("unknown source for projected volume {name:?}"));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;

    #[test]
    fn first_api_reference_of_a_pod_has_upstreams_text() {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = json!("v");
            json!({"volumes": [{"name": "w", "emptyDir": {}}, volume]})
        };
        let projected = |source: Value| volume(json!({"projected": {"sources": [{"downwardAPI": {}}, source]}}));
        for (spec, expected) in [
            (json!({}), Ok(None)),
            (json!({"serviceAccountName": ""}), Ok(None)),
            (json!({"serviceAccountName": "s"}), Ok(Some("serviceaccounts"))),
            (json!({"imagePullSecrets": [{"name": "s"}]}), Ok(Some("secrets"))),
            (json!({"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}), Ok(Some("configmaps"))),
            (json!({"resourceClaims": [{"name": "r"}]}), Ok(Some("resourceclaims"))),
            (volume(json!({"hostPath": {"path": "/"}})), Ok(None)),
            (volume(json!({"secret": {"secretName": "s"}})), Ok(Some("secrets"))),
            (volume(json!({"secret": {}})), Ok(Some("secrets (via secret volumes)"))),
            (volume(json!({"configMap": {}})), Ok(Some("configmaps (via configmap volumes)"))),
            (volume(json!({"csi": {"driver": "d"}})), Ok(Some("csidrivers (via CSI volumes)"))),
            (volume(json!({"glusterfs": {}})), Ok(Some("endpoints (via glusterFS volumes)"))),
            (volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), Ok(Some("persistentvolumeclaims"))),
            (volume(json!({"ephemeral": {}})), Ok(Some("persistentvolumeclaims (via ephemeral volumes)"))),
            (volume(json!({"azureFile": {}})), Ok(Some("secrets (via azureFile volumes)"))),
            (projected(json!({"downwardAPI": {}})), Ok(None)),
            (projected(json!({"configMap": {}})), Ok(Some("configmaps (via projected volumes)"))),
            (projected(json!({"secret": {}})), Ok(Some("secrets (via projected volumes)"))),
            (projected(json!({"serviceAccountToken": {}})), Ok(Some("serviceaccounts (via projected volumes)"))),
            (projected(json!({"clusterTrustBundle": {}})), Ok(Some("clustertrustbundles"))),
            (projected(json!({"podCertificate": {}})), Ok(Some("podcertificates"))),
            (projected(json!({"new": {}})), Err("unknown source for projected volume \"v\"")),
            (volume(json!({"new": {}})), Err("unknown volume type for volume  \"v\"")),
        ] {
            let Value::Object(pod) = json!({"spec": spec}) else { unreachable!("it is an object") };
            assert_eq!(api_reference(&pod), expected.map_err(str::to_owned), "{pod:?}");
        }
    }
}
