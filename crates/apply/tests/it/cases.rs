//! Server-side apply in small scenarios: a sequence of writes, then the expected object and owners.
//! Each outcome matches Kubernetes' own tests or an observed kube-apiserver v1.36.

use listwatch_apply::{ApplyError, Kind, LAST_APPLIED, Path, Set, Typing, Writer, managed};
use listwatch_json::{Value, json};
use time::{Duration, OffsetDateTime};

/// One object and its writes; each write is one second after the last.
struct Scenario {
    kind: Kind,
    object: Option<Value>,
    now: OffsetDateTime,
    reset: Set,
}

impl Scenario {
    fn of(kind: Kind) -> Self {
        Scenario { kind, object: None, now: OffsetDateTime::UNIX_EPOCH, reset: Set::new() }
    }

    fn built_in(api_version: &str, kind: &str) -> Self {
        let typing = Typing::of_built_in(api_version, kind).unwrap();
        Scenario::of(Kind::built_in(api_version, kind, typing))
    }

    fn writer<'a>(&'a self, manager: &'a str) -> Writer<'a> {
        Writer { manager, subresource: "", now: self.now, reset: &self.reset }
    }

    fn try_apply(&mut self, manager: &str, config: &Value, force: bool) -> Result<(), ApplyError> {
        self.now += Duration::SECOND;
        let applied = self.kind.apply(self.object.as_ref(), config, self.writer(manager), force)?;
        self.object = Some(applied);
        Ok(())
    }

    fn apply(&mut self, manager: &str, config: &Value) -> &mut Self {
        self.try_apply(manager, config, false).unwrap();
        self
    }

    fn force(&mut self, manager: &str, config: &Value) -> &mut Self {
        self.try_apply(manager, config, true).unwrap();
        self
    }

    fn refuse(&mut self, manager: &str, config: &Value, expected: &str) -> &mut Self {
        let before = self.object.clone();
        assert_eq!(self.try_apply(manager, config, false).unwrap_err().to_string(), expected);
        assert_eq!(self.object, before, "a refused apply changed something");
        self
    }

    fn update(&mut self, manager: &str, change: impl FnOnce(&mut Value)) -> &mut Self {
        self.now += Duration::SECOND;
        let mut new = self.object.clone().unwrap_or_else(|| json!({"metadata": {}}));
        change(&mut new);
        self.kind.update(self.object.as_ref(), &mut new, self.writer(manager));
        self.object = Some(new);
        self
    }

    /// Checks a part of the object.
    fn shows(&mut self, pointer: &str, expected: Value) -> &mut Self {
        let found = self.object.as_ref().unwrap().pointer(pointer).cloned().unwrap_or(Value::Null);
        assert_eq!(found, expected, "{pointer} of {}", self.object.as_ref().unwrap());
        self
    }

    /// Checks the owners: one line per owner, `name operation: fields`.
    fn owned(&mut self, expected: &[&str]) -> &mut Self {
        let entries = self.object.as_ref().unwrap()["metadata"].get("managedFields").cloned().unwrap_or(json!([]));
        let managed = managed::decode(&entries).unwrap();
        let again = Value::Array(managed::encode(&managed));
        assert_eq!(again, if entries.is_null() { json!([]) } else { entries }, "managedFields come back as they were");
        let found: Vec<String> = managed
            .iter()
            .map(|(manager, owned)| {
                format!(
                    "{} {}: {}",
                    manager.name,
                    manager.operation.name(),
                    owned.fields.to_string().replace('\n', " ")
                )
            })
            .collect();
        assert_eq!(found, expected);
        self
    }

    fn time_of(&self, manager: &str) -> Option<String> {
        let entries = self.object.as_ref().unwrap()["metadata"]["managedFields"].as_array().unwrap().clone();
        let entry = entries.iter().find(|entry| entry["manager"] == manager).unwrap();
        entry.get("time").map(|time| time.as_str().unwrap().to_owned())
    }
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn maps() -> Scenario {
    Scenario::built_in("v1", "ConfigMap")
}

#[test]
fn applied_fields_are_owned_and_omitted_ones_are_removed() {
    maps()
        .apply("m", &map(json!({"a": "1", "b": "1"})))
        .owned(&["m Apply: .data.a .data.b"])
        .apply("m", &map(json!({"b": "2"})))
        .shows("/data", json!({"b": "2"}))
        .owned(&["m Apply: .data.b"])
        .apply("m", &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}))
        .shows("/data", Value::Null)
        .owned(&[]);
}

