//! `e2e --exchange`: one server writes objects of every kind into etcd, and the other server reads them from there.
//!
//! kube-apiserver writes for listwatch, and listwatch for kube-apiserver, each in plain protobuf and encrypted with
//! aescbc. Both servers must return equal objects, member by member. Then each object is updated without a change on
//! the second server. This server must encode the object to the stored bytes, so that the resourceVersion stays the
//! same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome, ensure, fail};
use crate::steps::Steps;
use crate::tools;

use super::access::Access;
use super::cluster::binaries_of_environment;
use super::cluster::components::{ApiServer, Program};
use super::cluster::pki::Pki;
use super::etcd::Etcd;
use super::model::differences;
use super::{Options, WorkDir};

/// Objects that a kube-apiserver accepts, at least one of each kind.
const OBJECTS: &str = "crates/write/src/tests/accepted.jsonl";
/// The number of differences that a row shows.
const DIFFERENCES_SHOWN: usize = 20;
/// The namespace of the objects.
const NAMESPACE: &str = "exchange";
/// The time limit until a server has loaded a resource.
const LOAD_LIMIT: Duration = Duration::from_secs(60);
/// Parts of the paths of objects that a server writes on its own. Such an object may differ from the object that the
/// other server wrote: some distributions of kube-apiserver add rules to the default roles.
const KEPT_BY_SERVERS: &[&str] = &["/leases/", "/apiservices/", "/ipaddresses/", "/clusterroles/system:"];
/// Resources that the two servers store in different versions. Each server reads both versions.
const STORED_IN_TWO_VERSIONS: &[&str] = &["/customresourcedefinitions/"];
/// The encryption of the second pass: the flag's file of kube-apiserver.
const ENCRYPTION: &str = "apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ['*.*']
  providers:
  - aescbc:
      keys: [{name: key1, secret: c2VjcmV0LWtleS1vZi1leGFjdGx5LTMyLWJ5dGVzISE=}]
  - identity: {}
";

/// A resource that can be listed.
struct Resource {
    /// The path of the resource's group version.
    api: String,
    name: String,
    namespaced: bool,
    can_update: bool,
}

impl Resource {
    fn collection(&self, namespace: &str) -> String {
        let namespace = if self.namespaced { format!("/namespaces/{namespace}") } else { String::new() };
        format!("{}{namespace}/{}", self.api, self.name)
    }

    fn item(&self, object: &Value) -> String {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        format!("{}/{}", self.collection(text("namespace")), text("name"))
    }
}

/// All objects of a server, by the path of the object.
type Objects = BTreeMap<String, Value>;

/// Runs both directions, plain and encrypted. An error only if the run cannot begin.
pub(super) fn steps(options: &Options, kubernetes_bin: Option<&Path>) -> Outcome<Steps> {
    let dir = kubernetes_bin.map(Path::to_owned).or_else(binaries_of_environment);
    let dir = dir.ok_or("--exchange needs --kubernetes-bin, the directory of kube-apiserver")?;
    let upstream = dir.join("kube-apiserver");
    ensure!(upstream.is_file(), "{} has no kube-apiserver", dir.display());
    let work = WorkDir::new(options.keep)?;
    let pki = Pki::new(&work.path.join("pki"))?;
    let encryption = work.path.join("encryption.yaml");
    std::fs::write(&encryption, ENCRYPTION)?;
    let ours = match &options.server_bin {
        Some(bin) => std::path::absolute(bin)?,
        None => super::build(options.release)?,
    };
    let mut steps = Steps::default();
    for (group, from_upstream, encrypted) in [
        ("to listwatch", true, false),
        ("to listwatch, aescbc", true, true),
        ("to kube-apiserver", false, false),
        ("to kube-apiserver, aescbc", false, true),
    ] {
        if options.only.as_deref().is_some_and(|only| !group.contains(only)) {
            continue;
        }
        let extra = encrypted.then(|| format!("--encryption-provider-config={}", encryption.display()));
        let run = Exchange { pki: &pki, dir: work.path.join(group.replace([' ', ','], "-")), extra: extra.as_slice() };
        std::fs::create_dir_all(&run.dir)?;
        let etcd = Etcd::process(options.etcd_bin.as_deref(), &run.dir)?;
        let programs =
            [Program::Upstream(upstream.clone(), etcd.url()), Program::ListwatchEtcd(ours.clone(), etcd.url())];
        let [writer, reader] = if from_upstream {
            programs
        } else {
            let [a, b] = programs;
            [b, a]
        };
        run.exchange(group, writer, reader, &mut steps);
    }
    Ok(steps)
}

