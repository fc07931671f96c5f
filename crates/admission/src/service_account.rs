//! ServiceAccount: adds a service account, its token and its image pull secrets to each new pod
//! (`plugin/pkg/admission/serviceaccount`).
//!
//! | pod | treatment |
//! |---|---|
//! | of a kubelet (mirror pod) | nothing is changed; accounts, secrets and tokens are rejected |
//! | other | without an account, the account is `default`; the account must exist |

use std::time::Duration;

use listwatch_json::{Value, json};
use listwatch_meta::{GroupResource, Status, go};
use listwatch_validation::{Object, child, child_mut, items, metadata, names, objects, text};

use super::plugin::{Mutator, Validator};
use super::{AdmissionRequest, Operation};

/// The name of the account of pods without `serviceAccountName`.
const DEFAULT_ACCOUNT: &str = "default";
/// The annotation of pods that a kubelet creates from its own files.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// The annotation of accounts whose pods may use only the secrets that the account lists.
const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// The directory of the token in each container.
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The prefix of the name of the token volume.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The lifetime of the token, in seconds. Kubelets renew it.
const TOKEN_SECONDS: u32 = 3607;

/// The delays between attempts to read the account `default` of a namespace. A controller creates the account shortly
/// after the namespace. Upstream waits nine times 100 to 200 ms. The sum is about the same here. The first delays are
/// short, because the controller of this server needs only a few milliseconds.
const DEFAULT_ACCOUNT_DELAYS: [Duration; 9] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(200),
    Duration::from_millis(200),
    Duration::from_millis(200),
];

/// The plugin that gives pods their service account.
pub(super) struct ServiceAccount;

impl Mutator for ServiceAccount {
    const NAME: &'static str = "ServiceAccount";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        if is_mirror_pod(object) {
            return check_mirror_pod(object).map_err(|why| request.forbid(object, why));
        }
        let spec = child_mut(object, "spec");
        if text(spec, "serviceAccountName").is_empty() {
            spec.insert("serviceAccountName", json!(DEFAULT_ACCOUNT));
            spec.insert("serviceAccount", json!(DEFAULT_ACCOUNT));
        }
        let account = account_of(request, object).await?;
        let spec = child_mut(object, "spec");
        if is_token_mounted(&account, spec) {
            let volume = names::generate(VOLUME_PREFIX, |below| rand::random_range(0..below));
            mount_token(spec, &volume);
        }
        if items(spec, "imagePullSecrets").is_empty()
            && let Some(secrets) = account.get("imagePullSecrets").filter(|secrets| secrets.is_array())
        {
            spec.insert("imagePullSecrets", secrets.clone());
        }
        check_secrets(&account, object).map_err(|why| request.forbid(object, why))
    }
}

impl Validator for ServiceAccount {
    const NAME: &'static str = "ServiceAccount";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
            || (request.operation == Operation::Update
                && request.resource == "pods"
                && request.group.is_empty()
                && request.subresource == Some("ephemeralcontainers"))
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let forbid = |why: String| request.forbid(object, why);
        let is_update = request.operation == Operation::Update;
        if !is_update && is_mirror_pod(object) {
            return check_mirror_pod(object).map_err(|why| request.forbid(object, why));
        }
        if text(child(object, "spec"), "serviceAccountName").is_empty() {
            let namespace = request.namespace.unwrap_or_default();
            let name = text(metadata(object), "name");
            return Err(forbid(format!("no service account specified for pod {namespace}/{name}")));
        }
        let account = account_of(request, object).await?;
        if is_update {
            // A plain error in upstream, which is a 500.
            return check_ephemeral_secrets(&account, object).map_err(Status::unknown);
        }
        check_secrets(&account, object).map_err(forbid)
    }
}

fn is_mirror_pod(pod: &Object) -> bool {
    child(metadata(pod), "annotations").contains_key(MIRROR_POD)
}

/// Reads the account of a pod.
///
/// # Errors
/// 403 if the account does not exist. For the account `default`, the error is returned after
/// [`DEFAULT_ACCOUNT_DELAYS`].
async fn account_of(request: &AdmissionRequest<'_>, pod: &Object) -> Result<Object, Status> {
    let namespace = request.namespace.unwrap_or_default();
    let name = text(child(pod, "spec"), "serviceAccountName");
    let failed =
        |why: String| request.forbid(pod, format_args!("error looking up service account {namespace}/{name}: {why}"));
    let delays = if name == DEFAULT_ACCOUNT { &DEFAULT_ACCOUNT_DELAYS[..] } else { &[] };
    let mut delays = delays.iter();
    loop {
        let found = request.get_cached("", "serviceaccounts", request.namespace, name).await;
        if let Some(account) = found.map_err(|status| failed(status.message))? {
            return Ok(account);
        }
        let Some(delay) = delays.next() else {
            let resource = GroupResource { group: "", resource: "serviceaccount" };
            return Err(failed(Status::not_found(resource, name).message));
        };
        tokio::time::sleep(*delay).await;
    }
}

