//! Tests strategic merge: each directive, and the patches that kubectl sends.

use listwatch_json::json;

use super::super::merge_keys::of_kind;
use super::*;

fn apply(at: At, original: &Value, patch: Value) -> Result<Value> {
    let mut object = original.as_object().unwrap().clone();
    let Value::Object(patch) = patch else { panic!("a patch is an object") };
    merge(&mut object, patch, at)?;
    Ok(Value::Object(object))
}

fn check(kind: (&str, &str), original: Value, patch: Value, expected: Value) {
    let patched = apply(of_kind(kind.0, "v1", kind.1), &original, patch.clone()).unwrap();
    assert_eq!(patched.to_string(), expected.to_string(), "{original} patched with {patch}");
}

fn check_error(original: Value, patch: Value, expected: StrategicError) {
    assert_eq!(apply(of_kind("", "v1", "Pod"), &original, patch), Err(expected));
}

const POD: (&str, &str) = ("", "Pod");
const DEPLOYMENT: (&str, &str) = ("apps", "Deployment");
const CONFIG_MAP: (&str, &str) = ("", "ConfigMap");
const SERVICE: (&str, &str) = ("", "Service");

/// Builds a pod with these containers.
fn pod(containers: Value) -> Value {
    json!({"spec": {"containers": containers}})
}

#[test]
fn strategic_merge_merges_maps_and_removes_null_members() {
    check(
        CONFIG_MAP,
        json!({"data": {"a": "1", "b": "2"}}),
        json!({"data": {"a": null, "c": "3", "d": null}, "e": {"f": null, "g": 1}}),
        json!({"data": {"b": "2", "c": "3"}, "e": {"g": 1}}),
    );
}

#[test]
fn strategic_merge_merges_keyed_lists_by_key() {
    check(
        POD,
        pod(json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}])),
        pod(json!([{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1", "env": null}])),
        pod(json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"},
            {"name": "c", "image": "c:1", "env": null}])),
    );
    // The patch inserts a new item behind the item it names before, not at the end.
    check(
        POD,
        pod(json!([{"name": "a"}, {"name": "b"}, {"name": "z"}])),
        pod(json!([{"name": "b"}, {"name": "c"}])),
        pod(json!([{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "z"}])),
    );
    check(
        SERVICE,
        json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}]}}),
        json!({"spec": {"ports": [{"port": 443, "targetPort": 8443}]}}),
        json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https", "targetPort": 8443}]}}),
    );
}

#[test]
fn strategic_merge_replaces_lists_without_a_key() {
    check(
        POD,
        json!({"spec": {"tolerations": [{"key": "a"}]}}),
        json!({"spec": {"tolerations": [{"key": "b"}]}}),
        json!({"spec": {"tolerations": [{"key": "b"}]}}),
    );
    check(
        ("", "Endpoints"),
        json!({"subsets": [{"ports": [{"port": 80}]}]}),
        json!({"subsets": [{"ports": [{"port": 81}]}]}),
        json!({"subsets": [{"ports": [{"port": 81}]}]}),
    );
}

#[test]
fn strategic_merge_adds_and_deletes_scalars_of_sets() {
    let finalizers = |list: Value| json!({"metadata": {"finalizers": list}});
    check(
        CONFIG_MAP,
        finalizers(json!(["a/b", "c/d"])),
        finalizers(json!(["c/d", "e/f"])),
        finalizers(json!(["a/b", "c/d", "e/f"])),
    );
    check(
        CONFIG_MAP,
        finalizers(json!(["a/b", "c/d"])),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b", "x/y"]}}),
        finalizers(json!(["c/d"])),
    );
    check(
        CONFIG_MAP,
        json!({"metadata": {}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}}),
        json!({"metadata": {}}),
    );
    check(
        CONFIG_MAP,
        finalizers(json!(["a/b", "c/d", "server/only"])),
        json!({"metadata": {"$setElementOrder/finalizers": ["c/d", "a/b"]}}),
        finalizers(json!(["c/d", "a/b", "server/only"])),
    );
}

