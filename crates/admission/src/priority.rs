//! Priority: copies the priority of a PriorityClass into each new pod, and keeps one default class
//! (`plugin/pkg/admission/priority`).

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_validation::{Object, child, child_mut, given, is_true, metadata, text};

use super::plugin::{Mutator, Validator};
use super::{AdmissionRequest, LISTED_MAX, Operation};

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";
/// The member of a class that makes it the default.
const GLOBAL_DEFAULT: &str = "globalDefault";
/// The preemption policy of a pod without a class, and of a class that does not set one.
const PREEMPT: &str = "PreemptLowerPriority";

/// The plugin that copies the priority of a PriorityClass into each new pod.
pub(super) struct Priority;

impl Mutator for Priority {
    const NAME: &'static str = "Priority";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        if request.operation == Operation::Update {
            if let Some(old) = request.old_object {
                restore(object, old);
            }
            return Ok(());
        }
        let name = text(child(object, "spec"), "priorityClassName").to_owned();
        let class = if name.is_empty() {
            default_class(request).await?.map(|class| PriorityClass::of(&class))
        } else {
            let found = request.get_cached(GROUP, CLASSES, None, &name).await;
            let missing = || request.forbid(object, format_args!("no PriorityClass with name {name} was found"));
            Some(PriorityClass::of(&found?.ok_or_else(missing)?))
        };
        let spec = child_mut(object, "spec");
        let applied = class.unwrap_or_else(PriorityClass::none).apply(spec);
        applied.map_err(|why| request.forbid(object, why))
    }
}

impl Validator for Priority {
    const NAME: &'static str = "Priority";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes(GROUP, CLASSES)
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        if !is_true(object, GLOBAL_DEFAULT) {
            return Ok(());
        }
        let Some(default) = default_class(request).await? else { return Ok(()) };
        let name = |class| text(metadata(class), "name").to_owned();
        if request.operation == Operation::Update && name(&default) == name(object) {
            return Ok(());
        }
        let default = name(&default);
        let why = format_args!("PriorityClass {default} is already marked as default. Only one default can exist");
        Err(request.forbid(object, why))
    }
}

/// The class of pods that name none. Of several default classes, which concurrent writes can leave, it is the one with
/// the lowest value (`getDefaultPriorityClass`).
async fn default_class(request: &AdmissionRequest<'_>) -> Result<Option<Object>, Status> {
    let failed = |status: Status| Status::unknown(format!("failed to get default priority class: {}", status.message));
    let listed = request.objects.list(GROUP, "v1", CLASSES, None, LISTED_MAX).await.map_err(failed)?;
    // Most classes are no default, and are not parsed.
    let classes = listed.with_text(GLOBAL_DEFAULT).all(CLASSES).map_err(failed)?;
    let defaults = classes.into_iter().filter(|class| is_true(class, GLOBAL_DEFAULT));
    Ok(defaults.min_by_key(value))
}

fn value(class: &Object) -> i64 {
    class.get("value").and_then(Value::as_i64).unwrap_or(0)
}

/// Restores `priority` and `preemptionPolicy` if an update omits them. Validation rejects other changes.
fn restore(pod: &mut Object, old: &Object) {
    let spec = child_mut(pod, "spec");
    for member in ["priority", "preemptionPolicy"] {
        if given(spec, member).is_none()
            && let Some(value) = given(child(old, "spec"), member)
        {
            spec.insert(member, value.clone());
        }
    }
}

/// The fields of a PriorityClass that the plugin copies into a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PriorityClass {
    /// The name; empty for no class.
    name: String,
    value: i64,
    preemption_policy: String,
}

impl PriorityClass {
    fn of(class: &Object) -> Self {
        let policy = match text(class, "preemptionPolicy") {
            "" => PREEMPT,
            policy => policy,
        };
        PriorityClass {
            name: text(metadata(class), "name").to_owned(),
            value: value(class),
            preemption_policy: policy.to_owned(),
        }
    }

    /// The priority of a pod without a class in a cluster without a default class.
    fn none() -> Self {
        PriorityClass { name: String::new(), value: 0, preemption_policy: PREEMPT.to_owned() }
    }