/// Checks that a mirror pod has no service account, no secret and no token volume.
fn check_mirror_pod(pod: &Object) -> Result<(), &'static str> {
    let spec = child(pod, "spec");
    if !text(spec, "serviceAccountName").is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if references_secret(spec) {
        return Err("a mirror pod may not reference secrets");
    }
    let mut sources = objects(spec, "volumes").flat_map(|(_, volume)| objects(child(volume, "projected"), "sources"));
    if sources.any(|(_, source)| source.contains_key("serviceAccountToken")) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Whether a pod references a secret anywhere (`VisitPodSecretNames`).
fn references_secret(spec: &Object) -> bool {
    let is_named = |holder: &Object, name: &str| !text(holder, name).is_empty();
    let in_volume = |volume: &Object| {
        let of_driver = ["azureFile", "cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos", "csi"];
        is_named(child(volume, "secret"), "secretName")
            || is_named(child(volume, "azureFile"), "secretName")
            || of_driver.iter().any(|driver| {
                let source = child(volume, driver);
                source.contains_key("secretRef") || source.contains_key("nodePublishSecretRef")
            })
            || objects(child(volume, "projected"), "sources").any(|(_, source)| source.contains_key("secret"))
    };
    !items(spec, "imagePullSecrets").is_empty()
        || objects(spec, "volumes").any(|(_, volume)| in_volume(volume))
        || ["containers", "initContainers", "ephemeralContainers"]
            .iter()
            .any(|list| objects(spec, list).any(|(_, container)| secret_references(container).next().is_some()))
}

/// Returns the secrets in the environment of a container, with the name of the variable if it uses one key of the
/// secret.
fn secret_references(container: &Object) -> impl Iterator<Item = (Option<&str>, &str)> {
    let variables = objects(container, "env").filter_map(|(_, variable)| {
        let reference = child(variable, "valueFrom").get("secretKeyRef")?.as_object()?;
        Some((Some(text(variable, "name")), text(reference, "name")))
    });
    let whole = objects(container, "envFrom")
        .filter_map(|(_, source)| Some((None, text(source.get("secretRef")?.as_object()?, "name"))));
    variables.chain(whole)
}

/// Whether the token is mounted. The setting of the pod overrides that of the account; the default is true
/// (`shouldAutomount`).
fn is_token_mounted(account: &Object, spec: &Object) -> bool {
    let says = |holder: &Object| holder.get("automountServiceAccountToken").and_then(Value::as_bool);
    says(spec).or_else(|| says(account)).unwrap_or(true)
}