#[test]
fn omitted_field_owned_by_another_manager_stays() {
    maps()
        .apply("m", &map(json!({"a": "1", "b": "1"})))
        .apply("n", &map(json!({"b": "1", "c": "1"})))
        .apply("m", &map(json!({})))
        .shows("/data", json!({"b": "1", "c": "1"}))
        .owned(&["m Apply: .data", "n Apply: .data.b .data.c"])
        .apply("n", &map(json!({"c": "1"})))
        .shows("/data", json!({"c": "1"}));
}

#[test]
fn conflict_names_owner_and_field() {
    let mut story = maps();
    story
        .apply("m", &map(json!({"a": "1", "b": "1"})))
        .refuse("n", &map(json!({"a": "2"})), r#"Apply failed with 1 conflict: conflict with "m": .data.a"#)
        .refuse(
            "n",
            &map(json!({"a": "2", "b": "2"})),
            "Apply failed with 2 conflicts: conflicts with \"m\":\n- .data.a\n- .data.b",
        )
        .update("u", |map| map["data"]["b"] = json!("3"))
        .refuse(
            "n",
            &map(json!({"a": "2", "b": "2"})),
            "Apply failed with 2 conflicts: conflicts with \"m\":\n- .data.a\nconflicts with \"u\" using v1:\n- .data.b",
        )
        .force("n", &map(json!({"a": "2", "b": "2"})))
        .shows("/data", json!({"a": "2", "b": "2"}))
        .owned(&["n Apply: .data.a .data.b"]);
    let refused = story.try_apply("m", &map(json!({"a": "1"})), false).unwrap_err();
    let ApplyError::Conflicts(conflicts) = refused else { panic!("{refused}") };
    assert_eq!(
        (conflicts[0].manager.to_string().as_str(), &conflicts[0].path),
        ("\"n\"", &Path::of_fields(&["data", "a"]))
    );
}

#[test]
fn applying_the_same_value_shares_ownership() {
    let mut story = maps();
    story.apply("m", &map(json!({"a": "1"}))).apply("n", &map(json!({"a": "1"})));
    story.owned(&["m Apply: .data.a", "n Apply: .data.a"]);
    assert_eq!(story.time_of("n"), None, "nothing changed but ownership, so no time is noted");
    story.refuse(
        "o",
        &map(json!({"a": "2"})),
        "Apply failed with 2 conflicts: conflicts with \"m\":\n- .data.a\nconflicts with \"n\":\n- .data.a",
    );
}

#[test]
fn reapplying_the_same_configuration_changes_nothing() {
    let mut story = maps();
    story.apply("m", &map(json!({"a": "1"})));
    let before = story.object.clone();
    story.apply("m", &map(json!({"a": "1"})));
    assert_eq!(story.object, before, "an apply of what is there moved a time");
    assert_eq!(story.time_of("m").as_deref(), Some("1970-01-01T00:00:01Z"));
}

#[test]
fn update_takes_over_changed_fields() {
    maps()
        .apply("m", &map(json!({"a": "1", "b": "1"})))
        .update("u", |map| map["data"]["a"] = json!("2"))
        .owned(&["m Apply: .data.b", "u Update: .data.a"])
        .update("v", |map| {
            map["data"].as_object_mut().unwrap().remove("a");
        })
        .owned(&["m Apply: .data.b"])
        .update("v", |map| map["data"]["c"] = json!("1"))
        .update("v", |map| map["data"]["d"] = json!("1"))
        .owned(&["m Apply: .data.b", "v Update: .data.c .data.d"])
        .apply("m", &map(json!({"c": "1"})))
        .shows("/data", json!({"c": "1", "d": "1"}));
}

#[test]
fn create_owns_sent_and_defaulted_fields() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "b"}},
        "spec": {
            "replicas": 1, "paused": false, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "n", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {}},
            ]}},
        },
    });
    let mut story = Scenario::built_in("apps/v1", "Deployment");
    story.update("c", |object| *object = deployment);
    let fields = story.object.as_ref().unwrap()["metadata"]["managedFields"][0]["fieldsV1"].to_string();
    assert_eq!(
        fields,
        r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:strategy":{"f:rollingUpdate":{".":{},"f:maxSurge":{}},"f:type":{}},"f:template":{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"n\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}},"f:resources":{}}}}}}}"#
    );
}

