//! `/eviction` of pods: a delete that asks the disruption budget first
//! (`pkg/registry/core/pod/storage/eviction.go`).
//!
//! ```text
//!  POST ─▶ pod not running, or going? ───────────────────────────────▶ delete
//!          budgets that select it: none ─────────────────────────────▶ mark, delete
//!                                  several ─▶ 500
//!                                  one ─▶ not ready, and enough are? ▶ mark, delete, if it is still so
//!                                         allows one? count it down ─▶ mark, delete
//!                                         else 429 with the cause
//! ```
//!
//! Budgets are counted by whoever keeps their status: kube-controller-manager, or a test.

use listwatch_meta::status::StatusCause;
use listwatch_meta::{GroupResource, Key, Status};
use listwatch_storage::{Decision, KeyValue, ListQuery};
use serde_json::{Map, Value, json};

use super::binding::{Posted, body, set_condition, success};
use super::decode::Expected;
use super::options::DeleteOptions;
use super::pipeline::Write;
use super::store;
use super::{WriteRequest, WriteResponse, delete};
use listwatch_meta::go::Words;
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{child_mut, metadata};

/// A budget remembers at most so many pods that are being evicted; with more it is a 403
/// (`MaxDisruptedPodSize`).
const DISRUPTED_PODS_MAX: usize = 2_000;
/// An eviction that others' writes have overtaken is tried again so many times (`EvictionsRetry`).
const OVERTAKEN_MAX: usize = 20;
/// After so many seconds a client may ask again while a budget is not counted yet.
const RETRY_SECONDS: u32 = 10;

const EVICTION: Expected<'static> =
    Expected { group: "policy", version: "v1", kind: "Eviction", custom: false, form: None, words: Words::Decoder };

const BUDGETS: GroupResource<'_> = GroupResource { group: "policy", resource: "poddisruptionbudget" };

type Object = Map<String, Value>;

/// POST of an Eviction: the pod is deleted as its options say, if its disruption budget allows it.
///
/// # Errors
/// 400 when the eviction names another one, and what [`evict`] refuses with.
pub(super) async fn post(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let Posted { object: eviction, options, warnings } = body(write, request, EVICTION)?;
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

/// Evicts the pod of `target`, deleting it with these options.
///
/// # Errors
/// 404 when it is not there, 429 when its budget allows no disruption, 500 when it has several, what a
/// delete gives.
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
            // One that may begin to run meanwhile is bound to what was seen of it.
            if bound && !ended {
                options.resource_version = Some(found.modified.to_string());
            }
            match mark_and_delete(write, key, &options).await {
                Err(status) if status.code == 409 && bound => conflict = Some(status),
                done => return done,
            }
            continue;
        }
        return guarded(write, key, &found, &pod, options).await;
    }
    Err(conflict.unwrap_or_else(|| Status::server_timeout("evict", write.resource.gr())))
}

/// Evicts a pod that runs, if its budget says so.
async fn guarded(
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
    if !is_ready(pod) && spares_unready(budget) {
        let bound = options.resource_version.is_none();
        options.resource_version.get_or_insert_with(|| found.modified.to_string());
        return match mark_and_delete(write, key, &options).await {
            // It may have become ready: the client asks again.
            Err(status) if status.code == 409 && bound => Err(not_counted_yet(name)),
            done => done,
        };
    }
    count_down(write, budget_key, key.name(), options.dry_run).await?;
    mark_and_delete(write, key, &options).await
}

fn text<'a>(object: &'a Object, member: &str, field: &str) -> &'a str {
    object.get(member).and_then(|member| member.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The budgets whose selector selects a pod.
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

/// May a pod that is not ready go without being counted?
fn spares_unready(budget: &Object) -> bool {
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

fn not_counted_yet(budget: &str) -> Status {
    refused(RETRY_SECONDS, format!("The disruption budget {budget} is still being processed by the server."))
}

/// Takes one disruption off a budget, for this pod. Pure.
///
/// # Errors
/// 429 when it allows none, 403 when it cannot be right.
fn disrupt(budget: &mut Object, pod: &str, now: &str) -> Result<(), Status> {
    let name = meta::text(metadata(budget), "name").to_owned();
    let generation = metadata(budget).get("generation").and_then(Value::as_i64).unwrap_or(0);
    if count(budget, "observedGeneration") < generation {
        return Err(not_counted_yet(&name));
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
        return Err(refused(0, why_none(budget, &name)));
    }
    let status = child_mut(budget, "status");
    status.insert("disruptionsAllowed".to_owned(), json!(allowed - 1));
    child_mut(status, "disruptedPods").insert(pod.to_owned(), json!(now));
    if allowed == 1 {
        let condition = json!({"type": "DisruptionAllowed", "status": "False", "observedGeneration": generation,
            "lastTransitionTime": now, "reason": "InsufficientPods", "message": ""});
        set_condition(status, condition);
    }
    Ok(())
}

/// Why a budget allows no disruption.
fn why_none(budget: &Object, name: &str) -> String {
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

/// Says on the pod why it goes, and deletes it.
async fn mark_and_delete(write: &Write<'_>, key: &Key, options: &DeleteOptions) -> Result<(), Status> {
    let mut options = options.clone();
    let deletion = delete::Target {
        user: write.user,
        backend: write.backend,
        registry: write.registry,
        resource: write.resource,
        clock: write.clock,
    };
    if !options.dry_run {
        let now = write.clock.now();
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let found = found.ok_or_else(|| Status::not_found(write.resource.gr(), write.name))?;
            let mut pod = store::parse(found)?;
            deletion.check(&pod, found, &options)?;
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
        // The version that was asked for has become another one by our own hand.
        if let (Some(version), store::Done::Updated { revision, .. }) = (&mut options.resource_version, &done) {
            *version = revision.to_string();
        }
    }
    deletion.delete(key, &options).await.map(drop)
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
    fn a_budget_is_counted_down_and_then_says_why_not() {
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
