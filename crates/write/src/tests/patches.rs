//! Random patches of each type, sent through the server. The response, the stored object, the watch event and the
//! generation must match a model that only maps fields to values.

use std::collections::BTreeMap;
use std::time::Duration;

use listwatch_cacher::{Delivery, Scope};
use listwatch_json::{Value, json};
use listwatch_meta::{FieldSelector, LabelSelector, ReadAt, WatchFrom, WatchRequest};
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

/// The fields that patches change, as JSON pointers.
const FIELDS: [&str; 7] = [
    "/metadata/labels/a",
    "/metadata/labels/x~1y",
    "/metadata/annotations/x~1n",
    "/spec/minReadySeconds",
    "/spec/paused",
    "/spec/replicas",
    "/spec/template/spec/hostname",
];

/// The value of each field, by index in [`FIELDS`]. Absent fields have no entry.
type Model = BTreeMap<usize, Value>;

#[derive(Clone, Debug)]
enum Op {
    Set(usize, Value),
    Remove(usize),
    /// JSON patch only: fails the patch unless the field has this value.
    Test(usize, Value),
}

fn any_value(field: usize) -> BoxedStrategy<Value> {
    match FIELDS[field].rsplit('/').next() {
        Some("minReadySeconds" | "replicas") => (0..3).prop_map(Value::from).boxed(),
        Some("paused") => any::<bool>().prop_map(Value::from).boxed(),
        Some("hostname") => prop_oneof![Just(json!("")), Just(json!("u")), Just(json!("v"))].boxed(),
        _ => prop_oneof![Just(json!("u")), Just(json!("v"))].boxed(),
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    (0..FIELDS.len()).prop_flat_map(|field| {
        prop_oneof![
            4 => any_value(field).prop_map(move |value| Op::Set(field, value)),
            2 => Just(Op::Remove(field)),
            1 => any_value(field).prop_map(move |value| Op::Test(field, value)),
        ]
    })
}

/// Applies JSON patch operations to the model; `None` when an operation fails.
fn operated(model: &Model, ops: &[Op]) -> Option<Model> {
    let mut after = model.clone();
    for op in ops {
        match op {
            Op::Set(field, value) => drop(after.insert(*field, value.clone())),
            Op::Remove(field) => drop(after.remove(field)?),
            Op::Test(field, value) => drop(after.get(field).filter(|found| *found == value)?),
        }
    }
    Some(after)
}

/// Applies operations as one merge patch: a missing field is not an error, and the last operation on a field takes
/// effect.
fn merged(model: &Model, ops: &[Op]) -> Model {
    let mut after = model.clone();
    for op in ops {
        match op {
            Op::Set(field, value) => drop(after.insert(*field, value.clone())),
            Op::Remove(field) => drop(after.remove(field)),
            Op::Test(..) => {}
        }
    }
    after
}

/// Applies decoding and defaults: optional zeros are removed, and replicas default to 1.
fn decoded(mut model: Model) -> Model {
    let is_replicas = |field: &usize| FIELDS[*field] == "/spec/replicas";
    model.retain(|field, value| is_replicas(field) || ![json!(0), json!(false), json!("")].contains(value));
    let replicas = (0..FIELDS.len()).find(is_replicas).unwrap();
    model.entry(replicas).or_insert(json!(1));
    model
}

/// Lists the fields of a Deployment that increment the generation: spec and annotations.
fn counted(model: &Model) -> Vec<(&usize, &Value)> {
    model.iter().filter(|(field, _)| !FIELDS[**field].starts_with("/metadata/labels")).collect()
}

fn json_patch(ops: &[Op]) -> Value {
    let one = |op: &Op| match op {
        Op::Set(field, value) => json!({"op": "add", "path": FIELDS[*field], "value": value}),
        Op::Remove(field) => json!({"op": "remove", "path": FIELDS[*field]}),
        Op::Test(field, value) => json!({"op": "test", "path": FIELDS[*field], "value": value}),
    };
    ops.iter().map(one).collect()
}

fn merge_patch(ops: &[Op]) -> Value {
    let mut patch = json!({});
    for op in ops {
        let (field, value) = match op {
            Op::Set(field, value) => (field, value.clone()),
            Op::Remove(field) => (field, Value::Null),
            Op::Test(..) => continue,
        };
        let steps = FIELDS[*field].split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
        let mut at = &mut patch;
        for step in steps {
            if !at.is_object() {
                *at = json!({});
            }
            at = at.as_object_mut().unwrap().entry(step).or_insert(Value::Null);
        }
        *at = value;
    }
    patch
}

/// Returns the fields of an object, and its generation.
fn read(object: &[u8]) -> (Model, u64) {
    let object: Value = serde_json::from_slice(object).unwrap();
    let fields = FIELDS.iter().enumerate();
    let model = fields.filter_map(|(at, pointer)| Some((at, object.pointer(pointer)?.clone()))).collect();
    (model, object["metadata"]["generation"].as_u64().unwrap())
}

async fn check(patches: Vec<(u8, Vec<Op>)>) {
    let world = World::new().await;
    let deployments = world.writer.backend().registry().find("apps", "v1", "deployments").unwrap().clone();
    let cacher = world.writer.backend().cacher(&deployments);
    cacher.wait_ready().await.unwrap();
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
        bookmarks: false,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let mut watcher = cacher.watch(&Scope::All, &request, Instant::now() + Duration::from_secs(600)).await.unwrap();
    // One label and one annotation stay, so that JSON patches always find both maps.
    let body = r#"{"metadata":{"name":"a","labels":{"stays":""},"annotations":{"stays":""}},"spec":{"selector":{"matchLabels":{"l":"v"}},
        "template":{"metadata":{"labels":{"l":"v"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#;
    world.send(&post(DEPLOYMENTS), body).await.unwrap();
    let (mut model, mut generation) = (decoded(Model::new()), 1);
    let mut written = vec![(model.clone(), generation)];
    for (patch_type, ops) in patches {
        let (media_type, body, after) = match patch_type {
            0 => (JSON_PATCH, json_patch(&ops), operated(&model, &ops)),
            1 => (MERGE, merge_patch(&ops), Some(merged(&model, &ops))),
            _ => (STRATEGIC, merge_patch(&ops), Some(merged(&model, &ops))),
        };
        let before = world.revision().await;
        let answer = world.send(&patch(DEPLOYMENTS, "a", media_type), &body.to_string()).await;
        let Some(after) = after.map(decoded) else {
            assert_eq!(answer.map(|_| ()).map_err(|status| status.code), Err(422), "{body} of {model:?}");
            assert_eq!(world.revision().await, before, "a refused patch was written: {body}");
            continue;
        };
        generation += u64::from(counted(&after) != counted(&model));
        let effect = after != model;
        model = after;
        let WriteBody::Object(object) = answer.unwrap().body else { panic!("no object") };
        assert_eq!(read(object.json_slice()), (model.clone(), generation), "the answer to {body}");
        assert_eq!(world.revision().await - before, u64::from(effect), "a patch without effect is no write: {body}");
        let stored = world.stored("/deployments/").await;
        assert_eq!(
            read(stored[0].split_once('=').unwrap().1.as_bytes()),
            (model.clone(), generation),
            "stored: {body}"
        );
        if effect {
            written.push((model.clone(), generation));
        }
    }
    for expected in &written {
        let next = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
        let Ok(Some(Delivery::Event(event))) = next else { panic!("the watcher did not see {expected:?}") };
        assert_eq!(read(event.object().json_slice()), *expected, "a watcher sees each write, in order");
    }
    let more = tokio::time::timeout(Duration::from_millis(1), watcher.next()).await;
    assert!(more.is_err(), "a watcher saw what nobody wrote");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_patches_of_each_type_match_the_model(
        patches in prop::collection::vec((0..3_u8, prop::collection::vec(any_op(), 1..5)), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(patches));
    }
}

#[tokio::test]
async fn malformed_patch_of_an_absent_object_returns_404() {
    let world = World::new().await;
    for media_type in [MERGE, STRATEGIC, JSON_PATCH] {
        world.refuse(&patch(MAPS, "none", media_type), "{{", 404, "configmaps \"none\" not found").await;
    }
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let why = "error decoding patch: invalid character '{' looking for beginning of object key string";
    world.refuse(&patch(MAPS, "a", MERGE), "{{", 400, why).await;
    world.refuse(&patch(MAPS, "a?fieldValidation=Ignore", MERGE), "{{", 400, "Invalid JSON Patch").await;
}

#[tokio::test]
async fn name_that_is_no_segment_of_a_path_is_rejected() {
    let world = World::new().await;
    for (name, why) in [("..", "may not be '..'"), ("a%b", "may not contain '%'")] {
        let why = format!("Name parameter invalid: \"{name}\": {why}");
        world.refuse(&patch(MAPS, name, MERGE), "{}", 400, &why).await;
        world.refuse(&format!("DELETE {MAPS}/{name}"), "", 400, &why).await;
    }
}
