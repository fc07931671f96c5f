//! Scenarios that change objects with kubectl, and make the same change in the model.

use serde_json::json;

use crate::failure::{Outcome, ensure, fail};
use crate::tools;

use super::World;
use super::model::{differences, key};

/// The path of the folder with the manifests of the example shop.
fn manifests() -> String {
    tools::root().join("examples/manifests").display().to_string()
}

/// Applies the shop, and adds the objects of its files to the model.
pub(crate) fn apply(world: &mut World) -> Outcome<String> {
    // kubectl converts the YAML files without a server; the result is the model.
    let asked = world
        .access
        .kubectl(["create", "--dry-run=client", "--validate=false", "-o", "json", "-R", "-f", &manifests()])
        .text()?;
    let count = world.model.add(&asked)?;
    ensure!(count >= 40, "the manifests hold {count} objects only");
    let applied = world.access.kubectl(["apply", "-R", "-f", &manifests()]).text()?;
    let created = applied.lines().filter(|line| line.ends_with(" created")).count();
    ensure!(created == count, "{created} of {count} objects were created:\n{applied}");
    Ok(format!("{count} objects"))
}

/// Checks that a second apply changes no resource version. kubectl may send a patch, because
/// defaulted claim templates differ from those of the file.
pub(crate) fn apply_again(world: &mut World) -> Outcome<String> {
    let before = versions(world)?;
    let applied = world.access.kubectl(["apply", "-R", "-f", &manifests()]).text()?;
    if let Some(created) = applied.lines().find(|line| line.ends_with(" created")) {
        fail!("a second apply of the same files created objects: {created}");
    }
    let after = versions(world)?;
    let changed: Vec<_> = before.iter().filter(|version| !after.contains(version)).collect();
    ensure!(
        changed.is_empty() && before.len() == after.len(),
        "applying the same files again changed {changed:?}:\n{applied}"
    );
    let unchanged = applied.lines().filter(|line| line.ends_with(" unchanged")).count();
    Ok(format!("{unchanged} of {} unchanged, no new version", applied.lines().count()))
}

/// Key and resource version of every object of the model.
fn versions(world: &World) -> Outcome<Vec<String>> {
    let kinds: Vec<_> = world.model.kinds().into_keys().map(str::to_lowercase).collect();
    let found = world.access.get(&format!("get {} -A", kinds.join(",")))?;
    // A server renews leases of its own meanwhile.
    let ours = |item: &&serde_json::Value| world.model.objects.contains_key(&key(item));
    let version = |item: &serde_json::Value| format!("{:?} {}", key(item), item["metadata"]["resourceVersion"]);
    Ok(found["items"].as_array().into_iter().flatten().filter(ours).map(version).collect())
}

pub(crate) fn label_and_annotate(world: &mut World) -> Outcome<String> {
    world.access.kube("label -n shop pod toolbox canary audited=yes")?;
    world.access.kube("label -n shop pod canary track-")?;
    world.access.kube("label -n shop deployment catalog tier=core --overwrite")?;
    world.access.kube("annotate -n shop service web shop.example/reviewed=2026-01-05")?;
    let refused = world.access.kubectl("label -n shop pod toolbox audited=no".split(' ')).output()?;
    ensure!(
        !refused.success() && refused.said().contains("already has a value"),
        "a label was changed without --overwrite"
    );
    world.model.edit("Pod", "shop", "toolbox", |pod| pod["metadata"]["labels"]["audited"] = json!("yes"))?;
    world
        .model
        .edit("Pod", "shop", "canary", |pod| pod["metadata"]["labels"] = json!({"app": "web", "audited": "yes"}))?;
    world.model.edit("Deployment", "shop", "catalog", |object| object["metadata"]["labels"]["tier"] = json!("core"))?;
    let annotate = |object: &mut serde_json::Value| {
        object["metadata"]["annotations"]["shop.example/reviewed"] = json!("2026-01-05")
    };
    world.model.edit("Service", "shop", "web", annotate)?;
    let gone = world.access.get("get pod -n shop canary")?;
    ensure!(gone["metadata"]["labels"].get("track").is_none(), "the label `track` is still there");
    Ok(String::new())
}

/// `kubectl edit`: an editor changes the object's file, and kubectl patches the difference.
pub(crate) fn edit(world: &mut World) -> Outcome<String> {
    let edit = world.access.kubectl(["edit", "-n", "shop", "configmap/catalog"]);
    let said = edit.env("KUBE_EDITOR", "sed -i -e 's/page-size: .*/page-size: \"48\"/'").text()?;
    ensure!(said.contains("edited"), "kubectl edit says: {said}");
    world.model.edit("ConfigMap", "shop", "catalog", |object| object["data"]["page-size"] = json!("48"))?;
    Ok(said.trim().to_owned())
}

