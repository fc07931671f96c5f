//! EventRateLimit: limits how fast clients write events (`plugin/pkg/admission/eventratelimit`).
//!
//! Each limit has a bucket of tokens for each of its keys: for the whole server, a namespace, a user, or the source and
//! object of events. An event takes a token of each limit. Events of the group `events.k8s.io` are not limited, as in
//! kube-apiserver.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use listwatch_meta::{FieldError, Status, fuel};
use listwatch_validation::{Object, child, number, objects, text};
use tokio::time::Instant;

use super::plugin::Validator;
use super::{AdmissionRequest, Operation, aggregate};

/// The number of buckets of a limit without `cacheSize`.
const BUCKETS_DEFAULT: usize = 4096;
/// The types of limits, as in the configuration.
const TYPES: [(&str, LimitType); 4] = [
    ("Server", LimitType::Server),
    ("Namespace", LimitType::Namespace),
    ("User", LimitType::User),
    ("SourceAndObject", LimitType::SourceAndObject),
];

/// The property that all events of a bucket share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

impl LimitType {
    fn as_str(self) -> &'static str {
        TYPES.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    fn key(self, request: &AdmissionRequest<'_>, event: &Object) -> String {
        match self {
            LimitType::Server => String::new(),
            LimitType::Namespace => request.namespace.unwrap_or_default().to_owned(),
            LimitType::User => request.user.username.clone(),
            LimitType::SourceAndObject => {
                let (source, object) = (child(event, "source"), child(event, "involvedObject"));
                let of_source = ["component", "host"].map(|name| text(source, name));
                let of_object = ["kind", "namespace", "name", "uid", "apiVersion"].map(|name| text(object, name));
                [of_source.concat(), of_object.concat()].concat()
            }
        }
    }
}

/// A limit of the configuration (`eventratelimit.Limit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventLimit {
    limit_type: LimitType,
    /// Tokens per second.
    qps: u32,
    /// Tokens of a full bucket.
    burst: u32,
    /// The largest number of buckets; the one that was used least recently is dropped.
    buckets_max: usize,
}

impl EventLimit {
    /// Reads the limits of a `Configuration` of `eventratelimit.admission.k8s.io` (`ValidateConfiguration`).
    ///
    /// # Errors
    /// The fields and the problems of their values.
    pub(super) fn parse_all(file: &Object) -> Result<Vec<EventLimit>, String> {
        let mut problems = Vec::new();
        let mut limits = Vec::new();
        for (index, limit) in objects(file, "limits") {
            let at = |name: &str| format!("limits[{index}].{name}");
            let limit_type = TYPES.iter().find(|(name, _)| *name == text(limit, "type")).map(|(_, one)| *one);
            if limit_type.is_none() {
                problems.push(FieldError::not_supported(at("type"), text(limit, "type"), &TYPES.map(|(name, _)| name)));
            }
            let mut positive = |name: &str| {
                let value = number(limit, name).unwrap_or(0);
                let found = u32::try_from(value).ok().filter(|value| *value > 0);
                if found.is_none() {
                    problems.push(FieldError::invalid(at(name), value, "must be positive"));
                }
                found.unwrap_or(1)
            };
            let (burst, qps) = (positive("burst"), positive("qps"));
            let size = number(limit, "cacheSize").unwrap_or(0);
            if size < 0 && limit_type != Some(LimitType::Server) {
                problems.push(FieldError::invalid(at("cacheSize"), size, "must not be negative"));
            }
            let buckets_max = match usize::try_from(size) {
                Ok(0) | Err(_) => BUCKETS_DEFAULT,
                Ok(size) => size,
            };
            limits.extend(limit_type.map(|limit_type| EventLimit { limit_type, qps, burst, buckets_max }));
        }
        if limits.is_empty() && problems.is_empty() {
            problems.push(FieldError::invalid("limits", "null", "must not be empty"));
        }
        match aggregate(problems.iter().map(FieldError::to_string).collect()) {
            Some(why) => Err(why),
            None => Ok(limits),
        }
    }
}

/// A token bucket (`flowcontrol.NewTokenBucketRateLimiter`).
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
    /// The position in the order of use.
    used: u64,
}

