//! Carries out `/eviction` of pods: deletes a pod if its PodDisruptionBudget allows the disruption
//! (`pkg/registry/core/pod/storage/eviction.go`).
//!
//! ```text
//!  POST ─▶ pod not running, or being deleted? ──────────────────▶ mark, delete
//!          matching budgets: none ──────────────────────────────▶ mark, delete
//!                            several ─▶ 500
//!                            one ─▶ unready pod exempt? ────────▶ mark, delete at the same resource version
//!                                   disruptions allowed? ───────▶ decrement, mark, delete
//!                                   else 429 with the cause
//! ```
//!
//! Admission plugins see the creation of `pods/eviction`, and not the deletion that follows
//! (`rest.ValidateAllObjectFunc`).
//!
//! The disruption controller of kube-controller-manager maintains the status of budgets.

use listwatch_json::{Map, Value, json};
use listwatch_meta::status::StatusCause;
use listwatch_meta::{GroupResource, Key, Status};
use listwatch_storage::{Decision, KeyValue, ListQuery};

use super::action::{Action, ActionFuture};
use super::expected::Expected;
use super::options::DeleteOptions;
use super::pipeline::Write;
use super::request::{WriteRequest, WriteResponse};
use super::store;
use super::subresource_body::{SubresourceBody, body, set_condition, success};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{child_mut, metadata};

/// Maximum number of pods in `status.disruptedPods` of a budget. If the status has more, evictions fail with 403
/// (`MaxDisruptedPodSize`).
const DISRUPTED_PODS_MAX: usize = 2_000;
/// Maximum number of attempts of an eviction that conflicts with other writes (`EvictionsRetry`).
const OVERTAKEN_MAX: usize = 20;
/// `Retry-After` in seconds while the status of a budget is not up to date.
const RETRY_SECONDS: u32 = 10;

const EVICTION: Expected<'static> =
    Expected { older_version: Some("v1beta1"), ..Expected::builtin("policy", "v1", "Eviction") };

const BUDGETS: GroupResource<'_> = GroupResource { group: "policy", resource: "poddisruptionbudget" };

type Object = Map;

/// The action for a POST of an Eviction.
pub(super) struct Evict;

impl Action for Evict {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(post(write, request))
    }
}

/// Deletes the pod with the options of the Eviction, if the disruption budget of the pod allows that.
///
/// # Errors
/// 400 when the Eviction names another pod; otherwise the errors of [`evict`].
async fn post(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let SubresourceBody { object: eviction, options, warnings } = body(write, request, EVICTION).await?;
    if meta::text(metadata(&eviction), "name") != write.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let asked = eviction.get("deleteOptions").unwrap_or(&Value::Null);
    let mut delete_options = DeleteOptions::from_value(asked)?;
    delete_options.dry_run |= options.dry_run;
    let key = write.resource.key(request.namespace, write.name)?;
    evict(write, &key, &delete_options).await?;
    Ok(success(warnings))
}

/// Evicts the pod at `key`. `options` are the options of the deletion.
///
/// # Errors
/// 404 when the pod does not exist, 429 when its budget allows no disruption, 500 when several budgets select the
/// pod; otherwise the errors of a delete.
async fn evict(write: &Write<'_>, key: &Key, options: &DeleteOptions) -> Result<(), Status> {
    let mut conflict = None;
    for _ in 0..OVERTAKEN_MAX {
        let (found, _) =
            write.backend.storage().get(key).await.map_err(|error| store::read_failed(&error, write.resource.gr()))?;
        let found = found.ok_or_else(|| Status::not_found(write.resource.gr(), write.name))?;
        let pod = store::parse(&found)?;
        let phase = text(&pod, "status", "phase");
        let going = meta::is_set(metadata(&pod), "deletionTimestamp");
        let ended = matches!(phase, "Succeeded" | "Failed") || going;
        let mut options = options.clone();
        let bound = options.resource_version.is_none();
        if ended || phase == "Pending" {
            // A pending pod may start to run meanwhile, so the delete requires the version that was read.
            if bound && !ended {
                options.resource_version = Some(found.modified.to_string());
            }
            match mark_and_delete(write, key, &options).await {
                Err(status) if status.code == 409 && bound => conflict = Some(status),
                done => return done,
            }
            continue;
        }
        return evict_within_budget(write, key, &found, &pod, options).await;
    }
    Err(conflict.unwrap_or_else(|| Status::server_timeout("evict", write.resource.gr())))
}