fn pod(containers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
}

#[test]
fn list_items_are_identified_by_their_keys() {
    let mut story = Scenario::built_in("v1", "Pod");
    story
        .apply("m", &pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])))
        .apply("n", &pod(json!([{"name": "b", "env": [{"name": "X", "value": "1"}]}])))
        .shows(
            "/spec/containers",
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1", "env": [{"name": "X", "value": "1"}]}]),
        )
        .apply("m", &pod(json!([{"name": "a", "image": "1"}])))
        .shows(
            "/spec/containers",
            json!([{"name": "a", "image": "1"}, {"name": "b", "env": [{"name": "X", "value": "1"}]}]),
        )
        .apply("n", &pod(json!([])))
        .shows("/spec/containers", json!([{"name": "a", "image": "1"}]))
        .refuse(
            "n",
            &pod(json!([{"name": "a", "image": "2"}])),
            r#"Apply failed with 1 conflict: conflict with "m": .spec.containers[name="a"].image"#,
        );
}

#[test]
fn absent_key_field_takes_its_default() {
    let ports = |ports: Value| pod(json!([{"name": "a", "ports": ports}]));
    Scenario::built_in("v1", "Pod")
        .apply("m", &ports(json!([{"containerPort": 80}])))
        .apply("n", &ports(json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}])))
        .shows(
            "/spec/containers/0/ports",
            json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]),
        );
}

#[test]
fn applied_items_have_the_order_of_the_configuration() {
    let named =
        |names: &str| Value::from_iter(names.chars().map(|name| json!({"name": name.to_string(), "image": "i"})));
    let check = |live: &str, config: &str, expected: &str| {
        Scenario::built_in("v1", "Pod")
            .apply("m", &pod(named(live)))
            .apply("n", &pod(named(config)))
            .shows("/spec/containers", named(expected));
    };
    check("abc", "cb", "acb");
    check("abc", "d", "abcd");
    check("abc", "dc", "abdc");
    check("abcde", "xbyd", "axbcyde");
    check("abc", "cba", "cba");
    check("", "ab", "ab");
}

#[test]
fn set_item_of_two_managers_is_shared_and_duplicate_is_rejected() {
    let with = |finalizers: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    maps()
        .apply("m", &with(json!(["x/1", "x/2"])))
        .apply("n", &with(json!(["x/2", "x/3"])))
        .shows("/metadata/finalizers", json!(["x/1", "x/2", "x/3"]))
        .apply("m", &with(json!([])))
        .shows("/metadata/finalizers", json!(["x/2", "x/3"]))
        .refuse(
            "m",
            &with(json!(["x/1", "x/1"])),
            r#"failed to create typed patch object (/a; /v1, Kind=ConfigMap): .metadata.finalizers: duplicate entries for key [="x/1"]"#,
        );
}

