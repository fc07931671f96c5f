//! The status of a definition whose objects are stored again in the storage version (StorageVersionMigration).
//!
//! ```text
//!  begin ─▶ StorageMigrating=True, observedGeneration ─▶ end ─▶ StorageMigrating=False,
//!                                                              storedVersions = [storage version]
//! ```
//!
//! Source: `markAsActive` and `finishCRDMigration` of `pkg/controller/storageversionmigrator/migrationrunner.go`.

use listwatch_json::{Map, Value, json};

use crate::status::{condition, set_condition};
use crate::strategy::storage_version;

/// The type of the condition.
const STORAGE_MIGRATING: &str = "StorageMigrating";

/// Records in the status that a migration begins. The record of a migration that has already begun stays unchanged, so
/// that the migration ends with the generation of its first begin.
pub fn begin_storage_migration(definition: &mut Map, migration: &str, now: &str) {
    if is_running(definition, migration) {
        return;
    }
    set(definition, true, "MigrationRunning", &running(migration), now);
}

/// Records in the status that a migration ended. After a success, `status.storedVersions` becomes the storage version
/// if the definition has the generation that it had at the begin. `generation` is the generation in whose storage
/// version the migration stored the objects. While another migration is running, nothing changes.
///
/// Returns false if nothing changes.
pub fn end_storage_migration(
    definition: &mut Map,
    migration: &str,
    generation: i64,
    succeeded: bool,
    now: &str,
) -> bool {
    let has_begun = is_running(definition, migration);
    // A condition of another migration, or one that reports the end of this migration.
    if !has_begun && migrating(definition).is_some() {
        return false;
    }
    let observed = migrating(definition).and_then(|condition| condition.get("observedGeneration")?.as_i64());
    let current = generation_of(definition);
    let is_same = has_begun && observed == Some(current) && generation == current;
    let (reason, message) = match (succeeded, is_same) {
        (true, true) => ("MigrationSucceeded", "The migration has succeeded and the stored versions have been updated"),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
        ),
        (false, _) => ("MigrationFailed", "The migration has failed"),
    };
    if succeeded
        && is_same
        && let Some(version) = storage_version(definition)
        && let Some(Value::Object(status)) = definition.get_mut("status")
    {
        status.insert("storedVersions", json!([version]));
    }
    set(definition, false, reason, message, now);
    true
}

fn running(migration: &str) -> String {
    format!("Migration {migration} is running")
}

/// Returns the condition of the present status.
fn migrating(definition: &Map) -> Option<&Value> {
    let conditions = definition.get("status")?.get("conditions")?.as_array()?;
    conditions.iter().find(|condition| condition.get("type").is_some_and(|kind| kind == STORAGE_MIGRATING))
}

fn is_running(definition: &Map, migration: &str) -> bool {
    let is = |condition: &Value, name: &str, text: &str| condition.get(name).is_some_and(|value| value == text);
    migrating(definition)
        .is_some_and(|condition| is(condition, "status", "True") && is(condition, "message", &running(migration)))
}

fn generation_of(definition: &Map) -> i64 {
    let generation = definition.get("metadata").and_then(|metadata| metadata.get("generation")?.as_i64());
    generation.unwrap_or_default()
}

fn set(definition: &mut Map, truth: bool, reason: &str, message: &str, now: &str) {
    let generation = generation_of(definition);
    set_condition(definition, &condition(STORAGE_MIGRATING, truth, reason, message), now);
    let conditions = definition.get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
        if condition.get("type").is_some_and(|kind| kind == STORAGE_MIGRATING)
            && let Value::Object(condition) = condition
        {
            condition.insert("observedGeneration", Value::from(generation));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(generation: i64) -> Map {
        let mut definition = Map::new();
        definition.insert("metadata", json!({"generation": generation}));
        definition.insert("spec", json!({"versions": [{"name": "v1"}, {"name": "v2", "storage": true}]}));
        definition.insert("status", json!({"conditions": null, "storedVersions": ["v1", "v2"]}));
        definition
    }

    fn state(definition: &Map) -> (Value, Value, Value, Value) {
        let condition = &definition["status"]["conditions"][0];
        let of = |name: &str| condition[name].clone();
        (of("status"), of("reason"), of("observedGeneration"), definition["status"]["storedVersions"].clone())
    }

    #[test]
    fn successful_migration_reduces_stored_versions_to_the_storage_version() {
        let mut tree = definition(3);
        begin_storage_migration(&mut tree, "a", "t1");
        let begun = (json!("True"), json!("MigrationRunning"), json!(3), json!(["v1", "v2"]));
        assert_eq!(state(&tree), begun);
        assert!(end_storage_migration(&mut tree, "a", 3, true, "t2"));
        let ended = (json!("False"), json!("MigrationSucceeded"), json!(3), json!(["v2"]));
        assert_eq!(state(&tree), ended);
        assert!(!end_storage_migration(&mut tree, "a", 3, true, "t3"), "it has ended");
        assert_eq!(state(&tree), ended);
        begin_storage_migration(&mut tree, "b", "t4");
        assert_eq!(tree["status"]["conditions"][0]["message"], "Migration b is running");
    }

    #[test]
    fn stored_versions_stay_after_a_failure_or_a_change_of_the_definition() {
        let check = |generation_at_end: i64, generation_of_objects: i64, succeeded: bool, reason: &str| {
            let mut tree = definition(3);
            begin_storage_migration(&mut tree, "a", "t1");
            tree["metadata"]["generation"] = json!(generation_at_end);
            assert!(end_storage_migration(&mut tree, "a", generation_of_objects, succeeded, "t2"));
            let expected = (json!("False"), json!(reason), json!(generation_at_end), json!(["v1", "v2"]));
            assert_eq!(state(&tree), expected, "{generation_at_end} {generation_of_objects} {succeeded}");
        };
        check(3, 3, false, "MigrationFailed");
        check(4, 3, true, "MigrationSucceeded");
        check(4, 4, true, "MigrationSucceeded");
        check(3, 2, true, "MigrationSucceeded");
        // The begin of a migration is not recorded.
        let mut tree = definition(3);
        assert!(end_storage_migration(&mut tree, "a", 3, true, "t1"));
        assert_eq!(state(&tree).3, json!(["v1", "v2"]));
    }

    #[test]
    fn second_begin_keeps_the_generation_and_another_migration_keeps_its_condition() {
        let mut tree = definition(3);
        begin_storage_migration(&mut tree, "a", "t1");
        tree["metadata"]["generation"] = json!(4);
        begin_storage_migration(&mut tree, "a", "t2");
        assert_eq!(state(&tree).2, json!(3));
        assert!(!end_storage_migration(&mut tree, "b", 4, true, "t3"));
        assert_eq!(state(&tree).0, json!("True"));
    }
}
