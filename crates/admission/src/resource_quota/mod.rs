//! ResourceQuota: rejects writes that would exceed a quota of the namespace
//! (`apiserver/pkg/admission/plugin/resourcequota`).
//!
//! ```text
//!  write ─▶ quotas of the namespace (cache) ─▶ none: done
//!             │ some concern the object
//!             ▼
//!           lock of the namespace ─▶ quotas (store) ─▶ check ─▶ status.used, compare and swap ─▶ store write
//!                                        ▲                          │ another server was faster
//!                                        └──────────────────────────┘
//! ```
//!
//! The plugin is the last of the chain, so it charges only writes that all other plugins accepted. If the store then
//! rejects the write, the charge stays until the quota controller recalculates the usage. A dry run is checked and not
//! charged.

mod devices;
pub(crate) mod scopes;
mod usage;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use listwatch_json::{Map, Value, json};
use listwatch_meta::{Status, fuel};
use listwatch_validation::{Object, child, metadata, text};
use time::OffsetDateTime;
use tokio::sync::Mutex;

pub use self::devices::DeviceObjects;
use self::devices::{EXTENDED_RESOURCE_CLAIM, pod_of_claim};
use self::scopes::{Requirement, print_uncovered, requirements};
pub use self::usage::{Evaluator, has_ended};
use super::amounts::{Amounts, add, amounts, print, to_json};
use super::{AdmissionFuture, AdmissionRequest, LISTED_MAX, LimitedResource, Operation, ValidatingAdmission};

/// The longest wait of a write for the quotas of its namespace.
const EVALUATION_TIME: Duration = Duration::from_secs(10);
/// The largest number of attempts to write quota statuses, if other servers change the quotas at the same time.
const TRIES: usize = 4;
/// The largest number of claims in a namespace among which the claim of a pod is searched. With more of them, each claim
/// is charged in full.
const CLAIMS_MAX: usize = 10_000;
/// The number of locks. Writes of namespaces that share a lock wait for each other.
const LOCKS: usize = 64;

/// The plugin that enforces quotas.
pub(super) struct ResourceQuota {
    limited: Vec<LimitedResource>,
    /// One lock per group of namespaces, so that writes of one namespace are charged one after the other.
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// One write, and the data to check it against quotas.
struct Charge<'a> {
    request: &'a AdmissionRequest<'a>,
    object: &'a Object,
    evaluator: Evaluator,
    limited: &'a [LimitedResource],
    now: OffsetDateTime,
}

impl ResourceQuota {
    /// Creates a plugin. The resources in `limited` cannot be used without a quota.
    pub(super) fn new(limited: Vec<LimitedResource>) -> Self {
        let locks = std::iter::repeat_with(Mutex::default).take(LOCKS).collect();
        ResourceQuota { limited, locks, hasher: RandomState::new() }
    }

    async fn evaluate(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let evaluator = Evaluator::new(request.group, request.resource);
        if !evaluator.evaluates(request.subresource, request.old_object, object) {
            return Ok(());
        }
        let listed = request.objects.list("", "v1", "resourcequotas", request.namespace, LISTED_MAX).await?;
        if listed.json.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        let quotas = listed.all("resourcequotas")?;
        let now = OffsetDateTime::now_utc();
        let evaluator = match evaluator {
            Evaluator::DeviceClaims(_) => Evaluator::DeviceClaims(device_objects(request, object, now).await?),
            evaluator => evaluator,
        };
        let charge = Charge { request, object, evaluator, limited: &self.limited, now };
        if charge.plan(&quotas, &BTreeSet::new())?.is_empty() {
            return Ok(());
        }
        let namespace = request.namespace.unwrap_or_default();
        let lock = usize::try_from(self.hasher.hash_one(namespace)).unwrap_or(0) % LOCKS;
        let charged = async {
            let _held = self.locks[lock].lock().await;
            charge.charge(namespace, &quotas).await
        };
        let timed_out = |_| Status::internal("resource quota evaluation timed out");
        tokio::time::timeout(EVALUATION_TIME, charged).await.map_err(timed_out)?
    }
}

