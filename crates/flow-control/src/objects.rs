//! FlowSchema and PriorityLevelConfiguration, read from their JSON (`flowcontrol.apiserver.k8s.io/v1`).

use serde::{Deserialize, Deserializer};

use crate::dealer::Dealer;
use crate::queue_set::{QUEUES_MAX, Queuing};
use crate::schema::{Distinguisher, NonResourceRule, ResourceRule, Rule, Subject, Values};

/// The names of the mandatory objects of both kinds.
pub(crate) const EXEMPT: &str = "exempt";
pub(crate) const CATCH_ALL: &str = "catch-all";
/// The precedence of the schema [`CATCH_ALL`].
const CATCH_ALL_PRECEDENCE: i64 = 10_000;

/// The number of queues of a level that does not set it (`pkg/apis/flowcontrol/v1/defaults.go`).
const QUEUES_DEFAULT: i64 = 64;
const HAND_SIZE_DEFAULT: i64 = 8;
const QUEUE_LENGTH_DEFAULT: i64 = 50;
const SHARES_DEFAULT: u64 = 30;

/// The error of an object that cannot be used as configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidObject(String);

fn invalid(why: impl std::fmt::Display) -> InvalidObject {
    InvalidObject(why.to_string())
}

/// A flow schema: the rules that select requests, and their level.
#[derive(Clone, Debug)]
pub struct FlowSchema {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) precedence: i64,
    pub(crate) level: String,
    pub(crate) distinguisher: Option<Distinguisher>,
    pub(crate) rules: Vec<Rule>,
    /// The condition `Dangling`: status, reason and message.
    pub(crate) dangling: Option<(String, String, String)>,
}