/// The buckets of a limit, by the hash of their key. Two keys with one hash share a bucket.
#[derive(Debug, Default)]
struct Buckets {
    by_key: HashMap<u64, Bucket>,
    /// The keys in the order of use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

impl Buckets {
    /// Takes a token of the bucket of a key. Returns whether there was one.
    fn take(&mut self, limit: &EventLimit, key: u64, now: Instant) -> bool {
        self.uses += 1;
        let full = Bucket { tokens: f64::from(limit.burst), filled_at: now, used: self.uses };
        let bucket = self.by_key.entry(key).or_insert(full);
        self.order.remove(&bucket.used);
        self.order.insert(self.uses, key);
        bucket.used = self.uses;
        let filled = now.saturating_duration_since(bucket.filled_at).as_secs_f64() * f64::from(limit.qps);
        bucket.tokens = (bucket.tokens + filled).min(f64::from(limit.burst));
        bucket.filled_at = now;
        let is_taken = bucket.tokens >= 1.0;
        if is_taken {
            bucket.tokens -= 1.0;
        }
        if self.by_key.len() > limit.buckets_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.by_key.remove(&oldest);
        }
        is_taken
    }
}

/// The plugin that limits the rate of events.
pub(super) struct EventRateLimit {
    limits: Vec<(EventLimit, Mutex<Buckets>)>,
    hasher: RandomState,
}

impl EventRateLimit {
    /// A plugin with these limits.
    pub(super) fn new(limits: Vec<EventLimit>) -> Self {
        let limits = limits.into_iter().map(|limit| (limit, Mutex::default())).collect();
        EventRateLimit { limits, hasher: RandomState::new() }
    }
}

