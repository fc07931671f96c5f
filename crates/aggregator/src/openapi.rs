//! Merges the OpenAPI documents of several servers.
//!
//! | document | rule |
//! |---|---|
//! | v3 index ([`merge_v3_index`]) | the union; a path belongs to the first server that has it, the local one first |
//! | v2 ([`restrict_v2`], [`merge_v2`]) | paths of the APIService only; existing paths stay; a definition that differs from the existing definition of its name is renamed to `<name>_v2` and so on |
//!
//! Rules: `kube-openapi/pkg/aggregator/aggregator.go`,
//! `kube-aggregator/pkg/controllers/{openapi,openapiv3}/aggregator`.

use std::collections::{BTreeMap, BTreeSet};

use listwatch_json::{Map, Value, json};

const DEFINITION: &str = "#/definitions/";
const PARAMETER: &str = "#/parameters/";
const GROUP_VERSION_KIND: &str = "x-kubernetes-group-version-kind";

/// The OpenAPI v3 index of all servers, with the owner of each path.
#[derive(Clone, Debug, PartialEq)]
pub struct V3Index {
    /// The document at `/openapi/v3`.
    pub document: Value,
    /// The name of the APIService that owns a path, e.g. `apis/metrics.k8s.io/v1`. Local paths are absent.
    pub owners: BTreeMap<String, String>,
}

/// Merges the local index with those of extension servers. `remotes` holds the names of APIServices, and for each
/// path of their servers' indexes its URL, in order of priority.
pub fn merge_v3_index<'a>(
    local: &Value,
    remotes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> V3Index {
    let mut document = local.clone();
    let mut paths = local["paths"].as_object().cloned().unwrap_or_default();
    let mut owners = BTreeMap::new();
    for (name, index) in remotes {
        for (path, url) in index {
            if !paths.contains_key(path) {
                paths.insert(path.clone(), json!({"serverRelativeURL": url}));
                owners.insert(path.clone(), name.to_owned());
            }
        }
    }
    document["paths"] = Value::Object(paths);
    V3Index { document, owners }
}

/// Keeps only the paths of a v2 document below a prefix, and removes the definitions that no kept path uses
/// (`FilterSpecByPaths`).
pub fn restrict_v2(spec: &Value, prefix: &str) -> Value {
    keep_paths(spec, |path| path.starts_with(prefix))
}

fn keep_paths(spec: &Value, keep: impl Fn(&str) -> bool) -> Value {
    let Some(paths) = spec["paths"].as_object() else { return spec.clone() };
    let used_before = used_definitions(spec);
    let mut kept = spec.clone();
    kept["paths"] =
        paths.iter().filter(|(path, _)| keep(path)).map(|(path, item)| (path.clone(), item.clone())).collect();
    let used = used_definitions(&kept);
    if let Some(definitions) = kept["definitions"].as_object_mut() {
        definitions.retain(|name, _| used.contains(name.as_str()) || !used_before.contains(name.as_str()));
    }
    kept
}

/// The definitions that the paths of a document reference directly or indirectly.
fn used_definitions(spec: &Value) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    let mut waiting = vec![&spec["paths"], &spec["parameters"], &spec["responses"]];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(members) => {
                let reference = members.get("$ref").and_then(Value::as_str);
                if let Some(name) = reference.and_then(|reference| reference.strip_prefix(DEFINITION))
                    && used.insert(name.to_owned())
                {
                    waiting.push(&spec["definitions"][name]);
                }
                waiting.extend(members.values());
            }
            Value::Array(elements) => waiting.extend(elements),
            _ => {}
        }
    }
    used
}

/// Adds the paths, definitions and parameters of a v2 document to another document
/// (`MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters`).
pub fn merge_v2(merged: &mut Value, source: &Value) {
    let Some(paths) = source["paths"].as_object() else { return };
    let present = merged["paths"].as_object().cloned().unwrap_or_default();
    if paths.keys().all(|path| present.contains_key(path)) {
        return;
    }
    let mut source = match paths.keys().any(|path| present.contains_key(path)) {
        true => keep_paths(source, |path| !present.contains_key(path)),
        false => source.clone(),
    };
    for (section, prefix) in [("definitions", DEFINITION), ("parameters", PARAMETER)] {
        let renames = renames(&merged[section], &source[section]);
        if !renames.is_empty() {
            rename(&mut source, section, prefix, &renames);
        }
    }
    for section in ["definitions", "parameters", "paths"] {
        let Some(added) = source[section].as_object() else { continue };
        if !merged[section].is_object() {
            merged[section] = json!({});
        }
        let Some(target) = merged[section].as_object_mut() else { continue };
        for (name, value) in added {
            match target.get_mut(name) {
                None => {
                    target.insert(name.clone(), value.clone());
                }
                Some(present) => add_kinds(present, value),
            }
        }
    }
}

