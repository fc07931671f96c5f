//! The table of defaults itself; see [`super`] for how it is read and where it comes from.

use serde_json::{Map, Value, json};

use super::Default::{Do, Each, Empty, If, In, Number, Positive, Text};
use super::Defaults;

// Access, scheduling, scaling, extension.

pub(crate) static SERVICE_REFERENCE: Defaults = Defaults(&[("port", Number(443))]);
pub(crate) static CLIENT_CONFIG: Defaults = Defaults(&[("service", If(&SERVICE_REFERENCE))]);
pub(crate) static RULE: Defaults = Defaults(&[("scope", Text("*"))]);
pub(crate) static WEBHOOK: Defaults = Defaults(&[
    ("clientConfig", If(&CLIENT_CONFIG)),
    ("rules", Each(&RULE)),
    ("failurePolicy", Text("Fail")),
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("timeoutSeconds", Number(10)),
]);
pub(crate) static REINVOCATION: Defaults = Defaults(&[("reinvocationPolicy", Text("Never"))]);
pub(crate) static VALIDATING_WEBHOOKS: Defaults = Defaults(&[("webhooks", Each(&WEBHOOK))]);
pub(crate) static MUTATING_WEBHOOKS: Defaults =
    Defaults(&[("webhooks", Each(&WEBHOOK)), ("webhooks", Each(&REINVOCATION))]);

pub(crate) static MATCH: Defaults = Defaults(&[
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("resourceRules", Each(&RULE)),
    ("excludeResourceRules", Each(&RULE)),
]);
pub(crate) static POLICY_SPEC: Defaults =
    Defaults(&[("failurePolicy", Text("Fail")), ("matchConstraints", If(&MATCH))]);
pub(crate) static ADMISSION_POLICY: Defaults = Defaults(&[("spec", In(&POLICY_SPEC))]);
pub(crate) static POLICY_BINDING_SPEC: Defaults = Defaults(&[("matchResources", If(&MATCH))]);
pub(crate) static POLICY_BINDING: Defaults = Defaults(&[("spec", If(&POLICY_BINDING_SPEC))]);
pub(crate) static DEVICE_REQUEST: Defaults = Defaults(&[
    ("allocationMode", Text("ExactCount")),
    ("count", Do(at_least_one)),
    ("tolerations", Each(&DEVICE_TOLERATION)),
]);
pub(crate) static DEVICE_TOLERATION: Defaults = Defaults(&[("operator", Text("Equal"))]);

/// A request for an exact number of devices is one for one at least.
fn at_least_one(request: &mut Map<String, Value>) {
    let none = request.get("count").is_none_or(|count| count.as_i64() == Some(0));
    if none && request.get("allocationMode") == Some(&json!("ExactCount")) {
        request.insert("count".to_owned(), json!(1));
    }
}

pub(crate) static REQUEST: Defaults =
    Defaults(&[("exactly", If(&DEVICE_REQUEST)), ("firstAvailable", Each(&DEVICE_REQUEST))]);
pub(crate) static DEVICES: Defaults = Defaults(&[("requests", Each(&REQUEST))]);
pub(crate) static CLAIM_OF_DEVICES_SPEC: Defaults = Defaults(&[("devices", In(&DEVICES))]);
pub(crate) static RESOURCE_CLAIM: Defaults = Defaults(&[("spec", If(&CLAIM_OF_DEVICES_SPEC))]);
pub(crate) static CLAIM_OF_DEVICES: Defaults = Defaults(&[("metadata", Empty), ("spec", If(&CLAIM_OF_DEVICES_SPEC))]);
pub(crate) static RESOURCE_CLAIM_TEMPLATE: Defaults = Defaults(&[("spec", If(&CLAIM_OF_DEVICES))]);
pub(crate) static POOL: Defaults = Defaults(&[("generation", Number(0))]);
pub(crate) static RESOURCE_SLICE_SPEC: Defaults = Defaults(&[("pool", If(&POOL))]);
pub(crate) static RESOURCE_SLICE: Defaults = Defaults(&[("spec", If(&RESOURCE_SLICE_SPEC))]);

pub(crate) static FLOW_SCHEMA_SPEC: Defaults = Defaults(&[("matchingPrecedence", Positive(1000))]);
pub(crate) static FLOW_SCHEMA: Defaults = Defaults(&[("spec", In(&FLOW_SCHEMA_SPEC))]);
pub(crate) static QUEUING: Defaults =
    Defaults(&[("queues", Positive(64)), ("handSize", Positive(8)), ("queueLengthLimit", Positive(50))]);
pub(crate) static LIMIT_RESPONSE: Defaults = Defaults(&[("queuing", If(&QUEUING))]);
pub(crate) static LIMITED: Defaults = Defaults(&[
    ("nominalConcurrencyShares", Number(30)),
    ("lendablePercent", Number(0)),
    ("limitResponse", If(&LIMIT_RESPONSE)),
]);
pub(crate) static EXEMPT: Defaults =
    Defaults(&[("nominalConcurrencyShares", Number(0)), ("lendablePercent", Number(0))]);
pub(crate) static PRIORITY_LEVEL_SPEC: Defaults = Defaults(&[("limited", If(&LIMITED)), ("exempt", If(&EXEMPT))]);
pub(crate) static PRIORITY_LEVEL: Defaults = Defaults(&[("spec", If(&PRIORITY_LEVEL_SPEC))]);