#[test]
fn patch_directives_replace_or_empty_maps_and_retain_keys_prunes_them() {
    check(
        DEPLOYMENT,
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
        json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}),
        json!({"spec": {"strategy": {"type": "Recreate"}}}),
    );
    check(
        DEPLOYMENT,
        json!({"spec": {"strategy": {"type": "RollingUpdate"}, "replicas": 2}}),
        json!({"spec": {"strategy": {"$patch": "delete"}}}),
        json!({"spec": {"strategy": {}, "replicas": 2}}),
    );
    check(
        DEPLOYMENT,
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
        json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
        json!({"spec": {"strategy": {"type": "Recreate"}}}),
    );
    check(
        ("policy", "PodDisruptionBudget"),
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
        json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}),
        json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}),
    );
    check(POD, json!({"spec": {}}), json!({"spec": {"securityContext": {"$patch": "delete"}}}), json!({"spec": {}}));
}

#[test]
fn strategic_merge_keeps_nulls_of_replaced_values_and_drops_those_of_new_values() {
    // A replaced value keeps its nulls and its directives.
    check(
        ("policy", "PodDisruptionBudget"),
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
        json!({"spec": {"selector": {"$patch": "delete", "matchLabels": {"c": null}}}}),
        json!({"spec": {"selector": {"$patch": "delete", "matchLabels": {"c": null}}}}),
    );
    check(
        CONFIG_MAP,
        json!({"data": {"a": "1"}}),
        json!({"data": {"$patch": "replace", "b": null, "c": "1"}}),
        json!({"data": {"b": null, "c": "1"}}),
    );
    check(
        POD,
        json!({"spec": {"tolerations": [{"key": "a"}]}}),
        json!({"spec": {"tolerations": [null, {"$patch": "delete", "key": "a"}, {"key": null}]}}),
        json!({"spec": {"tolerations": [null, {"$patch": "delete", "key": "a"}, {"key": null}]}}),
    );
    let new = json!({"name": "b", "env": null, "$setElementOrder/ports": [], "resources": {"$patch": "delete"}});
    check(POD, pod(json!([{"name": "a"}])), pod(json!([new])), pod(json!([new, {"name": "a"}])));
    let replaced = json!([{"$patch": "replace"}, {"$patch": "delete", "name": "z"}, new]);
    check(POD, pod(json!([{"name": "a"}])), pod(replaced), pod(json!([new])));

    // A new value loses its nulls and its `$patch` directives, and nothing else.
    check(
        POD,
        json!({}),
        pod(json!([null, {"$patch": "replace"}, new])),
        pod(json!([null, {"name": "b", "$setElementOrder/ports": []}])),
    );
    check(
        POD,
        json!({"spec": {"a": 1, "b": [1], "c": null}}),
        json!({"spec": {"a": {"b": null, "c": [{"d": null}]}, "b": {"$patch": "delete"}, "c": {"$patch": "replace"}}}),
        json!({"spec": {"a": {"c": [{}]}}}),
    );
    // With an order, a new list loses only its `$patch` directives.
    let mut ordered = pod(json!([{"$patch": "delete", "name": "z"}, new]));
    ordered["spec"]["$setElementOrder/containers"] = json!([{"name": "b"}]);
    check(POD, json!({"spec": {}}), ordered, pod(json!([{"name": "b", "env": null, "$setElementOrder/ports": []}])));
}

#[test]
fn delete_from_primitive_list_deletes_only_scalars_of_lists() {
    let spec = || json!({"spec": {"hostname": "a", "volumes": [{"name": "v"}], "nodeSelector": {"a": "b"}, "args": ["a", "b", "a"]}});
    let with = |name: &str, value: Value| {
        let mut expected = spec();
        expected["spec"][name] = value;
        expected
    };
    let minus = |name: &str, value: Value| json!({"spec": {format!("$deleteFromPrimitiveList/{name}"): value}});
    check(POD, spec(), minus("args", json!(["a", "c"])), with("args", json!(["b"])));
    check(POD, spec(), minus("args", json!([])), spec());
    check(POD, spec(), minus("args", json!("a")), spec());
    check(POD, spec(), minus("args", json!({"a": "b"})), spec());
    check(POD, spec(), minus("none", json!(["a"])), spec());
    check(POD, spec(), minus("", json!(["a"])), spec());
    // On a field that is not a list of scalars, the directive acts as a normal patch.
    check(POD, spec(), minus("hostname", json!("b")), with("hostname", json!("b")));
    check(POD, spec(), minus("hostname", json!(5)), spec());
    check(POD, spec(), minus("nodeSelector", json!({"a": "c"})), with("nodeSelector", json!({"a": "c"})));
    check(
        POD,
        spec(),
        minus("volumes", json!([{"name": "v", "emptyDir": {}}])),
        with("volumes", json!([{"name": "v", "emptyDir": {}}])),
    );
    let mut without = spec();
    without["spec"].as_object_mut().unwrap().shift_remove("hostname");
    check(POD, spec(), minus("hostname", json!(null)), without);
    let why = "list element types are not identical: [[a b a] [5]]";
    check_error(spec(), minus("args", json!([5])), StrategicError::Other(why.to_owned()));
}

