//! Removes the fields of pod specs whose features are off by default, unless the old spec uses them.
//!
//! Source: `dropDisabledFields` in `pkg/api/pod/util.go`, with the feature gates of Kubernetes v1.36.
//!
//! | field | feature gate |
//! |---|---|
//! | `schedulingGroup` | GenericWorkload |
//! | `volumes[*].projected.sources[*].clusterTrustBundle` | ClusterTrustBundleProjection |
//! | `volumes[*].projected.sources[*].podCertificate` | PodCertificateRequest |
//! | `lifecycle.stopSignal` of containers | ContainerStopSignals |

use listwatch_json::Value;

use crate::{Object, child, given, objects};

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Removes the fields of disabled features from a spec (`DropDisabledPodFields`, `DropDisabledTemplateFields`).
pub fn drop_disabled_fields(spec: &mut Object, old: Option<&Object>) {
    let is_new = |spec: &Object, uses: &dyn Fn(&Object) -> bool| uses(spec) && !old.is_some_and(uses);
    if is_new(spec, &|spec| given(spec, "schedulingGroup").is_some()) {
        spec.shift_remove("schedulingGroup");
    }
    for source in ["clusterTrustBundle", "podCertificate"] {
        if is_new(spec, &|spec| has_source(spec, source)) {
            for volume in each_mut(spec, "volumes") {
                if let Some(Value::Object(projected)) = volume.get_mut("projected") {
                    for item in each_mut(projected, "sources") {
                        item.shift_remove(source);
                    }
                }
            }
        }
    }
    if is_new(spec, &has_stop_signal) {
        for list in CONTAINERS {
            for container in each_mut(spec, list) {
                if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle")
                    && lifecycle.shift_remove("stopSignal").is_some()
                    && lifecycle.is_empty()
                {
                    container.shift_remove("lifecycle");
                }
            }
        }
    }
}

fn each_mut<'a>(holder: &'a mut Object, list: &str) -> impl Iterator<Item = &'a mut Object> {
    let items = holder.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}

fn has_source(spec: &Object, source: &str) -> bool {
    objects(spec, "volumes").any(|(_, volume)| {
        let projected = given(volume, "projected").and_then(Value::as_object);
        projected.is_some_and(|projected| objects(projected, "sources").any(|(_, item)| given(item, source).is_some()))
    })
}

fn has_stop_signal(spec: &Object) -> bool {
    let has = |container: &Object| given(child(container, "lifecycle"), "stopSignal").is_some();
    CONTAINERS.iter().any(|list| objects(spec, list).any(|(_, container)| has(container)))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn check(new: &Value, old: Option<&Value>, expected: &Value) {
        let (Value::Object(mut found), old) = (new.clone(), old.and_then(Value::as_object)) else {
            panic!("not an object")
        };
        drop_disabled_fields(&mut found, old);
        assert_eq!(&Value::Object(found), expected, "with the old object {old:?}");
    }

    #[test]
    fn fields_of_disabled_features_are_dropped_unless_the_old_spec_uses_them() {
        let projected =
            |source: Value| json!({"volumes": [{"name": "a"}, {"name": "p", "projected": {"sources": [source]}}]});
        let secret = json!({"secret": {"name": "s"}});
        for (used, dropped) in [
            (json!({"schedulingGroup": {"podGroupName": "g"}}), json!({})),
            (projected(json!({"clusterTrustBundle": {"path": "p"}})), projected(json!({}))),
            (projected(json!({"podCertificate": {"keyType": "k"}})), projected(json!({}))),
            (
                json!({"containers": [{"name": "c"}, {"lifecycle": {"stopSignal": "SIGINT"}}]}),
                json!({"containers": [{"name": "c"}, {}]}),
            ),
            (
                json!({"initContainers": [{"lifecycle": {"stopSignal": "SIGINT", "preStop": {"sleep": {}}}}]}),
                json!({"initContainers": [{"lifecycle": {"preStop": {"sleep": {}}}}]}),
            ),
        ] {
            check(&used, None, &dropped);
            check(&used, Some(&json!({})), &dropped);
            check(&used, Some(&projected(secret.clone())), &dropped);
            check(&used, Some(&used), &used);
        }
        // The use of one feature does not keep the fields of another one.
        let both = projected(json!({"clusterTrustBundle": {}, "podCertificate": {}}));
        let one = projected(json!({"clusterTrustBundle": {}}));
        check(&both, Some(&one), &one);
        check(&projected(secret.clone()), None, &projected(secret));
    }
}
