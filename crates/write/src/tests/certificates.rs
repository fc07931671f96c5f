//! Tests CertificateSigningRequests: creation, approval and signing, each through its subresource.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_json::{Value, json};

use super::*;
use listwatch_kinds::certificate_request::testing::{certificate, request, request_with};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const APPROVAL: &str = "PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/r/approval";
const STATUS: &str = "PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/r/status";

fn body(organization: &str, signer: &str) -> Value {
    json!({
        "metadata": {"name": "r"},
        "spec": {
            "request": BASE64.encode(request(organization)), "signerName": signer, "usages": ["client auth"],
            "username": "somebody", "groups": ["system:masters"],
        },
        "status": {"conditions": [{"type": "Approved", "status": "True"}]},
    })
}

/// Sends a request and returns the object in the response.
async fn send(world: &World, line: &str, body: &Value) -> Result<Value, Status> {
    let answered = world.send(line, &body.to_string()).await?;
    let WriteBody::Object(object) = answered.body else { panic!("no object: {line}") };
    Ok(serde_json::from_slice(object.json_slice()).unwrap())
}

#[tokio::test]
async fn certificate_is_signed_only_after_the_request_was_approved() {
    let world = World::new().await;
    let asked = body("dev", "example.com/signer");
    let created = send(&world, &post(REQUESTS), &asked).await.unwrap();
    let mut spec = asked["spec"].clone();
    spec["username"] = json!("admin");
    spec["groups"] = json!(["system:masters", "system:authenticated"]);
    assert_eq!(created["spec"], spec, "a request is its sender's");
    assert_eq!(created["status"], json!({}), "nobody consented yet");

    // A PUT of the main resource changes only labels.
    let mut changed = created.clone();
    changed["metadata"]["labels"] = json!({"a": "b"});
    changed["spec"]["usages"] = json!(["server auth"]);
    changed["status"]["certificate"] = json!("eA==");
    let updated = send(&world, &format!("PUT {REQUESTS}/r"), &changed).await.unwrap();
    assert_eq!(
        (&updated["metadata"]["labels"], &updated["spec"], &updated["status"]),
        (&json!({"a": "b"}), &spec, &json!({}))
    );

    let pem = certificate();
    let consent = json!({"type": "Approved", "status": "True", "reason": "r", "message": "m"});
    let mut approved = updated.clone();
    approved["status"] = json!({"conditions": [consent], "certificate": BASE64.encode(&pem)});
    approved["spec"]["usages"] = json!(["server auth"]);
    let status = send(&world, STATUS, &approved).await.unwrap_err();
    assert_eq!(status.code, 422);
    assert!(status.message.contains("updates may not add a condition of type \"Approved\""), "{}", status.message);
    let approved = send(&world, APPROVAL, &approved).await.unwrap();
    let mut told = consent;
    told["lastUpdateTime"] = json!(NOW);
    told["lastTransitionTime"] = json!(NOW);
    assert_eq!(approved["status"], json!({"conditions": [told]}), "consent comes without a certificate");
    assert_eq!(approved["spec"], spec);

    let mut denied = approved.clone();
    denied["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "Denied", "status": "True"}));
    let status = send(&world, APPROVAL, &denied).await.unwrap_err();
    assert!(status.message.contains("Approved and Denied conditions are mutually exclusive"), "{}", status.message);

    let mut signed = approved.clone();
    signed["status"]["certificate"] = json!(BASE64.encode(&pem));
    signed["status"]["conditions"][0]["message"] = json!("something else");
    let signed = send(&world, STATUS, &signed).await.unwrap();
    assert_eq!(signed["status"], json!({"conditions": [told], "certificate": BASE64.encode(&pem)}));
    let mut again = signed.clone();
    again["status"]["certificate"] = json!(BASE64.encode(pem.repeat(2)));
    let status = send(&world, STATUS, &again).await.unwrap_err();
    assert!(status.message.contains("updates may not modify existing certificate content"), "{}", status.message);
}

#[tokio::test]
async fn invalid_certificate_request_is_rejected_with_upstreams_error() {
    let world = World::new().await;
    let refuse = async |change: &dyn Fn(&mut Value), code: u16, expected: &str| {
        let mut body = body("dev", "example.com/signer");
        change(&mut body);
        let status = world.send(&post(REQUESTS), &body.to_string()).await.unwrap_err();
        assert_eq!(status.code, code, "{}", status.message);
        assert!(status.message.ends_with(expected), "{} is not {expected}", status.message);
    };
    let spec = |name: &'static str, value: Value| move |body: &mut Value| body["spec"][name] = value.clone();
    let text = BASE64.encode("hello");
    let why = format!("spec.request: Invalid value: \"{text}\": PEM block type must be CERTIFICATE REQUEST");
    refuse(&spec("request", json!(text)), 422, &why).await;
    refuse(&spec("request", json!("!")), 400, "illegal base64 data at input byte 0").await;
    refuse(&spec("usages", json!([])), 422, "spec.usages: Required value").await;
    refuse(&spec("usages", json!(["any", "any"])), 422, "spec.usages[1]: Duplicate value: \"any\"").await;
    refuse(
        &spec("expirationSeconds", json!(599)),
        422,
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
    )
    .await;
    for (signer, why) in [
        ("", "Required value"),
        (
            "kubernetes.io/legacy-unknown",
            "Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
        ),
        (
            "example.com",
            "Invalid value: \"example.com\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
        ),
        ("example/x", "Invalid value: \"example\": should be a domain with at least two segments separated by dots"),
    ] {
        refuse(&spec("signerName", json!(signer)), 422, &format!("spec.signerName: {why}")).await;
    }
    let mut applied = super::certificates::body("system:masters", "kubernetes.io/kube-apiserver-client");
    applied["apiVersion"] = json!("certificates.k8s.io/v1");
    applied["kind"] = json!("CertificateSigningRequest");
    let line = format!("PATCH {REQUESTS}/r?fieldManager=a application/apply-patch+yaml");
    let status = world.send(&line, &applied.to_string()).await.unwrap_err();
    assert_eq!((status.code, status.message.ends_with("is not allowed")), (403, true), "{}", status.message);
    let masters = |body: &mut Value| {
        *body = super::certificates::body("system:masters", "kubernetes.io/kube-apiserver-client");
    };
    // Go's parser accepts each of these names, and a careless parser may not.
    for name in [
        rcgen::DnValue::TeletexString("system:masters".try_into().unwrap()),
        rcgen::DnValue::BmpString("system:masters".try_into().unwrap()),
    ] {
        let masters = move |body: &mut Value| {
            let request = request_with(name.clone(), &rcgen::PKCS_ECDSA_P256_SHA256);
            body["spec"]["request"] = json!(BASE64.encode(request));
            body["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
        };
        refuse(
            &masters,
            403,
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
        )
        .await;
    }
    refuse(
        &masters,
        403,
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
    )
    .await;
}
