//! Writes that built-in admission plugins and policies change or refuse. Each answer is that of kube-apiserver (compare
//! with `cargo xtask e2e --against`).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure, fail};

use super::World;

/// The time in which a server takes notice of an object that a plugin reads.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// One request, and the expected parts of the response.
struct Case {
    plugin: &'static str,
    method: &'static str,
    path: &'static str,
    body: Value,
    code: u16,
    /// Texts that the response must contain.
    texts: &'static [&'static str],
    /// The expected values, by JSON pointers into the response.
    values: Vec<(&'static str, Value)>,
}

const NAMESPACES: &str = "/api/v1/namespaces";
const PODS: &str = "/api/v1/namespaces/plugins/pods";
const CLAIMS: &str = "/api/v1/namespaces/plugins/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn pod(name: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more) {
        spec.extend(more);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn claim(name: &str, class: Option<&str>) -> Value {
    let mut claim = json!({"metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = json!(class);
    }
    claim
}

fn named(name: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// A case whose answer is a success.
fn ok(
    plugin: &'static str,
    method: &'static str,
    path: &'static str,
    body: Value,
    values: Vec<(&'static str, Value)>,
) -> Case {
    let code = if method == "POST" { 201 } else { 200 };
    Case { plugin, method, path, body, code, texts: &[], values }
}

/// A case that is refused.
fn refused(plugin: &'static str, path: &'static str, body: Value, code: u16, texts: &'static [&'static str]) -> Case {
    Case { plugin, method: "POST", path, body, code, texts, values: Vec::new() }
}

fn cases() -> Vec<Case> {
    let limits = json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "200m"},
        "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}}]}});
    let binding = json!({"spec": {"policyName": "plugins-names", "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "plugins"}}}}});
    let policy = json!({"spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"]}]},
        "variables": [{"name": "size", "expression": "has(object.data) ? object.data.size() : 0"}],
        "validations": [{"expression": "variables.size <= 1",
            "messageExpression": "'too many members: ' + string(variables.size)"}]}});
    vec![
        ok("", "POST", NAMESPACES, named("plugins", json!({})), vec![]),
        refused(
            "NamespaceLifecycle",
            "/api/v1/namespaces/plugins-none/pods",
            pod("a", json!({})),
            404,
            &["namespaces \\\"plugins-none\\\" not found"],
        ),
        refused(
            "Priority",
            PODS,
            pod("a", json!({"priorityClassName": "none"})),
            403,
            &["pods \\\"a\\\" is forbidden: no PriorityClass with name none was found"],
        ),
        ok(
            "Priority",
            "POST",
            PODS,
            pod("priority", json!({"priorityClassName": "system-node-critical"})),
            vec![("/spec/priority", json!(2_000_001_000)), ("/spec/preemptionPolicy", json!("PreemptLowerPriority"))],
        ),
        ok(
            "DefaultTolerationSeconds",
            "POST",
            PODS,
            pod("tolerations", json!({})),
            vec![(
                "/spec/tolerations",
                json!([
                    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 300},
                    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 300},
                ]),
            )],
        ),
        ok("", "POST", "/api/v1/namespaces/plugins/limitranges", named("limits", limits), vec![]),
        ok(
            "LimitRanger",
            "POST",
            PODS,
            pod("limited", json!({})),
            vec![
                ("/spec/containers/0/resources/limits/cpu", json!("200m")),
                ("/spec/containers/0/resources/requests/cpu", json!("100m")),
                (
                    "/metadata/annotations/kubernetes.io~1limit-ranger",
                    json!("LimitRanger plugin set: cpu request for container c; cpu limit for container c"),
                ),
            ],
        ),
        refused(
            "LimitRanger",
            PODS,
            pod(
                "a",
                json!({"containers": [{"name": "c", "image": "i",
                "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}]}),
            ),
            403,
            &["pods \\\"a\\\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"],
        ),
        refused(
            "RuntimeClass",
            PODS,
            pod("a", json!({"runtimeClassName": "none"})),
            403,
            &["pods \\\"a\\\" is forbidden: pod rejected: RuntimeClass \\\"none\\\" not found"],
        ),
        ok(
            "",
            "POST",
            "/apis/node.k8s.io/v1/runtimeclasses",
            named(
                "plugins",
                json!({"handler": "h", "overhead": {"podFixed": {"cpu": "10m"}},
                "scheduling": {"nodeSelector": {"sandbox": "yes"}}}),
            ),
            vec![],
        ),
        ok(
            "RuntimeClass",
            "POST",
            PODS,
            pod("sandbox", json!({"runtimeClassName": "plugins"})),
            vec![("/spec/overhead/cpu", json!("10m")), ("/spec/nodeSelector/sandbox", json!("yes"))],
        ),
        ok(
            "",
            "POST",
            NAMESPACES,
            json!({"metadata": {"name": "plugins-restricted",
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}),
            vec![],
        ),
        refused(
            "PodSecurity",
            "/api/v1/namespaces/plugins-restricted/pods",
            pod("a", json!({"hostNetwork": true})),
            403,
            &[
                "pods \\\"a\\\" is forbidden: violates PodSecurity \\\"restricted:latest\\\": host namespaces \
                 (hostNetwork=true)",
                "allowPrivilegeEscalation != false (container \\\"c\\\" must set \
                 securityContext.allowPrivilegeEscalation=false)",
                "runAsNonRoot != true",
                "seccompProfile (pod or container \\\"c\\\" must set securityContext.seccompProfile.type to \
                 \\\"RuntimeDefault\\\" or \\\"Localhost\\\")",
            ],
        ),
        ok(
            "",
            "POST",
            CLASSES,
            json!({"metadata": {"name": "plugins", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": "example.com/p"}),
            vec![],
        ),
        ok(
            "DefaultStorageClass",
            "POST",
            CLAIMS,
            claim("default-class", None),
            vec![
                ("/spec/storageClassName", json!("plugins")),
                ("/metadata/finalizers", json!(["kubernetes.io/pvc-protection"])),
            ],
        ),
        ok(
            "DefaultStorageClass",
            "POST",
            CLAIMS,
            claim("no-class", Some("")),
            vec![("/spec/storageClassName", json!(""))],
        ),
        ok(
            "TaintNodesByCondition",
            "POST",
            "/api/v1/nodes",
            named("plugins", json!({})),
            vec![("/spec/taints", json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))],
        ),
        refused(
            "CertificateSubjectRestriction",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            named(
                "masters",
                json!({"spec": {"request": MASTERS, "usages": ["client auth"],
                "signerName": "kubernetes.io/kube-apiserver-client"}}),
            ),
            403,
            &["use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"],
        ),
        ok(
            "",
            "POST",
            "/apis/networking.k8s.io/v1/ingressclasses",
            json!({"metadata": {"name": "plugins",
                "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
                "spec": {"controller": "example.com/c"}}),
            vec![],
        ),
        ok(
            "DefaultIngressClass",
            "POST",
            "/apis/networking.k8s.io/v1/namespaces/plugins/ingresses",
            named(
                "default-class",
                json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 1}}}}}),
            ),
            vec![("/spec/ingressClassName", json!("plugins"))],
        ),
        ok(
            "",
            "POST",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            named("plugins-names", policy),
            vec![],
        ),
        ok(
            "",
            "POST",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            named("plugins-names", binding),
            vec![],
        ),
        refused(
            "ValidatingAdmissionPolicy",
            "/api/v1/namespaces/plugins/configmaps",
            named("a", json!({"data": {"x": "1", "y": "2"}})),
            422,
            &["configmaps \\\"a\\\" is forbidden: ValidatingAdmissionPolicy 'plugins-names' with binding \
               'plugins-names' denied request: too many members: 2"],
        ),
        ok(
            "ValidatingAdmissionPolicy",
            "POST",
            "/api/v1/namespaces/plugins/configmaps",
            named("one", json!({"data": {"x": "1"}})),
            vec![],
        ),
    ]
}

