//! [`Record`] collects the facts of one request. [`Event`] is the record at one stage, which is encoded as
//! `audit.k8s.io/v1` JSON (`audit/request.go`, `apis/audit/v1/types.go`).
//!
//! ```text
//!  RequestFacts ─▶ Record ──annotate, set_status, set_request_object …
//!                    └─event(stage)─▶ Event ─to_json─▶ one line
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use listwatch_meta::go::quote;
use listwatch_meta::status::StatusDetails;
use listwatch_meta::{Status, UserInfo};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::payload::{Payload, metadata};
use crate::policy::{Level, RequestSettings, Stage};

/// The longest user agent in an event, in bytes. The rest of a longer one is replaced by `...TRUNCATED`.
pub const USER_AGENT_BYTES_MAX: usize = 1024;

/// The annotation of an event whose objects were omitted because of their size.
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// The estimated memory of an event without its objects and strings, in bytes.
const EVENT_BYTES: usize = 1024;

/// The object that a request is for (`audit.ObjectReference`). Absent strings are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The plural name of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The uid that the request names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API group; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The version of the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The resource version that the request names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The facts that are known when a request arrives.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// The id of the request, which its response carries as `Audit-ID`.
    pub audit_id: String,
    /// The path and query as the client sent them.
    pub request_uri: String,
    /// The verb, as the authorizers see it.
    pub verb: String,
    /// The user whom the credential names; empty after a failed authentication.
    pub user: Arc<UserInfo>,
    /// The addresses of the client and of its proxies.
    pub source_ips: Vec<String>,
    /// The header `User-Agent`; at most [`USER_AGENT_BYTES_MAX`] bytes of it are written.
    pub user_agent: String,
    /// The object; `None` for a request that is not for a resource.
    pub object_ref: Option<ObjectReference>,
    /// The time at which the request arrived.
    pub received: SystemTime,
}

/// The status of a response in an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct ResponseStatus {
    metadata: Empty,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: Cow<'static, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<StatusDetails>,
    #[serde(skip_serializing_if = "is_zero")]
    code: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Empty {}

fn is_zero(code: &u16) -> bool {
    *code == 0
}

/// The facts about one request, collected while the server works on it.
#[derive(Clone, Debug)]
pub struct Record {
    settings: RequestSettings,
    facts: Arc<RequestFacts>,
    impersonated: Option<Box<Impersonated>>,
    annotations: BTreeMap<Cow<'static, str>, String>,
    status: Option<ResponseStatus>,
    request: Option<RequestObject>,
    response: Option<Payload>,
}

/// The impersonated user.
#[derive(Clone, Debug)]
struct Impersonated {
    user: Arc<UserInfo>,
    /// The verb that allowed the impersonation; empty for classic impersonation.
    constraint: &'static str,
}

#[derive(Clone, Debug)]
struct RequestObject {
    payload: Payload,
    /// Whether empty fields of the reference are filled from the metadata of the request object.
    completes_reference: bool,
}

impl Record {
    /// Begins the record of a request with the settings of the policy.
    pub fn new(settings: RequestSettings, facts: RequestFacts) -> Self {
        Record {
            settings,
            facts: Arc::new(facts),
            impersonated: None,
            annotations: BTreeMap::new(),
            status: None,
            request: None,
            response: None,
        }
    }

    /// Returns the level of detail that is recorded.
    pub fn level(&self) -> Level {
        self.settings.level
    }

    /// Sets the impersonated user, and the verb that allowed the impersonation. The verb is empty for classic
    /// impersonation (`LogImpersonatedUser`).
    pub fn set_impersonated_user(&mut self, user: Arc<UserInfo>, constraint: &'static str) {
        self.impersonated = Some(Box::new(Impersonated { user, constraint }));
    }