#[test]
fn strategic_patch_is_printed_without_its_directives() {
    let Value::Object(patch) = json!({"metadata": {"labels": {"$retainKeys": ["a"], "a": null}}, "spec": {
        "$setElementOrder/volumes": [], "volumes": [{"name": "v"}], "replicas": "3", "strategy": {"$patch": "replace"},
        "template": {"$patch": "delete"}}})
    else {
        panic!("a patch is an object")
    };
    assert_eq!(
        listwatch_meta::go::print_map(&obeyed(&patch)),
        "map[metadata:map[labels:map[a:<nil>]] spec:map[replicas:3 strategy:map[] template:map[$patch:delete]]]"
    );
}

#[test]
fn set_element_order_treats_a_new_item_as_live_if_an_item_was_deleted() {
    // An injected sidecar stays in front of the new container, which fills the slot of the deleted one.
    let patch = |containers: Value| json!({"spec": {"$setElementOrder/containers": [{"name": "new"}], "containers": containers}});
    check(
        POD,
        pod(json!([{"name": "old"}, {"name": "sidecar"}])),
        patch(json!([{"name": "new"}, {"$patch": "delete", "name": "old"}])),
        pod(json!([{"name": "sidecar"}, {"name": "new"}])),
    );
    check(
        POD,
        pod(json!([{"name": "sidecar"}])),
        patch(json!([{"name": "new"}, {"$patch": "delete", "name": "old"}])),
        pod(json!([{"name": "new"}, {"name": "sidecar"}])),
    );
}

#[test]
fn patch_directives_delete_or_replace_items_of_keyed_lists() {
    let original = || pod(json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]));
    check(POD, original(), pod(json!([{"$patch": "delete", "name": "a"}])), pod(json!([{"name": "b", "image": "y"}])));
    check(
        POD,
        original(),
        pod(json!([{"$patch": "replace"}, {"name": "c", "image": "z"}])),
        pod(json!([{"name": "c", "image": "z"}])),
    );
    check(
        POD,
        original(),
        pod(json!([{"$patch": "delete", "name": "nope"}, {"name": "b", "$patch": "delete"}])),
        pod(json!([{"name": "a", "image": "x"}])),
    );
    check(POD, json!({"spec": {}}), pod(json!([{"$patch": "delete", "name": "a"}])), pod(json!([])));
}

#[test]
fn set_element_order_sorts_keyed_lists() {
    let order = |order: Value, containers: Option<Value>| {
        let mut spec = json!({"$setElementOrder/containers": order});
        if let Some(containers) = containers {
            spec["containers"] = containers;
        }
        json!({"spec": spec})
    };
    let names = |names: &str| json!(names.chars().map(|name| json!({"name": name.to_string()})).collect::<Vec<_>>());
    check(POD, pod(names("abc")), order(names("cab"), None), pod(names("cab")));
    check(POD, pod(names("abc")), order(names("cda"), Some(names("d"))), pod(names("bcda")));
    check(POD, pod(names("ab")), order(names("b"), Some(json!([{"$patch": "delete", "name": "a"}]))), pod(names("b")));
    check(POD, json!({"spec": {}}), order(names("ab"), Some(names("ab"))), pod(names("ab")));
    check(POD, json!({"spec": {}}), order(names("ab"), None), json!({"spec": {}}));
}

