//! Tests bodies of about 3 MiB with the most expensive structure. Each must take about as long as any other body of
//! this size.
//!
//! An optimized server needs less than 1 s for such a body, an unoptimized one less than 10 s. An algorithm with quadratic
//! time would take minutes. On a slow machine, the limit is a multiple of the time to parse a body of the same size.
//! Expensive schemas: `tests/compute.rs`.

use std::fmt::Write as _;
use std::time::Duration;

use listwatch_json::json;
use listwatch_kinds::{Subresource, UpdateContext};
use listwatch_wire::media_type::PatchType;

use listwatch_validation::{Errors, object_meta};

use super::patch::ParsedPatch;
use super::*;

/// The maximum CPU time of one request, on a machine that parses 3 MB of JSON in less than 0.25 s.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The maximum CPU time of one request on a slower machine, as a multiple of the time to parse 3 MB of JSON.
const PARSE_TIMES_MAX: u32 = 40;

/// Returns the CPU time of this thread, which excludes other load on the machine.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Checks that less than the maximum CPU time has passed since `start`.
fn check_time(what: &str, start: Duration) {
    let took = cpu_time() - start;
    if took >= ANSWER_TIME_MAX {
        let parse_time = parse_time();
        assert!(took < PARSE_TIMES_MAX * parse_time, "{what} took {took:?}; 3 MB of JSON are parsed in {parse_time:?}");
    }
}

/// Returns the CPU time to parse 3 MB of JSON.
fn parse_time() -> Duration {
    let body = format!("[{}]", vec!["{}"; 1_000_000].join(","));
    let start = cpu_time();
    let _: Value = serde_json::from_slice(body.as_bytes()).unwrap();
    cpu_time() - start
}

/// Runs `work` and checks its CPU time.
pub(super) fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = cpu_time();
    let done = work();
    check_time(what, start);
    done
}

/// Sends a request, checks its CPU time, and returns the code of the response.
async fn code(world: &World, line: &str, body: &str) -> u16 {
    assert!(body.len() < 3 * 1024 * 1024, "{line}: a body of {} bytes", body.len());
    let start = cpu_time();
    let answer = world.send(line, body).await;
    check_time(&format!("{line} with {} bytes", body.len()), start);
    answer.map_or_else(|status| status.code, |response| response.code)
}

/// Joins `count` texts with commas.
fn each(count: usize, item: impl Fn(&mut String, usize)) -> String {
    let mut out = String::new();
    for number in 0..count {
        if number > 0 {
            out.push(',');
        }
        item(&mut out, number);
    }
    out
}

