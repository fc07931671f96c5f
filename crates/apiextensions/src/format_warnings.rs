//! Warns of formats in the schemas of a definition that the server does not know: [`add`].
//!
//! Source: apiextensions-apiserver `pkg/registry/customresourcedefinition/strategy.go`, `WarningsOnCreate` and
//! `WarningsOnUpdate`.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_kinds::Warnings;
use listwatch_meta::go::quote;
use listwatch_schema::each_unknown_format;
use listwatch_validation::Object;

/// Warns of each unknown format. An update warns only of those that the old definition does not have.
pub(crate) fn add(new: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    fn versions(definition: &Object) -> Option<&Value> {
        definition.get("spec")?.get("versions")
    }
    if old.is_some_and(|old| versions(old) == versions(new)) {
        return;
    }
    let mut known = HashSet::new();
    each_schema(old.and_then(versions), &mut |format| {
        known.insert(format.to_owned());
    });
    // The client receives each warning once.
    let mut told = HashSet::new();
    each_schema(versions(new), &mut |format| {
        if !known.contains(format) && told.insert(format.to_owned()) {
            warnings.add(format_args!("unrecognized format {}", quote(format)));
        }
    });
}

/// Calls `visit` with each unknown format of all versions, the first version first.
fn each_schema(versions: Option<&Value>, visit: &mut dyn FnMut(&str)) {
    for version in versions.and_then(Value::as_array).into_iter().flatten() {
        if let Some(schema) = version.get("schema").and_then(|schema| schema.get("openAPIV3Schema")) {
            each_unknown_format(schema, visit);
        }
    }
}