/// Mounts the token into each container without a mount at [`TOKEN_DIRECTORY`]. The volume is an existing token volume
/// of the pod, or else a new volume named `volume`.
fn mount_token(spec: &mut Object, volume: &str) {
    let own = objects(spec, "volumes")
        .map(|(_, volume)| text(volume, "name"))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let name = own.as_deref().unwrap_or(volume);
    let mut is_needed = false;
    for list in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            if objects(container, "volumeMounts").any(|(_, mount)| text(mount, "mountPath") == TOKEN_DIRECTORY) {
                continue;
            }
            push(container, "volumeMounts", json!({"name": name, "readOnly": true, "mountPath": TOKEN_DIRECTORY}));
            is_needed = true;
        }
    }
    if own.is_none() && is_needed {
        let token = json!({"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}});
        let authority =
            json!({"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
        let field = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
        let namespace = json!({"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}});
        let projected = json!({"sources": [token, authority, namespace], "defaultMode": 0o644});
        push(spec, "volumes", json!({"name": volume, "projected": projected}));
    }
}

/// Appends to a list, which is created if it is absent.
fn push(holder: &mut Object, list: &str, item: Value) {
    match holder.get_mut(list) {
        Some(Value::Array(items)) => items.push(item),
        _ => {
            holder.insert(list, Value::Array(vec![item]));
        }
    }
}

fn limits_secrets(account: &Object) -> bool {
    go::parse_bool(text(child(metadata(account), "annotations"), ENFORCE_MOUNTABLE_SECRETS)) == Some(true)
}

fn names_of<'a>(account: &'a Object, list: &'a str) -> Vec<&'a str> {
    objects(account, list).map(|(_, reference)| text(reference, "name")).collect()
}

/// Checks that a pod uses only the secrets of its account, if the account requires that (`limitSecretReferences`).
fn check_secrets(account: &Object, pod: &Object) -> Result<(), String> {
    if !limits_secrets(account) {
        return Ok(());
    }
    let (spec, owner) = (child(pod, "spec"), text(metadata(account), "name"));
    let mountable = names_of(account, "secrets");
    for (_, volume) in objects(spec, "volumes") {
        let Some(Value::Object(source)) = volume.get("secret") else { continue };
        let name = text(source, "secretName");
        if !mountable.contains(&name) {
            return Err(format!(
                "volume with secret.secretName=\"{name}\" is not allowed because service account {owner} does not reference that secret"
            ));
        }
    }
    for (list, what) in [("initContainers", "init container"), ("containers", "container")] {
        check_environment(spec, list, what, &mountable, owner)?;
    }
    let pullable = names_of(account, "imagePullSecrets");
    for (index, secret) in objects(spec, "imagePullSecrets") {
        let name = text(secret, "name");
        if !pullable.contains(&name) {
            return Err(format!(
                "imagePullSecrets[{index}].name=\"{name}\" is not allowed because service account {owner} does not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

/// Checks ephemeral containers by the rules of [`check_secrets`].
fn check_ephemeral_secrets(account: &Object, pod: &Object) -> Result<(), String> {
    if !limits_secrets(account) {
        return Ok(());
    }
    let mountable = names_of(account, "secrets");
    let owner = text(metadata(account), "name");
    check_environment(child(pod, "spec"), "ephemeralContainers", "ephemeral container", &mountable, owner)
}

fn check_environment(spec: &Object, list: &str, what: &str, mountable: &[&str], owner: &str) -> Result<(), String> {
    for (_, container) in objects(spec, list) {
        for (variable, secret) in secret_references(container) {
            if mountable.contains(&secret) {
                continue;
            }
            let by = match variable {
                Some(variable) => format!("with envVar {variable} referencing"),
                None => "with envFrom referencing".to_owned(),
            };
            let name = text(container, "name");
            return Err(format!(
                "{what} {name} {by} secret.secretName=\"{secret}\" is not allowed because service account {owner} does not reference that secret"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn account(name: &str, rest: Value) -> Value {
        let mut account = object(rest);
        let annotations = account.remove("annotations").unwrap_or_default();
        account.insert("metadata", json!({"name": name, "namespace": "ns", "annotations": annotations}));
        Value::Object(account)
    }

    async fn admitted(fixture: &Fixture, pod: Value) -> Result<Object, String> {
        let mut pod = object(pod);
        let request = create(fixture, "", "pods", "Pod", "p");
        match ServiceAccount.mutate(&request, &mut pod).await {
            Ok(()) => ServiceAccount.check(&request, &pod).await.map(|()| pod).map_err(|status| status.message),
            Err(status) => Err(status.message),
        }
    }

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": spec})
    }

    #[tokio::test]
    async fn new_pod_gets_the_default_account_its_token_and_its_pull_secrets() {
        let fixture =
            Fixture::new(&[("serviceaccounts", account("default", json!({"imagePullSecrets": [{"name": "pull"}]})))]);
        let containers =
            json!([{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": TOKEN_DIRECTORY}]}]);
        let found = admitted(&fixture, pod(json!({"containers": containers, "initContainers": [{"name": "i"}]}))).await;
        let spec = Value::Object(found.unwrap())["spec"].clone();
        assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
        let volume = &spec["volumes"][0];
        let name = volume["name"].as_str().unwrap();
        assert!(name.starts_with(VOLUME_PREFIX) && name.len() == VOLUME_PREFIX.len() + 5, "{name}");
        assert_eq!(
            volume["projected"],
            json!({"sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}
            ], "defaultMode": 420})
        );
        let mount = json!([{"name": name, "readOnly": true, "mountPath": TOKEN_DIRECTORY}]);
        assert_eq!(
            (&spec["containers"][0]["volumeMounts"], &spec["initContainers"][0]["volumeMounts"]),
            (&mount, &mount)
        );
        assert_eq!(spec["containers"][1]["volumeMounts"][0]["name"], "own");
        let again = admitted(&fixture, pod(spec.clone())).await.unwrap();
        assert_eq!(again["spec"], spec, "a second run changes nothing");
    }

    #[tokio::test]
    async fn token_is_not_mounted_if_pod_or_account_disables_automount() {
        for (in_account, in_pod, expected) in [
            (None, Some(false), false),
            (Some(false), None, false),
            (Some(false), Some(true), true),
            (None, None, true),
        ] {
            let fixture = Fixture::new(&[(
                "serviceaccounts",
                account("default", json!({"automountServiceAccountToken": in_account})),
            )]);
            let spec = json!({"containers": [{"name": "c"}], "automountServiceAccountToken": in_pod});
            let found = admitted(&fixture, pod(spec)).await.unwrap();
            assert_eq!(found["spec"].get("volumes").is_some(), expected, "{in_account:?} {in_pod:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pod_creation_waits_for_the_default_account_but_not_for_other_accounts() {
        let fixture = Fixture::new(&[]);
        let start = tokio::time::Instant::now();
        let missing = admitted(&fixture, pod(json!({"serviceAccountName": "x"}))).await;
        let expected = "pods \"p\" is forbidden: error looking up service account ns/x: serviceaccount \"x\" not found";
        assert_eq!(missing, Err(expected.to_owned()));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(admitted(&fixture, pod(json!({}))).await.is_err());
        assert_eq!(start.elapsed(), DEFAULT_ACCOUNT_DELAYS.iter().sum::<Duration>());
        let created_later = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let default = object(account("default", json!({})));
            fixture.objects.lock().unwrap().push(("serviceaccounts".to_owned(), default));
        };
        let (admitted, ()) = tokio::join!(admitted(&fixture, pod(json!({}))), created_later);
        assert!(admitted.is_ok());
    }

    #[tokio::test]
    async fn pod_with_a_secret_outside_a_restricted_account_is_rejected() {
        // `strconv.ParseBool` reads the annotation.
        let annotations = json!({ENFORCE_MOUNTABLE_SECRETS: "True"});
        let limited =
            json!({"annotations": annotations, "secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "pull"}]});
        let fixture = Fixture::new(&[("serviceaccounts", account("sa", limited))]);
        let refused = |why: &str| {
            Err(format!("pods \"p\" is forbidden: {why} because service account sa does not reference that secret"))
        };
        let env = |name: &str| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]);
        for (spec, expected) in [
            (json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), Ok(())),
            (
                json!({"volumes": [{"name": "v", "secret": {"secretName": "o"}}]}),
                refused("volume with secret.secretName=\"o\" is not allowed"),
            ),
            (
                json!({"containers": [{"name": "c", "env": env("o")}]}),
                refused("container c with envVar V referencing secret.secretName=\"o\" is not allowed"),
            ),
            (
                json!({"initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "o"}}]}]}),
                refused("init container c with envFrom referencing secret.secretName=\"o\" is not allowed"),
            ),
            (
                json!({"imagePullSecrets": [{"name": "o"}]}),
                Err("pods \"p\" is forbidden: imagePullSecrets[0].name=\"o\" is not allowed because service account sa does not reference that imagePullSecret".to_owned()),
            ),
            (json!({"containers": [{"name": "c", "env": env("s")}]}), Ok(())),
        ] {
            let mut spec = object(spec);
            spec.insert("serviceAccountName", json!("sa"));
            assert_eq!(admitted(&fixture, pod(Value::Object(spec.clone()))).await.map(drop), expected, "{spec:?}");
        }
        let ephemeral =
            object(pod(json!({"serviceAccountName": "sa", "ephemeralContainers": [{"name": "e", "env": env("o")}]})));
        let request = create(&fixture, "", "pods", "Pod", "p");
        let request =
            AdmissionRequest { operation: Operation::Update, subresource: Some("ephemeralcontainers"), ..request };
        let found = ServiceAccount.check(&request, &ephemeral).await.unwrap_err();
        // Upstream returns a plain error here.
        let message = "ephemeral container e with envVar V referencing secret.secretName=\"o\" is not allowed because service account sa does not reference that secret";
        assert_eq!((found.code, &*found.reason, found.message.as_str()), (500, "", message));
        let without = object(pod(json!({"ephemeralContainers": [{"name": "e"}]})));
        let found = ServiceAccount.check(&request, &without).await.unwrap_err();
        assert_eq!(
            (found.code, found.message.as_str()),
            (403, "pods \"p\" is forbidden: no service account specified for pod ns/p")
        );
    }

    #[tokio::test]
    async fn mirror_pod_is_unchanged_and_rejected_with_account_secret_or_token() {
        let fixture = Fixture::new(&[]);
        for (spec, expected) in [
            (json!({"containers": [{"name": "c"}]}), Ok(())),
            (json!({"serviceAccountName": "a"}), Err("a mirror pod may not reference service accounts")),
            (json!({"volumes": [{"secret": {"secretName": "s"}}]}), Err("a mirror pod may not reference secrets")),
            (
                json!({"containers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}),
                Err("a mirror pod may not reference secrets"),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                Err("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ] {
            let mirror = json!({"metadata": {"name": "p", "annotations": {MIRROR_POD: "x"}}, "spec": spec});
            let expected = expected.map_err(|why| format!("pods \"p\" is forbidden: {why}"));
            let found = admitted(&fixture, mirror.clone()).await;
            assert_eq!(found.clone().map(drop), expected, "{spec}");
            assert!(found.is_err() || found.unwrap() == object(mirror), "it is not changed");
        }
    }
}