    /// Writes the name, the priority and the preemption policy of the class into the spec of a pod.
    ///
    /// # Errors
    /// The message of kube-apiserver's 403 when the spec contradicts the class.
    fn apply(self, spec: &mut Object) -> Result<(), String> {
        let PriorityClass { name, value, preemption_policy } = self;
        let stated = spec.get("priority").and_then(Value::as_i64);
        if let Some(stated) = stated.filter(|stated| *stated != value) {
            return Err(format!(
                "the integer value of priority ({stated}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            ));
        }
        let stated = text(spec, "preemptionPolicy");
        if !stated.is_empty() && stated != preemption_policy {
            return Err(format!(
                "the string value of PreemptionPolicy ({stated}) must not be provided in pod spec; priority admission controller computed {preemption_policy} from the given PriorityClass name"
            ));
        }
        if !name.is_empty() {
            spec.insert("priorityClassName", json!(name));
        }
        spec.insert("priority", json!(value));
        spec.insert("preemptionPolicy", json!(preemption_policy));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn class(name: &str, value: i64, default: Value) -> (&'static str, Value) {
        let class =
            json!({"metadata": {"name": name}, "value": value, GLOBAL_DEFAULT: default, "preemptionPolicy": "Never"});
        (CLASSES, class)
    }

    async fn admitted(classes: &[(&str, Value)], spec: Value) -> Result<Value, String> {
        let fixture = Fixture::new(classes);
        let request = create(&fixture, "", "pods", "Pod", "p");
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": spec}));
        let admitted = Priority.mutate(&request, &mut pod).await;
        admitted.map_err(|status| status.message.replace("pods \"p\" is forbidden: ", ""))?;
        let once = pod.clone();
        Priority.mutate(&request, &mut pod).await.unwrap();
        assert_eq!(pod, once, "a second run changes nothing");
        Ok(pod["spec"].clone())
    }

    #[tokio::test]
    async fn new_pod_gets_the_name_value_and_policy_of_its_class() {
        let none = json!({"priority": 0, "preemptionPolicy": PREEMPT});
        let high = json!({"priorityClassName": "high", "priority": 7, "preemptionPolicy": "Never"});
        let low = json!({"priorityClassName": "low", "priority": -1, "preemptionPolicy": "Never"});
        let classes = [class("high", 7, json!(null)), class("low", -1, json!(false))];
        let with_default = [class("high", 7, json!(true)), class("low", -1, json!(true)), class("z", -2, json!(null))];
        for (classes, spec, expected) in [
            (&classes[..], json!({}), none.clone()),
            (&classes[..], none.clone(), none),
            (&classes[..], json!({"priorityClassName": "high"}), high.clone()),
            (&classes[..], high.clone(), high.clone()),
            (&with_default[..1], json!({}), high.clone()),
            (&with_default[..], json!({}), low),
            (&with_default[..], json!({"priorityClassName": "high"}), high),
        ] {
            assert_eq!(admitted(classes, spec.clone()).await, Ok(expected), "{spec}");
        }
    }

    #[tokio::test]
    async fn pod_with_priority_or_policy_different_from_its_class_is_rejected() {
        let classes = [class("high", 7, json!(true))];
        for (spec, expected) in [
            (json!({"priorityClassName": "gone"}), "no PriorityClass with name gone was found"),
            (
                json!({"priority": 8}),
                "the integer value of priority (8) must not be provided in pod spec; priority admission controller computed 7 from the given PriorityClass name",
            ),
            (
                json!({"preemptionPolicy": PREEMPT}),
                "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name",
            ),
        ] {
            assert_eq!(admitted(&classes, spec).await, Err(expected.to_owned()));
        }
        let failing = Fixture { failing: true, ..Fixture::default() };
        let found = Priority.mutate(&create(&failing, "", "pods", "Pod", "p"), &mut object(json!({"spec": {}}))).await;
        let message = found.map_err(|status| (status.code, status.message));
        let expected = "failed to get default priority class: Internal error occurred: the store is down";
        assert_eq!(message, Err((500, expected.to_owned())));
    }

    #[tokio::test]
    async fn update_without_a_priority_keeps_the_stored_priority() {
        let fixture = Fixture::new(&[class("high", 7, json!(true))]);
        let old = object(json!({"spec": {"priority": 5, "preemptionPolicy": "Never"}}));
        let request = create(&fixture, "", "pods", "Pod", "p");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        for (spec, expected) in [
            (json!({}), json!({"priority": 5, "preemptionPolicy": "Never"})),
            (json!({"priority": 6}), json!({"priority": 6, "preemptionPolicy": "Never"})),
        ] {
            let mut pod = object(json!({"spec": spec}));
            Priority.mutate(&request, &mut pod).await.unwrap();
            assert_eq!(pod["spec"], expected);
        }
    }

    #[tokio::test]
    async fn second_default_class_is_rejected() {
        let fixture = Fixture::new(&[class("first", 7, json!(true))]);
        let refused = "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass first is already marked as default. Only one default can exist";
        for (operation, name, default, expected) in [
            (Operation::Create, "second", true, Err(refused.to_owned())),
            (Operation::Update, "second", true, Err(refused.to_owned())),
            (Operation::Update, "first", true, Ok(())),
            (Operation::Create, "second", false, Ok(())),
        ] {
            let request = create(&fixture, GROUP, CLASSES, "PriorityClass", name);
            let class = object(class(name, 1, json!(default)).1);
            let found = Priority.check(&AdmissionRequest { operation, ..request }, &class).await;
            assert_eq!(found.map_err(|status| status.message), expected, "{operation:?} {name} {default}");
        }
    }
}