#[test]
fn atomic_map_is_owned_as_a_whole() {
    let service = |selector: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": selector}});
    Scenario::built_in("v1", "Service")
        .apply("m", &service(json!({"a": "1"})))
        .owned(&["m Apply: .spec.selector"])
        .refuse("n", &service(json!({"b": "1"})), r#"Apply failed with 1 conflict: conflict with "m": .spec.selector"#)
        .force("n", &service(json!({"b": "1"})))
        .shows("/spec/selector", json!({"b": "1"}));
}

#[test]
fn untracked_fields_belong_to_before_first_apply() {
    let mut story = maps();
    story.object = Some(map(json!({"a": "1"})));
    story
        .refuse(
            "m",
            &map(json!({"a": "2"})),
            r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.a"#,
        )
        .apply("m", &map(json!({"b": "1"})))
        .owned(&["before-first-apply Update: .data .data.a", "m Apply: .data.b"]);
}

#[test]
fn update_of_untracked_object_adds_no_managed_fields() {
    let mut story = maps();
    story.object = Some(map(json!({"a": "1"})));
    story.update("u", |map| map["data"]["a"] = json!("2")).owned(&[]);
}

#[test]
fn kubectl_apply_takes_over_its_client_side_applies() {
    let last = map(json!({"a": "1", "b": "1"})).to_string();
    let with = |data: Value| {
        let mut config = map(data);
        config["metadata"]["annotations"] = json!({LAST_APPLIED: last});
        config
    };
    let mut story = maps();
    story.update("kubectl-client-side-apply", |object| *object = with(json!({"a": "1", "b": "1"})));
    story.refuse(
        "other",
        &map(json!({"a": "2"})),
        r#"Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: .data.a"#,
    );
    story.apply("kubectl", &map(json!({"a": "2", "b": "1"}))).shows("/data", json!({"a": "2", "b": "1"}));
    let renewed = story.object.as_ref().unwrap()["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(renewed).unwrap(), map(json!({"a": "2", "b": "1"})));

    let mut story = maps();
    story.update("kubectl-client-side-apply", |object| *object = with(json!({"a": "1", "b": "1"})));
    story.update("u", |object| object["data"]["a"] = json!("7")).refuse(
        "kubectl",
        &map(json!({"a": "2", "b": "2"})),
        r#"Apply failed with 1 conflict: conflict with "u" using v1: .data.a"#,
    );
}

#[test]
fn client_can_reset_and_set_managed_fields() {
    for nothing in [json!([]), json!([{}])] {
        maps()
            .apply("m", &map(json!({"a": "1"})))
            .update("u", |object| object["metadata"]["managedFields"] = nothing)
            .owned(&[]);
    }
    maps()
        .apply("m", &map(json!({"a": "1"})))
        .update("u", |object| object["metadata"]["managedFields"] = json!([{"manager": "x"}]))
        .owned(&["m Apply: .data.a"])
        .update("u", |object| {
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
        })
        .owned(&["m Apply: .data.a"])
        .update("u", |object| object["metadata"]["managedFields"][0]["manager"] = json!("mine"))
        .owned(&["mine Apply: .data.a"])
        .refuse(
            "m",
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": []}}),
            "metadata.managedFields must be nil",
        );
}

#[test]
fn oldest_update_entries_are_merged_above_the_maximum() {
    let mut story = maps();
    story.update("c", |object| *object = map(json!({"z": "1"})));
    for at in 0..managed::UPDATE_MANAGERS_MAX + 3 {
        story.update(&format!("m{at:02}"), |object| object["data"][format!("k{at:02}")] = json!("x"));
    }
    let entries = story.object.as_ref().unwrap()["metadata"]["managedFields"].as_array().unwrap().clone();
    assert_eq!(entries.len(), managed::UPDATE_MANAGERS_MAX);
    assert_eq!(entries[0]["manager"], managed::ANCIENT_CHANGES);
    assert_eq!(entries[0]["time"], "1970-01-01T00:00:05Z", "as young as the youngest that was merged");
    assert_eq!(entries[0]["fieldsV1"]["f:data"].as_object().unwrap().len(), 6, "{}", entries[0]);
}

#[test]
fn apply_rejects_configuration_of_another_kind_or_type() {
    maps()
        .refuse("m", &json!({"kind": "Pod", "apiVersion": "v1"}), "invalid object type: /v1, Kind=Pod")
        .refuse("m", &json!({}), "invalid object type: /, Kind=")
        .refuse(
            "m",
            &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "odd": 1}),
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .odd: field not declared in schema",
        )
        .refuse(
            "m",
            &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"a": 1}}),
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:1}",
        )
        .refuse(
            "m",
            &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": [], "immutable": "x"}),
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): errors:\n  .data: expected map, got &{[]}\n  .immutable: expected boolean, got &{x}",
        );
    let refused = |containers: Value, why: &str| {
        let text = format!("failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers: {why}");
        Scenario::built_in("v1", "Pod").refuse("m", &pod(containers), &text);
    };
    refused(json!([null]), "element 0: associative list with keys may not have a null element");
    refused(json!([1]), "element 0: associative list with keys may not have non-map elements");
    refused(json!([{"name": "a"}, {"name": "a"}]), "duplicate entries for key [name=\"a\"]");
}

#[test]
fn reset_fields_are_not_owned() {
    let mut story = Scenario::of(Kind::custom("e.com/v1", "T", Typing::deduced(), Vec::new()));
    story.reset = [Path::of_fields(&["status"])].iter().collect();
    let config = |size: u32| json!({"apiVersion": "e.com/v1", "kind": "T", "metadata": {"name": "a"}, "spec": {"size": size}, "status": {"x": size}});
    story.apply("m", &config(1)).owned(&["m Apply: .spec .spec.size"]);
    story.update("u", |object| object["status"]["x"] = json!(5)).owned(&["m Apply: .spec .spec.size"]);
}

