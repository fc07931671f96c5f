//! One webhook of a configuration (`MutatingWebhook`, `ValidatingWebhook` of `admissionregistration.k8s.io/v1`).

use std::collections::HashMap;
use std::time::Duration;

use listwatch_cel::AdmissionVariables;
use listwatch_validation::{Object, child, number, objects, text, texts};

use crate::client_config::ClientConfig;
use crate::conditions::MatchConditions;
use crate::matching::MatchCriteria;
use crate::review::ReviewVersion;

/// The timeout of a webhook without `timeoutSeconds`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The treatment of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is rejected.
    Fail,
    /// The request proceeds as if the webhook did not exist.
    Ignore,
}

/// The side effects that a webhook declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// Dry runs may call the webhook: `None` and `NoneOnDryRun`.
    NoneOnDryRun,
    /// Dry runs may not call the webhook: the deprecated `Some` and `Unknown`.
    Possible,
    /// `sideEffects` is absent. Validation rejects such a webhook.
    Undeclared,
}

/// One webhook, compiled from its configuration.
#[derive(Debug)]
pub struct Webhook {
    /// The unique identifier of the webhook: the configuration name, the webhook name, and a number that distinguishes
    /// webhooks of the same name.
    pub id: String,
    /// The name of the configuration.
    pub configuration: String,
    /// The name of the webhook, e.g. `labels.example.com`.
    pub name: String,
    /// The treatment of failed calls.
    pub failure_policy: FailurePolicy,
    /// The declared side effects.
    pub side_effects: SideEffects,
    /// The time limit of one call, 1 to 30 seconds.
    pub timeout: Duration,
    /// The first version in `admissionReviewVersions` that this crate supports; `None` if there is none.
    pub review_version: Option<ReviewVersion>,
    /// Whether the webhook runs again after later changes (`reinvocationPolicy: IfNeeded`).
    pub reinvoked_if_needed: bool,
    /// The address of the webhook.
    pub client_config: ClientConfig,
    pub(crate) criteria: MatchCriteria,
    pub(crate) conditions: MatchConditions,
}

impl Webhook {
    /// Compiles the webhooks of one configuration, in their order. The configuration has passed validation. An absent
    /// field has the default value.
    pub fn parse(configuration: &Object) -> Vec<Webhook> {
        let configuration_name = text(child(configuration, "metadata"), "name");
        let mut seen: HashMap<&str, usize> = HashMap::new();
        let webhooks = objects(configuration, "webhooks").map(|(_, hook)| {
            let name = text(hook, "name");
            let count = seen.entry(name).or_default();
            let id = format!("{configuration_name}/{name}/{count}");
            *count += 1;
            Webhook::compile(hook, id, configuration_name)
        });
        webhooks.collect()
    }

    fn compile(hook: &Object, id: String, configuration: &str) -> Webhook {
        let seconds = number(hook, "timeoutSeconds").and_then(|seconds| u64::try_from(seconds).ok());
        Webhook {
            id,
            configuration: configuration.to_owned(),
            name: text(hook, "name").to_owned(),
            failure_policy: match text(hook, "failurePolicy") {
                "Ignore" => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            side_effects: match text(hook, "sideEffects") {
                "None" | "NoneOnDryRun" => SideEffects::NoneOnDryRun,
                "" => SideEffects::Undeclared,
                _ => SideEffects::Possible,
            },
            timeout: seconds.filter(|seconds| *seconds > 0).map_or(TIMEOUT_DEFAULT, Duration::from_secs),
            review_version: texts(hook, "admissionReviewVersions").find_map(ReviewVersion::of),
            reinvoked_if_needed: text(hook, "reinvocationPolicy") == "IfNeeded",
            client_config: ClientConfig::parse(child(hook, "clientConfig")),
            criteria: MatchCriteria::of_webhook(hook),
            conditions: MatchConditions::compile(hook, &AdmissionVariables::new().with_authorizer(true)),
        }
    }
}