    /// Adds an annotation. Returns false if the key has another value, which stays (`logAnnotation`).
    pub fn annotate(&mut self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> bool {
        let value = value.into();
        let kept = self.annotations.entry(key.into()).or_insert_with(|| value.clone());
        *kept == value
    }

    /// Sets the object of the request. If `completes_reference`, the metadata of the object fills the empty fields of
    /// the reference. Pass false for a patch and for options. The object is recorded from [`Level::Request`] on.
    pub fn set_request_object(&mut self, payload: Payload, completes_reference: bool) {
        if completes_reference || self.level() >= Level::Request {
            self.request = Some(RequestObject { payload, completes_reference });
        }
    }

    /// Sets the object of the response. Below [`Level::RequestResponse`] it is ignored.
    pub fn set_response_object(&mut self, payload: Payload) {
        if self.level() >= Level::RequestResponse {
            self.response = Some(payload);
        }
    }

    /// Sets the status from a response that is a `Status`.
    pub fn set_status(&mut self, status: &Status) {
        self.status = Some(ResponseStatus {
            metadata: Empty {},
            status: status.status.clone(),
            message: Cow::Owned(status.message.clone()),
            reason: status.reason.clone(),
            details: status.details.clone(),
            code: status.code,
        });
    }

    /// Sets only the message of the status, as for a failed authentication.
    pub fn set_message(&mut self, message: impl Into<Cow<'static, str>>) {
        self.status.get_or_insert_default().message = message.into();
    }

    /// Sets the code of the response.
    pub fn set_code(&mut self, code: u16) {
        self.status.get_or_insert_default().code = code;
    }

    /// Records that the connection ended before a response, unless a response began (`Connection closed early`).
    pub fn set_closed_early(&mut self) {
        self.status.get_or_insert_with(|| ResponseStatus {
            status: Cow::Borrowed("Success"),
            message: Cow::Borrowed("Connection closed early"),
            code: 200,
            ..ResponseStatus::default()
        });
    }

    /// Records a panic of the handler.
    pub fn set_panic(&mut self, panic: &str) {
        self.status = Some(ResponseStatus {
            status: Cow::Borrowed("Failure"),
            message: Cow::Owned(format!("APIServer panic'd: {panic}")),
            reason: Cow::Borrowed(listwatch_meta::status::reason::INTERNAL_ERROR),
            code: 500,
            ..ResponseStatus::default()
        });
    }

    /// The event of a stage; `None` if the policy omits it. Only the last event of a request has its objects.
    pub fn event(&self, stage: Stage, now: SystemTime) -> Option<Event> {
        if self.settings.level == Level::None || self.settings.omit_stages.contains(stage) {
            return None;
        }
        let at = if stage == Stage::RequestReceived { self.facts.received } else { now };
        Some(Event { record: self.clone(), stage, at })
    }
}

/// A record at one stage.
#[derive(Clone, Debug)]
pub struct Event {
    record: Record,
    stage: Stage,
    at: SystemTime,
}

/// The form of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventForm {
    /// A complete object, as a line of a log file.
    Object,
    /// An item of an EventList, as for a webhook.
    Item,
    /// The text of `--audit-log-format=legacy`.
    Legacy,
}

/// The sizes above which events are shortened (`--audit-log-truncate-*`, `--audit-webhook-truncate-*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The largest event, in bytes. A larger event is encoded without its objects. An event that is still too large is
    /// dropped.
    pub event_bytes_max: usize,
    /// The largest batch, in bytes of its events. A larger one is split.
    pub batch_bytes_max: usize,
}

impl Default for Truncation {
    fn default() -> Self {
        Truncation { event_bytes_max: 100 << 10, batch_bytes_max: 10 << 20 }
    }
}

/// The event is too large even without its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event is too large even after truncating")]
pub struct EventTooLarge;