#[test]
fn versions_of_a_custom_kind_share_managed_fields() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}});
    let typing = || Typing::of_custom_resource(&schema, false);
    let kind = |version: &str, other: &[&str]| {
        Kind::custom(version, "T", typing(), other.iter().map(|version| ((*version).to_owned(), typing())).collect())
    };
    let config = |version: &str, spec: Value| json!({"apiVersion": version, "kind": "T", "metadata": {"name": "x"}, "spec": spec});
    let mut story = Scenario::of(kind("e.com/v1", &["e.com/v2"]));
    story.apply("m", &config("e.com/v1", json!({"a": "1", "b": "1"})));
    story.kind = kind("e.com/v2", &["e.com/v1"]);
    story.object.as_mut().unwrap()["apiVersion"] = json!("e.com/v2");
    story
        .refuse(
            "n",
            &config("e.com/v2", json!({"a": "2"})),
            r#"Apply failed with 1 conflict: conflict with "m": .spec.a"#,
        )
        .apply("m", &config("e.com/v2", json!({"a": "1"})))
        .shows("/spec", json!({"a": "1"}))
        .owned(&["m Apply: .spec.a"]);
    // Entries of a removed version are dropped.
    story.kind = kind("e.com/v3", &[]);
    story.object.as_mut().unwrap()["apiVersion"] = json!("e.com/v3");
    story.apply("n", &config("e.com/v3", json!({"a": "2"}))).owned(&["n Apply: .spec.a"]);
}

#[test]
fn fields_of_a_map_that_became_atomic_become_one_leaf() {
    let schema = |whole: &str| json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-map-type": whole, "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}});
    let kind =
        |whole: &str| Kind::custom("e.com/v1", "T", Typing::of_custom_resource(&schema(whole), false), Vec::new());
    let config = |spec: Value| json!({"apiVersion": "e.com/v1", "kind": "T", "metadata": {"name": "x"}, "spec": spec});
    let mut story = Scenario::of(kind("granular"));
    story.apply("m", &config(json!({"a": "1"}))).owned(&["m Apply: .spec.a"]);
    story.kind = kind("atomic");
    story
        .refuse("n", &config(json!({"b": "1"})), r#"Apply failed with 1 conflict: conflict with "m": .spec"#)
        .force("n", &config(json!({"b": "1"})))
        .shows("/spec", json!({"b": "1"}))
        .owned(&["n Apply: .spec"]);
}

#[test]
fn duplicate_list_items_are_owned_as_one_leaf() {
    let twice = json!([{"name": "a", "image": "1"}, {"name": "a", "image": "2"}]);
    let mut story = Scenario::built_in("v1", "Pod");
    story.update("u", |object| *object = pod(twice.clone()));
    story
        .refuse(
            "m",
            &pod(json!([{"name": "a", "image": "3"}])),
            r#"Apply failed with 1 conflict: conflict with "u" using v1: .spec.containers[name="a"]"#,
        )
        .apply("m", &pod(json!([{"name": "b", "image": "3"}])))
        .force("m", &pod(json!([{"name": "a", "image": "3"}])))
        .shows("/spec/containers", json!([{"name": "a", "image": "3"}]));
}

#[test]
fn scale_subresource_shares_the_managers_of_spec_replicas() {
    let replicas = Path::of_fields(&["spec", "replicas"]);
    let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    let parent = managed::decode(&json!([
        entry("m", "Apply", json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})),
        entry("n", "Apply", json!({"f:spec": {"f:paused": {}}})),
    ]))
    .unwrap();
    let scaled = managed::to_scale(&parent, "apps/v1", &replicas);
    assert_eq!(scaled.keys().map(|manager| manager.name.as_str()).collect::<Vec<_>>(), ["m"]);
    assert_eq!(managed::from_scale(&parent, scaled, "apps/v1", &replicas), parent, "nothing was written");
    let taken = json!([{"manager": "s", "operation": "Update", "apiVersion": "autoscaling/v1", "subresource": "scale",
        "time": "2024-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    let after = managed::from_scale(&parent, managed::decode(&taken).unwrap(), "apps/v1", &replicas);
    assert_eq!(
        Value::Array(managed::encode(&after)),
        json!([
            entry("m", "Apply", json!({"f:spec": {"f:paused": {}}})),
            entry("n", "Apply", json!({"f:spec": {"f:paused": {}}})),
            {"manager": "s", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}, "subresource": "scale"},
        ])
    );
}