/// Evicts a running pod if its disruption budget allows that.
async fn evict_within_budget(
    write: &Write<'_>,
    key: &Key,
    found: &KeyValue,
    pod: &Object,
    mut options: DeleteOptions,
) -> Result<(), Status> {
    let budgets = budgets_of(write, key.namespace(), pod).await?;
    let (budget_key, budget) = match budgets.as_slice() {
        [] => return mark_and_delete(write, key, &options).await,
        [only] => only,
        _ => {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::unknown(why));
        }
    };
    let name = budget_key.name();
    if !is_ready(pod) && exempts_unready_pods(budget) {
        let bound = options.resource_version.is_none();
        options.resource_version.get_or_insert_with(|| found.modified.to_string());
        return match mark_and_delete(write, key, &options).await {
            // The pod may have become ready, so the client must retry.
            Err(status) if status.code == 409 && bound => Err(budget_not_observed(name)),
            done => done,
        };
    }
    count_down(write, budget_key, key.name(), options.dry_run).await?;
    mark_and_delete(write, key, &options).await
}

fn text<'a>(object: &'a Object, member: &str, field: &str) -> &'a str {
    object.get(member).and_then(|member| member.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Lists the disruption budgets whose selector matches the pod.
async fn budgets_of(write: &Write<'_>, namespace: &str, pod: &Object) -> Result<Vec<(Key, Object)>, Status> {
    let Some(resource) = write.registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(Vec::new()) };
    let query = ListQuery { range: resource.range(Some(namespace)), at: None, limit: 0 };
    let page = write.backend.storage().list(query).await.map_err(|error| store::read_failed(&error, BUDGETS))?;
    let labels = metadata(pod).get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut budgets = Vec::new();
    for item in &page.items {
        let budget = store::parse(item)?;
        let selector = budget.get("spec").and_then(|spec| spec.get("selector")).and_then(Value::as_object);
        if selector.and_then(|selector| LabelSelector::of(selector).selects(&labels)) == Some(true) {
            budgets.push((item.key.clone(), budget));
        }
    }
    Ok(budgets)
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod.get("status").and_then(|status| status.get("conditions")).and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn count(budget: &Object, field: &str) -> i64 {
    budget.get("status").and_then(|status| status.get(field)).and_then(Value::as_i64).unwrap_or(0)
}

/// Returns whether the budget exempts pods that are not ready (`unhealthyPodEvictionPolicy`).
fn exempts_unready_pods(budget: &Object) -> bool {
    let healthy = count(budget, "currentHealthy") >= count(budget, "desiredHealthy");
    text(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (healthy && count(budget, "desiredHealthy") > 0)
}

fn refused(seconds: u32, cause: String) -> Status {
    let why = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut status = Status::too_many_requests(why, seconds);
    let details = status.details.get_or_insert_default();
    details.causes.push(StatusCause { reason: "DisruptionBudget".to_owned(), message: cause, field: String::new() });
    status
}

fn budget_not_observed(budget: &str) -> Status {
    refused(RETRY_SECONDS, format!("The disruption budget {budget} is still being processed by the server."))
}

/// Decrements the allowed disruptions of a budget and records the disrupted pod. Performs no I/O.
///
/// # Errors
/// 429 when the budget allows no disruption or its status is not up to date, 403 when its status is invalid.
fn disrupt(budget: &mut Object, pod: &str, now: &str) -> Result<(), Status> {
    let name = meta::text(metadata(budget), "name").to_owned();
    let generation = metadata(budget).get("generation").and_then(Value::as_i64).unwrap_or(0);
    if count(budget, "observedGeneration") < generation {
        return Err(budget_not_observed(&name));
    }
    let allowed = count(budget, "disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(BUDGETS, &name, "pdb disruptions allowed is negative"));
    }
    let pods = budget.get("status").and_then(|status| status.get("disruptedPods")).and_then(Value::as_object);
    if pods.is_some_and(|pods| pods.len() > DISRUPTED_PODS_MAX) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Status::forbidden(BUDGETS, &name, why));
    }
    if allowed == 0 {
        return Err(refused(0, disruption_denied_message(budget, &name)));
    }
    let status = child_mut(budget, "status");
    status.insert("disruptionsAllowed", json!(allowed - 1));
    child_mut(status, "disruptedPods").insert(pod, json!(now));
    if allowed == 1 {
        let condition = json!({"type": "DisruptionAllowed", "status": "False", "observedGeneration": generation,
            "lastTransitionTime": now, "reason": "InsufficientPods", "message": ""});
        set_condition(status, condition);
    }
    Ok(())
}