#[tokio::test]
async fn many_owner_references_and_finalizers_are_validated_in_time() {
    let world = World::new().await;
    let owners = each(190_000, |out, n| write!(out, r#"{{"uid":"{n}"}}"#).unwrap());
    let body = format!(r#"{{"metadata":{{"name":"o","ownerReferences":[{owners}]}}}}"#);
    assert_eq!(code(&world, &format!("POST {MAPS}"), &body).await, 422);
    // Only one owner reference may be a controller.
    let owners = each(30_000, |out, n| {
        write!(out, r#"{{"apiVersion":"v1","kind":"K","name":"n","uid":"{n}","controller":true}}"#).unwrap();
    });
    let body = format!(r#"{{"metadata":{{"name":"o","ownerReferences":[{owners}]}}}}"#);
    assert_eq!(code(&world, &format!("POST {MAPS}"), &body).await, 422);

    let finalizers = |from: usize| -> Map {
        let names: Vec<String> = (from..from + 150_000).map(|n| format!("x.io/{n}")).collect();
        let Value::Object(map) = json!({"deletionTimestamp": NOW, "finalizers": names}) else { unreachable!() };
        map
    };
    let mut errors = Errors::default();
    in_time("finalizers", || object_meta::validate_update(&finalizers(100_000), &finalizers(0), &mut errors));
    assert_eq!(errors.len(), 1);
}

#[test]
fn patch_that_removes_110_000_members_is_applied_in_time() {
    let text = each(110_000, |out, n| write!(out, r#""{n}":"""#).unwrap());
    let members: Map = serde_json::from_str(&format!("{{{text}}}")).unwrap();
    let patched = |patch_type: PatchType, patch: String| {
        let mut object = members.clone();
        in_time("a patch", || {
            let parsed =
                ParsedPatch::parse(patch_type, patch.as_bytes(), crate::decode::FieldValidation::Warn).unwrap();
            parsed.patch.apply(&mut object, merge_keys::At::Unknown).unwrap();
        });
        object.len()
    };
    let nulls = each(110_000, |out, n| write!(out, r#""{n}":null"#).unwrap());
    assert_eq!(patched(PatchType::Merge, format!("{{{nulls}}}")), 0);
    assert_eq!(patched(PatchType::StrategicMerge, format!("{{{nulls}}}")), 0);
    // A member with a delete directive of its own is removed.
    let gone = each(110_000, |out, n| write!(out, r#""{n}":{{"$patch":"delete"}}"#).unwrap());
    assert_eq!(patched(PatchType::StrategicMerge, format!("{{{gone}}}")), 0);
    let orders = each(110_000, |out, n| write!(out, r#""$setElementOrder/x{n}":[]"#).unwrap());
    assert_eq!(patched(PatchType::StrategicMerge, format!("{{{orders}}}")), 110_000);
    let lists = each(55_000, |out, n| write!(out, r#""$setElementOrder/x{n}":[1],"x{n}":[1]"#).unwrap());
    assert_eq!(patched(PatchType::StrategicMerge, format!("{{{lists}}}")), 165_000);
}

#[tokio::test]
async fn members_in_descending_order_are_written_in_time() {
    let world = World::new().await;
    let body = |count: usize| {
        let members = each(count, |out, n| write!(out, r#""{:06}":"x""#, count - n).unwrap());
        format!(r#"{{"metadata":{{"name":"d"}},"data":{{{members}}}}}"#)
    };
    // The object is too large for the store, which only encoding detects.
    assert_eq!(code(&world, &format!("POST {MAPS}?fieldManager=a"), &body(200_000)).await, 500);
    assert_eq!(code(&world, &format!("POST {MAPS}?fieldManager=a"), &body(20_000)).await, 201);
    assert_eq!(code(&world, &format!("PUT {MAPS}/d?fieldManager=b"), &body(20_000)).await, 200);
    let applied = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{}"#, &body(20_000)[1..]);
    let line = format!("PATCH {MAPS}/d?fieldManager=c application/apply-patch+yaml");
    assert_eq!(code(&world, &line, &applied).await, 200);
}

/// Detects a parser that scans the whole body again at each token of a deeply nested body.
#[tokio::test]
async fn deeply_nested_yaml_is_rejected_in_time() {
    let world = World::new().await;
    let apply = format!("PATCH {MAPS}/y?fieldManager=a application/apply-patch+yaml");
    let create = format!("POST {MAPS} application/yaml");
    for opener in ["{a: ", "[", "- ", "? ", "{\"a\":"] {
        for bytes in [100_000, 400_000, 2_500_000] {
            let body = opener.repeat(bytes / opener.len());
            assert_eq!(code(&world, &apply, &body).await, 400, "{opener} of {bytes} bytes");
            assert_eq!(code(&world, &create, &body).await, 400, "{opener} of {bytes} bytes");
        }
    }
    // The maximum depth, with many items below.
    let deep = 90;
    let body = format!("{}{}{}", "{a: ".repeat(deep), "[b],".repeat(200_000), "}".repeat(deep));
    assert_eq!(code(&world, &apply, &body).await, 400);
    // Truncated JSON is parsed as YAML.
    let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{{}"#, r#""a":"b","#.repeat(300_000));
    assert_eq!(code(&world, &apply, &body).await, 400);
}

#[tokio::test]
async fn duplicates_below_a_long_name_are_reported_in_time() {
    let world = World::new().await;
    let twice = each(200_000, |out, n| write!(out, r#""{}":1"#, n % 2).unwrap());
    let body = format!(r#"{{"metadata":{{"name":"t"}},"{}":{{{twice}}}}}"#, "x".repeat(1_500_000));
    assert_eq!(code(&world, &format!("POST {MAPS}?fieldValidation=Warn"), &body).await, 201);
}

#[tokio::test]
async fn object_with_300_000_errors_is_rejected_in_time() {
    let world = World::new().await;
    let containers = vec!["{}"; 300_000].join(",");
    let body = format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#);
    let start = cpu_time();
    let Err(status) = world.send("POST /api/v1/namespaces/default/pods", &body).await else { panic!("it is invalid") };
    check_time("the rejection", start);
    let causes = status.details.unwrap().causes.len();
    assert_eq!((status.code, causes), (422, listwatch_schema::limits::FIELD_ERRORS_MAX), "{}", status.message.len());
}

#[tokio::test]
async fn certificate_request_with_many_usages_is_validated_in_time() {
    let world = World::new().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let usages = each(250_000, |out, n| write!(out, r#""{n}""#).unwrap());
    let body = format!(r#"{{"metadata":{{"name":"r"}},"spec":{{"signerName":"a.b/c","usages":[{usages}]}}}}"#);
    assert_eq!(code(&world, &format!("POST {requests}"), &body).await, 422);

    let conditions = |count: usize| -> Vec<Value> {
        (0..count).map(|n| json!({"type": format!("{n}"), "status": "True", "lastTransitionTime": NOW})).collect()
    };
    let mut errors = Errors::default();
    let request = |count: usize| json!({"status": {"conditions": conditions(count)}});
    let (Value::Object(before), Value::Object(after)) = (request(40_000), request(60_000)) else { unreachable!() };
    let kind = listwatch_kinds::find("certificates.k8s.io", "CertificateSigningRequest").unwrap();
    let context = UpdateContext { subresource: Some(&Subresource::Approval), now: time::OffsetDateTime::UNIX_EPOCH };
    in_time("conditions", || (kind.validate_transition)(&after, &before, context, &mut errors));
    assert_eq!(errors.len(), 0);
}

#[tokio::test]
async fn body_above_the_memory_limit_is_rejected() {
    let world = World::new().await;
    let body = format!(r#"{{"metadata":{{"name":"z"}},"x":[{}]}}"#, vec!["0"; 1_500_000].join(","));
    let message = "takes more than 67108864 bytes of memory";
    let answer = world.answer(&format!("POST {MAPS}"), &body).await;
    assert!(answer.starts_with("400 ") && answer.contains(message), "{answer}");
    // Each copied list takes four bytes of JSON, and far more memory.
    let lists = vec!["[]"; 100_000].join(",");
    let copies: Vec<String> = (0..100).map(|n| format!(r#"{{"op":"copy","from":"/x","path":"/y{n}"}}"#)).collect();
    let patch = format!(r#"[{{"op":"add","path":"/x","value":[{lists}]}},{}]"#, copies.join(","));
    assert_eq!(world.send(&format!("POST {MAPS}"), r#"{"metadata":{"name":"z"}}"#).await.unwrap().code, 201);
    assert_eq!(code(&world, &format!("PATCH {MAPS}/z application/json-patch+json"), &patch).await, 422);
}

#[tokio::test]
async fn stateful_set_with_40_000_claim_templates_is_rejected_in_time() {
    let world = World::new().await;
    let volumes = each(40_000, |out, n| write!(out, r#"{{"name":"v{n}"}}"#).unwrap());
    let claims = each(40_000, |out, n| write!(out, r#"{{"metadata":{{"name":"c{n}"}}}}"#).unwrap());
    let body = format!(
        r#"{{"metadata":{{"name":"s"}},"spec":{{"template":{{"spec":{{"volumes":[{volumes}]}}}},"volumeClaimTemplates":[{claims}]}}}}"#
    );
    assert_eq!(code(&world, "POST /apis/apps/v1/namespaces/default/statefulsets", &body).await, 422);
}