/// Chooses new names for entries of a section that differ from the present entries of the same names.
fn renames(present: &Value, added: &Value) -> BTreeMap<String, String> {
    let empty = Map::new();
    let (present, added) = (present.as_object().unwrap_or(&empty), added.as_object().unwrap_or(&empty));
    let mut renames: BTreeMap<String, String> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (name, value) in added {
        match present.get(name) {
            None => continue,
            Some(found) if is_same(found, value) => continue,
            Some(_) => {}
        }
        for number in 2_u32.. {
            let candidate = format!("{name}_v{number}");
            let is_free = match present.get(&candidate) {
                Some(found) => is_same(found, value),
                None => !taken.contains(&candidate) && !added.contains_key(&candidate),
            };
            if is_free {
                taken.insert(candidate.clone());
                renames.insert(name.as_str().to_owned(), candidate);
                break;
            }
        }
    }
    renames
}

/// Whether two definitions are equal, apart from the kinds that they list.
fn is_same(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let members = |object: &Map| object.len() - usize::from(object.contains_key(GROUP_VERSION_KIND));
    members(a) == members(b) && a.iter().all(|(name, value)| name == GROUP_VERSION_KIND || b.get(name) == Some(value))
}

/// Renames entries of a section, and the references to them.
fn rename(spec: &mut Value, section: &str, prefix: &str, renames: &BTreeMap<String, String>) {
    if let Some(entries) = spec[section].as_object_mut() {
        let old = std::mem::take(entries);
        entries.extend(
            old.into_iter()
                .map(|(name, value)| (renames.get(name.as_str()).map_or(name, |new| new.as_str().into()), value)),
        );
    }
    let mut waiting = vec![spec];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get_mut("$ref")
                    && let Some(new) = reference.strip_prefix(prefix).and_then(|name| renames.get(name))
                {
                    *reference = format!("{prefix}{new}").into();
                }
                waiting.extend(members.values_mut());
            }
            Value::Array(elements) => waiting.extend(elements),
            _ => {}
        }
    }
}

