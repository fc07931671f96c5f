//! cert-manager: its webhook makes its own certificate, its CA injector writes the CA into the webhook configurations,
//! and its controller issues certificates.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure};
use crate::process::Run;
use crate::tools;

use super::super::server::free_port;
use super::installed::{LIMIT, Operator, has, items};
use super::managers::dry_run;
use super::{Scenario, scenario};

pub(super) const NAMESPACE: &str = "cert-manager";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("install", install),
    scenario("self-signed certificate", issues),
    scenario("certificate requests", requests),
    scenario("webhook denies", denies),
    scenario("approval needs permission", approves),
    scenario("dry run", runs_dry),
    scenario("certificate of a CA", issues_from_ca),
    scenario("CA injector", injects),
    scenario("renewal", renews),
    scenario("ingress", serves_ingress),
    scenario("webhook outage", outage),
];

/// The webhook of both configurations.
const WEBHOOK: &str = "webhook.cert-manager.io";
const SERVICE: &str = "cert-manager-webhook";

/// Installs cert-manager, and starts its programs with the arguments of their Deployments and ports of this machine.
fn install(operator: &mut Operator) -> Outcome<String> {
    let note = operator.install()?;
    let port = operator.route_webhooks(SERVICE)?;
    operator.access.kube("create namespace use")?;
    start_webhook(operator, port)?;
    let mut args = operator.deployment_args("cert-manager-cainjector")?;
    args.push("--metrics-listen-address=0".to_owned());
    operator.start("cainjector", "cert-manager-cainjector", args)?;
    let mut args = operator.deployment_args("cert-manager")?;
    args.push(format!("--metrics-listen-address=127.0.0.1:{}", free_port()?));
    args.push(format!("--internal-healthz-listen-address=127.0.0.1:{}", free_port()?));
    operator.start("controller", "cert-manager", args)?;
    for kind in ["mutating", "validating"] {
        let words = format!("{kind}webhookconfiguration {SERVICE}");
        operator.until("the CA is injected", &words, |object| {
            let ca = object["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default();
            if ca.len() > 100 { Ok(()) } else { Err(format!("caBundle {ca:?}")) }
        })?;
    }
    // The webhook serves once its own certificate is made.
    let start = Instant::now();
    loop {
        let tried = operator.send(&["apply"], &self_signed())?;
        if tried.success() {
            return Ok(format!("{note}; the CA injector wrote the CA into both configurations"));
        }
        ensure!(start.elapsed() < LIMIT, "the webhook does not answer: {}{}", tried.said(), operator.tails());
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn start_webhook(operator: &mut Operator, port: u16) -> Outcome<()> {
    let mut args = operator.deployment_args(SERVICE)?;
    args.push(format!("--secure-port={port}"));
    args.push(format!("--healthz-port={}", free_port()?));
    args.push("--metrics-listen-address=0".to_owned());
    operator.start("webhook", SERVICE, args)
}

fn self_signed() -> Value {
    json!({"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "self-signed", "namespace": "use"},
        "spec": {"selfSigned": {}}})
}

fn certificate(name: &str, issuer: &str, spec: &Value) -> Value {
    let mut object = json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
        "metadata": {"name": name, "namespace": "use"},
        "spec": {"secretName": format!("{name}-tls"), "issuerRef": {"name": issuer}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// Whether a condition of the object has this status.
fn condition(object: &Value, kind: &str, status: &str) -> Result<(), String> {
    super::super::cluster::condition(object, kind, status)
}

fn ready(operator: &Operator, words: &str) -> Outcome<Value> {
    operator.until("it becomes ready", &format!("{words} -n use"), |object| {
        condition(object, "Ready", "True").map(|()| object.clone())
    })
}

/// The text of a Secret's certificate, by openssl.
fn certificate_text(operator: &Operator, secret: &str) -> Outcome<String> {
    let dir = operator.dir.join(secret);
    std::fs::create_dir_all(&dir)?;
    let object = operator.access.get(&format!("get secret {secret} -n use"))?;
    for key in ["tls.crt", "ca.crt", "tls.key"] {
        let value = object["data"][key].as_str().ok_or_else(|| format!("{secret} has no {key}"))?;
        std::fs::write(dir.join(key), super::super::access::base64(value)?)?;
    }
    openssl(operator, &["x509", "-noout", "-text", "-in", &format!("{secret}/tls.crt")])
}

fn openssl(operator: &Operator, args: &[&str]) -> Outcome<String> {
    let openssl = tools::on_path("openssl").ok_or("openssl is needed: install it, then try again")?;
    Run::new(openssl).args(args).dir(&operator.dir).text()
}

fn issues(operator: &mut Operator) -> Outcome<String> {
    ready(operator, "issuer self-signed")?;
    let spec =
        json!({"dnsNames": ["a.example", "*.b.example"], "duration": "24h", "privateKey": {"algorithm": "ECDSA"}});
    operator.create(&certificate("first", "self-signed", &spec))?;
    let issued = ready(operator, "certificate first")?;
    has(&issued, "/status/revision", &json!(1))?;
    let text = certificate_text(operator, "first-tls")?;
    ensure!(text.contains("DNS:a.example, DNS:*.b.example"), "the certificate is\n{text}");
    let secret = operator.access.get("get secret first-tls -n use")?;
    has(&secret, "/type", &json!("kubernetes.io/tls"))?;
    has(&secret, "/metadata/annotations/cert-manager.io~1certificate-name", &json!("first"))?;
    operator.until("an event is recorded", "events -n use", |list| {
        let issuing = items(list).iter().any(|event| event["reason"] == "Issuing");
        if issuing { Ok(()) } else { Err(format!("{} events", items(list).len())) }
    })?;
    Ok("Issuer and Certificate ready, Secret, event".to_owned())
}

/// The mutating webhook writes the requester's identity into the request; the approver's controller approves it.
fn requests(operator: &mut Operator) -> Outcome<String> {
    let list = operator.access.get("get certificaterequests -n use")?;
    let request = items(&list).first().ok_or("there is no CertificateRequest")?;
    has(request, "/spec/username", &json!("system:serviceaccount:cert-manager:cert-manager"))?;
    let groups = request["spec"]["groups"].to_string();
    ensure!(groups.contains("system:serviceaccounts:cert-manager"), "the groups are {groups}");
    condition(request, "Approved", "True")?;
    condition(request, "Ready", "True")?;
    let name = request["metadata"]["name"].as_str().unwrap_or_default();
    let patch = json!({"spec": {"isCA": true}});
    let words = format!("certificaterequest {name} -n use --type=merge");
    operator.patch_is_denied(&words, &patch, "spec: Forbidden: cannot change spec after creation")?;
    Ok("identity of the requester, approved, immutable".to_owned())
}

fn denies(operator: &mut Operator) -> Outcome<String> {
    let denied = format!("admission webhook \"{WEBHOOK}\" denied the request: ");
    let text = format!("{denied}spec: Invalid value: \"\": at least one of commonName");
    operator.create_is_denied(&certificate("bad", "self-signed", &json!({})), &text)?;
    let spec = json!({"dnsNames": ["a.example"], "duration": "1h", "renewBefore": "2h"});
    let text = format!("{denied}spec.renewBefore: Invalid value: ");
    operator.create_is_denied(&certificate("bad", "self-signed", &spec), &text)?;
    let mut issuer = self_signed();
    issuer["metadata"]["name"] = json!("bad");
    issuer["spec"]["ca"] = json!({"secretName": "x"});
    operator.create_is_denied(&issuer, "spec.selfSigned: Forbidden: may not specify more than one issuer type")?;
    let patch = json!({"spec": {"dnsNames": null}});
    operator.patch_is_denied("certificate first -n use --type=merge", &patch, "at least one of commonName")?;
    Ok("three creates and a patch, with the operator's texts".to_owned())
}

/// Approves as a user who may write the status but has no `approve` verb. The webhook asks the server by a
/// SubjectAccessReview.
fn approves(operator: &mut Operator) -> Outcome<String> {
    let signing_request = operator.access.get("get certificaterequests -n use")?["items"][0]["spec"]["request"].clone();
    operator.create(&json!({"apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest",
        "metadata": {"name": "by-hand", "namespace": "use"},
        "spec": {"request": signing_request, "issuerRef": {"name": "external", "kind": "Issuer",
            "group": "cert-manager.io"}}}))?;
    operator.access.kube(
        "create role writer -n use --verb=get,update,patch --resource=certificaterequests.cert-manager.io/status,\
         certificaterequests.cert-manager.io",
    )?;
    operator.access.kube("create rolebinding writer -n use --role=writer --user=alice")?;
    // The server's own approver is faster in most runs, so the condition that a user adds is a denial.
    let patch = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "ByHand",
        "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let words = "certificaterequest by-hand -n use --subresource=status --type=merge --as=alice";
    let text = "user \"alice\" does not have permissions to set approved/denied conditions for issuer";
    operator.patch_is_denied(words, &patch, text)?;
    Ok("a user without the verb is denied".to_owned())
}

fn runs_dry(operator: &mut Operator) -> Outcome<String> {
    let spec = json!({"dnsNames": ["dry.example"]});
    dry_run(operator, &certificate("dry", "self-signed", &spec), "certificates.cert-manager.io", |answer| {
        has(answer, "/spec/dnsNames/0", &json!("dry.example"))
    })?;
    let answer = operator.send(&["create", "--dry-run=server"], &certificate("dry", "self-signed", &json!({})))?;
    ensure!(!answer.success() && answer.said().contains("at least one of"), "the webhook is not called on a dry run");
    Ok("validated and not stored".to_owned())
}

fn issues_from_ca(operator: &mut Operator) -> Outcome<String> {
    let root = json!({"isCA": true, "commonName": "root", "privateKey": {"algorithm": "ECDSA"}});
    operator.create(&certificate("root", "self-signed", &root))?;
    ready(operator, "certificate root")?;
    operator.create(&json!({"apiVersion": "cert-manager.io/v1", "kind": "Issuer",
        "metadata": {"name": "ca", "namespace": "use"}, "spec": {"ca": {"secretName": "root-tls"}}}))?;
    ready(operator, "issuer ca")?;
    operator.create(&certificate("leaf", "ca", &json!({"dnsNames": ["leaf.example"], "usages": ["server auth"]})))?;
    ready(operator, "certificate leaf")?;
    certificate_text(operator, "root-tls")?;
    certificate_text(operator, "leaf-tls")?;
    let verified = openssl(operator, &["verify", "-CAfile", "root-tls/tls.crt", "leaf-tls/tls.crt"])?;
    ensure!(verified.contains("OK"), "openssl says {verified}");
    Ok("openssl verifies the chain".to_owned())
}

/// The CA injector follows the annotation of a webhook configuration and of a definition that users made.
fn injects(operator: &mut Operator) -> Outcome<String> {
    let annotations = json!({"cert-manager.io/inject-ca-from": "use/leaf"});
    let client = json!({"service": {"name": "none", "namespace": "use"}});
    operator.create(&json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "of-a-user", "annotations": annotations},
        "webhooks": [{"name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Ignore", "clientConfig": client,
            "rules": [{"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]}]}))?;
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    operator.create(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com", "annotations": annotations},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": client}}}}))?;
    let ca = operator.access.get("get secret leaf-tls -n use")?["data"]["ca.crt"].clone();
    let places = [
        ("validatingwebhookconfiguration of-a-user", "/webhooks/0/clientConfig/caBundle"),
        ("crd things.example.com", "/spec/conversion/webhook/clientConfig/caBundle"),
    ];
    for (words, pointer) in places {
        operator.until("the CA is injected", words, |object| {
            has(object, pointer, &ca).map_err(|failure| failure.to_string())
        })?;
        operator.access.kube(&format!("delete {words}"))?;
    }
    Ok("a webhook configuration and a conversion".to_owned())
}

/// Asks for a new certificate as `cmctl renew` does: by a condition in the status.
fn renews(operator: &mut Operator) -> Outcome<String> {
    let before = operator.access.get("get secret first-tls -n use")?["data"]["tls.crt"].clone();
    let conditions = operator.access.get("get certificate first -n use")?["status"]["conditions"].clone();
    let mut conditions = conditions.as_array().cloned().unwrap_or_default();
    conditions.push(json!({"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}));
    let patch = json!({"status": {"conditions": conditions}}).to_string();
    let words = ["patch", "certificate", "first", "-n", "use", "--subresource=status", "--type=merge", "-p", &patch];
    operator.access.kubectl(words).text()?;
    operator.until("there is a second revision", "certificate first -n use", |object| {
        has(object, "/status/revision", &json!(2)).map_err(|failure| failure.to_string())?;
        condition(object, "Ready", "True")
    })?;
    let after = operator.access.get("get secret first-tls -n use")?["data"]["tls.crt"].clone();
    ensure!(before != after, "the certificate of the Secret is the old one");
    Ok("revision 2".to_owned())
}

/// An annotated Ingress gets a Certificate of its hosts.
fn serves_ingress(operator: &mut Operator) -> Outcome<String> {
    operator.create(&json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "web", "namespace": "use", "annotations": {"cert-manager.io/issuer": "ca"}},
        "spec": {"tls": [{"hosts": ["web.example"], "secretName": "web-tls"}],
            "rules": [{"host": "web.example", "http": {"paths": [{"path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]}}))?;
    let object = ready(operator, "certificate web-tls")?;
    has(&object, "/metadata/ownerReferences/0/kind", &json!("Ingress"))?;
    Ok("its Certificate is ready".to_owned())
}

/// Without the webhook every write fails, since its failure policy is `Fail`; the controller goes on afterwards.
fn outage(operator: &mut Operator) -> Outcome<String> {
    operator.stop("webhook")?;
    let object = certificate("late", "ca", &json!({"dnsNames": ["late.example"]}));
    let text = format!("failed calling webhook \"{WEBHOOK}\": failed to call webhook: Post \"https://{SERVICE}.");
    operator.create_is_denied(&object, &text)?;
    let configuration = operator.access.get(&format!("get validatingwebhookconfiguration {SERVICE}"))?;
    let port = configuration["webhooks"][0]["clientConfig"]["service"]["port"].as_u64().unwrap_or_default();
    start_webhook(operator, u16::try_from(port).unwrap_or_default())?;
    let start = Instant::now();
    while !operator.send(&["create"], &object)?.success() {
        ensure!(start.elapsed() < LIMIT, "no create succeeds again{}", operator.tails());
        std::thread::sleep(Duration::from_millis(200));
    }
    ready(operator, "certificate late")?;
    Ok("refused, then issued".to_owned())
}