/// Returns the message that explains why a budget allows no disruption.
fn disruption_denied_message(budget: &Object, name: &str) -> String {
    let conditions = budget.get("status").and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == "DisruptionAllowed");
    let said = condition.and_then(|condition| {
        let message = condition["message"].as_str().filter(|message| !message.is_empty())?;
        (condition["status"] == "False").then(|| (condition["reason"].as_str().unwrap_or_default(), message))
    });
    let (current, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
    match said {
        Some(("SyncFailed", message)) => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
        }
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => {
            format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

async fn count_down(write: &Write<'_>, key: &Key, pod: &str, dry_run: bool) -> Result<(), Status> {
    let Some(resource) = write.registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    let now = write.clock.now();
    let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
        let found = found.ok_or_else(|| Status::not_found(resource.gr(), key.name()))?;
        let mut budget = store::parse(found)?;
        disrupt(&mut budget, pod, &now)?;
        Ok(Decision::Write { value: store::encode(&budget), ttl: None })
    };
    store::run(write.backend, resource, key, dry_run, decide).await.map(drop)
}

/// Sets the `DisruptionTarget` condition of the pod, then deletes the pod.
async fn mark_and_delete(write: &Write<'_>, key: &Key, options: &DeleteOptions) -> Result<(), Status> {
    let mut options = options.clone();
    if !options.dry_run {
        let now = write.clock.now();
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let found = found.ok_or_else(|| Status::not_found(write.resource.gr(), write.name))?;
            let mut pod = store::parse(found)?;
            write.check_deletion(&pod, found, &options)?;
            let before = pod.clone();
            let marked = json!({"type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": now, "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"});
            set_condition(child_mut(&mut pod, "status"), marked);
            Ok(match pod == before {
                true => Decision::Nothing,
                false => Decision::Write { value: store::encode(&pod), ttl: None },
            })
        };
        let done = store::run(write.backend, write.resource, key, false, decide).await?;
        if let store::WriteOutcome::Updated { revision, .. } = &done {
            // The write above changed the resource version, so the precondition must change too.
            if let Some(version) = &mut options.resource_version {
                *version = revision.to_string();
            }
        }
    }
    write.delete_without_admission(key, &options).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Value, expected: Result<Value, (u16, &str)>) {
        let budget = json!({"metadata": {"name": "b", "generation": 1}, "spec": {}, "status": status});
        let Value::Object(mut budget) = budget else { unreachable!("it is an object") };
        let found = disrupt(&mut budget, "p", "NOW").map(|()| budget["status"].clone()).map_err(|status| {
            let cause = status.details.as_ref().and_then(|details| details.causes.first());
            (status.code, cause.map_or(status.message.clone(), |cause| cause.message.clone()))
        });
        assert_eq!(found, expected.map_err(|(code, why)| (code, why.to_owned())));
    }

    #[test]
    fn disrupt_decrements_budget_and_rejects_exhausted_or_stale_budget() {
        check(json!({}), Err((429, "The disruption budget b is still being processed by the server.")));
        check(
            json!({"observedGeneration": 1, "disruptionsAllowed": 2}),
            Ok(json!({"observedGeneration": 1, "disruptionsAllowed": 1, "disruptedPods": {"p": "NOW"}})),
        );
        check(
            json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 2}),
            Err((429, "The disruption budget b needs 2 healthy pods and has 1 currently")),
        );
        check(
            json!({"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 2}),
            Err((429, "The disruption budget b does not allow evicting pods currently")),
        );
        check(
            json!({"observedGeneration": 1, "disruptionsAllowed": -1}),
            Err((403, "poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative")),
        );
        let failed = json!({"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "why"});
        check(
            json!({"observedGeneration": 1, "conditions": [failed]}),
            Err((429, "The disruption budget b does not allow evicting pods currently because it failed sync: why")),
        );
    }
}
