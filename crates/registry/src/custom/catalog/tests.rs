//! Tests of accepted names, status conditions and served resources after each event.

use listwatch_json::{Value, json};
use listwatch_meta::{Key, ObjectShape};

use super::*;

/// A catalog and the revision of the last event. Each event gets the next revision.
struct World {
    catalog: Catalog,
    revision: u64,
}

impl World {
    fn new() -> Self {
        World { catalog: Catalog::new(Reserved::of(&crate::builtin::resources()), Arc::default()), revision: 0 }
    }

    fn show(&mut self, change: Change, definition: &Value) {
        self.revision += 1;
        let name = definition["metadata"]["name"].as_str().unwrap();
        let key = Key::new("crds", None, name).unwrap();
        let shape = ObjectShape::new(false, Vec::new());
        let json = definition.to_string();
        let object = Object::from_stored(key, Revision::new(self.revision), change, json.as_bytes(), &shape).unwrap();
        self.catalog.handle(change, &object);
    }

    /// Returns the pending work of the catalog as text.
    fn work(&mut self) -> Vec<String> {
        self.catalog.assign_names();
        let text = |work| match work {
            Work::Clean(name) => format!("clean {name}"),
            Work::CheckSchemas(SchemaWork { name, .. }) => format!("check {name}"),
            Work::Status(StatusWork { name, conditions, removed_conditions, .. }) => {
                let removed = removed_conditions.iter().map(|kind| format!("no {kind}"));
                let conditions: Vec<String> = conditions
                    .iter()
                    .map(|condition| format!("{}={} {}", condition.kind, condition.status, condition.reason))
                    .chain(removed)
                    .collect();
                format!("{name}: {}", conditions.join(", "))
            }
        };
        self.catalog.work().into_iter().map(text).collect()
    }

    /// Returns the served paths if they changed since the last call.
    fn served(&mut self) -> Option<Vec<String>> {
        let resources = self.catalog.take_changed()?;
        Some(resources.iter().map(|r| format!("{}/{}/{}", r.group, r.version, r.plural)).collect())
    }
}

fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
    json!({
        "metadata": {"name": format!("{plural}.example.com"), "uid": plural, "generation": 1,
            "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                "listKind": format!("{kind}List"), "shortNames": short},
            "versions": [{"name": "v1", "served": true, "storage": true}]},
    })
}

const NEW: &str = "NamesAccepted=True NoConflicts, Established=True InitialNamesAccepted";

#[test]
fn definition_with_free_names_is_accepted_and_served_at_once() {
    let mut world = World::new();
    world.show(Change::Added, &definition("widgets", "Widget", &["w"]));
    assert_eq!(world.work(), [format!("widgets.example.com: {NEW}")]);
    assert_eq!(world.served().unwrap(), ["example.com/v1/widgets"]);
    assert_eq!(world.work(), [""; 0], "each work is given out once");
    assert_eq!(world.served(), None);
}