impl Event {
    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The memory that the event holds, in bytes, for the limits of queues.
    pub fn bytes(&self) -> usize {
        let Record { facts, annotations, request, response, .. } = &self.record;
        let texts = facts.request_uri.len() + facts.user_agent.len().min(USER_AGENT_BYTES_MAX) + facts.audit_id.len();
        let annotations: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        let request = request.as_ref().map_or(0, |request| request.payload.bytes());
        EVENT_BYTES + texts + annotations + request + response.as_ref().map_or(0, Payload::bytes)
    }

    /// The event as text without a line break.
    ///
    /// # Errors
    /// [`EventTooLarge`], with a [`Truncation`].
    pub fn encode(&self, form: EventForm, truncation: Option<&Truncation>) -> Result<Vec<u8>, EventTooLarge> {
        if form == EventForm::Legacy {
            return Ok(self.legacy().into_bytes());
        }
        let (level, omit) = (self.record.level(), self.record.settings.omit_managed_fields);
        let mut is_truncated = false;
        let mut convert = |payload: &Payload| match payload.to_json(omit) {
            Ok(json) => Some(json),
            Err(crate::payload::PayloadError::TooLarge) => {
                is_truncated = true;
                None
            }
            Err(crate::payload::PayloadError::Invalid) => None,
        };
        let request = self.record.request.as_ref().and_then(|request| convert(&request.payload));
        let response = self.record.response.as_ref().and_then(convert);
        let object_ref = self.object_ref(request.as_deref());
        let request = request.filter(|_| level >= Level::Request);
        let write = |request: Option<&RawValue>, response: Option<&RawValue>, is_truncated: bool| {
            let event = self.wire(form, object_ref.as_ref(), request, response, is_truncated);
            // Texts, numbers and valid JSON always serialize.
            serde_json::to_vec(&event).unwrap_or_default()
        };
        let text = write(request.as_deref(), response.as_deref(), is_truncated);
        let Some(Truncation { event_bytes_max, .. }) = truncation else { return Ok(text) };
        if text.len() <= *event_bytes_max {
            return Ok(text);
        }
        let text = if level >= Level::Request { write(None, None, true) } else { text };
        if text.len() <= *event_bytes_max { Ok(text) } else { Err(EventTooLarge) }
    }

    /// The reference, with empty fields filled from the metadata of the object (`LogRequestObject`).
    fn object_ref(&self, request: Option<&RawValue>) -> Option<ObjectReference> {
        let mut reference = self.record.facts.object_ref.clone()?;
        let completes = self.record.request.as_ref().is_some_and(|request| request.completes_reference);
        if let Some(json) = request.filter(|_| completes) {
            let found = metadata(json);
            for (field, value) in [
                (&mut reference.namespace, found.namespace),
                (&mut reference.name, found.name),
                (&mut reference.uid, found.uid),
                (&mut reference.resource_version, found.resource_version),
            ] {
                if field.is_empty() {
                    *field = value;
                }
            }
        }
        Some(reference)
    }