/// One writer and one reader on one etcd.
struct Exchange<'a> {
    pki: &'a Pki,
    dir: std::path::PathBuf,
    extra: &'a [String],
}

impl Exchange<'_> {
    fn exchange(&self, group: &'static str, writer: Program, reader: Program, steps: &mut Steps) {
        let mut written = None;
        steps.run(group, "write every kind", || {
            let (mut server, access) = self.start("writer", writer)?;
            let resources = resources(&access)?;
            let created = create(&access, &resources)?;
            // The first update of a creator still adds fields to those that it owns.
            settle(&access, &resources)?;
            let objects = read(&access, &resources)?;
            server.stop()?;
            let note = format!("{created} created, {} objects of {} resources stored", objects.len(), resources.len());
            written = Some(objects);
            Ok(note)
        });
        let Some(written) = written else { return };
        let mut reading = None;
        steps.run(group, "read them unchanged", || {
            let (server, access) = self.start("reader", reader)?;
            let resources = resources(&access)?;
            let found = read(&access, &resources)?;
            let note = compare(&written, &found);
            reading = Some((server, access, resources, found));
            note
        });
        let Some((mut server, access, resources, found)) = reading else { return };
        steps.run(group, "send them back unchanged", || {
            let note = send_back(&access, &resources, &written, &found);
            server.stop()?;
            note
        });
    }

    fn start(&self, name: &str, program: Program) -> Outcome<(ApiServer, Access)> {
        let dir = self.dir.join(name);
        let server = ApiServer::start_with(program, self.pki, &dir, self.extra)?;
        let kubeconfig = self.pki.admin_kubeconfig(&dir, server.port)?;
        let kubectl = tools::find_or_fetch("kubectl", "kubernetes-client")?;
        let access = Access::from_kubeconfig(&kubeconfig, &kubectl, &tools::curl()?, &dir)?;
        Ok((server, access))
    }
}

/// The resources of a server that can be listed, each in the version that discovery prefers.
fn resources(access: &Access) -> Outcome<Vec<Resource>> {
    let mut versions = vec!["/api/v1".to_owned()];
    for group in access.fetch_json("/apis")?["groups"].as_array().into_iter().flatten() {
        let version = group["preferredVersion"]["groupVersion"].as_str().ok_or("a group has no preferred version")?;
        versions.push(format!("/apis/{version}"));
    }
    let mut found = Vec::new();
    for api in versions {
        let answer = access.fetch(&api)?;
        // The APIService of the table leads to no server.
        if answer.code == 503 {
            continue;
        }
        ensure!(answer.code == 200, "GET {api} answered {}: {}", answer.code, answer.text());
        for resource in answer.json()?["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            let can = |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!(verb)));
            if can("list") && can("create") {
                found.push(Resource {
                    api: api.clone(),
                    name: name.to_owned(),
                    namespaced: resource["namespaced"] == true,
                    can_update: can("update"),
                });
            }
        }
    }
    Ok(found)
}