#[test]
fn patches_of_kubectl_commands_change_only_the_patched_fields() {
    let deployment = || {
        json!({"metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"note": "old"}},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [
                {"name": "web", "image": "web:1", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "env": [{"name": "A", "value": "1"}]},
                {"name": "log", "image": "log:1"}]}}}})
    };
    let with = |pointer: &str, value: Value| {
        let mut expected = deployment();
        *expected.pointer_mut(pointer).unwrap() = value;
        expected
    };
    // kubectl label, annotate, scale (a fallback path), set image, set env
    check(
        DEPLOYMENT,
        deployment(),
        json!({"metadata": {"labels": {"tier": "front"}}}),
        with("/metadata/labels", json!({"app": "web", "tier": "front"})),
    );
    check(
        DEPLOYMENT,
        deployment(),
        json!({"metadata": {"annotations": {"note": null}}}),
        with("/metadata/annotations", json!({})),
    );
    check(DEPLOYMENT, deployment(), json!({"spec": {"replicas": 5}}), with("/spec/replicas", json!(5)));
    check(
        DEPLOYMENT,
        deployment(),
        json!({"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "web"}, {"name": "log"}],
            "containers": [{"image": "web:2", "name": "web"}]}}}}),
        with("/spec/template/spec/containers/0/image", json!("web:2")),
    );
    check(
        DEPLOYMENT,
        deployment(),
        json!({"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "web"}, {"name": "log"}],
            "containers": [{"name": "web", "$setElementOrder/env": [{"name": "B"}, {"name": "A"}],
                "env": [{"name": "B", "value": "2"}]}]}}}}),
        with("/spec/template/spec/containers/0/env", json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}])),
    );
    // kubectl apply after a container was removed from the manifest and a port was changed
    check(
        DEPLOYMENT,
        deployment(),
        json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "web"}],
                "containers": [{"name": "web", "$setElementOrder/ports": [{"containerPort": 81}],
                    "ports": [{"containerPort": 81}, {"$patch": "delete", "containerPort": 80}]},
                    {"$patch": "delete", "name": "log"}]}}}}),
        json!({"metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"note": "old",
                "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [
                {"name": "web", "image": "web:1", "ports": [{"containerPort": 81}],
                    "env": [{"name": "A", "value": "1"}]}]}}}}),
    );
    // kubectl edit that changes a volume's source sends $retainKeys
    check(
        POD,
        json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        json!({"spec": {"$setElementOrder/volumes": [{"name": "v"}],
            "volumes": [{"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}, "emptyDir": null}]}}),
        json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}]}}),
    );
    // kubectl taint
    check(
        ("", "Node"),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]}}),
        json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]}}),
    );
    // A controller's condition update
    check(
        POD,
        json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}]}}),
        json!({"status": {"$setElementOrder/conditions": [{"type": "Ready"}, {"type": "Initialized"}],
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]}}),
    );
}