/// A strategic merge patch: lists merge by key, so one container changes and the other stays.
pub(crate) fn patch_strategic(world: &mut World) -> Outcome<String> {
    let image = "registry.example/web:4.2.1";
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "nginx", "image": image}]}}}}).to_string();
    world.access.kubectl(["patch", "-n", "shop", "deployment", "web", "--type=strategic", "-p", &patch]).text()?;
    world.model.edit("Deployment", "shop", "web", |object| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    })?;
    Ok("one container of two".to_owned())
}

/// A merge patch: null removes a member, another value replaces it.
pub(crate) fn patch_merge(world: &mut World) -> Outcome<String> {
    let patch = json!({"data": {"banner": null, "currency": "CHF"}}).to_string();
    world.access.kubectl(["patch", "-n", "shop", "configmap", "web", "--type=merge", "-p", &patch]).text()?;
    world.model.edit("ConfigMap", "shop", "web", |object| {
        object["data"]["currency"] = json!("CHF");
        object["data"].as_object_mut().map(|data| data.remove("banner"));
    })?;
    let found = world.access.get("get configmap -n shop web")?;
    ensure!(found["data"].get("banner").is_none(), "null did not remove the key: {}", found["data"]);
    Ok(String::new())
}

/// A JSON patch: the operations are applied in order, or none.
pub(crate) fn patch_json(world: &mut World) -> Outcome<String> {
    let patch = json!([
        {"op": "test", "path": "/spec/ports/0/port", "value": 80},
        {"op": "replace", "path": "/spec/ports/0/port", "value": 8081},
        {"op": "add", "path": "/metadata/labels/patched", "value": "json"},
    ]);
    let patch = patch.to_string();
    let run = || world.access.kubectl(["patch", "-n", "shop", "service", "cart", "--type=json", "-p", &patch]);
    run().text()?;
    let again = run().output()?;
    ensure!(!again.success(), "the patch was applied despite a failing `test` operation");
    world.model.edit("Service", "shop", "cart", |object| {
        object["spec"]["ports"][0]["port"] = json!(8081);
        object["metadata"]["labels"]["patched"] = json!("json");
    })?;
    Ok(String::new())
}

/// Changes replicas by the scale subresource.
pub(crate) fn scale(world: &mut World) -> Outcome<String> {
    world.access.kube("scale -n shop deployment/web --replicas=5")?;
    world.access.kube("scale -n shop-data statefulset/postgres --replicas=1 --current-replicas=3")?;
    let refused =
        world.access.kubectl("scale -n shop deployment/web --replicas=9 --current-replicas=3".split(' ')).output()?;
    ensure!(!refused.success(), "the object was scaled despite a wrong --current-replicas");
    world.model.edit("Deployment", "shop", "web", |object| object["spec"]["replicas"] = json!(5))?;
    world.model.edit("StatefulSet", "shop-data", "postgres", |object| object["spec"]["replicas"] = json!(1))?;
    let generation = world.access.get("get deployment -n shop web")?["metadata"]["generation"].clone();
    ensure!(generation == 3, "a patch and a scale make generation 3, not {generation}");
    Ok("generation 3 after a patch and a scale".to_owned())
}

/// A three-way merge: members absent from the new file are removed; members of other clients stay.
pub(crate) fn apply_change(world: &mut World) -> Outcome<String> {
    world.access.kube("label -n shop-data configmap/postgres kept-by=somebody-else")?;
    let changed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "postgres", "namespace": "shop-data",
        "labels": {"app": "postgres"}}, "data": {"shared-buffers": "512MB", "work-mem": "16MB"}});
    let said = world.access.kubectl(["apply", "-f", "-"]).input(changed.to_string()).text()?;
    ensure!(said.contains("configured"), "kubectl apply says: {said}");
    let found = world.access.get("get configmap -n shop-data postgres")?;
    ensure!(found["data"] == changed["data"], "the data is {}; wanted {}", found["data"], changed["data"]);
    world.model.edit("ConfigMap", "shop-data", "postgres", |object| {
        object["data"] = changed["data"].clone();
        object["metadata"]["labels"]["kept-by"] = json!("somebody-else");
    })?;
    Ok(String::new())
}