/// Creates the objects of [`OBJECTS`], and a custom resource with its definition. Placeholder names get a number, so
/// that names are unique.
fn create(access: &Access, resources: &[Resource]) -> Outcome<usize> {
    post(access, "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}}))?;
    let table = std::fs::read_to_string(tools::root().join(OBJECTS))?;
    let mut created = 0;
    let mut refused = Vec::new();
    for (index, line) in table.lines().enumerate() {
        let case: Value = serde_json::from_str(line)?;
        let wanted = case["resource"].as_str().unwrap_or_default();
        let path = if wanted.starts_with('/') { format!("/api{wanted}") } else { format!("/apis/{wanted}") };
        let resource = resources.iter().find(|resource| format!("{}/{}", resource.api, resource.name) == path);
        let resource = resource.ok_or_else(|| format!("the server has no {wanted}"))?;
        let mut object = case["object"].clone();
        if resource.namespaced {
            object["metadata"]["namespace"] = json!(NAMESPACE);
            if let Some(namespace) = object.pointer_mut("/involvedObject/namespace") {
                *namespace = json!(NAMESPACE);
            }
        }
        // Several objects of the table have one name, and some must have the one they have.
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if matches!(name, "x" | "a" | "t" | "ok") {
            object["metadata"]["name"] = json!(format!("{name}{index}"));
        }
        match post(access, &resource.collection(NAMESPACE), &object) {
            Ok(()) => created += 1,
            Err(failure) => refused.push(format!("line {}: {failure}", index + 1)),
        }
    }
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    post(access, definitions, &definition())?;
    access.until("the definition is established", Duration::from_secs(20), "get crd gadgets.exchange.dev", |crd| {
        super::cluster::condition(crd, "Established", "True")
    })?;
    post(
        access,
        &format!("/apis/exchange.dev/v1/namespaces/{NAMESPACE}/gadgets"),
        &json!({
            "apiVersion": "exchange.dev/v1", "kind": "Gadget", "metadata": {"name": "first"},
            "spec": {"size": 3, "ratio": 0.5, "more": {"deep": [1, null, "x"]}},
        }),
    )?;
    ensure!(refused.is_empty(), "{} objects are refused:\n      {}", refused.len(), refused.join("\n      "));
    Ok(created + 2)
}

fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "size": {"type": "integer", "default": 1}, "ratio": {"type": "number"}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.exchange.dev"},
        "spec": {"group": "exchange.dev", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}}}]},
    })
}

fn post(access: &Access, path: &str, object: &Value) -> Outcome<()> {
    let curl = access.curl(path).args(["--header", "Content-Type: application/json", "--data-binary", "@-"]);
    let answer = access.answer(curl.input(object.to_string()))?;
    ensure!(answer.code == 201, "POST {path} answered {}: {}", answer.code, answer.text());
    Ok(())
}

/// Reads all objects of all namespaces.
fn read(access: &Access, resources: &[Resource]) -> Outcome<Objects> {
    let mut objects = Objects::new();
    for resource in resources {
        let list = list(access, &format!("{}/{}", resource.api, resource.name))?;
        for object in list["items"].as_array().into_iter().flatten() {
            objects.insert(resource.item(object), object.clone());
        }
    }
    Ok(objects)
}

/// Lists a resource. A server that has just started answers 429 until the resource is loaded.
fn list(access: &Access, path: &str) -> Outcome<Value> {
    let start = Instant::now();
    loop {
        let answer = access.fetch(path)?;
        match answer.code {
            200 => return answer.json(),
            429 if start.elapsed() < LOAD_LIMIT => std::thread::sleep(Duration::from_millis(200)),
            code => fail!("GET {path} answered {code}: {}", answer.text()),
        }
    }
}

/// Whether a server may write the object at this path at any time on its own.
fn is_kept_by_servers(path: &str) -> bool {
    KEPT_BY_SERVERS.iter().any(|part| path.contains(part))
}

/// Compares the written objects with the objects that the other server returns. No object may be missing or differ.
fn compare(written: &Objects, found: &Objects) -> Outcome<String> {
    let mut wrong = Vec::new();
    let mut equal = 0;
    let mut kept = BTreeSet::new();
    for (path, object) in written {
        let Some(other) = found.get(path) else {
            if is_kept_by_servers(path) {
                kept.insert(path.clone());
            } else {
                wrong.push(format!("{path} is gone"));
            }
            continue;
        };
        if object == other {
            equal += 1;
        } else if is_kept_by_servers(path) {
            kept.insert(path.clone());
        } else {
            wrong.push(format!("{path}: {}", describe(object, other)));
        }
    }
    if wrong.is_empty() {
        let kept = kept.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let kept = if kept.is_empty() { kept } else { format!("; written again by the server itself: {kept}") };
        return Ok(format!("{equal} of {} objects are equal{kept}", written.len()));
    }
    let shown = wrong.iter().take(DIFFERENCES_SHOWN).cloned().collect::<Vec<_>>().join("\n      ");
    Err(Failure::from(format!("{} of {} objects differ:\n      {shown}", wrong.len(), written.len())))
}

