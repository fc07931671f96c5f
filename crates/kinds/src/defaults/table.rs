//! The table of defaults itself; see [`super`] for how it is read and where it comes from.

use super::Default::{Each, Empty, If, In, Number, Positive, Text};
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