/// A certificate request of `O = system:masters`, in PEM and base64.
const MASTERS: &str = include_str!("masters.csr.base64");

/// The arguments of `kubectl delete` for objects of the cases. The objects would change later scenarios.
const LEFT: &[&str] = &[
    "validatingadmissionpolicybinding plugins-names",
    "validatingadmissionpolicy plugins-names",
    "ingressclass plugins",
    "storageclass plugins",
    "runtimeclass plugins",
    "namespace plugins --wait=false",
    "namespace plugins-restricted --wait=false",
];

pub(super) fn admit(world: &mut World) -> Outcome<String> {
    let cases = cases();
    for case in &cases {
        check(world, case)?;
    }
    for left in LEFT {
        world.access.kube(&format!("delete {left}"))?;
    }
    let plugins: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.plugin).collect();
    Ok(format!("{} writes, {} plugins", cases.len(), plugins.len() - 1))
}

/// Sends the request until the answer is as expected: a plugin reads other objects from a cache, which may lag.
fn check(world: &World, case: &Case) -> Outcome<()> {
    let start = Instant::now();
    loop {
        // A dry run, so that a success which comes too early leaves nothing.
        let query = if case.plugin.is_empty() { "" } else { "?dryRun=All" };
        let curl = world.access.curl(&format!("{}{query}", case.path));
        let curl = curl.args(["--request", case.method, "--header", "Content-Type: application/json"]);
        let curl = curl.args(["--data-binary", "@-"]).input(case.body.to_string());
        let answer = world.access.answer(curl)?;
        match judge(case, answer.code, &answer.text()) {
            Ok(()) => return Ok(()),
            Err(_) if start.elapsed() < NOTICE_LIMIT && !case.plugin.is_empty() => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(why) => fail!("{} {} {}: {why}", case.plugin, case.path, case.body),
        }
    }
}

fn judge(case: &Case, code: u16, text: &str) -> Outcome<()> {
    ensure!(code == case.code, "answered {code}, not {}: {text}", case.code);
    for wanted in case.texts {
        ensure!(text.contains(wanted), "the answer has no `{wanted}`: {text}");
    }
    let object: Value = serde_json::from_str(text)?;
    for (pointer, wanted) in &case.values {
        let found = object.pointer(pointer).cloned().unwrap_or_default();
        ensure!(found == *wanted, "{pointer} is {found}, not {wanted}");
    }
    Ok(())
}