/// Creates objects from arguments of `kubectl create`, which sends protobuf.
pub(crate) fn create(world: &mut World) -> Outcome<String> {
    world.access.kube("create configmap -n shop season --from-literal=name=winter")?;
    world.access.kube("create deployment -n shop search --image=registry.example/search:9 --replicas=2")?;
    world.access.kube("run -n shop visitor --image=registry.example/visitor:1 --labels=app=visitor --restart=Never")?;
    let made = [
        json!({"kind": "ConfigMap", "metadata": {"name": "season", "namespace": "shop"}, "data": {"name": "winter"}}),
        json!({"kind": "Pod", "metadata": {"name": "visitor", "namespace": "shop", "labels": {"app": "visitor"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "visitor", "image": "registry.example/visitor:1"}]}}),
        json!({"kind": "Deployment", "metadata": {"name": "search", "namespace": "shop", "labels": {"app": "search"}},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "registry.example/search:9"}]}}}}),
    ];
    for object in made {
        world.model.objects.insert(key(&object), object);
    }
    let twice = world.access.kubectl(["create", "-f", &manifests(), "-R"]).output()?;
    ensure!(twice.said().contains("already exists"), "creating an object twice prints: {}", twice.said());
    Ok(String::new())
}

/// Deletes by name, by label and by file. kubectl waits until each object is deleted.
pub(crate) fn delete(world: &mut World) -> Outcome<String> {
    world.access.kube("delete -n shop pod/load-generator")?;
    world.access.kube("delete -n shop-batch job -l app=import")?;
    let file = tools::root().join("examples/manifests/60-agents").display().to_string();
    world.access.kubectl(["delete", "-R", "-f", &file]).text()?;
    world.access.kube("delete -n shop deployment/search configmap/season")?;
    let again = world.access.kubectl("delete -n shop pod/load-generator".split(' ')).output()?;
    ensure!(again.said().contains("NotFound"), "deleting an object twice prints: {}", again.said());
    world.access.kube("delete -n shop pod/load-generator --ignore-not-found")?;
    for (kind, namespace, name) in [
        ("Pod", "shop", "load-generator"),
        ("Job", "shop-batch", "import-prices"),
        ("DaemonSet", "shop-data", "log-agent"),
        ("Deployment", "shop", "search"),
        ("ConfigMap", "shop", "season"),
    ] {
        world.model.remove(kind, namespace, name)?;
    }
    Ok("5 objects".to_owned())
}

/// Deletes a namespace, which is removed only after all its objects.
pub(crate) fn delete_namespace(world: &mut World) -> Outcome<String> {
    world.access.kube("create namespace pop-up")?;
    world.access.kube("create configmap -n pop-up a --from-literal=a=b")?;
    world.access.kube("run -n pop-up visitor --image=registry.example/visitor:1")?;
    // kubectl waits until the namespace is deleted.
    world.access.kube("delete namespace pop-up")?;
    let left = world.access.get("get configmaps,pods -A")?;
    let left = left["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(key)
        .filter(|(_, namespace, _)| namespace == "pop-up")
        .count();
    ensure!(left == 0, "{left} objects exist after the deletion of their namespace");
    Ok(String::new())
}

/// Compares all objects with the model: no difference and no additional object.
pub(crate) fn final_state(world: &mut World) -> Outcome<String> {
    let kinds: Vec<_> = world.model.kinds().into_keys().map(str::to_lowercase).collect();
    let found = world.access.get(&format!("get {} -A", kinds.join(",")))?;
    let items = found["items"].as_array().cloned().unwrap_or_default();
    let mut wrong = Vec::new();
    for (wanted_key, wanted) in &world.model.objects {
        match items.iter().find(|item| key(item) == *wanted_key) {
            Some(item) => {
                wrong.extend(differences(wanted, item).into_iter().map(|why| format!("{wanted_key:?}: {why}")))
            }
            None => wrong.push(format!("{wanted_key:?} is missing")),
        }
    }
    // Only this run creates namespaced objects of the shop. Objects that every namespace has (a
    // default service account, a CA bundle) are recognized by name.
    let by_itself = ["default", "kube-root-ca.crt"];
    for (kind, namespace, name) in items.iter().map(key) {
        let ours = namespace.starts_with("shop") && !by_itself.contains(&name.as_str());
        if ours && !world.model.objects.contains_key(&(kind.clone(), namespace.clone(), name.clone())) {
            wrong.push(format!("{kind} {namespace}/{name} is there and nobody asked for it"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!("{} objects are as asked", world.model.objects.len()))
}
