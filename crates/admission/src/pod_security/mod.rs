//! PodSecurity: enforces the Pod Security Standards that the labels of a namespace select
//! (`pod-security-admission/admission`, `plugin/pkg/admission/security/podsecurity`).
//!
//! | mode | on | effect |
//! |---|---|---|
//! | enforce | pods | a violation rejects the pod with 403 |
//! | audit | pods and templates of pods | an annotation of the audit event |
//! | warn | pods and templates of pods | a warning for the client |

mod checks;
mod policy;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use listwatch_json::Map;
use listwatch_meta::go::quote;
use listwatch_meta::{FieldError, Status};
use listwatch_validation::{Object, child, metadata, text, texts};
use memchr::{memchr, memmem};

use self::checks::{Pod, details, is_significant, reasons, violations};
use self::policy::{LABEL_PREFIX, Level, Policy, Standard};
use super::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

/// The largest number of pods that a new enforce label is checked against. More pods are not checked.
const PODS_CHECKED_MAX: usize = 3000;
/// The time limit for checking the pods of a namespace.
const PODS_CHECK_TIME: Duration = Duration::from_secs(1);
/// The number of pods after which the check lets other requests run.
const PODS_AT_ONCE: usize = 16;

/// The configuration of the plugin (`PodSecurityConfiguration`): the default standards, and the exempt users,
/// namespaces and runtime classes.
#[derive(Debug, Clone, Default)]
pub struct PodSecurityConfiguration {
    defaults: Policy,
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl PodSecurityConfiguration {
    /// Reads a `PodSecurityConfiguration` of `pod-security.admission.config.k8s.io`.
    ///
    /// # Errors
    /// The field and the problem of its value.
    pub(super) fn parse(object: &Object) -> Result<Self, String> {
        let exemptions = child(object, "exemptions");
        let list = |name: &str| texts(exemptions, name).map(str::to_owned).collect::<Vec<String>>();
        let configuration = PodSecurityConfiguration {
            defaults: Policy::of_defaults(child(object, "defaults"))?,
            usernames: list("usernames"),
            namespaces: list("namespaces"),
            runtime_classes: list("runtimeClasses"),
        };
        for name in ["usernames", "namespaces", "runtimeClasses"] {
            let list = list(name);
            if let Some(index) = list.iter().position(String::is_empty) {
                return Err(format!("exemptions.{name}[{index}]: Invalid value: \"\": must not be empty"));
            }
            let repeated = (1..list.len()).find(|index| list[..*index].contains(&list[*index]));
            if let Some(index) = repeated {
                return Err(format!("exemptions.{name}[{index}]: Duplicate value: {:?}", list[index]));
            }
        }
        Ok(configuration)
    }
}

/// The plugin that enforces the Pod Security Standards.
pub(super) struct PodSecurity(PodSecurityConfiguration);

/// The kind of object that a request writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Namespace,
    Pod,
    /// An object with a pod template at this path.
    Template(&'static [&'static str]),
}

fn subject(request: &AdmissionRequest<'_>) -> Option<Subject> {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return None;
    }
    const IN_SPEC: &[&str] = &["spec", "template"];
    let subject = match (request.group, request.resource) {
        ("", "namespaces") => Subject::Namespace,
        ("", "pods") => {
            let ignored = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];
            let concerns = request.subresource.is_none_or(|name| !ignored.contains(&name));
            return concerns.then_some(Subject::Pod);
        }
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => Subject::Template(IN_SPEC),
        ("", "podtemplates") => Subject::Template(&["template"]),
        ("batch", "cronjobs") => Subject::Template(&["spec", "jobTemplate", "spec", "template"]),
        _ => return None,
    };
    request.subresource.is_none().then_some(subject)
}

impl ValidatingAdmission for PodSecurity {
    fn name(&self) -> &str {
        "PodSecurity"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        subject(request).is_some()
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        match subject(request) {
            None => Box::pin(std::future::ready(Ok(()))),
            Some(Subject::Namespace) => Box::pin(self.check_namespace(request, object)),
            Some(Subject::Pod) => Box::pin(self.check_pod(request, object)),
            Some(Subject::Template(path)) => Box::pin(self.check_template(request, object, path)),
        }
    }
}

