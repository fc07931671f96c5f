//! Daemon sets, whose templates are counted, and jobs, which select their pods by their own uid.

use serde_json::{Map, Value};

use crate::kind::{CreateContext, UpdateContext};
use listwatch_validation::Object;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{at, child_mut, metadata, metadata_mut};

/// The annotation that says how often a daemon set's template was changed: all that is left of a field
/// of former versions.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(crate) fn create_daemon_set(set: &mut Object, _: CreateContext<'_>) {
    set_template_generation(set, 1);
}

pub(crate) fn update_daemon_set(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource.is_none() {
        let before = template_generation(old).unwrap_or(1);
        let changed = at(new, "spec.template") != at(old, "spec.template");
        set_template_generation(new, if changed { before.saturating_add(1) } else { before });
    }
}

fn template_generation(object: &Object) -> Option<i64> {
    metadata(object).get("annotations")?.get(TEMPLATE_GENERATION)?.as_str()?.parse().ok()
}

fn set_template_generation(object: &mut Object, generation: i64) {
    let annotations = child_mut(metadata_mut(object), "annotations");
    annotations.insert(TEMPLATE_GENERATION.to_owned(), Value::String(generation.to_string()));
}

/// A job selects its pods by its own uid, unless the client chose the selector.
pub(crate) fn create_job(job: &mut Object, context: CreateContext<'_>) {
    let name = meta::text(metadata(job), "name").to_owned();
    let spec = child_mut(job, "spec");
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let template = child_mut(spec, "template");
    let labels = child_mut(child_mut(template, "metadata"), "labels");
    for (label, value) in [
        ("batch.kubernetes.io/controller-uid", context.uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", context.uid),
        ("job-name", &name),
    ] {
        // What a client claims instead is refused when the job is validated.
        labels.entry(label).or_insert_with(|| Value::String(value.to_owned()));
    }
    let generated = labels.clone();
    let selector = child_mut(child_mut(spec, "selector"), "matchLabels");
    selector.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| context.uid.into());
    let metadata = metadata_mut(job);
    if metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
        metadata.insert("labels".to_owned(), Value::Object(generated));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::map;
    use listwatch_meta::UserInfo;

    #[test]
    fn jobs_select_by_their_uid() {
        let mut job = map(json!({"metadata": {"name": "j"}, "spec": {"template": {}}}));
        create_job(&mut job, CreateContext { uid: "u", now: "NOW", user: UserInfo::admin() });
        let labels = json!({"batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j",
            "controller-uid": "u", "job-name": "j"});
        assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(job["metadata"]["labels"], labels);
    }
}