impl Charge<'_> {
    fn forbid(&self, why: impl std::fmt::Display) -> Status {
        self.request.forbid(self.object, why)
    }

    /// Checks the write against the stored quotas and writes their new status.
    async fn charge(&self, namespace: &str, cached: &[Object]) -> Result<(), Status> {
        let mut quotas = Vec::new();
        for quota in cached {
            let name = text(metadata(quota), "name");
            let found = self.request.objects.get("", "v1", "resourcequotas", Some(namespace), name).await?;
            quotas.extend(found);
        }
        let mut charged = BTreeSet::new();
        for attempt in 1..=TRIES {
            let plan = self.plan(&quotas, &charged)?;
            // A decision without fuel is made again, and must not be charged twice.
            if self.request.dry_run || fuel::is_exhausted() {
                return Ok(());
            }
            let mut conflict = None;
            for (index, status) in plan {
                let old = &quotas[index];
                let name = text(metadata(old), "name").to_owned();
                if self.request.objects.swap_quota_status(namespace, &name, old, status.clone()).await? {
                    charged.insert(name);
                } else {
                    conflict = Some((index, name));
                    break;
                }
            }
            let Some((index, name)) = conflict else { return Ok(()) };
            if attempt == TRIES {
                return Err(Status::modified(
                    listwatch_meta::GroupResource { group: "", resource: "resourcequotas" },
                    &name,
                ));
            }
            match self.request.objects.get("", "v1", "resourcequotas", Some(namespace), &name).await? {
                Some(found) => quotas[index] = found,
                None => {
                    quotas.remove(index);
                }
            }
        }
        Ok(())
    }

    /// Returns the quotas that the write changes, by position, with their new status (`CheckRequest`). The status of
    /// the `charged` quotas already includes the write.
    ///
    /// # Errors
    /// 403 when the write exceeds a quota, omits an amount that a quota limits, or uses a limited resource without a
    /// quota; 500 when no quota covers a limited scope.
    fn plan(&self, quotas: &[Object], charged: &BTreeSet<String>) -> Result<Vec<(usize, Value)>, Status> {
        let Charge { request, object, evaluator, now, .. } = self;
        let usage = evaluator.usage(object, *now);
        let negative: Vec<&str> = negative_names(&usage);
        if !negative.is_empty() {
            let why = format_args!("quota usage is negative for resource(s): {}", negative.join(","));
            return Err(self.forbid(why));
        }
        let mut covered: BTreeSet<String> = BTreeSet::new();
        let mut covered_scopes: Vec<Requirement> = Vec::new();
        let mut interesting = Vec::new();
        for (index, quota) in quotas.iter().enumerate() {
            let of_quota = requirements(quota);
            covered_scopes.extend(of_quota.iter().filter(|one| evaluator.selects(one, object)).cloned());
            let hard = usage::hard_of_status(quota);
            let limited: Vec<&str> = hard.keys().map(String::as_str).filter(|name| evaluator.counts(name)).collect();
            if limited.is_empty() || !evaluator.is_in_scope(quota, object) {
                continue;
            }
            let name = text(metadata(quota), "name");
            evaluator
                .check_constraints(&limited, object)
                .map_err(|why| self.forbid(format_args!("failed quota: {name}: {why}")))?;
            let used = amounts(child(child(quota, "status"), "used"));
            if limited.iter().any(|name| !used.contains_key(*name)) {
                let why = format_args!("status unknown for quota: {name}, resources: {}", limited.join(","));
                return Err(self.forbid(why));
            }
            covered.extend(limited.iter().map(|name| (*name).to_owned()));
            interesting.push((index, hard, used));
        }
        let before = request.old_object.map(|old| (old, evaluator.usage(old, *now)));
        let grown = match &before {
            Some((_, before)) => difference(&usage, before),
            None => without_zeros(usage.clone()),
        };
        let is_matched = !interesting.is_empty();
        let mut changed = Vec::new();
        for (index, hard, used) in interesting {
            // An update into the scope of a quota is charged in full.
            let counted_before = before.as_ref().is_some_and(|(old, _)| evaluator.is_in_scope(&quotas[index], old));
            let delta = if counted_before { grown.clone() } else { without_zeros(usage.clone()) };
            if !delta.is_empty() {
                changed.push((index, hard, used, delta));
            }
        }
        if if is_matched { changed.is_empty() } else { grown.is_empty() } {
            return Ok(Vec::new());
        }
        self.check_limited(&usage, &covered, &covered_scopes)?;
        let mut plan = Vec::new();
        for (index, hard, used, mut delta) in changed {
            let quota = &quotas[index];
            delta.retain(|name, _| hard.contains_key(name));
            if delta.is_empty() || charged.contains(text(metadata(quota), "name")) {
                continue;
            }
            let mut sum = used.clone();
            add(&mut sum, &delta);
            let exceeded: BTreeSet<&String> = delta.keys().filter(|name| sum[*name] > hard[*name]).collect();
            // The controller that expands a claim reports what has happened.
            if !exceeded.is_empty() && request.subresource != Some("status") {
                let only = |list: &Amounts| -> Amounts {
                    list.iter().filter(|(name, _)| exceeded.contains(name)).map(|(n, a)| (n.clone(), *a)).collect()
                };
                return Err(self.forbid(format_args!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    text(metadata(quota), "name"),
                    print(&only(&delta)),
                    print(&only(&used)),
                    print(&only(&hard))
                )));
            }
            plan.push((index, status_with(quota, &sum)));
        }
        Ok(plan)
    }

    /// Checks that quotas cover the limited resources that the write uses.
    ///
    /// # Errors
    /// 403 for a resource without a quota; 500 for a scope without a quota.
    fn check_limited(
        &self,
        usage: &Amounts,
        covered: &BTreeSet<String>,
        covered_scopes: &[Requirement],
    ) -> Result<(), Status> {
        let (group, resource) = (self.request.group, self.request.resource);
        let limited = || self.limited.iter().filter(|one| one.api_group == group && one.resource == resource);
        let is_limited =
            |name: &String| limited().any(|one| one.match_contains.iter().any(|part| name.contains(part.as_str())));
        let consumed = usage.iter().filter(|(_, amount)| amount.nanos() > 0).map(|(name, _)| name);
        let open: Vec<&str> =
            consumed.filter(|name| is_limited(name) && !covered.contains(*name)).map(String::as_str).collect();
        if !open.is_empty() {
            return Err(self.forbid(format_args!("insufficient quota to consume: {}", open.join(","))));
        }
        // Upstream reads the scopes of all limited resources.
        let scopes = self.limited.iter().flat_map(|one| &one.match_scopes);
        let matched: Vec<&Requirement> = scopes.filter(|scope| self.evaluator.selects(scope, self.object)).collect();
        match print_uncovered(&matched, covered_scopes) {
            // A plain error in upstream, which is a 500.
            Some(open) => Err(Status::unknown(format!("insufficient quota to match these scopes: {open}"))),
            None => Ok(()),
        }
    }
}