/// A priority level.
#[derive(Clone, Debug)]
pub struct PriorityLevel {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) queuing: Queuing,
    pub(crate) hand: u64,
    pub(crate) shares: u64,
    pub(crate) lendable_percent: u64,
    pub(crate) borrowing_percent: Option<u64>,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document<S, T> {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable", bound(deserialize = "S: Deserialize<'de> + Default"))]
    spec: S,
    #[serde(deserialize_with = "nullable", bound(deserialize = "T: Deserialize<'de> + Default"))]
    status: T,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SchemaSpec {
    priority_level_configuration: Named,
    matching_precedence: i64,
    distinguisher_method: Option<Typed>,
    #[serde(deserialize_with = "nullable")]
    rules: Vec<RuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Typed {
    r#type: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuleSpec {
    #[serde(deserialize_with = "nullable")]
    subjects: Vec<SubjectSpec>,
    #[serde(deserialize_with = "nullable")]
    resource_rules: Vec<ResourceRuleSpec>,
    #[serde(deserialize_with = "nullable")]
    non_resource_rules: Vec<NonResourceRuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SubjectSpec {
    kind: String,
    user: Option<Named>,
    group: Option<Named>,
    service_account: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourceRuleSpec {
    #[serde(deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    api_groups: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    resources: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    namespaces: Vec<String>,
    cluster_scope: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NonResourceRuleSpec {
    #[serde(deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable")]
    urls: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SchemaStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LevelSpec {
    r#type: String,
    limited: Option<LimitedSpec>,
    exempt: Option<ExemptSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LimitedSpec {
    nominal_concurrency_shares: Option<u64>,
    lendable_percent: Option<u64>,
    borrowing_limit_percent: Option<u64>,
    limit_response: LimitResponse,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExemptSpec {
    nominal_concurrency_shares: Option<u64>,
    lendable_percent: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LimitResponse {
    r#type: String,
    queuing: Option<QueuingSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct QueuingSpec {
    queues: Option<i64>,
    hand_size: Option<i64>,
    queue_length_limit: Option<i64>,
}

impl FlowSchema {
    /// Reads a FlowSchema.
    ///
    /// # Errors
    /// [`InvalidObject`] if the JSON is not that of a FlowSchema.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidObject> {
        let document: Document<SchemaSpec, SchemaStatus> = serde_json::from_slice(json).map_err(invalid)?;
        let Document { metadata, spec, status } = document;
        let distinguisher = match spec.distinguisher_method {
            None => None,
            Some(method) if method.r#type == "ByUser" => Some(Distinguisher::ByUser),
            Some(method) if method.r#type == "ByNamespace" => Some(Distinguisher::ByNamespace),
            Some(method) => return Err(invalid(format_args!("unknown distinguisher method {:?}", method.r#type))),
        };
        let dangling = status.conditions.into_iter().find(|condition| condition.r#type == "Dangling");
        Ok(FlowSchema {
            name: metadata.name,
            uid: metadata.uid,
            precedence: spec.matching_precedence,
            level: spec.priority_level_configuration.name,
            distinguisher,
            rules: spec.rules.into_iter().map(rule).collect(),
            dangling: dangling.map(|condition| (condition.status, condition.reason, condition.message)),
        })
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The schemas `exempt` and `catch-all`, for use while the objects do not exist.
    pub(crate) fn mandatory(name: &str) -> Self {
        let all = || vec!["*".to_owned()];
        let groups: &[&str] =
            if name == EXEMPT { &["system:masters"] } else { &["system:unauthenticated", "system:authenticated"] };
        let rule = Rule {
            subjects: groups.iter().map(|group| Subject::Group((*group).to_owned())).collect(),
            resource_rules: vec![ResourceRule {
                verbs: Values::new(all()),
                api_groups: Values::new(all()),
                resources: Values::new(all()),
                namespaces: Values::new(all()),
                cluster_scope: true,
            }],
            non_resource_rules: vec![NonResourceRule { verbs: Values::new(all()), urls: all() }],
        };
        FlowSchema {
            name: name.to_owned(),
            uid: String::new(),
            precedence: if name == EXEMPT { 1 } else { CATCH_ALL_PRECEDENCE },
            level: name.to_owned(),
            distinguisher: (name != EXEMPT).then_some(Distinguisher::ByUser),
            rules: vec![rule],
            dangling: None,
        }
    }
}

fn rule(spec: RuleSpec) -> Rule {
    let resource_rules = spec.resource_rules.into_iter().map(|rule| ResourceRule {
        verbs: Values::new(rule.verbs),
        api_groups: Values::new(rule.api_groups),
        resources: Values::new(rule.resources),
        namespaces: Values::new(rule.namespaces),
        cluster_scope: rule.cluster_scope,
    });
    let non_resource_rules = spec.non_resource_rules.into_iter();
    let non_resource_rules =
        non_resource_rules.map(|rule| NonResourceRule { verbs: Values::new(rule.verbs), urls: rule.urls });
    Rule {
        subjects: spec.subjects.into_iter().filter_map(subject).collect(),
        resource_rules: resource_rules.collect(),
        non_resource_rules: non_resource_rules.collect(),
    }
}

/// Parses a subject. A subject of another kind, or without the member of its kind, matches no user (`matchesSubject`).
fn subject(spec: SubjectSpec) -> Option<Subject> {
    match &*spec.kind {
        "User" => spec.user.map(|user| if user.name == "*" { Subject::Everybody } else { Subject::User(user.name) }),
        "Group" => {
            spec.group.map(|group| if group.name == "*" { Subject::Everybody } else { Subject::Group(group.name) })
        }
        "ServiceAccount" => {
            let account = spec.service_account?;
            let name = (account.name != "*").then_some(account.name);
            Some(Subject::ServiceAccount { namespace: account.namespace, name })
        }
        _ => None,
    }
}

impl PriorityLevel {
    /// Reads a PriorityLevelConfiguration (`queueSetCompleterForPL`). Numbers above the server's limits are reduced.
    ///
    /// # Errors
    /// [`InvalidObject`] if the JSON is not that of a PriorityLevelConfiguration, or if its parts contradict each other.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidObject> {
        let document: Document<LevelSpec, listwatch_json::Value> = serde_json::from_slice(json).map_err(invalid)?;
        let Document { metadata, spec, .. } = document;
        if (spec.r#type == "Limited") != spec.limited.is_some() {
            return Err(invalid("broken union structure at the top, for Limited"));
        }
        if (spec.r#type == "Exempt") != spec.exempt.is_some() {
            return Err(invalid("broken union structure at the top, for Exempt"));
        }
        if (spec.r#type == "Exempt") != (metadata.name == EXEMPT) {
            return Err(invalid("non-alignment between name and type"));
        }
        let level = PriorityLevel {
            name: metadata.name,
            uid: metadata.uid,
            queuing: Queuing::Exempt,
            hand: 0,
            shares: 0,
            lendable_percent: 0,
            borrowing_percent: None,
        };
        if let Some(exempt) = spec.exempt {
            let shares = exempt.nominal_concurrency_shares.unwrap_or(0);
            return Ok(PriorityLevel { shares, lendable_percent: exempt.lendable_percent.unwrap_or(0), ..level });
        }
        let Some(limited) = spec.limited else { return Err(invalid("a level has to be of type Limited or Exempt")) };
        let response = limited.limit_response;
        if (response.r#type == "Reject") != response.queuing.is_none() {
            return Err(invalid("broken union structure for limit response"));
        }
        let (mut queuing, mut hand) = (Queuing::Reject, 0);
        if let Some(spec) = response.queuing {
            let number = |given: Option<i64>, default: i64| usize::try_from(given.unwrap_or(default)).unwrap_or(0);
            let queues = number(spec.queues, QUEUES_DEFAULT).min(QUEUES_MAX);
            let hand_size = number(spec.hand_size, HAND_SIZE_DEFAULT);
            let Some(dealer) = Dealer::new(queues, hand_size) else {
                return Err(invalid(format_args!("no hand of {hand_size} can be dealt from {queues} queues")));
            };
            let queue_length_max = number(spec.queue_length_limit, QUEUE_LENGTH_DEFAULT);
            (queuing, hand) = (Queuing::Queue { dealer, queues, queue_length_max }, hand_size as u64);
        }
        Ok(PriorityLevel {
            queuing,
            hand,
            shares: limited.nominal_concurrency_shares.unwrap_or(SHARES_DEFAULT),
            lendable_percent: limited.lendable_percent.unwrap_or(0),
            borrowing_percent: limited.borrowing_limit_percent,
            ..level
        })
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The levels `exempt` and `catch-all`, for use while the objects do not exist.
    pub(crate) fn mandatory(name: &str) -> Self {
        let is_exempt = name == EXEMPT;
        PriorityLevel {
            name: name.to_owned(),
            uid: String::new(),
            queuing: if is_exempt { Queuing::Exempt } else { Queuing::Reject },
            hand: 0,
            shares: if is_exempt { 0 } else { 5 },
            lendable_percent: 0,
            borrowing_percent: None,
        }
    }
}