/// Adds the kinds of a definition to an equal one.
fn add_kinds(present: &mut Value, added: &Value) {
    let (Some(present), Some(Value::Array(added))) = (present.as_object_mut(), added.get(GROUP_VERSION_KIND)) else {
        return;
    };
    let kinds = present.entry(GROUP_VERSION_KIND).or_insert_with(|| json!([]));
    if let Some(kinds) = kinds.as_array_mut() {
        let before = kinds.len();
        for kind in added {
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
        if kinds.len() > before {
            let text = |kind: &Value, member: &str| kind[member].as_str().unwrap_or_default().to_owned();
            kinds.sort_by_key(|kind| {
                format!("{}/{}.{}", text(kind, "group"), text(kind, "version"), text(kind, "kind"))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::JsonString;

    use super::*;

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("#/definitions/{name}")})
    }

    fn spec(path: &str, definitions: Value) -> Value {
        let first = definitions.as_object().unwrap().keys().next().cloned().unwrap();
        json!({"swagger": "2.0", "definitions": definitions,
            "paths": {path: {"get": {"responses": {"200": {"schema": reference(&first)}}}}}})
    }

    #[test]
    fn v3_index_merges_servers_and_keeps_local_paths_local() {
        let item = |url: &str| json!({"serverRelativeURL": url});
        let local = json!({"paths": {"version": item("/openapi/v3/version?hash=1")}});
        let index = |urls: [(&str, &str); 2]| urls.map(|(path, url)| (path.to_owned(), url.to_owned())).into();
        let first = index([("version", "/forged"), ("apis/g/v1", "/openapi/v3/apis/g/v1?hash=2")]);
        let second = index([("apis/g/v1", "/other"), ("apis/h/v1", "/openapi/v3/apis/h/v1?hash=3")]);
        let index = merge_v3_index(&local, [("v1.g", &first), ("v1.h", &second)]);
        let paths: Vec<(&str, &str)> = index.document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, item)| (path.as_str(), item["serverRelativeURL"].as_str().unwrap()))
            .collect();
        let expected = [
            ("version", "/openapi/v3/version?hash=1"),
            ("apis/g/v1", "/openapi/v3/apis/g/v1?hash=2"),
            ("apis/h/v1", "/openapi/v3/apis/h/v1?hash=3"),
        ];
        assert_eq!(paths, expected);
        let owners: Vec<(&str, &str)> =
            index.owners.iter().map(|(path, name)| (path.as_str(), name.as_str())).collect();
        assert_eq!(owners, [("apis/g/v1", "v1.g"), ("apis/h/v1", "v1.h")]);
    }

    #[test]
    fn restrict_v2_removes_foreign_paths_and_their_definitions() {
        let mut whole = spec(
            "/apis/g/v1/things",
            json!({"Thing": {"properties": {"part": reference("Part")}},
            "Part": {}, "Other": {}, "Unused": {}}),
        );
        whole["paths"]["/apis/h/v1/others"] = json!({"get": {"schema": reference("Other")}});
        let restricted = restrict_v2(&whole, "/apis/g/v1/");
        assert_eq!(restricted["paths"].as_object().unwrap().keys().collect::<Vec<_>>(), ["/apis/g/v1/things"]);
        let definitions: Vec<&JsonString> = restricted["definitions"].as_object().unwrap().keys().collect();
        assert_eq!(definitions, ["Thing", "Part", "Unused"]);
    }

    #[test]
    fn used_definitions_terminates_for_recursive_definitions() {
        let whole = spec("/a", json!({"Tree": {"items": reference("Tree")}}));
        assert_eq!(restrict_v2(&whole, "/a"), whole);
    }

    #[test]
    fn conflicting_definition_is_renamed_with_its_references() {
        let mut merged = spec("/a", json!({"Thing": {"type": "string"}, "Thing_v2": {"type": "boolean"}}));
        merge_v2(&mut merged, &spec("/b", json!({"Thing": {"type": "object", "items": reference("Thing")}})));
        assert_eq!(merged["definitions"]["Thing"]["type"], "string");
        assert_eq!(merged["definitions"]["Thing_v3"], json!({"type": "object", "items": reference("Thing_v3")}));
        let schema = |path: &str| merged["paths"][path]["get"]["responses"]["200"]["schema"].clone();
        assert_eq!((schema("/a"), schema("/b")), (reference("Thing"), reference("Thing_v3")));
    }

    #[test]
    fn renamed_definition_is_reused_for_an_equal_definition() {
        let mut merged = spec("/a", json!({"Thing": {"type": "string"}, "Thing_v2": {"type": "boolean"}}));
        merge_v2(&mut merged, &spec("/b", json!({"Thing": {"type": "boolean"}})));
        assert_eq!(merged["definitions"].as_object().unwrap().len(), 2);
        assert_eq!(merged["paths"]["/b"]["get"]["responses"]["200"]["schema"], reference("Thing_v2"));
    }

    #[test]
    fn equal_definitions_are_merged_with_the_kinds_of_both() {
        let kinds = |version: &str| json!([{"group": "", "kind": "DeleteOptions", "version": version}]);
        let thing = |version: &str| json!({"Thing": {"type": "object", GROUP_VERSION_KIND: kinds(version)}});
        let mut merged = spec("/a", thing("v2"));
        merge_v2(&mut merged, &spec("/b", thing("v1")));
        let united = merged["definitions"]["Thing"][GROUP_VERSION_KIND].as_array().unwrap();
        let versions: Vec<&str> = united.iter().map(|kind| kind["version"].as_str().unwrap()).collect();
        assert_eq!(versions, ["v1", "v2"]);
        assert_eq!(merged["definitions"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn merge_v2_keeps_present_path_and_adds_no_definitions_for_it() {
        let mut merged = spec("/a", json!({"Thing": {"type": "string"}}));
        let before = merged.clone();
        merge_v2(&mut merged, &spec("/a", json!({"Forged": {}})));
        assert_eq!(merged, before);
        merge_v2(&mut merged, &json!({"definitions": {"Forged": {}}}));
        assert_eq!(merged, before, "a document without paths adds nothing");
        let mut two = spec("/a", json!({"Forged": {}}));
        two["paths"]["/b"] = json!({"get": {}});
        merge_v2(&mut merged, &two);
        assert!(merged["paths"]["/b"].is_object() && merged["definitions"]["Forged"].is_null(), "{merged}");
    }
}