impl PodSecurity {
    /// Creates a plugin with this configuration.
    pub(super) fn new(configuration: PodSecurityConfiguration) -> Self {
        PodSecurity(configuration)
    }

    fn is_exempt_namespace(&self, namespace: &str) -> bool {
        self.0.namespaces.iter().any(|exempt| exempt == namespace)
    }

    fn is_exempt_runtime_class(&self, spec: &Object) -> bool {
        let class = text(spec, "runtimeClassName");
        !class.is_empty() && self.0.runtime_classes.iter().any(|exempt| exempt == class)
    }

    /// Whether the namespace or the user of a request is exempt. An exemption is recorded in the audit event.
    fn is_exempt(&self, request: &AdmissionRequest<'_>) -> bool {
        let why = if self.is_exempt_namespace(request.namespace.unwrap_or_default()) {
            "namespace"
        } else if self.0.usernames.contains(&request.user.username) {
            "user"
        } else {
            return false;
        };
        annotate(request, "exempt", why);
        true
    }

    /// Returns the policy of the namespace of a request, and the errors of the namespace's labels.
    async fn policy(&self, request: &AdmissionRequest<'_>) -> Result<(Policy, Vec<FieldError>), Status> {
        let name = request.namespace.unwrap_or_default();
        let failed = || Status::internal(format_args!("failed to lookup namespace {}", quote(name)));
        let found = request.objects.get_cached("", "v1", "namespaces", None, name).await.map_err(|_| failed())?;
        // The namespace exists: NamespaceLifecycle has looked.
        let Some(json) = found else { return Ok((self.0.defaults, Vec::new())) };
        // Nearly all namespaces have no such label, and most writes need no more of the namespace.
        if memmem::find(&json, LABEL_PREFIX.as_bytes()).is_none() && memchr(b'\\', &json).is_none() {
            return Ok((self.0.defaults, Vec::new()));
        }
        let namespace: Object = serde_json::from_slice(&json).map_err(Status::internal)?;
        Ok(Policy::of_labels(child(metadata(&namespace), "labels"), &self.0.defaults))
    }

    async fn check_pod(&self, request: &AdmissionRequest<'_>, pod: &Object) -> Result<(), Status> {
        if self.is_exempt(request) {
            return Ok(());
        }
        let (policy, errors) = self.policy(request).await?;
        if errors.is_empty() && policy.is_privileged() {
            annotate(request, "enforce-policy", policy.enforce.to_string());
            return Ok(());
        }
        if request.old_object.is_some_and(|old| !is_significant(pod, old)) {
            return Ok(());
        }
        let view = Pod { metadata: metadata(pod), spec: child(pod, "spec") };
        self.evaluate(request, pod, view, &policy, &errors, true)
    }

    async fn check_template(
        &self,
        request: &AdmissionRequest<'_>,
        object: &Object,
        path: &[&str],
    ) -> Result<(), Status> {
        if self.is_exempt(request) {
            return Ok(());
        }
        let (policy, errors) = match self.policy(request).await {
            Ok(policy) => policy,
            Err(status) => {
                annotate(request, "error", status.message);
                return Ok(());
            }
        };
        let is_unwatched = policy.warn.level == Level::Privileged && policy.audit.level == Level::Privileged;
        if errors.is_empty() && is_unwatched {
            return Ok(());
        }
        let template = path.iter().try_fold(object, |object, member| object.get(member)?.as_object());
        let Some(template) = template else { return Ok(()) };
        let view = Pod { metadata: metadata(template), spec: child(template, "spec") };
        self.evaluate(request, object, view, &policy, &errors, false)
    }