impl Validator for EventRateLimit {
    const NAME: &'static str = "EventRateLimit";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.kind == "Event"
            && request.group.is_empty()
            && !request.dry_run
            && matches!(request.operation, Operation::Create | Operation::Update)
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        // A request that starts again, e.g. before the call of a webhook, must not take two tokens.
        if fuel::is_exhausted() || request.recorder.has_effect(Self::NAME) {
            return Ok(());
        }
        let now = Instant::now();
        // An event takes a token of each limit, even if one rejects it.
        let rejections = self.limits.iter().filter_map(|(limit, buckets)| {
            let key = limit.limit_type.key(request, object);
            let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let is_taken = buckets.take(limit, self.hasher.hash_one(&key), now);
            (!is_taken).then(|| format!("limit reached on type {} for key {key}", limit.limit_type.as_str()))
        });
        match aggregate(rejections.collect()) {
            Some(why) => Err(Status::failure(429, "TooManyRequests", format!("Too many requests: {why}"))),
            None => {
                request.recorder.add_effect(Self::NAME);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use listwatch_json::{Value, json};
    use listwatch_meta::UserInfo;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn limit(limit_type: &str, qps: i64, burst: i64, size: i64) -> Value {
        json!({"type": limit_type, "qps": qps, "burst": burst, "cacheSize": size})
    }

    fn parsed(limits: Value) -> Result<Vec<EventLimit>, String> {
        EventLimit::parse_all(&object(json!({"limits": limits})))
    }

    #[test]
    fn event_rate_limit_configuration_is_validated() {
        let one = EventLimit { limit_type: LimitType::User, qps: 2, burst: 3, buckets_max: 4 };
        assert_eq!(parsed(json!([limit("User", 2, 3, 4)])), Ok(vec![one]));
        let without_size = EventLimit { buckets_max: BUCKETS_DEFAULT, ..one };
        assert_eq!(parsed(json!([limit("User", 2, 3, 0)])), Ok(vec![without_size]));
        for (limits, expected) in [
            (json!([]), "limits: Invalid value: null: must not be empty"),
            (
                json!([limit("Pod", 1, 1, 0)]),
                "limits[0].type: Unsupported value: \"Pod\": supported values: \"Server\", \"Namespace\", \"User\", \"SourceAndObject\"",
            ),
            (
                json!([limit("User", 0, -1, -2)]),
                "[limits[0].burst: Invalid value: -1: must be positive, limits[0].qps: Invalid value: 0: must be positive, limits[0].cacheSize: Invalid value: -2: must not be negative]",
            ),
        ] {
            assert_eq!(parsed(limits), Err(expected.to_owned()));
        }
    }

    fn event(namespace: &str, involved: &str) -> Object {
        object(json!({"metadata": {"name": "e", "namespace": namespace}, "source": {"component": "kubelet"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": involved}}))
    }

    async fn written(plugin: &EventRateLimit, namespace: &str, user: &str, involved: &str) -> Result<(), String> {
        let fixture = Fixture::new(&[]);
        let user = UserInfo { username: user.to_owned(), ..UserInfo::default() };
        let request = create(&fixture, "", "events", "Event", "e");
        let request = AdmissionRequest { namespace: Some(namespace), user: &user, ..request };
        assert!(EventRateLimit::concerns(&request));
        let found = plugin.check(&request, &event(namespace, involved)).await;
        found.map_err(|status| format!("{} {}", status.code, status.message))
    }

    fn plugin(limits: Value) -> EventRateLimit {
        EventRateLimit::new(parsed(limits).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn events_beyond_the_burst_are_rejected_until_tokens_return() {
        let plugin = plugin(json!([limit("Server", 2, 3, 0)]));
        for _ in 0..3 {
            assert_eq!(written(&plugin, "a", "u", "p").await, Ok(()));
        }
        let refused = Err("429 Too many requests: limit reached on type Server for key ".to_owned());
        assert_eq!(written(&plugin, "b", "v", "q").await, refused);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(written(&plugin, "a", "u", "p").await, Ok(()), "a token has returned");
        assert_eq!(written(&plugin, "a", "u", "p").await, refused);
        tokio::time::advance(Duration::from_secs(3600)).await;
        for _ in 0..3 {
            assert_eq!(written(&plugin, "a", "u", "p").await, Ok(()));
        }
        assert_eq!(written(&plugin, "a", "u", "p").await, refused, "a bucket holds no more than the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn event_takes_one_token_although_its_request_starts_again() {
        let plugin = plugin(json!([limit("Server", 1, 2, 0)]));
        let fixture = Fixture::new(&[]);
        let request = create(&fixture, "", "events", "Event", "e");
        for _ in 0..3 {
            assert_eq!(plugin.check(&request, &event("a", "p")).await, Ok(()));
        }
        assert_eq!(written(&plugin, "a", "u", "p").await, Ok(()), "the second token is left");
        let other = Fixture::new(&[]);
        let request = create(&other, "", "events", "Event", "e");
        for _ in 0..2 {
            let rejected = plugin.check(&request, &event("a", "p")).await;
            assert_eq!(rejected.unwrap_err().code, 429, "a rejected request stays rejected");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_namespace_user_and_object_has_its_own_bucket() {
        for (limit_type, other, key) in [
            ("Namespace", ("b", "u", "p"), "a"),
            ("User", ("a", "v", "p"), "u"),
            ("SourceAndObject", ("a", "u", "q"), "kubeletPodap"),
        ] {
            let plugin = plugin(json!([limit(limit_type, 1, 1, 0)]));
            assert_eq!(written(&plugin, "a", "u", "p").await, Ok(()));
            let refused = format!("429 Too many requests: limit reached on type {limit_type} for key {key}");
            assert_eq!(written(&plugin, "a", "u", "p").await, Err(refused));
            assert_eq!(written(&plugin, other.0, other.1, other.2).await, Ok(()), "{limit_type}");
        }
        let both = plugin(json!([limit("Namespace", 1, 1, 0), limit("User", 1, 1, 0)]));
        assert_eq!(written(&both, "a", "u", "p").await, Ok(()));
        let refused =
            "429 Too many requests: [limit reached on type Namespace for key a, limit reached on type User for key u]";
        assert_eq!(written(&both, "a", "u", "p").await, Err(refused.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn full_bucket_cache_keeps_the_most_recently_used_buckets() {
        let plugin = plugin(json!([limit("User", 1, 1, 2)]));
        for user in ["a", "b", "c"] {
            assert_eq!(written(&plugin, "n", user, "p").await, Ok(()));
        }
        let kept = {
            let buckets = plugin.limits[0].1.lock().unwrap();
            (buckets.by_key.len(), buckets.order.len())
        };
        assert_eq!(kept, (2, 2));
        assert!(written(&plugin, "n", "b", "p").await.is_err(), "its bucket is kept");
        assert_eq!(written(&plugin, "n", "a", "p").await, Ok(()), "its bucket was dropped");
    }

    #[test]
    fn dry_runs_and_other_objects_are_not_rate_limited() {
        let fixture = Fixture::new(&[]);
        let request = create(&fixture, "", "events", "Event", "e");
        for (request, expected) in [
            (request, true),
            (AdmissionRequest { dry_run: true, ..request }, false),
            (AdmissionRequest { kind: "Pod", ..request }, false),
            (AdmissionRequest { operation: Operation::Delete, ..request }, false),
        ] {
            assert_eq!(EventRateLimit::concerns(&request), expected, "{request:?}");
        }
    }
}