#[test]
fn malformed_strategic_patch_is_rejected_with_upstreams_error() {
    let other = |why: &str| StrategicError::Other(why.to_owned());
    check_error(json!({}), json!({"$patch": "foo"}), other("unknown patch type: foo in map: map[$patch:foo]"));
    check_error(
        pod(json!([{"name": "a"}])),
        pod(json!([{"image": "x"}])),
        other("map: map[image:x] does not contain declared merge key: name"),
    );
    check_error(
        pod(json!([{"name": "a"}])),
        pod(json!([{"$patch": "merge"}])),
        other("merging lists cannot yet be specified in the patch"),
    );
    check_error(json!({}), json!({"$patch": 5}), other("unknown patch type: %!s(int64=5) in map: map[$patch:5]"));
    check_error(json!({}), json!({"$patch": null}), other("unknown patch type: %!s(<nil>) in map: map[$patch:<nil>]"));
    check_error(
        pod(json!([{"name": "a"}])),
        pod(json!([{"name": "a"}, {"$patch": "odd", "name": "a"}])),
        other("unknown patch type: odd in map: map[$patch:odd name:a]"),
    );
    check_error(
        pod(json!([{"name": "a"}])),
        pod(json!([{"$patch": "delete"}])),
        other("map: map[$patch:delete] does not contain declared merge key: name"),
    );
    for (item, printed) in [(json!("a"), "a"), (json!([]), "[]"), (json!(5), "5"), (json!(null), "<nil>")] {
        let why = format!("list element types are not identical: [[map[name:a]] [{printed}]]");
        check_error(pod(json!([{"name": "a"}])), pod(json!([item])), other(&why));
    }
    check_error(pod(json!([])), pod(json!([[]])), StrategicError::ListOfLists);
    let texts = other("expected a map[string]interface {}, but received a string");
    check_error(pod(json!([])), pod(json!(["a"])), texts.clone());
    check_error(
        json!({"spec": {"tolerations": [{"key": "a"}]}}),
        json!({"spec": {"$deleteFromPrimitiveList/tolerations": [{"key": "a"}]}}),
        other("cannot merge lists without merge key for struct"),
    );
    check_error(
        json!({"spec": {"a": 1}}),
        json!({"spec": {"$retainKeys": ["b"], "a": 2}}),
        StrategicError::Malformed("invalid patch format of retainKeys"),
    );
    check_error(
        json!({}),
        json!({"$setElementOrder": []}),
        StrategicError::Malformed("invalid patch format of setElementOrder list"),
    );
    for (order, found) in [(json!({}), "map[string]interface {}"), (json!(null), "%!s(<nil>)"), (json!(1.5), "float64")]
    {
        let why = format!("expected a []interface {{}}, but received a {found}");
        check_error(json!({}), json!({"$setElementOrder/x": order}), other(&why));
    }
    let ordered = |order: Value, containers: Value| json!({"spec": {"$setElementOrder/containers": order, "containers": containers}});
    check_error(
        pod(json!([{"name": "a"}])),
        ordered(json!([{"name": "a"}]), json!(null)),
        other("expected a []interface {}, but received a %!s(<nil>)"),
    );
    check_error(
        pod(json!([{"name": "a"}])),
        ordered(json!([{"name": "a"}]), json!("a")),
        other("expected a []interface {}, but received a string"),
    );
    check_error(pod(json!([{"name": "a"}])), ordered(json!(["a"]), json!([{"name": "a"}])), texts.clone());
    check_error(pod(json!([{"name": "a"}])), ordered(json!([{"name": "a"}]), json!(["a"])), texts.clone());
    check_error(
        pod(json!([{"name": "a"}])),
        json!({"spec": {"$setElementOrder/containers": ["a"]}}),
        other("value for key 0 is not a map"),
    );
    check_error(
        pod(json!([{"name": "a"}])),
        json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, "a"]}}),
        texts,
    );
    check_error(
        pod(json!([{"name": "a"}])),
        ordered(json!([{"image": "x"}]), json!([{"name": "a"}])),
        other("map: map[image:x] does not contain declared merge key: name"),
    );
    check_error(
        json!({"spec": {}}),
        ordered(json!([{"name": "a"}]), json!([])),
        other("no elements in any of the given slices"),
    );
    check_error(
        pod(json!([{"name": "a"}])),
        ordered(json!([{"name": "a"}]), json!([{"name": "a"}, {"$patch": "replace"}])),
        other(
            "The order in patch list:\n[map[name:a] map[$patch:replace]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n",
        ),
    );
    for retained in [json!("b"), json!({}), json!(null)] {
        check_error(
            json!({}),
            json!({"$retainKeys": retained}),
            StrategicError::Malformed("invalid patch format of retainKeys"),
        );
    }
    check_error(
        json!({}),
        json!({"$deleteFromPrimitiveList": []}),
        StrategicError::Malformed("invalid patch format of primitive list"),
    );
    check_error(
        pod(json!([{"name": "a"}, {"name": "b"}])),
        json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}}),
        other("The order in patch list:\n[map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n"),
    );
}

#[test]
fn strategic_merge_of_100_000_items_takes_linear_time() {
    // A scan per item would take 10^10 steps.
    let containers: Vec<Value> = (0..100_000).map(|n| json!({"name": n.to_string()})).collect();
    let order = containers.clone();
    let patched = apply(
        of_kind("", "v1", "Pod"),
        &pod(json!(containers)),
        json!({"spec": {"$setElementOrder/containers": order, "containers": [{"name": "99999", "image": "x"}]}}),
    );
    assert_eq!(patched.unwrap()["spec"]["containers"][99_999]["image"], "x");
}

mod properties {
    //! Tests properties that hold for every patch.

    use listwatch_json::{Map, Value, json};
    use proptest::prelude::*;

    use super::super::*;
    use super::{apply, of_kind};