    /// Checks a pod or a template. Violations reject only pods.
    fn evaluate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &Object,
        pod: Pod<'_>,
        policy: &Policy,
        errors: &[FieldError],
        enforce: bool,
    ) -> Result<(), Status> {
        if self.is_exempt_runtime_class(pod.spec) {
            annotate(request, "exempt", "runtimeClass");
            return Ok(());
        }
        if !errors.is_empty() {
            let errors: Vec<String> = errors.iter().map(FieldError::to_string).collect();
            let shown = if let [one] = &errors[..] { one.clone() } else { format!("[{}]", errors.join(", ")) };
            annotate(request, "error", format!("Failed to parse policy: {shown}"));
        }
        let would = |standard: Standard| {
            let found = violations(standard, pod);
            let shown = quote(&standard.to_string());
            (!found.is_empty()).then(|| format!("would violate PodSecurity {shown}: {}", details(&found)))
        };
        let mut result = Ok(());
        if enforce {
            let enforced = policy.enforce.to_string();
            let found = violations(policy.enforce, pod);
            if !found.is_empty() {
                let why = format_args!("violates PodSecurity {}: {}", quote(&enforced), details(&found));
                result = Err(request.forbid(object, why));
            }
            annotate(request, "enforce-policy", enforced);
        }
        if let Some(violation) = would(policy.audit) {
            annotate(request, "audit-violations", violation);
        }
        if result.is_ok()
            && let Some(violation) = would(policy.warn)
        {
            request.recorder.warn(violation);
        }
        result
    }

    /// Checks the labels of a namespace. If the enforced standard changes to a stricter one or another version,
    /// existing pods that violate it are reported as warnings.
    async fn check_namespace(&self, request: &AdmissionRequest<'_>, namespace: &Object) -> Result<(), Status> {
        let labels = child(metadata(namespace), "labels");
        let (policy, errors) = Policy::of_labels(labels, &self.0.defaults);
        let name = text(metadata(namespace), "name");
        let invalid = |errors: &[FieldError]| Err(Status::invalid("", "Namespace", name, errors));
        let exempt = self.is_exempt_namespace(name);
        let warn_exempt = || {
            if !policy.is_privileged() && !policy.is_equivalent(&self.0.defaults) {
                let modes = policy.print_set_modes(labels);
                request.recorder.warn(format!(
                    "namespace {} is exempt from Pod Security, and the policy ({modes}) will be ignored",
                    quote(name)
                ));
            }
        };
        let Some(old) = request.old_object else {
            if !errors.is_empty() {
                return invalid(&errors);
            }
            if exempt {
                warn_exempt();
            }
            return Ok(());
        };
        let (old_policy, old_errors) = Policy::of_labels(child(metadata(old), "labels"), &self.0.defaults);
        if !errors.is_empty() && errors != old_errors {
            return invalid(&errors);
        }
        let (new, old) = (policy.enforce, old_policy.enforce);
        let is_relaxed = new.version == old.version && new.level <= old.level;
        if new == old || new.level == Level::Privileged || is_relaxed {
            return Ok(());
        }
        if exempt {
            warn_exempt();
        } else {
            self.warn_about_pods(request, name, new).await;
        }
        Ok(())
    }

    /// Warns about the pods of a namespace that violate a standard, grouped by their violations.
    async fn warn_about_pods(&self, request: &AdmissionRequest<'_>, namespace: &str, standard: Standard) {
        let start = Instant::now();
        // One pod more than are checked tells nothing; the number of the others is known.
        let listed = request.objects.list("", "v1", "pods", Some(namespace), PODS_CHECKED_MAX).await;
        let Ok(listed) = listed else {
            request.recorder.warn("failed to list pods while checking new PodSecurity enforce level");
            return;
        };
        let mut total = listed.json.len() + listed.remaining;
        let mut checked = 0;
        let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for (index, json) in listed.json.iter().enumerate() {
            if start.elapsed() > PODS_CHECK_TIME {
                break;
            }
            if index % PODS_AT_ONCE == PODS_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let pod: Object = serde_json::from_slice(json).unwrap_or_default();
            let spec = child(&pod, "spec");
            if self.is_exempt_runtime_class(spec) {
                total -= 1;
                continue;
            }
            checked += 1;
            let violations = violations(standard, Pod { metadata: metadata(&pod), spec });
            if !violations.is_empty() {
                let name = text(metadata(&pod), "name");
                let entry = found.entry(reasons(&violations)).or_insert_with(|| (name.to_owned(), 0));
                if name < entry.0.as_str() {
                    name.clone_into(&mut entry.0);
                }
                entry.1 += 1;
            }
        }
        if checked < total {
            request.recorder.warn(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
            ));
        }
        if !found.is_empty() {
            request.recorder.warn(format!(
                "existing pods in namespace {} violate the new PodSecurity enforce level {}",
                quote(namespace),
                quote(&standard.to_string())
            ));
        }
        let mut lines: Vec<String> = found
            .into_iter()
            .map(|(reasons, (first, count))| match count {
                1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                _ => format!("{first} (and {} other pods): {reasons}", count - 1),
            })
            .collect();
        lines.sort();
        lines.into_iter().for_each(|line| request.recorder.warn(line));
    }
}

