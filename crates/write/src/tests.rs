//! Tests writes from request to response, with the in-memory store. Each case is a request and the exact response.
//!
//! The clock is fixed at 2024-01-01 and every uid is zero, so responses can be compared as texts. `UID` and `NOW` in an
//! expected text stand for these values.

mod address_repairs;
mod allocations;
mod cases;
mod certificates;
mod decoded_values;
mod deletes;
pub(crate) mod hostile;
mod mutations;
mod ownership;
mod patches;
mod pods;
mod random;
mod recent;
mod reviews;
mod service_cidrs;
mod service_deletions;
mod service_updates;
mod services;
mod slow_admission;
mod storms;
mod warnings;

use std::sync::Arc;

use listwatch_storage::{KeyValue, ListQuery, MemoryStorage, Storage};

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::{Key, KeyRange, Revision, Status, UserInfo};
use listwatch_wire::query::Query;

use super::*;
use crate::testing::{self, address};

const NOW: &str = "2024-01-01T00:00:00Z";
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// Removes `managedFields` from a JSON text, because most tests do not check them.
fn without_accounts(text: &str) -> String {
    let Some((before, rest)) = text.split_once(r#""managedFields":["#) else { return text.to_owned() };
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    let end = rest.bytes().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'[' if !quoted => depth += 1,
            b']' if !quoted => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let after = &rest[end.expect("the list ends") + 1..];
    let joined = match before.strip_suffix(',') {
        Some(before) => format!("{before}{after}"),
        None => format!("{before}{}", after.trim_start_matches(',')),
    };
    without_accounts(&joined)
}

/// A server without HTTP, with the namespace `default`.
struct World {
    writer: Arc<Writer>,
    clock: Clock,
}

impl World {
    async fn new() -> Self {
        World::over(MemoryStorage::new()).await
    }

    async fn over(storage: Arc<dyn Storage>) -> Self {
        let writer = Arc::new(testing::writer(storage));
        let world = World { writer, clock: Clock::fixed(parse_timestamp(NOW).unwrap()) };
        world.send("POST /api/v1/namespaces", r#"{"metadata":{"name":"default"}}"#).await.unwrap();
        world
    }

    /// Sends a request: `<method> <path>[?query] [content type]`.
    async fn send(&self, line: &str, body: &str) -> Result<WriteResponse, Status> {
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let registry = self.writer.backend().registry();
        let query = Query::parse(query);
        let found = address(&registry, method, path);
        let request = WriteRequest {
            verb: found.verb,
            resource: &found.resource,
            namespace: found.namespace,
            name: found.name,
            subresource: found.subresource,
            query: &query,
            content_type: words.next(),
            user: UserInfo::admin(),
            user_agent: Some("test/1"),
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        let context = WriteContext::default();
        let mut response = self.writer.write_at(&request, &self.clock, &context).await?;
        response.warnings.extend(context.recorder.take_warnings());
        Ok(response)
    }

    /// Sends a request and formats the response as text: code, body, warnings.
    async fn answer(&self, line: &str, body: &str) -> String {
        match self.send(line, body).await {
            Err(status) => format!("{} {}", status.code, String::from_utf8(status.to_json()).unwrap()),
            Ok(response) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let body = match &response.body {
                    WriteBody::Object(object) => text(object.json_slice()),
                    WriteBody::DryRun(json) | WriteBody::Json(json) => text(json),
                    WriteBody::Status(status) => text(&status.to_json()),
                    WriteBody::List(_, objects) => {
                        let items: Vec<String> = objects.iter().map(|object| text(object.json_slice())).collect();
                        format!("[{}]", items.join(","))
                    }
                };
                let warnings: String = response.warnings.iter().map(|text| format!(" warning: {text}")).collect();
                format!("{} {body}{warnings}", response.code)
            }
        }
    }

    /// Sends a request and compares the response.
    async fn check(&self, line: &str, body: &str, expected: &str) {
        let answer = without_accounts(&self.answer(line, body).await).replace(UID, "UID").replace(NOW, "NOW");
        assert_eq!(answer, expected, "{line} {body}");
    }

    /// Sends a request and compares code and message of the error.
    async fn refuse(&self, line: &str, body: &str, code: u16, message: &str) {
        let before = self.revision().await;
        match self.send(line, body).await {
            Err(status) => {
                let found = (status.code, status.message.replace(UID, "UID").replace(NOW, "NOW"));
                assert_eq!(found, (code, message.to_owned()), "{line} {body}");
            }
            Ok(_) => panic!("{line} {body} should have been refused: {message}"),
        }
        assert_eq!(self.revision().await, before, "a refused write changed something: {line} {body}");
    }

    /// Returns the store's revision.
    async fn revision(&self) -> u64 {
        self.writer.backend().storage().current_revision().await.unwrap().get()
    }

    /// Lists the stored objects below a prefix, as `key=value`.
    async fn stored(&self, prefix: &str) -> Vec<String> {
        let range = listwatch_meta::KeyRange::below(prefix);
        let page = self.writer.backend().storage().list(ListQuery { range, at: None, limit: 0 }).await.unwrap();
        let show = |item: &KeyValue| {
            let value = without_accounts(std::str::from_utf8(&item.value).unwrap());
            let value = value.replace(UID, "UID").replace(NOW, "NOW");
            format!("{}={value}", item.key)
        };
        page.items.iter().map(show).collect()
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

fn post(path: &str) -> String {
    format!("POST {path}")
}

fn put(path: &str, name: &str) -> String {
    format!("PUT {path}/{name}")
}

fn patch(path: &str, name: &str, media_type: &str) -> String {
    format!("PATCH {path}/{name} {media_type}")
}

#[tokio::test]
async fn create_response_equals_the_stored_object() {
    let world = World::new().await;
    world
        .check(
            &post(MAPS),
            r#"{"data":{"x":"y"},"metadata":{"labels":{"a":"b"},"name":"a","uid":"mine","creationTimestamp":"2001-01-01T00:00:00Z","generation":7,"deletionTimestamp":"2001-01-01T00:00:00Z","selfLink":"/x","managedFields":[{"manager":"x"}]}}"#,
            r#"201 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"a","namespace":"default","uid":"UID","generation":7,"creationTimestamp":"NOW","labels":{"a":"b"}},"data":{"x":"y"}}"#,
        )
        .await;
    assert_eq!(
        world.stored("/configmaps/").await,
        [
            r#"/configmaps/default/a={"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"UID","generation":7,"creationTimestamp":"NOW","labels":{"a":"b"}},"data":{"x":"y"}}"#
        ]
    );
}

#[tokio::test]
async fn invalid_create_is_rejected_with_upstreams_error() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let refuse = async |body: &str, code: u16, message: &str| world.refuse(&post(MAPS), body, code, message).await;
    refuse(r#"{"metadata":{"name":"a"}}"#, 409, "configmaps \"a\" already exists").await;
    refuse(r#"{}"#, 422, "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required")
        .await;
    refuse(
        r#"{"metadata":{"name":"a","namespace":"other"}}"#,
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
    )
    .await;
    refuse(
        r#"{"metadata":{"name":"a","resourceVersion":"5"}}"#,
        500,
        "resourceVersion should not be set on objects to be created",
    )
    .await;
    refuse(r#"{"metadata":{"name":"a","resourceVersion":"abc"}}"#, 409, "configmaps \"a\" already exists").await;
    refuse(
        r#"{"metadata":{"name":"Bad_Name"}}"#,
        422,
        "ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    )
    .await;
    refuse(r#"{"kind":"Pod","apiVersion":"v1"}"#, 400, "Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion").await;
    world
        .refuse(
            "POST /api/v1/namespaces/nope/configmaps",
            r#"{"metadata":{"name":"a"}}"#,
            404,
            "namespaces \"nope\" not found",
        )
        .await;
    world
        .refuse(
            &format!("POST {MAPS} application/cbor"),
            "",
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
        .await;
}

#[tokio::test]
async fn cluster_scoped_object_loses_the_namespace_of_its_body() {
    let world = World::new().await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let body = r#"{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"name":"a","namespace":"elsewhere"},"value":7}"#;
    let shown = |code: u16, revision: u32| {
        format!(
            r#"{code} {{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{{"resourceVersion":"{revision}","name":"a","uid":"UID","generation":1,"creationTimestamp":"NOW"}},"value":7,"preemptionPolicy":"PreemptLowerPriority"}}"#
        )
    };
    world.check(&post(classes), body, &shown(201, 3)).await;
    world.check(&put(classes, "a"), body, &shown(200, 3)).await;
    for media_type in [MERGE, STRATEGIC] {
        world.check(&patch(classes, "a", media_type), body, &shown(200, 3)).await;
    }
    let apply = format!("PATCH {classes}/a?fieldManager=test&force=true application/apply-patch+yaml");
    let answer = world.answer(&apply, body).await;
    assert!(answer.starts_with("200 ") && !answer.contains("elsewhere"), "{answer}");
    world
        .refuse(
            &post("/api/v1/namespaces"),
            r#"{"metadata":{"name":"default","namespace":"x"}}"#,
            409,
            "namespaces \"default\" already exists",
        )
        .await;
}

#[tokio::test]
async fn generate_name_appends_a_suffix_unless_a_name_is_given() {
    let world = World::new().await;
    let made = world.send(&post(MAPS), r#"{"metadata":{"generateName":"web-"}}"#).await.unwrap();
    let WriteBody::Object(object) = made.body else { panic!("no object") };
    assert!(object.name().starts_with("web-") && object.name().len() == 9, "{}", object.name());
    let both = r#"{"metadata":{"name":"named","generateName":"web-"}}"#;
    world
        .check(
            &post(MAPS),
            both,
            r#"201 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"4","name":"named","generateName":"web-","namespace":"default","uid":"UID","creationTimestamp":"NOW"}}"#,
        )
        .await;
    let taken = "configmaps \"named\" already exists, the server was not able to generate a unique name for the object";
    world.refuse(&post(MAPS), both, 409, taken).await;
    assert_eq!(world.send(&post(MAPS), both).await.unwrap_err().details.unwrap().retry_after_seconds, 1);
    let status = world.send(&post(MAPS), r#"{"metadata":{"generateName":"Bad_"}}"#).await.unwrap_err();
    assert_eq!(status.code, 422);
    assert_eq!(status.details.unwrap().causes[0].field, "metadata.generateName");
}

#[tokio::test]
async fn limit_range_without_a_name_gets_a_uuid_as_its_name() {
    let world = World::new().await;
    let ranges = "/api/v1/namespaces/default/limitranges";
    for (body, is_expected) in [
        (r#"{"spec":{"limits":[]}}"#, (|name| uuid::Uuid::try_parse(name).is_ok()) as fn(&str) -> bool),
        (r#"{"metadata":{"generateName":"web-"},"spec":{"limits":[]}}"#, |name| name.starts_with("web-")),
        (r#"{"metadata":{"name":"a"},"spec":{"limits":[]}}"#, |name| name == "a"),
    ] {
        let made = world.send(&post(ranges), body).await.unwrap_or_else(|status| panic!("{body}: {}", status.message));
        let WriteBody::Object(object) = made.body else { panic!("no object") };
        assert!(is_expected(object.name()), "{body}: {}", object.name());
    }
}

#[tokio::test]
async fn dry_run_returns_the_response_of_a_write_and_stores_nothing() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let before = world.revision().await;
    world
        .check(
            &post(&format!("{MAPS}?dryRun=All")),
            r#"{"metadata":{"name":"b"}}"#,
            r#"201 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"b","namespace":"default","uid":"UID","creationTimestamp":"NOW"}}"#,
        )
        .await;
    world
        .refuse(
            &post(&format!("{MAPS}?dryRun=All")),
            r#"{"metadata":{"name":"a"}}"#,
            409,
            "configmaps \"a\" already exists",
        )
        .await;
    let changed = r#"200 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW"},"data":{"x":"y"}}"#;
    world.check(&put(MAPS, "a?dryRun=All"), r#"{"metadata":{"name":"a"},"data":{"x":"y"}}"#, changed).await;
    world.check(&format!("PATCH {MAPS}/a?dryRun=All {MERGE}"), r#"{"data":{"x":"y"}}"#, changed).await;
    world
        .check(
            &format!("DELETE {MAPS}/a?dryRun=All"),
            "",
            r#"200 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"a","kind":"configmaps","uid":"UID"}}"#,
        )
        .await;
    assert_eq!(world.revision().await, before, "a dry run wrote");
}

#[tokio::test]
async fn update_resets_or_rejects_system_metadata() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"},"data":{"x":"1"}}"#).await.unwrap();
    world
        .check(
            &put(MAPS, "a"),
            r#"{"metadata":{"name":"a","labels":{"q":"1"},"generation":7,"selfLink":"x","creationTimestamp":"2001-01-01T00:00:00Z"}}"#,
            r#"200 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"4","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW","labels":{"q":"1"}}}"#,
        )
        .await;
    let refuse = async |body: &str, code: u16, message: &str| world.refuse(&put(MAPS, "a"), body, code, message).await;
    refuse(
        r#"{"metadata":{"name":"a","resourceVersion":"3"}}"#,
        409,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
    )
    .await;
    refuse(
        r#"{"metadata":{"name":"a","resourceVersion":"abc"}}"#,
        500,
        "strconv.ParseUint: parsing \"abc\": invalid syntax",
    )
    .await;
    refuse(r#"{"metadata":{"name":"b"}}"#, 400, "the name of the object (b) does not match the name on the URL (a)")
        .await;
    refuse(
        r#"{"metadata":{}}"#,
        400,
        "the name of the object (a based on URL) was undeterminable: name must be provided",
    )
    .await;
    refuse(
        r#"{"metadata":{"name":"a","uid":"11"}}"#,
        409,
        "Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: /registry/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 11, UID in object meta: UID",
    )
    .await;
    refuse(
        r#"{"metadata":{"name":"a","deletionTimestamp":"2001-01-01T00:00:00Z"}}"#,
        422,
        "ConfigMap \"a\" is invalid: metadata.deletionTimestamp: Invalid value: \"2001-01-01T00:00:00Z\": field is immutable",
    )
    .await;
    world.refuse(&put(MAPS, "zz"), r#"{"metadata":{"name":"zz"}}"#, 404, "configmaps \"zz\" not found").await;
}

#[tokio::test]
async fn write_without_a_change_keeps_the_revision() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a","labels":{"l":"m"}},"data":{"x":"1","y":"2"}}"#).await.unwrap();
    let unchanged = r#"200 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW","labels":{"l":"m"}},"data":{"x":"1","y":"2"}}"#;
    let same =
        r#"{"data":{"y":"2","x":"1"},"metadata":{"labels":{"l":"m"},"annotations":{},"name":"a"},"binaryData":null}"#;
    world.check(&put(MAPS, "a"), same, unchanged).await;
    world.check(&patch(MAPS, "a", MERGE), r#"{"data":{"x":"1","z":null}}"#, unchanged).await;
    world.check(&patch(MAPS, "a", STRATEGIC), r#"{"metadata":{"labels":{"l":"m"}}}"#, unchanged).await;
    world.check(&patch(MAPS, "a", STRATEGIC), "null", unchanged).await;
    world.check(&patch(MAPS, "a", JSON_PATCH), "[]", unchanged).await;
    assert_eq!(world.revision().await, 3, "a write without a change must make no event");
}

#[tokio::test]
async fn put_creates_a_missing_lease_and_requires_a_version_to_update() {
    let world = World::new().await;
    let lease = |version: &str| format!(r#"{{"metadata":{{"name":"l"{version}}},"spec":{{"holderIdentity":"y"}}}}"#);
    let stored = |code: u16, revision: u32, holder: &str| {
        format!(
            r#"{code} {{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{{"resourceVersion":"{revision}","name":"l","namespace":"default","uid":"UID","creationTimestamp":"NOW"}},"spec":{{"holderIdentity":"{holder}"}}}}"#
        )
    };
    world.check(&put(LEASES, "l"), &lease(""), &stored(201, 3, "y")).await;
    world
        .refuse(
            &put(LEASES, "l"),
            r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"z"}}"#,
            422,
            "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        )
        .await;
    let body = r#"{"metadata":{"name":"l","resourceVersion":"3"},"spec":{"holderIdentity":"z"}}"#;
    world.check(&put(LEASES, "l"), body, &stored(200, 4, "z")).await;
    world
        .refuse(
            &put(LEASES, "m"),
            r#"{"metadata":{"name":"m","uid":"4"}}"#,
            409,
            "Operation cannot be fulfilled on leases.coordination.k8s.io \"m\": StorageError: invalid object, Code: 4, Key: /registry/leases/default/m, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 4, UID in object meta: ",
        )
        .await;
    world
        .refuse(
            "PUT /apis/coordination.k8s.io/v1/namespaces/nope/leases/l",
            r#"{"metadata":{"name":"l"}}"#,
            404,
            "namespaces \"nope\" not found",
        )
        .await;
}

/// Formats `DEPLOYMENT` as the server returns it, with the given generation, replicas and status.
fn deployment(revision: u32, generation: u32, extra: &str, replicas: u32, image: &str, status: &str) -> String {
    format!(
        r#"{{"kind":"Deployment","apiVersion":"apps/v1","metadata":{{"resourceVersion":"{revision}","name":"w","namespace":"default","uid":"UID","generation":{generation},"creationTimestamp":"NOW"{extra}}},"spec":{{"replicas":{replicas},"selector":{{"matchLabels":{{"a":"b"}}}},"template":{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{{"containers":[{{"name":"c","image":"{image}","resources":{{}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always"}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}},"strategy":{{"type":"RollingUpdate","rollingUpdate":{{"maxUnavailable":"25%","maxSurge":"25%"}}}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600}},"status":{status}}}"#
    )
}

const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"w"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}},"status":{"replicas":4}}"#;

#[tokio::test]
async fn status_writes_keep_the_spec_and_spec_writes_keep_the_status() {
    let world = World::new().await;
    let path = DEPLOYMENTS;
    world.check(&post(path), DEPLOYMENT, &format!("201 {}", deployment(3, 1, "", 1, "nginx", "{}"))).await;
    // The status subresource changes only the status and the annotations.
    world
        .check(
            &patch(path, "w/status", MERGE),
            r#"{"spec":{"replicas":9},"status":{"replicas":7},"metadata":{"labels":{"x":"y"},"annotations":{"r":"s"}}}"#,
            &format!("200 {}", deployment(4, 1, r#","annotations":{"r":"s"}"#, 1, "nginx", r#"{"replicas":7}"#)),
        )
        .await;
    // The main resource keeps the status, and increments the generation.
    let annotated = |revision, generation, replicas, image| {
        format!(
            "200 {}",
            deployment(revision, generation, r#","annotations":{"r":"s"}"#, replicas, image, r#"{"replicas":7}"#)
        )
    };
    world
        .check(
            &patch(path, "w", MERGE),
            r#"{"status":{"replicas":8},"spec":{"replicas":2}}"#,
            &annotated(5, 2, 2, "nginx"),
        )
        .await;
    world
        .check(
            &patch(path, "w", STRATEGIC),
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"web"}],"$setElementOrder/containers":[{"name":"c"}]}}}}"#,
            &annotated(6, 3, 2, "web"),
        )
        .await;
    world.check(&patch(path, "w", MERGE), r#"{"status":null}"#, &annotated(6, 3, 2, "web")).await;
    world
        .refuse(
            &patch(path, "w", MERGE),
            r#"{"spec":{"selector":{"matchLabels":{"a":"c"}}}}"#,
            422,
            "Deployment.apps \"w\" is invalid: [spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`, spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable]",
        )
        .await;
}

#[tokio::test]
async fn scale_patch_with_another_uid_or_namespace_is_rejected() {
    let world = World::new().await;
    world.send(&post(DEPLOYMENTS), DEPLOYMENT).await.unwrap();
    let why = "Operation cannot be fulfilled on deployments/scale.apps \"w\": Precondition failed: UID in precondition: 11, UID in object meta: UID";
    let scale = |uid: &str| {
        format!(
            r#"{{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{{"name":"w","uid":"{uid}"}},"spec":{{"replicas":3}}}}"#
        )
    };
    let json_patch = |uid: &str| format!(r#"[{{"op":"replace","path":"/metadata/uid","value":"{uid}"}}]"#);
    let apply = format!("PATCH {DEPLOYMENTS}/w/scale?fieldManager=m&force=true application/apply-patch+yaml");
    let lines = [MERGE, STRATEGIC].map(|patch_type| patch(DEPLOYMENTS, "w/scale", patch_type));
    for line in lines.iter().chain([&apply]) {
        world.refuse(line, &scale("11"), 409, why).await;
        world.send(line, &scale(UID)).await.unwrap();
    }
    let why_not_here = "the namespace of the provided object does not match the namespace sent on the request";
    let elsewhere = scale(UID).replace("\"name\"", "\"namespace\":\"elsewhere\",\"name\"");
    for line in lines.iter().chain([&apply]) {
        world.refuse(line, &elsewhere, 400, why_not_here).await;
    }
    let line = patch(DEPLOYMENTS, "w/scale", JSON_PATCH);
    world.refuse(&line, &json_patch("11"), 409, why).await;
    world.send(&line, &json_patch(UID)).await.unwrap();
}

#[tokio::test]
async fn scale_writes_change_the_replicas_of_the_object() {
    let world = World::new().await;
    world.send(&post(DEPLOYMENTS), DEPLOYMENT).await.unwrap();
    let scale = |revision: u32, replicas: u32| {
        format!(
            r#"200 {{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{{"name":"w","namespace":"default","uid":"UID","resourceVersion":"{revision}","creationTimestamp":"NOW"}},"spec":{{"replicas":{replicas}}},"status":{{"replicas":0,"selector":"a=b"}}}}"#
        )
    };
    world.check(&put(DEPLOYMENTS, "w/scale"), r#"{"metadata":{"name":"w"},"spec":{"replicas":3}}"#, &scale(4, 3)).await;
    world.check(&patch(DEPLOYMENTS, "w/scale", MERGE), r#"{"spec":{"replicas":5}}"#, &scale(5, 5)).await;
    world.check(&patch(DEPLOYMENTS, "w/scale", MERGE), r#"{"spec":{"replicas":5}}"#, &scale(5, 5)).await;
    world
        .check(
            &patch(DEPLOYMENTS, "w/scale", JSON_PATCH),
            r#"[{"op":"test","path":"/spec/replicas","value":5},{"op":"replace","path":"/spec/replicas","value":6}]"#,
            &scale(6, 6),
        )
        .await;
    world
        .refuse(
            &put(DEPLOYMENTS, "w/scale"),
            r#"{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"w","resourceVersion":"1"},"spec":{"replicas":3}}"#,
            409,
            "Operation cannot be fulfilled on deployments.apps \"w\": the object has been modified; please apply your changes to the latest version and try again",
        )
        .await;
    world
        .refuse(
            &put(DEPLOYMENTS, "w/scale"),
            r#"{"metadata":{"name":"w"},"spec":{"replicas":-3}}"#,
            422,
            "Scale.autoscaling \"w\" is invalid: spec.replicas: Invalid value: -3: must be greater than or equal to 0",
        )
        .await;
    world
        .refuse(
            &patch(DEPLOYMENTS, "nope/scale", MERGE),
            r#"{"spec":{"replicas":5}}"#,
            404,
            "deployments.apps \"nope\" not found",
        )
        .await;
}

#[tokio::test]
async fn invalid_patch_is_rejected_with_upstreams_error() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let refuse = async |media_type: &str, body: &str, code: u16, message: &str| {
        world.refuse(&patch(MAPS, "a", media_type), body, code, message).await;
    };
    refuse("application/json", "{}", 415, "415: Unsupported Media Type").await;
    refuse(
        MERGE,
        r#"{"metadata":{"name":"b"}}"#,
        400,
        "the name of the object (b) does not match the name on the URL (a)",
    )
    .await;
    refuse(
        MERGE,
        r#"{"metadata":{"namespace":"b"}}"#,
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
    )
    .await;
    refuse(
        MERGE,
        r#"{"metadata":{"uid":"b"}}"#,
        422,
        "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable",
    )
    .await;
    refuse(
        MERGE,
        r#"{"metadata":{"resourceVersion":"1"}}"#,
        409,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
    )
    .await;
    refuse(
        MERGE,
        r#"{"kind":"Secret"}"#,
        422,
        " \"\" is invalid: patch: Invalid value: \"{\\\"kind\\\":\\\"Secret\\\",\\\"apiVersion\\\":\\\"v1\\\",\\\"metadata\\\":{\\\"name\\\":\\\"a\\\",\\\"namespace\\\":\\\"default\\\",\\\"uid\\\":\\\"UID\\\",\\\"creationTimestamp\\\":\\\"NOW\\\",\\\"resourceVersion\\\":\\\"3\\\"}}\": converting (v1.Secret) to (core.ConfigMap): unknown conversion",
    )
    .await;
    refuse(
        JSON_PATCH,
        r#"[{"op":"remove","path":"/data/x"}]"#,
        422,
        "the server rejected our request due to an error in our request",
    )
    .await;
    refuse(STRATEGIC, r#"{"$patch":"foo"}"#, 500, "unknown patch type: foo in map: map[$patch:foo]").await;
    world.refuse(&patch(MAPS, "nope", MERGE), "{}", 404, "configmaps \"nope\" not found").await;
    // A patch may set system fields to null, which the server resets.
    let body = r#"{"kind":"ConfigMap","metadata":{"creationTimestamp":null,"resourceVersion":null,"uid":null}}"#;
    world
        .check(
            &patch(MAPS, "a", MERGE),
            body,
            r#"200 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW"}}"#,
        )
        .await;
    world
        .check(
            &patch(MAPS, "a", STRATEGIC),
            r#"{"kind":"Secret"}"#,
            r#"200 {"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW"}}"#,
        )
        .await;
}

#[tokio::test]
async fn field_validation_warns_or_rejects_as_requested() {
    let world = World::new().await;
    let twice = r#"{"metadata":{"name":"a"},"data":{"x":"1","x":"2"}}"#;
    let answer = world.answer(&post(MAPS), twice).await;
    assert!(answer.ends_with(r#""data":{"x":"2"}} warning: duplicate field "data.x""#), "{answer}");
    let answer = world.answer(&put(MAPS, "a?fieldValidation=Ignore"), twice).await;
    assert!(!answer.contains("warning"), "{answer}");
    world
        .refuse(
            &put(MAPS, "a?fieldValidation=Strict"),
            twice,
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.x\"",
        )
        .await;
    let answer = world.answer(&patch(MAPS, "a", MERGE), r#"{"data":{"y":"1","y":"2"}}"#).await;
    assert!(answer.ends_with(r#" warning: duplicate field "data.y""#), "{answer}");
    let status =
        world.send(&format!("PATCH {MAPS}/a?fieldValidation=Strict {MERGE}"), r#"{"data":{"y":"1","y":"2"}}"#).await;
    let status = status.unwrap_err();
    assert_eq!(status.code, 422);
    assert!(status.message.ends_with("strict decoding error: duplicate field \"data.y\""), "{}", status.message);
    // A strategic merge uses the converter, whose errors show the patch and sort unknown fields.
    for (body, told) in [
        (r#"{"data":{"x":5}}"#, r#"\"map[data:map[x:5]]\": cannot convert int64 to string"#),
        (r#"{"data":["x"]}"#, r#"\"map[data:[x]]\": cannot restore map from slice"#),
        (r#"{"metadata":{"labels":"x"}}"#, r#"\"map[metadata:map[labels:x]]\": cannot restore map from string"#),
        (
            r#"{"b":{"c":1},"a":2,"data":{"z":"1","z":"2"},"metadata":{"odd":1}}"#,
            r#"\"map[a:2 b:map[c:1] data:map[z:2] metadata:map[odd:1]]\": strict decoding error: duplicate field \"data.z\", unknown field \"a\", unknown field \"b\", unknown field \"metadata.odd\""#,
        ),
    ] {
        let why = format!(" \"\" is invalid: patch: Invalid value: {}", told.replace("\\\"", "\""));
        world.refuse(&format!("PATCH {MAPS}/a?fieldValidation=Strict {STRATEGIC}"), body, 422, &why).await;
    }
    let answer = world.answer(&patch(MAPS, "a", STRATEGIC), r#"{"b":1,"a":2,"metadata":{"labels":{"l":null}}}"#).await;
    assert!(answer.ends_with(r#" warning: unknown field "a" warning: unknown field "b""#), "{answer}");
}

#[tokio::test]
async fn secret_encodes_string_data_and_rejects_invalid_base64() {
    let world = World::new().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    world
        .check(
            &post(secrets),
            r#"{"metadata":{"name":"s"},"stringData":{"a":"b"},"data":{"a":"eA==","c":"ZA=="}}"#,
            r#"201 {"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"3","name":"s","namespace":"default","uid":"UID","creationTimestamp":"NOW"},"data":{"a":"Yg==","c":"ZA=="},"type":"Opaque"}"#,
        )
        .await;
    world
        .refuse(
            &post(secrets),
            r#"{"metadata":{"name":"t"},"data":{"a":"!!"}}"#,
            400,
            "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data at input byte 0",
        )
        .await;
    world
        .refuse(
            &patch(secrets, "s", STRATEGIC),
            r#"{"data":{"a":"!!"}}"#,
            422,
            " \"\" is invalid: patch: Invalid value: \"map[data:map[a:!!]]\": error decoding from json: illegal base64 data at input byte 0",
        )
        .await;
    world
        .refuse(
            &format!("PATCH {secrets}/s?fieldManager=m application/apply-patch+yaml"),
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"z":"!!"}}"#,
            500,
            "failed to convert new typed object (/s; /v1, Kind=Secret) to object: error decoding from json: illegal base64 data at input byte 0",
        )
        .await;
    world
        .refuse(
            &patch(secrets, "s", MERGE),
            r#"{"type":"other"}"#,
            422,
            "Secret \"s\" is invalid: type: Invalid value: \"other\": field is immutable",
        )
        .await;
}

#[tokio::test]
async fn patch_of_status_with_a_json_body_returns_415() {
    let world = World::new().await;
    world.send(&post(DEPLOYMENTS), DEPLOYMENT).await.unwrap();
    let status = world.send(&format!("PATCH {DEPLOYMENTS}/w/status application/json"), "{}").await.unwrap_err();
    assert_eq!(status.code, 415);
}

#[tokio::test]
async fn object_too_large_with_managed_fields_is_stored_without_them() {
    let world = World::new().await;
    // Every name appears in the data and again in the managed fields.
    let data = |count: usize| {
        let names = (0..count).map(|n| (format!("{n:0>250}"), Value::from("")));
        Value::Object(names.collect())
    };
    let map = |count: usize| listwatch_json::json!({"metadata": {"name": "a"}, "data": data(count)}).to_string();
    let owned = async |line: &str, body: &str| {
        let answer = world.answer(line, body).await;
        assert!(answer.starts_with('2'), "{line}: {}", &answer[..answer.len().min(300)]);
        answer.contains("managedFields")
    };
    assert!(owned(&post(MAPS), &map(2000)).await);
    assert!(!owned(&put(MAPS, "a"), &map(4000)).await, "an update");
    assert!(!owned(&patch(MAPS, "a", MERGE), r#"{"data":{"x":"y"}}"#).await, "who has no account gets none");
    world.send(&format!("DELETE {MAPS}/a"), "").await.unwrap();
    assert!(!owned(&post(MAPS), &map(4000)).await, "a create");
    world.send(&format!("DELETE {MAPS}/a"), "").await.unwrap();
    assert!(owned(&post(MAPS), &map(2000)).await);
    let more = listwatch_json::json!({"data": data(4000)}).to_string();
    assert!(!owned(&patch(MAPS, "a", MERGE), &more).await, "a patch");
    let config =
        listwatch_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": data(4000)});
    let apply = format!("PATCH {MAPS}/b?fieldManager=m application/apply-patch+yaml");
    let status = world.send(&apply, &config.to_string()).await.unwrap_err();
    assert_eq!(
        (status.code, status.message.as_str()),
        (500, "etcdserver: request is too large"),
        "an apply is refused"
    );
}