/// Reads the stored objects on which the usage of a ResourceClaim depends.
async fn device_objects(
    request: &AdmissionRequest<'_>,
    claim: &Object,
    now: OffsetDateTime,
) -> Result<DeviceObjects, Status> {
    const GROUP: &str = "resource.k8s.io";
    let classes = request.objects.list(GROUP, "v1", "deviceclasses", None, LISTED_MAX).await?.all("deviceclasses")?;
    let mut pods = Vec::new();
    for claim in request.old_object.into_iter().chain([claim]) {
        if let Some((name, _)) = pod_of_claim(claim) {
            pods.extend(request.get_cached("", "pods", request.namespace, name).await?);
        }
    }
    let mut claims = Vec::new();
    if !pods.is_empty() {
        let listed = request.objects.list(GROUP, "v1", "resourceclaims", request.namespace, CLAIMS_MAX).await?;
        if listed.remaining > 0 {
            // Without all claims, the claim of the pod is not known.
            pods.clear();
        } else {
            claims = listed.with_text(EXTENDED_RESOURCE_CLAIM).all("resourceclaims")?;
        }
    }
    Ok(DeviceObjects::new(&classes, &pods, &claims, now))
}

fn negative_names(usage: &Amounts) -> Vec<&str> {
    usage.iter().filter(|(_, amount)| amount.nanos() < 0).map(|(name, _)| name.as_str()).collect()
}

fn without_zeros(mut amounts: Amounts) -> Amounts {
    amounts.retain(|_, amount| amount.nanos() != 0);
    amounts
}

/// Returns the amounts by which `new` exceeds `old` (`SubtractWithNonNegativeResult`).
fn difference(new: &Amounts, old: &Amounts) -> Amounts {
    let grown = new.iter().map(|(name, amount)| {
        let before = old.get(name).copied();
        (name.clone(), before.map_or(*amount, |before| amount.minus(before)))
    });
    grown.filter(|(_, amount)| amount.nanos() > 0).collect()
}

/// Returns the status of a quota with `used` replaced.
fn status_with(quota: &Object, used: &Amounts) -> Value {
    let mut status = child(quota, "status").clone();
    status.insert("used", to_json(used));
    Value::Object(status)
}

/// Computes the status of a quota from `objects`, each with the evaluator of its resource. Returns `None` if the quota
/// already has that status. Names that no object uses are zero (`syncResourceQuota`).
pub fn counted_status<'a>(
    quota: &Object,
    objects: impl IntoIterator<Item = (&'a Evaluator, &'a Object)>,
    now: OffsetDateTime,
) -> Option<Value> {
    let spec = child(child(quota, "spec"), "hard");
    let hard = amounts(spec);
    let mut used: Amounts = hard.keys().map(|name| (name.clone(), listwatch_meta::quantity::Quantity::ZERO)).collect();
    for (evaluator, object) in objects {
        if hard.keys().any(|name| evaluator.counts(name)) && evaluator.is_in_scope(quota, object) {
            let mut usage = evaluator.usage(object, now);
            usage.retain(|name, _| hard.contains_key(name));
            add(&mut used, &usage);
        }
    }
    let status = child(quota, "status");
    let is_current = status.contains_key("hard")
        && status.contains_key("used")
        && amounts(child(status, "hard")) == hard
        && amounts(child(status, "used")) == used;
    (!is_current).then(|| json!({"hard": spec, "used": to_json(&used)}))
}

impl ValidatingAdmission for ResourceQuota {
    fn name(&self) -> &str {
        "ResourceQuota"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        let create = match request.operation {
            Operation::Create => true,
            Operation::Update => false,
            _ => return false,
        };
        let ignored = match request.group {
            "" => matches!(request.resource, "bindings" | "events" | "componentstatuses" | "namespaces"),
            "events.k8s.io" => request.resource == "events",
            "authentication.k8s.io" | "authorization.k8s.io" => true,
            _ => false,
        };
        let takes_part = || match (request.group, request.resource) {
            ("", "pods" | "services" | "persistentvolumeclaims") | ("resource.k8s.io", "resourceclaims") => {
                Evaluator::new(request.group, request.resource).handles(create, request.subresource)
            }
            _ => create && request.subresource.is_none(),
        };
        request.namespace.is_some() && !ignored && takes_part()
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(self.evaluate(request, object))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