/// Adds an annotation to the audit event.
fn annotate(request: &AdmissionRequest<'_>, key: &str, value: impl Into<String>) {
    request.recorder.annotate(format!("{LABEL_PREFIX}{key}"), value);
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn namespace(labels: Value) -> Value {
        let labels: Object =
            object(labels).into_iter().map(|(key, value)| (format!("{LABEL_PREFIX}{key}"), value)).collect();
        json!({"metadata": {"name": "ns", "labels": labels}})
    }

    fn host_network() -> Object {
        object(
            json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "a"}]}}),
        )
    }

    fn plugin(configuration: Value) -> PodSecurity {
        PodSecurity::new(PodSecurityConfiguration::parse(&object(configuration)).unwrap())
    }

    /// Returns the rejection, the warnings and the annotations of one write.
    async fn outcome(
        plugin: &PodSecurity,
        fixture: &Fixture,
        request: &AdmissionRequest<'_>,
        object: &Object,
    ) -> (Option<String>, Vec<String>, BTreeMap<String, String>) {
        assert!(plugin.handles(request));
        let refused = plugin.validate(request, object).await.err().map(|status| status.message);
        (refused, fixture.recorder.take_warnings(), fixture.recorder.take_annotations())
    }

    #[tokio::test]
    async fn enforced_standard_rejects_pods_and_warns_about_templates() {
        let plugin = plugin(json!({}));
        let fixture = Fixture::new(&[("namespaces", namespace(json!({"enforce": "baseline", "audit": "baseline"})))]);
        let request = create(&fixture, "", "pods", "Pod", "p");
        let (refused, warnings, annotations) = outcome(&plugin, &fixture, &request, &host_network()).await;
        let why = "PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
        assert_eq!(refused, Some(format!("pods \"p\" is forbidden: violates {why}")));
        assert!(warnings.is_empty(), "a rejected pod has no warning");
        assert_eq!(annotations["pod-security.kubernetes.io/enforce-policy"], "baseline:latest");
        assert_eq!(annotations["pod-security.kubernetes.io/audit-violations"], format!("would violate {why}"));
        let template = json!({"spec": host_network()["spec"]});
        for (group, resource, object) in [
            ("apps", "deployments", json!({"spec": {"template": template}})),
            ("batch", "cronjobs", json!({"spec": {"jobTemplate": {"spec": {"template": template}}}})),
            ("", "podtemplates", json!({"template": template})),
        ] {
            let request = create(&fixture, group, resource, "", "d");
            let Value::Object(object) = object else { unreachable!("it is an object") };
            let (refused, warnings, _) = outcome(&plugin, &fixture, &request, &object).await;
            assert_eq!((refused, warnings), (None, vec![format!("would violate {why}")]), "{resource}");
        }
    }

    #[tokio::test]
    async fn pod_update_is_checked_only_if_images_or_containers_change() {
        let plugin = plugin(json!({}));
        let fixture = Fixture::new(&[("namespaces", namespace(json!({"enforce": "baseline"})))]);
        let old = host_network();
        let update = AdmissionRequest {
            operation: Operation::Update,
            old_object: Some(&old),
            ..create(&fixture, "", "pods", "Pod", "p")
        };
        assert!(plugin.validate(&update, &old).await.is_ok());
        let mut other_image = old.clone();
        other_image["spec"]["containers"][0]["image"] = json!("b");
        assert!(plugin.validate(&update, &other_image).await.is_err());
        let mut ephemeral = old.clone();
        ephemeral["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "a"}]);
        assert!(plugin.validate(&update, &ephemeral).await.is_err());
        for (subresource, expected) in
            [("status", false), ("binding", false), ("resize", true), ("ephemeralcontainers", true)]
        {
            let request = AdmissionRequest { subresource: Some(subresource), ..update };
            assert_eq!(plugin.handles(&request), expected, "{subresource}");
        }
    }

    #[tokio::test]
    async fn exempt_users_namespaces_and_runtime_classes_are_not_checked() {
        for (exemptions, expected) in [
            (json!({"usernames": ["alice"]}), Some("user")),
            (json!({"namespaces": ["ns"]}), Some("namespace")),
            (json!({"runtimeClasses": ["kata"]}), Some("runtimeClass")),
            (json!({"usernames": ["bob"], "namespaces": ["other"]}), None),
        ] {
            let plugin = plugin(json!({"exemptions": exemptions, "defaults": {"enforce": "restricted"}}));
            let fixture = Fixture::new(&[("namespaces", namespace(json!({})))]);
            let mut pod = host_network();
            pod["spec"]["runtimeClassName"] = json!("kata");
            let request = create(&fixture, "", "pods", "Pod", "p");
            let (refused, _, annotations) = outcome(&plugin, &fixture, &request, &pod).await;
            let found = annotations.get("pod-security.kubernetes.io/exempt").map(String::as_str);
            assert_eq!((refused.is_none(), found), (expected.is_some(), expected), "{exemptions}");
        }
    }

    #[tokio::test]
    async fn new_invalid_pod_security_label_is_rejected_and_an_existing_one_is_kept() {
        let plugin = plugin(json!({}));
        let fixture = Fixture::new(&[]);
        let invalid = object(namespace(json!({"enforce": "strict"})));
        let request = create(&fixture, "", "namespaces", "Namespace", "ns");
        let refused = plugin.validate(&request, &invalid).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                422,
                "Namespace \"ns\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted"
            )
        );
        let update = AdmissionRequest { operation: Operation::Update, old_object: Some(&invalid), ..request };
        assert!(plugin.validate(&update, &invalid).await.is_ok());
        let valid = object(namespace(json!({})));
        let update = AdmissionRequest { old_object: Some(&valid), ..update };
        assert!(plugin.validate(&update, &invalid).await.is_err());
    }

    #[tokio::test]
    async fn stricter_label_warns_about_existing_pods_grouped_by_reason() {
        let plugin = plugin(json!({"exemptions": {"runtimeClasses": ["kata"]}}));
        let pod =
            |name: &str, spec: Value| ("pods", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec}));
        let fixture = Fixture::new(&[
            pod("b", json!({"hostNetwork": true})),
            pod("a", json!({"hostNetwork": true})),
            pod("c", json!({"hostPID": true, "runtimeClassName": "kata"})),
            pod("d", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})),
            pod("fine", json!({})),
        ]);
        let (old, new) = (object(namespace(json!({}))), object(namespace(json!({"enforce": "baseline"}))));
        let request = create(&fixture, "", "namespaces", "Namespace", "ns");
        let update = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        let (refused, warnings, _) = outcome(&plugin, &fixture, &update, &new).await;
        assert_eq!(refused, None);
        assert_eq!(
            warnings,
            [
                "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 1 other pod): host namespaces",
                "d: hostPath volumes"
            ]
        );
        let relaxed = AdmissionRequest { old_object: Some(&new), ..update };
        let (_, warnings, _) = outcome(&plugin, &fixture, &relaxed, &old).await;
        assert!(warnings.is_empty());
    }

    #[test]
    fn pod_security_configuration_with_invalid_values_is_rejected() {
        for (configuration, expected) in [
            (
                json!({"defaults": {"enforce": "x"}}),
                "defaults.enforce: Invalid value: \"x\": must be one of privileged, baseline, restricted",
            ),
            (
                json!({"defaults": {"warn-version": "1"}}),
                "defaults.warn-version: Invalid value: \"1\": must be \"latest\" or \"v1.x\"",
            ),
            (
                json!({"exemptions": {"namespaces": [""]}}),
                "exemptions.namespaces[0]: Invalid value: \"\": must not be empty",
            ),
            (json!({"exemptions": {"usernames": ["a", "a"]}}), "exemptions.usernames[1]: Duplicate value: \"a\""),
        ] {
            assert_eq!(PodSecurityConfiguration::parse(&object(configuration)).unwrap_err(), expected);
        }
    }
}
