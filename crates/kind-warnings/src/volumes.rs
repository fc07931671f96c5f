//! Warnings about volumes of pods whose plugins are deprecated or removed.
//!
//! Source: `warningsForPodSpecAndMeta` in `pkg/api/pod/warnings.go`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, objects};

use crate::Warnings;
use crate::storage::add_claim_spec;

/// Adds the warnings of all volumes.
pub(crate) fn add_volumes(spec: &Object, spec_at: &Path<'_>, warnings: &mut Warnings) {
    let volumes_at = spec_at.child("volumes");
    for (index, volume) in objects(spec, "volumes") {
        let at = volumes_at.index(index);
        for (name, source) in volume.iter().filter(|(_, source)| !source.is_null()) {
            if let Some((shown, why)) = deprecation(name) {
                warnings.add(format_args!("{}: {why}", at.child(shown)));
            }
            if name == "ephemeral"
                && let Some(Value::Object(template)) =
                    source.as_object().and_then(|it| given(it, "volumeClaimTemplate"))
            {
                let at = at.child("ephemeral");
                let at = at.child("volumeClaimTemplate");
                add_claim_spec(child(template, "spec"), &at.child("spec"), warnings);
            }
        }
    }
}

/// Returns the name of a deprecated source in the warning, and the message. Upstream's name of `storageos` differs.
fn deprecation(source: &str) -> Option<(&'static str, &'static str)> {
    const REMOVED_IN_1_25: &str = "deprecated in v1.22, non-functional in v1.25+";
    const REMOVED_IN_1_31: &str = "deprecated in v1.28, non-functional in v1.31+";
    Some(match source {
        "photonPersistentDisk" => ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        "gitRepo" => ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
        "scaleIO" => ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        "flocker" => ("flocker", REMOVED_IN_1_25),
        "storageos" => ("storageOS", REMOVED_IN_1_25),
        "quobyte" => ("quobyte", REMOVED_IN_1_25),
        "glusterfs" => ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        "cephfs" => ("cephfs", REMOVED_IN_1_31),
        "rbd" => ("rbd", REMOVED_IN_1_31),
        _ => return None,
    })
}
