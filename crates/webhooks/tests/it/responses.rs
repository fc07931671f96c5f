//! Tests responses of webhooks: invalid bodies, denials, patches and HTTP errors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_json::{Value, json};
use listwatch_webhooks::{AdmissionResponse, CallError, ReviewVersion, response_error};

fn parse(version: ReviewVersion, mutating: bool, body: &[u8]) -> Result<AdmissionResponse, CallError> {
    AdmissionResponse::parse("a.b.c", version, "uid-1", mutating, 200, body)
}

fn review(response: Value) -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string().into()
}

fn failure(result: Result<AdmissionResponse, CallError>) -> String {
    match result {
        Err(CallError::Failed { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_response_is_a_failed_call() {
    let check = |mutating: bool, response: Value, expected: &str| {
        let mut whole = json!({"uid": "uid-1", "allowed": true});
        whole.as_object_mut().unwrap().extend(response.as_object().unwrap().clone());
        let why = failure(parse(ReviewVersion::V1, mutating, &review(whole)));
        assert_eq!(why, format!("received invalid webhook response: {expected}"));
    };
    check(true, json!({"uid": "other"}), r#"expected response.uid="uid-1", got "other""#);
    check(false, json!({"patch": "W10="}), "validating webhook may not return response.patch");
    check(false, json!({"patchType": "JSONPatch"}), "validating webhook may not return response.patchType");
    check(true, json!({"patch": "W10="}), "webhook returned response.patch but not response.patchType");
    check(true, json!({"patchType": "JSONPatch"}), "webhook returned response.patchType but not response.patch");
    check(true, json!({"patch": "W10=", "patchType": ""}), "webhook returned invalid response.patchType of \"\"");
    let absent = failure(parse(ReviewVersion::V1, true, br#"{"kind":"AdmissionReview"}"#));
    assert_eq!(absent, "received invalid webhook response: webhook response was absent");
    let kinds = [(json!({}), "/, Kind="), (json!({"apiVersion": "v1", "kind": "Pod"}), "/v1, Kind=Pod")];
    for (mut body, got) in kinds {
        body["response"] = json!({"uid": "uid-1", "allowed": true});
        let why = failure(parse(ReviewVersion::V1, true, body.to_string().as_bytes()));
        let wanted = "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview";
        assert_eq!(why, format!("received invalid webhook response: {wanted}, got {got}"));
    }
}

#[test]
fn unreadable_body_is_a_failed_call() {
    let arrays = [
        &br#"["admission.k8s.io/v1","AdmissionReview",["uid-1",true]]"#[..],
        br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":["uid-1",true]}"#,
    ];
    let others = [&b"hello"[..], b"[]", b"1", b"{", b"\xff\xfe", br#"{"response":{"allowed":"yes"}}"#];
    for body in arrays.into_iter().chain(others) {
        let why = failure(parse(ReviewVersion::V1, true, body));
        assert!(why.starts_with("failed to call webhook: "), "{why}");
    }
    let empty = failure(parse(ReviewVersion::V1, true, b""));
    assert_eq!(
        empty,
        "failed to call webhook: 0-length response with status code: 200 and content type: application/json"
    );
    let deep = "[".repeat(100_000);
    assert!(parse(ReviewVersion::V1, true, deep.as_bytes()).is_err());
}

#[test]
fn patch_is_decoded_only_if_the_response_allows_the_request() {
    let answer = |allowed: bool, patch: &str, patch_type: &str| {
        let response =
            json!({"uid": "uid-1", "allowed": allowed, "patch": STANDARD.encode(patch), "patchType": patch_type});
        parse(ReviewVersion::V1, true, &review(response))
    };
    let operation = json!({"op": "remove", "path": "/a"});
    let patch = json!([operation]).to_string();
    assert_eq!(answer(true, &patch, "JSONPatch").unwrap().verdict, Ok(vec![operation]));
    assert_eq!(answer(true, "[]", "JSONPatch").unwrap().verdict, Ok(vec![]));
    assert_eq!(answer(true, "null", "JSONPatch").unwrap().verdict, Ok(vec![]));
    assert_eq!(failure(answer(true, &patch, "Merge")), r#"unsupported patch type "Merge""#);
    for broken in ["{}", "[", "[1]", "hello"] {
        let why = failure(answer(true, broken, "JSONPatch"));
        assert!(why.starts_with("received undecodable patch in webhook response: "), "{why}");
        assert!(answer(false, broken, "JSONPatch").unwrap().verdict.is_err(), "the patch beside a denial is ignored");
    }
    let not_base64 = json!({"uid": "uid-1", "allowed": true, "patch": "!", "patchType": "JSONPatch"});
    assert!(failure(parse(ReviewVersion::V1, true, &review(not_base64))).contains("illegal base64"));
}

/// Go decodes an array of numbers into `[]byte` as well. kube-rs' `AdmissionResponse` serializes its patch in this
/// form.
#[test]
fn patch_may_be_an_array_of_bytes() {
    let answer = |patch: Value| {
        parse(
            ReviewVersion::V1,
            true,
            &review(json!({"uid": "uid-1", "allowed": true, "patch": patch, "patchType": "JSONPatch"})),
        )
    };
    let operation = json!({"op": "remove", "path": "/a"});
    let bytes = json!([operation]).to_string().into_bytes();
    assert_eq!(answer(json!(bytes)).unwrap().verdict, Ok(vec![operation]));
    let field = "Go struct field AdmissionResponse.response.patch of type";
    for (patch, found) in [
        (json!([91, 256]), format!("number 256 into {field} uint8")),
        (json!([-1]), format!("number -1 into {field} uint8")),
        (json!(["a"]), format!("string into {field} uint8")),
        (json!(7), format!("number into {field} []uint8")),
        (json!({}), format!("object into {field} []uint8")),
    ] {
        let parsing = "failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal";
        assert_eq!(failure(answer(patch)), format!("{parsing} {found}"));
    }
}

#[test]
fn v1beta1_response_is_accepted_with_any_uid_and_kind() {
    let body = json!({"response": {"uid": "other", "allowed": true, "patch": STANDARD.encode("[]")}}).to_string();
    let allowed = AdmissionResponse { warnings: vec![], audit_annotations: [].into(), verdict: Ok(vec![]) };
    assert_eq!(parse(ReviewVersion::V1Beta1, true, body.as_bytes()), Ok(allowed.clone()));
    assert_eq!(parse(ReviewVersion::V1Beta1, false, body.as_bytes()), Ok(allowed), "a validating patch is ignored");
}

#[test]
fn denial_has_the_code_and_message_of_the_webhook() {
    let check = |status: Value, code: u16, reason: &str, text: &str| {
        let response = json!({"uid": "uid-1", "allowed": false, "status": status, "warnings": ["w"],
            "auditAnnotations": {"k": "v"}});
        let found = parse(ReviewVersion::V1, false, &review(response)).unwrap();
        assert_eq!(found.warnings, ["w"], "warnings reach the client of a denied request");
        assert_eq!(found.audit_annotations["k"], "v");
        let denial = found.verdict.unwrap_err();
        let message = format!("admission webhook \"a.b.c\" denied the request{text}");
        assert_eq!((denial.code, &*denial.reason, &*denial.status), (code, reason, "Failure"));
        assert_eq!(denial.message, message);
    };
    check(json!(null), 400, "", " without explanation");
    check(json!({"message": "no"}), 400, "", ": no");
    check(json!({"message": "no", "reason": "Forbidden", "code": 403}), 403, "Forbidden", ": no");
    check(json!({"reason": "Teapot", "code": 418, "status": "Success"}), 418, "Teapot", ": Teapot");
    for code in [json!(0), json!(200), json!(-1), json!(1000), json!(70000), json!("403")] {
        check(json!({"code": code}), 400, "", " without explanation");
    }
    check(json!({"details": {"causes": 1}, "message": "no"}), 400, "", ": no");
}

#[test]
fn http_error_is_a_failed_call_with_the_text_of_client_go() {
    let check = |code: u16, content_type: &str, body: &str, expected: &str| {
        let failed = CallError::Failed { reason: format!("failed to call webhook: {expected}"), code };
        assert_eq!(response_error(code, content_type, body.as_bytes()), failed);
    };
    check(404, "text/plain", "404 page not found", "the server could not find the requested resource");
    check(500, "", "oh \"no\"\n", r#"an error on the server ("oh \"no\"") has prevented the request from succeeding"#);
    check(502, "image/png", "x", r#"an error on the server ("unknown") has prevented the request from succeeding"#);
    check(503, "", "", "the server is currently unable to handle the request");
    check(403, "text/plain; charset=utf-8", "not you", "not you");
    check(302, "", "", "the server responded with the status code 302 but did not return more information");
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "later", "code": 429});
    check(429, "application/json", &status.to_string(), "later");
    let CallError::Failed { reason, .. } = response_error(500, "", "x".repeat(1 << 20).as_bytes()) else { panic!() };
    assert!(reason.len() < 3000, "a large body is cut off");
}