    fn wire<'a>(
        &'a self,
        form: EventForm,
        object_ref: Option<&'a ObjectReference>,
        request_object: Option<&'a RawValue>,
        response_object: Option<&'a RawValue>,
        is_truncated: bool,
    ) -> WireEvent<'a> {
        let Record { settings, facts, impersonated, annotations, status, .. } = &self.record;
        let mut annotations: BTreeMap<&str, &str> =
            annotations.iter().map(|(key, value)| (&**key, value.as_str())).collect();
        if is_truncated {
            annotations.insert(TRUNCATED, "true");
        }
        let is_object = form == EventForm::Object;
        WireEvent {
            kind: is_object.then_some("Event"),
            api_version: is_object.then_some("audit.k8s.io/v1"),
            level: settings.level.name(),
            audit_id: &facts.audit_id,
            stage: self.stage.name(),
            request_uri: &facts.request_uri,
            verb: &facts.verb,
            user: WireUser::new(&facts.user),
            impersonated_user: impersonated.as_ref().map(|impersonated| WireUser::new(&impersonated.user)),
            authentication_metadata: impersonated
                .as_ref()
                .filter(|impersonated| !impersonated.constraint.is_empty())
                .map(|impersonated| AuthenticationMetadata { impersonation_constraint: impersonated.constraint }),
            source_ips: &facts.source_ips,
            user_agent: user_agent(&facts.user_agent),
            object_ref,
            response_status: status.as_ref(),
            request_object,
            response_object,
            request_received_timestamp: micro_time(facts.received),
            stage_timestamp: micro_time(self.at),
            annotations,
        }
    }

    /// The text of the format `legacy` (`audit.EventString`).
    fn legacy(&self) -> String {
        let Record { facts, impersonated, status, .. } = &self.record;
        let groups = |groups: &[String]| groups.iter().map(|group| quote(group)).collect::<Vec<_>>().join(",");
        let (mut user, mut of_user) = ("<none>".to_owned(), "<none>".to_owned());
        if !facts.user.username.is_empty() {
            user.clone_from(&facts.user.username);
            if !facts.user.groups.is_empty() {
                of_user = groups(&facts.user.groups);
            }
        }
        let (as_user, as_groups) = match impersonated.as_deref() {
            Some(Impersonated { user, .. }) => (user.username.clone(), groups(&user.groups)),
            None => ("<self>".to_owned(), "<lookup>".to_owned()),
        };
        let namespace = facts.object_ref.as_ref().map(|reference| reference.namespace.as_str());
        let mut line = format!("{} AUDIT:", micro_time(facts.received));
        for (key, value) in [
            ("id", facts.audit_id.as_str()),
            ("stage", self.stage.name()),
            ("ip", facts.source_ips.first().map_or("<unknown>", String::as_str)),
            ("method", &facts.verb),
            ("user", &user),
            ("groups", &of_user),
            ("as", &as_user),
            ("asgroups", &as_groups),
            ("user-agent", &user_agent(&facts.user_agent)),
            ("namespace", namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("<none>")),
            ("uri", &facts.request_uri),
        ] {
            let _ = write!(line, " {key}={}", quote(value));
        }
        let response = status.as_ref().map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let _ = write!(line, " response=\"{response}\"");
        line
    }
}

/// The fields of an event, in upstream's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireEvent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: WireUser<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<WireUser<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[String]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<&'a ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<&'a ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a RawValue>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthenticationMetadata {
    impersonation_constraint: &'static str,
}

/// A user without its empty fields.
#[derive(Serialize)]
struct WireUser<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

impl<'a> WireUser<'a> {
    fn new(user: &'a UserInfo) -> Self {
        WireUser { username: &user.username, uid: &user.uid, groups: &user.groups, extra: &user.extra }
    }
}

fn user_agent(text: &str) -> Cow<'_, str> {
    match text.len() > USER_AGENT_BYTES_MAX {
        true => format!("{}...TRUNCATED", listwatch_meta::status::prefix(text, USER_AGENT_BYTES_MAX)).into(),
        false => text.into(),
    }
}

