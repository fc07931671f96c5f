//! Tests field managers of different versions.

use listwatch_json::{Value, json};

use super::{Converter, MERGE, Mode, V1, V2, check, v1, v2};
use crate::crds::world::World;

const APPLY: &str = "application/apply-patch+yaml";

async fn apply(world: &World, path: &str, manager: &str, object: &Value) -> (u16, Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    world.patch(&format!("{path}/{name}?fieldManager={manager}"), APPLY, object.clone()).await
}

/// Returns the managers with their versions and owned fields of the spec.
fn managers(object: &Value) -> Vec<(String, String, Vec<String>)> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut managers: Vec<_> = entries
        .iter()
        .map(|entry| {
            let fields = entry["fieldsV1"]["f:spec"].as_object().unwrap();
            let mut fields: Vec<String> = fields.keys().filter(|name| *name != ".").map(String::from).collect();
            fields.sort();
            (text(&entry["manager"]), text(&entry["apiVersion"]), fields)
        })
        .collect();
    managers.sort();
    managers
}

fn manager(name: &str, version: &str, fields: &[&str]) -> (String, String, Vec<String>) {
    (name.to_owned(), format!("example.com/{version}"), fields.iter().map(|field| (*field).to_owned()).collect())
}

#[tokio::test(start_paused = true)]
async fn applies_in_different_versions_conflict_on_the_converted_fields() {
    let world = Converter::default().world().await;
    let (code, applied) = apply(&world, V1, "one", &v1("a", "h:1")).await;
    assert_eq!(code, 201, "{applied}");
    // The same object in the other version changes nothing, and is owned together.
    let (code, shared) = apply(&world, V2, "two", &v2("a", "h", "1")).await;
    assert_eq!(code, 200, "{shared}");
    check(&shared, "v2", json!({"host": "h", "port": "1"}));
    assert_eq!(managers(&shared), [manager("one", "v1", &["f:hostPort"]), manager("two", "v2", &["f:host", "f:port"])]);
    let (code, conflict) = apply(&world, V2, "two", &v2("a", "h", "2")).await;
    let text = "Apply failed with 1 conflict: conflict with \"one\": .spec.hostPort";
    assert_eq!((code, &conflict["message"]), (409, &json!(text)), "{conflict}");
    let (code, forced) = world.patch(&format!("{V2}/a?fieldManager=two&force=true"), APPLY, v2("a", "h", "2")).await;
    assert_eq!(code, 200, "{forced}");
    assert_eq!(managers(&forced), [manager("two", "v2", &["f:host", "f:port"])]);
    check(&world.get(&format!("{V1}/a")).await.1, "v1", json!({"hostPort": "h:2"}));
}

#[tokio::test(start_paused = true)]
async fn apply_in_a_new_version_gives_up_fields_applied_in_the_previous_version() {
    let world = Converter::default().world().await;
    let mut first = v2("a", "h", "1");
    first["spec"]["replicas"] = json!(3);
    assert_eq!(apply(&world, V2, "one", &first).await.0, 201);
    let (code, second) = apply(&world, V1, "one", &v1("a", "h:1")).await;
    assert_eq!(code, 200, "{second}");
    check(&second, "v1", json!({"hostPort": "h:1"}));
    assert_eq!(managers(&second), [manager("one", "v1", &["f:hostPort"])]);
}

#[tokio::test(start_paused = true)]
async fn update_in_another_version_takes_over_the_converted_fields() {
    let world = Converter::default().world().await;
    apply(&world, V1, "one", &v1("a", "h:1")).await;
    let (code, patched) = world.patch(&format!("{V2}/a?fieldManager=two"), MERGE, json!({"spec": {"port": "2"}})).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(managers(&patched), [manager("two", "v2", &["f:port"])]);
}

#[tokio::test(start_paused = true)]
async fn apply_fails_and_changes_nothing_if_the_converter_fails() {
    let converter = Converter::default();
    let world = converter.world().await;
    apply(&world, V1, "one", &v1("a", "h:1")).await;
    apply(&world, V2, "two", &v2("a", "h", "1")).await;
    converter.set(Mode::Fails);
    let (code, status) = apply(&world, V1, "one", &v1("a", "h:2")).await;
    let text = "conversion webhook for example.com/v1, Kind=Widget failed: the converter is broken";
    assert_eq!((code, &status["message"]), (500, &json!(text)), "{status}");
    check(&world.get(&format!("{V1}/a")).await.1, "v1", json!({"hostPort": "h:1"}));
}