#[test]
fn definition_with_an_invalid_ca_bundle_is_not_established_until_the_bundle_is_corrected() {
    let mut world = World::new();
    let mut widget = definition("widgets", "Widget", &[]);
    widget["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://host", "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}}});
    world.show(Change::Added, &widget);
    let waiting = "widgets.example.com: NamesAccepted=True NoConflicts, Established=False InvalidCABundle";
    assert_eq!(world.work(), [waiting]);
    widget["spec"]["conversion"]["webhook"]["clientConfig"] = json!({"url": "https://host"});
    world.show(Change::Modified, &widget);
    assert_eq!(world.work(), [format!("widgets.example.com: {NEW}")]);
}

#[test]
fn definition_is_settled_once_its_conditions_are_stored() {
    let mut world = World::new();
    let name = "widgets.example.com";
    assert!(!world.catalog.is_settled(name, Revision::new(1)), "it is not known");
    let mut widget = definition("widgets", "Widget", &[]);
    world.show(Change::Added, &widget);
    world.work();
    assert!(!world.catalog.is_settled(name, Revision::new(1)), "its conditions are still to be written");
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message});
    widget["status"] = json!({"acceptedNames": widget["spec"]["names"], "conditions": [
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted")]});
    world.show(Change::Modified, &widget);
    assert_eq!(world.work(), [""; 0], "conditions are written once");
    assert!(world.catalog.is_settled(name, Revision::new(1)));
    assert!(!world.catalog.is_settled(name, Revision::new(3)), "a later state is not known yet");
}

#[test]
fn conflicting_definition_is_accepted_after_the_holder_is_deleted() {
    let mut world = World::new();
    let first = definition("widgets", "Widget", &["w"]);
    world.show(Change::Added, &first);
    world.work();
    world.show(Change::Added, &definition("wonders", "Wonder", &["w"]));
    let waiting = "wonders.example.com: NamesAccepted=False ShortNamesConflict, Established=False NotAccepted";
    assert_eq!(world.work(), [waiting]);
    assert_eq!(world.served().unwrap(), ["example.com/v1/widgets"]);
    world.show(Change::Deleted, &first);
    assert_eq!(world.work(), [format!("wonders.example.com: {NEW}")]);
    assert_eq!(world.served().unwrap(), ["example.com/v1/wonders"]);
}

#[test]
fn definition_with_a_taken_name_gets_the_conflict_reason_of_that_name() {
    for (plural, kind, short, reason) in [
        ("gadgets", "Widget", "g", "ListKindConflict"),
        ("gadgets", "Gadget", "widgets", "ShortNamesConflict"),
        ("widget", "Gadget", "g", "PluralConflict"),
        ("gadgets", "WidgetList", "g", "KindConflict"),
    ] {
        let mut world = World::new();
        world.show(Change::Added, &definition("widgets", "Widget", &["w"]));
        world.work();
        world.show(Change::Added, &definition(plural, kind, &[short]));
        let expected = format!("{plural}.example.com: NamesAccepted=False {reason}, Established=False NotAccepted");
        assert_eq!(world.work(), [expected], "{plural} {kind} {short}");
    }
}

#[test]
fn accepted_names_in_stored_status_win_over_list_order() {
    let mut world = World::new();
    // The newer definition comes first in the list and requests a short name that the older one already holds.
    let mut holder = definition("widgets", "Widget", &["w"]);
    holder["status"] = json!({"acceptedNames": holder["spec"]["names"], "conditions": [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"}]});
    world.show(Change::Added, &definition("aaa", "Aaa", &["w"]));
    world.show(Change::Added, &holder);
    assert_eq!(
        world.work(),
        ["aaa.example.com: NamesAccepted=False ShortNamesConflict, Established=False NotAccepted"]
    );
    assert_eq!(world.served().unwrap(), ["example.com/v1/widgets"]);
}

#[test]
fn custom_kind_is_replaced_on_spec_change_but_not_on_status_change() {
    let mut world = World::new();
    let mut widget = definition("widgets", "Widget", &[]);
    world.show(Change::Added, &widget);
    world.work();
    let kind = |world: &mut World| {
        let served = world.catalog.take_changed().expect("something changed");
        Arc::clone(served[0].form.as_ref().unwrap().kind())
    };
    let first = kind(&mut world);
    widget["metadata"]["labels"] = json!({"a": "b"});
    world.show(Change::Modified, &widget);
    world.work();
    assert!(world.served().is_none(), "labels change nothing that is served");
    widget["status"]["conditions"] = json!([{"type": "Terminating", "status": "True"}]);
    world.show(Change::Modified, &widget);
    world.work();
    assert!(Arc::ptr_eq(&first, &kind(&mut world)), "watches go on while a definition is being deleted");
    widget["metadata"]["generation"] = json!(2);
    world.show(Change::Modified, &widget);
    world.work();
    assert!(!Arc::ptr_eq(&first, &kind(&mut world)), "another spec needs other caches");
}

#[test]
fn definition_with_deletion_timestamp_returns_cleanup_work() {
    let mut world = World::new();
    let mut widget = definition("widgets", "Widget", &[]);
    widget["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    widget["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    world.show(Change::Added, &widget);
    assert_eq!(world.work(), ["clean widgets.example.com"]);
    world.show(Change::Deleted, &widget);
    assert_eq!(world.work(), [""; 0]);
    assert_eq!(world.served().unwrap(), [""; 0]);
}

#[test]
fn definition_in_built_in_group_does_not_replace_built_in_version() {
    let mut world = World::new();
    let mut ingress = definition("ingresses", "Ingress", &[]);
    ingress["spec"]["group"] = json!("networking.k8s.io");
    ingress["metadata"]["name"] = json!("ingresses.networking.k8s.io");
    ingress["spec"]["versions"] =
        json!([{"name": "v1", "served": true, "storage": true}, {"name": "v9", "served": true}]);
    world.show(Change::Added, &ingress);
    world.work();
    assert_eq!(world.served().unwrap(), ["networking.k8s.io/v9/ingresses"]);
}

#[test]
fn retain_stops_serving_definitions_missing_from_the_list() {
    let mut world = World::new();
    world.show(Change::Added, &definition("widgets", "Widget", &[]));
    world.show(Change::Added, &definition("gadgets", "Gadget", &[]));
    world.work();
    world.served();
    world.catalog.retain(|name| name == "gadgets.example.com");
    world.work();
    assert_eq!(world.served().unwrap(), ["example.com/v1/gadgets"]);
}

/// Returns a definition whose conditions are stored.
fn settled(mut definition: Value, more: Option<&Value>) -> Value {
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message});
    let mut conditions = vec![
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ];
    conditions.extend(more.cloned());
    definition["status"] = json!({"acceptedNames": definition["spec"]["names"], "conditions": conditions});
    definition
}

#[test]
fn schemas_of_a_preserving_definition_are_checked_once_for_each_generation() {
    let mut world = World::new();
    let mut widget = definition("widgets", "Widget", &[]);
    widget["spec"]["preserveUnknownFields"] = json!(true);
    world.show(Change::Added, &widget);
    assert_eq!(world.work(), [format!("widgets.example.com: {NEW}")], "names come first");
    widget = settled(widget, None);
    world.show(Change::Modified, &widget);
    assert_eq!(world.work(), ["check widgets.example.com"]);
    assert!(!world.catalog.is_settled("widgets.example.com", Revision::new(1)));

    let found = condition("NonStructuralSchema", true, "Violations", "why");
    let check = |world: &World| match world.catalog.pending_work("widgets.example.com") {
        Some(Work::CheckSchemas(work)) => work,
        other => panic!("{other:?}"),
    };
    let work = check(&world);
    world.catalog.schemas_checked(&SchemaWork { generation: 7, ..work.clone() }, None);
    world.catalog.schemas_checked(&work, Some(found.clone()));
    let pending = |world: &World| match world.catalog.pending_work("widgets.example.com") {
        Some(Work::Status(StatusWork { conditions, removed_conditions, .. })) => (conditions, removed_conditions),
        None => (Vec::new(), Vec::new()),
        other => panic!("{other:?}"),
    };
    assert_eq!(pending(&world), (vec![found], Vec::new()));
    let stored = |message: &str| json!({"type": "NonStructuralSchema", "status": "True", "reason": "Violations", "message": message});
    for message in ["why", "the words of another server"] {
        world.show(Change::Modified, &settled(widget.clone(), Some(&stored(message))));
        assert_eq!(world.work(), [""; 0], "a condition that was written once is not written again");
    }

    // The next generation has structural schemas.
    (widget["spec"]["preserveUnknownFields"], widget["metadata"]["generation"]) = (json!(false), json!(2));
    world.show(Change::Modified, &settled(widget.clone(), Some(&stored("why"))));
    assert_eq!(world.work(), ["check widgets.example.com"]);
    let work = check(&world);
    world.catalog.schemas_checked(&work, None);
    assert_eq!(pending(&world), (Vec::new(), vec!["NonStructuralSchema"]));
    world.show(Change::Modified, &settled(widget, None));
    assert_eq!(world.work(), [""; 0]);
}