fn describe(wanted: &Value, found: &Value) -> String {
    let mut all = differences(wanted, found);
    all.extend(
        differences(found, wanted)
            .into_iter()
            .filter(|text| text.contains(" is gone; "))
            .map(|text| text.replace(" is gone; wanted ", " is new: ")),
    );
    all.join("; ")
}

/// Updates each object without a change.
fn settle(access: &Access, resources: &[Resource]) -> Outcome<()> {
    for (path, object) in read(access, resources)? {
        let can_update = resources.iter().any(|resource| resource.can_update && resource.item(&object) == path);
        if can_update && !is_kept_by_servers(&path) {
            let (mut code, mut after) = put(access, &path, &object)?;
            if code == 409 {
                // An event is listed in two groups, so it was written already.
                (code, after) = put(access, &path, &access.fetch_json(&path)?)?;
            }
            ensure!(code == 200, "PUT {path} answered {code}: {}", after["message"]);
        }
    }
    Ok(())
}

fn put(access: &Access, path: &str, object: &Value) -> Outcome<(u16, Value)> {
    let curl = access.curl(path).args(["--request", "PUT", "--header", "Content-Type: application/json"]);
    let answer = access.answer(curl.args(["--data-binary", "@-"]).input(object.to_string()))?;
    Ok((answer.code, answer.json()?))
}

/// Updates each object without a change, and checks that its resource version stays the same. A server skips the write
/// if the encoded bytes are equal to the stored bytes.
fn send_back(access: &Access, resources: &[Resource], written: &Objects, found: &Objects) -> Outcome<String> {
    let mut rewritten = Vec::new();
    let (mut same, mut others) = (0, 0);
    for (path, object) in found.iter().filter(|(path, _)| written.contains_key(*path) && !is_kept_by_servers(path)) {
        let Some(resource) = resources.iter().find(|resource| resource.item(object) == *path) else { continue };
        if !resource.can_update {
            continue;
        }
        let (code, after) = put(access, path, object)?;
        if code != 200 {
            rewritten.push(format!("{path} answered {code}: {}", after["message"]));
        } else if STORED_IN_TWO_VERSIONS.iter().any(|part| path.contains(part)) {
            others += 1;
        } else if after["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"] {
            same += 1;
        } else {
            rewritten.push(format!("{path}: {}", describe(object, &after)));
        }
    }
    if rewritten.is_empty() {
        return Ok(format!("{same} objects keep their resourceVersion, {others} are stored in another version"));
    }
    let shown = rewritten.iter().take(DIFFERENCES_SHOWN).cloned().collect::<Vec<_>>().join("\n      ");
    Err(Failure::from(format!("{} of {} are written again:\n      {shown}", rewritten.len(), same + rewritten.len())))
}

#[cfg(test)]
mod tests {
    use super::{Objects, compare};
    use serde_json::json;

    fn objects(object: serde_json::Value) -> Objects {
        Objects::from([("/api/v1/nodes/a".to_owned(), object)])
    }

    #[test]
    fn exchanged_objects_may_neither_lose_nor_gain_a_member() {
        let written = objects(json!({"spec": {"a": 1}}));
        assert_eq!(compare(&written, &written).unwrap(), "1 of 1 objects are equal");
        let lost = compare(&written, &objects(json!({"spec": {}}))).unwrap_err().to_string();
        assert!(lost.contains("/api/v1/nodes/a: .spec.a is gone; wanted 1"), "{lost}");
        let gained = compare(&written, &objects(json!({"spec": {"a": 1, "b": 2}}))).unwrap_err().to_string();
        assert!(gained.contains("/api/v1/nodes/a: .spec.b is new: 2"), "{gained}");
        let gone = compare(&written, &Objects::new()).unwrap_err().to_string();
        assert!(gone.contains("/api/v1/nodes/a is gone"), "{gone}");
    }
}
