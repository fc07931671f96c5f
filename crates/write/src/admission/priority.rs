//! Priority: copies the priority of a PriorityClass into each new pod (`plugin/pkg/admission/priority`).

use listwatch_meta::Status;
use serde_json::{Map, Value, json};

use super::{AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation};
use listwatch_validation::object_meta::text;

/// The preemption policy of a pod whose class does not set one.
const PREEMPT: &str = "PreemptLowerPriority";

/// The plugin that copies the priority of a PriorityClass into each new pod.
pub(super) struct Priority;

impl MutatingAdmission for Priority {
    fn name(&self) -> &str {
        "Priority"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods"
            && request.group.is_empty()
            && request.subresource.is_none()
            && request.operation == Operation::Create
    }

    fn admit<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a mut Map<String, Value>,
    ) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            let Some(Value::Object(spec)) = object.get_mut("spec") else { return Ok(()) };
            let name = text(spec, "priorityClassName");
            let class = match PriorityClass::built_in(name) {
                Some(class) => class,
                None => PriorityClass::read(request, name).await?,
            };
            class.apply(spec).map_err(|why| request.forbidden(why))
        })
    }
}

/// The fields of a PriorityClass that the plugin copies into a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PriorityClass {
    value: i64,
    preemption_policy: String,
}

impl PriorityClass {
    /// Returns a class that needs no stored object: a system class, or priority 0 for the empty name.
    fn built_in(name: &str) -> Option<Self> {
        let value = match name {
            "" => 0,
            "system-cluster-critical" => 2_000_000_000,
            "system-node-critical" => 2_000_001_000,
            _ => return None,
        };
        Some(PriorityClass { value, preemption_policy: PREEMPT.to_owned() })
    }

    /// Reads a class from the store.
    ///
    /// # Errors
    /// 403 when the class does not exist; otherwise the error of the store.
    async fn read(request: &AdmissionRequest<'_>, name: &str) -> Result<Self, Status> {
        let found = request.objects.get("scheduling.k8s.io", "v1", "priorityclasses", None, name).await;
        let missing = || request.forbidden(format_args!("no PriorityClass with name {name} was found"));
        let class = match found {
            Ok(found) => found.ok_or_else(missing)?,
            Err(status) if status.code == 404 => return Err(missing()),
            Err(status) => return Err(status),
        };
        let policy = text(&class, "preemptionPolicy");
        Ok(PriorityClass {
            value: class.get("value").and_then(Value::as_i64).unwrap_or(0),
            preemption_policy: if policy.is_empty() { PREEMPT.to_owned() } else { policy.to_owned() },
        })
    }

    /// Writes the priority and the preemption policy of the class into the spec of a pod.
    ///
    /// # Errors
    /// The message of kube-apiserver's 403 when the spec contradicts the class.
    fn apply(self, spec: &mut Map<String, Value>) -> Result<(), String> {
        let PriorityClass { value, preemption_policy } = self;
        let given = spec.get("priority").and_then(Value::as_i64);
        if let Some(given) = given.filter(|given| *given != value) {
            return Err(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            ));
        }
        let given = text(spec, "preemptionPolicy");
        if !given.is_empty() && given != preemption_policy {
            return Err(format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {preemption_policy} from the given PriorityClass name"
            ));
        }
        spec.insert("priority".to_owned(), json!(value));
        spec.insert("preemptionPolicy".to_owned(), json!(preemption_policy));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(spec: Value) -> Result<Value, String> {
        let Value::Object(mut spec) = spec else { unreachable!("it is an object") };
        let class = PriorityClass { value: 7, preemption_policy: "Never".to_owned() };
        class.apply(&mut spec).map(|()| Value::Object(spec))
    }

    #[test]
    fn pod_gets_the_value_and_policy_of_its_class() {
        let expected = json!({"priority": 7, "preemptionPolicy": "Never"});
        assert_eq!(applied(json!({})), Ok(expected.clone()));
        assert_eq!(applied(expected.clone()), Ok(expected));
    }

    #[test]
    fn pod_with_priority_or_policy_unlike_its_class_is_rejected() {
        assert!(applied(json!({"priority": 8})).is_err());
        assert!(applied(json!({"preemptionPolicy": "PreemptLowerPriority"})).is_err());
    }
}