/// A `metav1.MicroTime`.
fn micro_time(at: SystemTime) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    OffsetDateTime::from(at).format(format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use listwatch_json::{Value, json};

    use super::*;
    use crate::policy::StageSet;

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + millis)
    }

    fn facts() -> RequestFacts {
        let user = UserInfo { username: "alice".to_owned(), groups: vec!["dev".to_owned()], ..UserInfo::default() };
        RequestFacts {
            audit_id: "id-1".to_owned(),
            request_uri: "/api/v1/namespaces/a/pods?dryRun=All".to_owned(),
            verb: "create".to_owned(),
            user: Arc::new(user),
            source_ips: vec!["10.0.0.1".to_owned()],
            user_agent: "kubectl/v1.36".to_owned(),
            object_ref: Some(ObjectReference {
                resource: "pods".to_owned(),
                namespace: "a".to_owned(),
                api_version: "v1".to_owned(),
                ..ObjectReference::default()
            }),
            received: at(0),
        }
    }

    fn record(level: Level) -> Record {
        Record::new(RequestSettings { level, ..RequestSettings::default() }, facts())
    }

    fn pod() -> Payload {
        Payload::json("{\"metadata\":\n {\"name\":\"p\",\"uid\":\"u\",\"managedFields\":[{}]}}".into())
    }

    fn json_of(event: Option<Event>) -> Value {
        let text = event.expect("an event").encode(EventForm::Object, None).expect("no truncation");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn event_json_has_upstreams_fields_in_upstreams_order() {
        let mut record = record(Level::Metadata);
        record.annotate("authorization.k8s.io/reason", "");
        record.annotate("authorization.k8s.io/decision", "allow");
        record.set_request_object(pod(), true);
        record.set_code(201);
        let event = record.event(Stage::ResponseComplete, at(1)).expect("an event");
        let text = String::from_utf8(event.encode(EventForm::Object, None).expect("small")).expect("UTF-8");
        let expected = concat!(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"id-1","stage":"ResponseComplete","#,
            r#""requestURI":"/api/v1/namespaces/a/pods?dryRun=All","verb":"create","user":{"username":"alice","groups":["dev"]},"#,
            r#""sourceIPs":["10.0.0.1"],"userAgent":"kubectl/v1.36","objectRef":{"resource":"pods","namespace":"a","name":"p","uid":"u","#,
            r#""apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2023-11-14T22:13:20.000000Z","#,
            r#""stageTimestamp":"2023-11-14T22:13:20.001000Z","annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":""}}"#,
        );
        assert_eq!(text, expected);
        let item = String::from_utf8(event.encode(EventForm::Item, None).expect("small")).expect("UTF-8");
        assert!(item.starts_with(r#"{"level":"Metadata""#), "items of a list have no kind: {item}");
    }

    #[test]
    fn level_decides_which_objects_are_recorded() {
        for (level, request, response) in
            [(Level::Metadata, false, false), (Level::Request, true, false), (Level::RequestResponse, true, true)]
        {
            let mut record = record(level);
            record.set_request_object(pod(), true);
            record.set_response_object(pod());
            let event = json_of(record.event(Stage::ResponseComplete, at(1)));
            let has = (event.get("requestObject").is_some(), event.get("responseObject").is_some());
            assert_eq!(has, (request, response), "{level:?}");
            assert_eq!(event["objectRef"]["name"], "p", "the object completes the reference at every level");
        }
        assert!(record(Level::None).event(Stage::ResponseComplete, at(1)).is_none());
    }

    #[test]
    fn patch_body_does_not_fill_the_object_reference() {
        let mut record = record(Level::Request);
        record.set_request_object(pod(), false);
        let event = json_of(record.event(Stage::ResponseComplete, at(1)));
        assert_eq!(event["objectRef"], json!({"resource": "pods", "namespace": "a", "apiVersion": "v1"}));
        assert_eq!(event["requestObject"]["metadata"]["name"], "p");
    }

    #[test]
    fn omitted_stages_have_no_event_and_the_first_stage_has_the_time_of_arrival() {
        let omit_stages = StageSet::from_iter([Stage::ResponseStarted]);
        let settings = RequestSettings { level: Level::Metadata, omit_stages, omit_managed_fields: false };
        let record = Record::new(settings, facts());
        assert!(record.event(Stage::ResponseStarted, at(1)).is_none());
        let received = json_of(record.event(Stage::RequestReceived, at(9)));
        assert_eq!(received["stageTimestamp"], received["requestReceivedTimestamp"]);
        assert_eq!(received.get("responseStatus"), None);
    }

    #[test]
    fn annotation_keeps_its_first_value() {
        let mut record = record(Level::Metadata);
        assert!(record.annotate("a", "1") && record.annotate("a", "1"));
        assert!(!record.annotate("a", "2"));
        assert_eq!(json_of(record.event(Stage::Panic, at(1)))["annotations"], json!({"a": "1"}));
    }

    #[test]
    fn status_of_the_response_is_recorded_without_kind() {
        let status = |change: &dyn Fn(&mut Record)| {
            let mut record = record(Level::Metadata);
            change(&mut record);
            json_of(record.event(Stage::ResponseComplete, at(1)))["responseStatus"].clone()
        };
        let missing = Status::bad_request("no");
        let expected =
            json!({"metadata": {}, "status": "Failure", "message": "no", "reason": "BadRequest", "code": 400});
        assert_eq!(status(&|record| record.set_status(&missing)), expected);
        let early = json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
        assert_eq!(status(&Record::set_closed_early), early);
        let both = |record: &mut Record| {
            record.set_code(101);
            record.set_closed_early();
        };
        assert_eq!(status(&both), json!({"metadata": {}, "code": 101}));
        let panic = status(&|record| record.set_panic("boom"));
        assert_eq!((&panic["message"], &panic["code"]), (&json!("APIServer panic'd: boom"), &json!(500)));
        let message = status(&|record| record.set_message("Authentication failed, no credentials provided"));
        assert_eq!(message, json!({"metadata": {}, "message": "Authentication failed, no credentials provided"}));
    }

    #[test]
    fn large_event_loses_its_objects_and_is_dropped_if_still_large() {
        let mut with_objects = record(Level::Request);
        let long = format!("{{\"data\":\"{}\"}}", "x".repeat(1_000));
        with_objects.set_request_object(Payload::json(long.into()), true);
        let event = with_objects.event(Stage::ResponseComplete, at(1)).expect("an event");
        let limit = |event_bytes_max| Truncation { event_bytes_max, ..Truncation::default() };
        let encoded = |bytes_max| event.encode(EventForm::Item, Some(&limit(bytes_max)));
        assert!(encoded(10_000).is_ok_and(|text| text.len() > 1_000));
        let shortened: Value = serde_json::from_slice(&encoded(1_000).expect("shortened")).expect("JSON");
        assert_eq!(shortened.get("requestObject"), None);
        assert_eq!(shortened["annotations"][TRUNCATED], "true");
        assert_eq!(encoded(100), Err(EventTooLarge));
        let metadata = record(Level::Metadata).event(Stage::ResponseComplete, at(1)).expect("an event");
        assert_eq!(metadata.encode(EventForm::Item, Some(&limit(100))), Err(EventTooLarge));
    }

    #[test]
    fn event_of_anonymous_request_has_empty_user_and_truncated_user_agent() {
        let user_agent = "é".repeat(USER_AGENT_BYTES_MAX);
        let facts = RequestFacts { user: Arc::default(), user_agent, object_ref: None, ..facts() };
        let settings = RequestSettings { level: Level::Metadata, ..RequestSettings::default() };
        let event = json_of(Record::new(settings, facts).event(Stage::ResponseStarted, at(1)));
        assert_eq!(event["user"], json!({}));
        let shown = event["userAgent"].as_str().expect("a text");
        assert_eq!(shown.len(), USER_AGENT_BYTES_MAX + "...TRUNCATED".len());
        assert_eq!(event.get("objectRef"), None);
    }

    #[test]
    fn legacy_line_quotes_client_controlled_fields() {
        let mut record = record(Level::Metadata);
        record.set_code(201);
        let event = record.event(Stage::ResponseComplete, at(1)).expect("an event");
        let line = String::from_utf8(event.encode(EventForm::Legacy, None).expect("a line")).expect("UTF-8");
        let expected = "2023-11-14T22:13:20.000000Z AUDIT: id=\"id-1\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" \
             method=\"create\" user=\"alice\" groups=\"\\\"dev\\\"\" as=\"<self>\" asgroups=\"<lookup>\" \
             user-agent=\"kubectl/v1.36\" namespace=\"a\" uri=\"/api/v1/namespaces/a/pods?dryRun=All\" response=\"201\"";
        assert_eq!(line, expected);
    }
}