    fn any_tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), (0..3).prop_map(Value::from), "[xy]".prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop::collection::vec(("[a-d]", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map>()))
        })
    }

    fn any_map() -> impl Strategy<Value = Value> {
        prop::collection::vec(("[a-d]", any_tree()), 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect()))
    }

    /// Generates containers with distinct names and one image.
    fn containers(images: &'static str) -> impl Strategy<Value = Vec<Value>> {
        let names = Just(vec!["a", "b", "c", "d", "e"]).prop_shuffle();
        (names, 0..=5_usize, images).prop_map(|(names, count, image)| {
            names[..count].iter().map(|name| json!({"name": name, "image": image})).collect()
        })
    }

    fn pod(containers: &[Value]) -> Value {
        json!({"spec": {"containers": containers}})
    }

    fn names(list: &[Value]) -> Vec<&str> {
        list.iter().filter_map(|item| item["name"].as_str()).collect()
    }

    /// The reference model: the image of each container by name. Images in the patch override images in the live list.
    fn model(live: &[Value], patch: &[Value]) -> std::collections::BTreeMap<String, String> {
        let entry =
            |item: &Value| (item["name"].as_str().unwrap().to_owned(), item["image"].as_str().unwrap().to_owned());
        let mut expected: std::collections::BTreeMap<String, String> = live.iter().map(entry).collect();
        expected.extend(patch.iter().map(entry));
        expected
    }

    proptest! {
        #[test]
        fn strategic_merge_without_lists_equals_a_merge_patch(object in any_map(), patch in any_map()) {
            fn merged(target: Value, patch: &Value) -> Value {
                let Value::Object(patch) = patch else { return patch.clone() };
                let Value::Object(mut target) = target else { return merged(json!({}), &Value::Object(patch.clone())) };
                for (name, value) in patch {
                    if value.is_null() {
                        target.remove(name);
                    } else {
                        let present = target.remove(name).unwrap_or(Value::Null);
                        target.insert(name.clone(), merged(present, value));
                    }
                }
                Value::Object(target)
            }
            let patched = apply(At::Unknown, &object, patch.clone());
            prop_assert_eq!(patched, Ok(merged(object, &patch)));
        }

        #[test]
        fn strategic_merge_is_idempotent(live in containers("live"), patch in containers("new")) {
            let pods = of_kind("", "v1", "Pod");
            let once = apply(pods, &pod(&live), pod(&patch)).unwrap();
            prop_assert_eq!(apply(pods, &once, pod(&patch)), Ok(once));
        }

        #[test]
        fn merged_keyed_list_has_all_items_in_the_order_of_patch_and_live_list(live in containers("live"), patch in containers("new")) {
            let patched = apply(of_kind("", "v1", "Pod"), &pod(&live), pod(&patch)).unwrap();
            let list = patched["spec"]["containers"].as_array().unwrap();
            prop_assert_eq!(model(list, &[]), model(&live, &patch));
            prop_assert_eq!(list.len(), model(&live, &patch).len(), "an item stands twice");
            let among = |wanted: &[Value], unwanted: &[Value]| -> Vec<String> {
                let (wanted, unwanted) = (names(wanted), names(unwanted));
                names(list).into_iter().filter(|n| wanted.contains(n) && !unwanted.contains(n)).map(str::to_owned).collect()
            };
            prop_assert_eq!(among(&patch, &[]), names(&patch), "the patch's items stand in its order");
            let only_live: Vec<&str> = names(&live).into_iter().filter(|n| !names(&patch).contains(n)).collect();
            prop_assert_eq!(among(&live, &patch), only_live, "the server's own items keep their order");
        }

        #[test]
        fn set_element_order_overrides_the_live_order(live in containers("live"), order in containers("order")) {
            // An order without any list items is rejected.
            prop_assume!(!live.is_empty());
            let patch = json!({"spec": {"$setElementOrder/containers": order}});
            let patched = apply(of_kind("", "v1", "Pod"), &pod(&live), patch).unwrap();
            let list = patched["spec"]["containers"].as_array().unwrap();
            let known: Vec<&str> = names(&order).into_iter().filter(|n| names(&live).contains(n)).collect();
            let found: Vec<&str> = names(list).into_iter().filter(|n| known.contains(n)).collect();
            prop_assert_eq!(found, known);
            prop_assert_eq!(model(list, &[]), model(&live, &[]), "an order adds and removes nothing");
        }
    }
}
