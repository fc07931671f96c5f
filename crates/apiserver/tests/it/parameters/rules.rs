//! The expected outcome of each combination of list and watch parameters. [`outcome`] implements the rules in the order
//! in which the server applies them. [`difference`] compares a response with an outcome.

use std::collections::BTreeMap;

use listwatch_json::Value;
use listwatch_meta::ContinueToken;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// A combination of parameters. Each value is the text in the query.
#[derive(Debug, Clone)]
pub(crate) struct ReadParameters {
    /// Whether the path is `/api/v1/watch/…`.
    pub(crate) legacy_path: bool,
    pub(crate) watch: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) resource_version_match: Option<String>,
    pub(crate) limit: Option<String>,
    pub(crate) continue_token: Option<String>,
    pub(crate) send_initial_events: Option<String>,
    pub(crate) allow_watch_bookmarks: Option<String>,
    pub(crate) timeout_seconds: Option<String>,
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    pub(crate) pretty: Option<String>,
}

impl ReadParameters {
    pub(crate) fn path(&self) -> String {
        let pairs = [
            ("watch", &self.watch),
            ("resourceVersion", &self.resource_version),
            ("resourceVersionMatch", &self.resource_version_match),
            ("limit", &self.limit),
            ("continue", &self.continue_token),
            ("sendInitialEvents", &self.send_initial_events),
            ("allowWatchBookmarks", &self.allow_watch_bookmarks),
            ("timeoutSeconds", &self.timeout_seconds),
            ("labelSelector", &self.label_selector),
            ("fieldSelector", &self.field_selector),
            ("pretty", &self.pretty),
        ];
        let query: Vec<String> = pairs
            .into_iter()
            .filter_map(|(key, value)| {
                Some(format!("{key}={}", utf8_percent_encode(value.as_ref()?, NON_ALPHANUMERIC)))
            })
            .collect();
        let watch = if self.legacy_path { "watch/" } else { "" };
        format!("/api/v1/{watch}namespaces/shop/configmaps?{}", query.join("&"))
    }

    /// Parses a boolean: false if absent, `false` in any case, or `0`; otherwise true.
    fn flag(value: &Option<String>) -> Option<bool> {
        value.as_ref().map(|text| !text.eq_ignore_ascii_case("false") && text != "0")
    }
}

/// The changes of the collection, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The label of the object after the change; `None` for a deletion.
    pub(crate) app: Option<String>,
}

/// The expected state of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) changes: &'a [Change],
    /// The oldest version that is not compacted.
    pub(crate) oldest: u64,
}

/// The objects at one version: label and version by `namespace/name`.
type State<'a> = BTreeMap<String, (&'a str, u64)>;

impl<'a> Model<'a> {
    fn now(&self) -> u64 {
        self.changes.last().map_or(0, |change| change.revision)
    }

    fn at(&self, revision: u64) -> State<'a> {
        let mut state = State::new();
        for change in self.changes.iter().filter(|change| change.revision <= revision) {
            let key = format!("{}/{}", change.namespace, change.name);
            match &change.app {
                Some(app) => drop(state.insert(key, (app, change.revision))),
                None => drop(state.remove(&key)),
            }
        }
        state
    }
}

/// The expected outcome of a combination.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// The response is a Status, whose message begins with this text.
    Refused { code: u16, reason: &'static str, message: String },
    /// The response has these objects (name, version) at this version. `more` is true if there is a next page, and
    /// `left` is the remaining item count.
    List { at: u64, items: Vec<(String, u64)>, more: bool, left: Option<u64> },
    /// The response has these events (type, name, version), then the Status of an ERROR event, if any, and then ends.
    Watch { events: Vec<(String, String, u64)>, error: Option<(u16, &'static str)> },
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) code: u16,
    pub(crate) documents: Vec<Value>,
}

fn refused(code: u16, reason: &'static str, message: impl Into<String>) -> Outcome {
    Outcome::Refused { code, reason, message: message.into() }
}

fn bad_request(message: impl Into<String>) -> Outcome {
    refused(400, "BadRequest", message)
}

/// Returns the expected outcome, by the rules in the order in which kube-apiserver applies them.
pub(crate) fn outcome(asked: &ReadParameters, model: &Model<'_>) -> Outcome {
    let watch = ReadParameters::flag(&asked.watch).unwrap_or(false);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();

    // 1. The query is decoded: numbers first, then the selectors.
    for number in [&asked.timeout_seconds, &asked.limit].into_iter().flatten() {
        if number.parse::<i64>().is_err() {
            return bad_request(format!("strconv.ParseInt: parsing \"{number}\": invalid syntax"));
        }
    }
    match text(&asked.label_selector).as_str() {
        "app in (" => return bad_request("unable to parse requirement: found '', expected: ',', ')' or identifier"),
        "" | "app=web" | "app!=web" | "app in (web,db)" | "!app" => {}
        other => panic!("no rule for the label selector {other}"),
    }
    match text(&asked.field_selector).as_str() {
        "metadata.name" => return bad_request("invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        "a=b=c" => return bad_request("invalid field selector: unescaped character in value: 61"),
        _ => {}
    }

    // 2. Defaults: a watch without a version is a WatchList.
    let version = text(&asked.resource_version);
    let mut matching = text(&asked.resource_version_match);
    let mut initial = ReadParameters::flag(&asked.send_initial_events);
    if watch && initial.is_none() && matching.is_empty() && matches!(&*version, "" | "0") {
        (matching, initial) = ("NotOlderThan".to_owned(), Some(true));
    }

    // 3. Combinations.
    let token = text(&asked.continue_token);
    let mut faults = Vec::new();
    let mut fault = |field: &str, what: &str| faults.push(format!("{field}: {what}"));
    const MATCH: &str = "resourceVersionMatch";
    if watch {
        if initial.is_some() && matching != "NotOlderThan" {
            fault(MATCH, "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if initial.is_none() && !matching.is_empty() {
            fault(MATCH, "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if !matches!(&*matching, "" | "NotOlderThan") {
            fault(MATCH, &format!("Unsupported value: \"{matching}\": supported values: \"NotOlderThan\""));
        }
        if !matching.is_empty() && !token.is_empty() {
            fault(MATCH, "Forbidden: resourceVersionMatch is forbidden when continue is provided");
        }
    } else {
        if !matching.is_empty() && version.is_empty() {
            fault(MATCH, "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !matching.is_empty() && !token.is_empty() {
            fault(MATCH, "Forbidden: resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(&*matching, "" | "Exact" | "NotOlderThan") {
            let supported = "supported values: \"Exact\", \"NotOlderThan\", \"\"";
            fault(MATCH, &format!("Unsupported value: \"{matching}\": {supported}"));
        }
        if matching == "Exact" && version == "0" {
            fault(MATCH, "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if initial.is_some() {
            fault("sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list");
        }
    }
    match faults.as_slice() {
        [] => {}
        [only] => return refused(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {only}")),
        several => {
            let several = several.join(", ");
            return refused(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: [{several}]"));
        }
    }

    // 4. Fields that the resource does not support.
    if text(&asked.field_selector) == "spec.nodeName=n" {
        let known = "only \"metadata.name\", \"metadata.namespace\"";
        return bad_request(format!("\"spec.nodeName\" is not a known field selector: {known}"));
    }

    if watch || asked.legacy_path {
        watched(asked, model, &version, initial)
    } else {
        listed(asked, model, &version, &matching, &token)
    }
}

/// Returns Go's message for a version that is not a number.
fn no_number(version: &str) -> Option<String> {
    let why = match version {
        "abc" | "-1" => "invalid syntax",
        "18446744073709551616" => "value out of range",
        _ => return None,
    };
    Some(format!("resourceVersion: Invalid value: \"{version}\": strconv.ParseUint: parsing \"{version}\": {why}"))
}

fn listed(asked: &ReadParameters, model: &Model<'_>, version: &str, matching: &str, token: &str) -> Outcome {
    // 5. The token, then the version.
    let limit = asked.limit.as_ref().map_or(0, |text| text.parse::<i64>().unwrap_or(0)).max(0) as usize;
    if !token.is_empty() {
        let start = match ContinueToken::decode(token) {
            Ok(token) => token,
            Err(error) => return bad_request(error.to_string()),
        };
        if !matches!(version, "" | "0") {
            return bad_request("specifying resource version is not allowed when using continue");
        }
        let at = start.at.map_or(model.now(), |at| at.get());
        if at < model.oldest {
            let message = "The provided continue parameter is too old to display a consistent list result.";
            return refused(410, "Expired", message);
        }
        return page(asked, model, at, limit, &format!("shop/{}", start.start));
    }
    if let Some(why) = no_number(version) {
        return bad_request(format!("invalid resource version: {why}"));
    }
    let asked_for: u64 = version.parse().unwrap_or(0);
    if asked_for == 0 {
        // The current version. A read of any version has no pages.
        let limit = if version.is_empty() { limit } else { 0 };
        return page(asked, model, model.now(), limit, "");
    }
    if asked_for > model.now() {
        let current = model.now();
        let message = format!("Timeout: Too large resource version: {asked_for}, current: {current}");
        return refused(504, "Timeout", message);
    }
    // A limit asks for exactly the version, but not of the single key that a selector by name reads.
    let exact = matching == "Exact" || (matching.is_empty() && limit > 0 && pinned_name(asked).is_none());
    if !exact {
        return page(asked, model, model.now(), limit, "");
    }
    if asked_for < model.oldest {
        return refused(410, "Expired", "The resourceVersion for the provided list is too old.");
    }
    page(asked, model, asked_for, limit, "")
}

/// Returns the page of objects of the namespace `shop` at a version, from a start key.
fn page(asked: &ReadParameters, model: &Model<'_>, at: u64, limit: usize, start: &str) -> Outcome {
    let state = model.at(at);
    let pinned = pinned_name(asked);
    let within = |key: &str| key.starts_with("shop/") && key >= start && pinned.is_none_or(|name| name_of(key) == name);
    let here: Vec<_> = state.iter().filter(|(key, _)| within(key)).collect();
    let mut items = Vec::new();
    let mut seen = 0;
    for (key, (app, version)) in &here {
        if limit > 0 && items.len() == limit {
            break;
        }
        seen += 1;
        if matches(asked, key, app) {
            items.push((name_of(key), *version));
        }
    }
    let more = limit > 0 && items.len() == limit && seen < here.len();
    let selects = [&asked.label_selector, &asked.field_selector].into_iter().flatten().any(|text| !text.is_empty());
    let left = (more && !selects).then_some((here.len() - seen) as u64);
    Outcome::List { at, items, more, left }
}

/// The name that the field selector requires. It makes the collection a single key.
fn pinned_name(asked: &ReadParameters) -> Option<&str> {
    asked.field_selector.as_deref().and_then(|text| text.strip_prefix("metadata.name="))
}

fn name_of(key: &str) -> String {
    key.rsplit('/').next().unwrap_or_default().to_owned()
}

fn matches(asked: &ReadParameters, key: &str, app: &str) -> bool {
    let labels = match asked.label_selector.as_deref().unwrap_or_default() {
        "" | "app in (web,db)" => true,
        "app=web" => app == "web",
        "app!=web" => app != "web",
        "!app" => false,
        other => panic!("no rule for the label selector {other}"),
    };
    let fields = match asked.field_selector.as_deref().unwrap_or_default() {
        "" => true,
        "metadata.name=a" => name_of(key) == "a",
        "metadata.name!=a" => name_of(key) != "a",
        "metadata.namespace=shop" => key.starts_with("shop/"),
        "metadata.name=nobody" => false,
        other => panic!("no rule for the field selector {other}"),
    };
    labels && fields && key.starts_with("shop/")
}

fn watched(asked: &ReadParameters, model: &Model<'_>, version: &str, initial: Option<bool>) -> Outcome {
    // 5. The version. A version that is not a number has no reason in its Status.
    if let Some(why) = no_number(version) {
        return refused(500, "", why);
    }
    let asked_for: u64 = version.parse().unwrap_or(0);
    let added = |state: State<'_>| {
        let state = state.into_iter().filter(|(key, (app, _))| matches(asked, key, app));
        state.map(|(key, (_, version))| ("ADDED".to_owned(), name_of(&key), version)).collect::<Vec<_>>()
    };
    let with_state = initial == Some(true) || (initial.is_none() && asked_for == 0);
    if with_state {
        if asked_for > model.now() {
            return Outcome::Watch { events: Vec::new(), error: Some((504, "Timeout")) };
        }
        let mut events = added(model.at(model.now()));
        // Only a watch with initial events and bookmarks receives the end mark.
        if initial == Some(true) && ReadParameters::flag(&asked.allow_watch_bookmarks) == Some(true) {
            events.push(("BOOKMARK".to_owned(), "initial-events-end".to_owned(), model.now()));
        }
        return Outcome::Watch { events, error: None };
    }
    if asked_for == 0 {
        return Outcome::Watch { events: Vec::new(), error: None };
    }
    if asked_for < model.oldest {
        return Outcome::Watch { events: Vec::new(), error: Some((410, "Expired")) };
    }
    let mut events = Vec::new();
    for change in model.changes.iter().filter(|change| change.revision > asked_for) {
        let key = format!("{}/{}", change.namespace, change.name);
        let before = model.at(change.revision - 1).get(&key).is_some_and(|(app, _)| matches(asked, &key, app));
        let after = change.app.as_ref().is_some_and(|app| matches(asked, &key, app));
        let kind = match (before, after) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => continue,
        };
        events.push((kind.to_owned(), change.name.clone(), change.revision));
    }
    Outcome::Watch { events, error: None }
}

/// Returns the difference between a response and the expected outcome; `None` if they are equal.
pub(crate) fn difference(asked: &ReadParameters, wanted: &Outcome, found: &Found) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    match wanted {
        Outcome::Refused { code, reason, message } => {
            let [status] = found.documents.as_slice() else {
                return Some(format!("one Status was wanted: {wanted:?}"));
            };
            let well = found.code == *code
                && status["kind"] == "Status"
                && status["status"] == "Failure"
                && status["code"] == *code
                && text(&status["reason"]) == *reason
                && text(&status["message"]).starts_with(message)
                && (*code != 410
                    || asked.continue_token.as_deref().unwrap_or_default().is_empty()
                    || !text(&status["metadata"]["continue"]).is_empty())
                && (*code != 422 || status["details"]["causes"].as_array().is_some_and(|causes| !causes.is_empty()));
            (!well).then(|| format!("wanted: {wanted:?}"))
        }
        Outcome::List { .. } => {
            let [list] = found.documents.as_slice() else { return Some(format!("one list was wanted: {wanted:?}")) };
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let meta = &list["metadata"];
            let shown = Outcome::List {
                at: number(&meta["resourceVersion"]),
                items: items
                    .iter()
                    .map(|item| (text(&item["metadata"]["name"]), number(&item["metadata"]["resourceVersion"])))
                    .collect(),
                more: !text(&meta["continue"]).is_empty(),
                left: meta["remainingItemCount"].as_u64(),
            };
            let well = found.code == 200 && list["kind"] == "ConfigMapList" && list["items"].is_array();
            (!well || shown != *wanted).then(|| format!("wanted: {wanted:?}\nshown:  {shown:?}"))
        }
        Outcome::Watch { events, error } => {
            let mut shown = Vec::new();
            let mut failed = None;
            for event in &found.documents {
                let object = &event["object"];
                let meta = &object["metadata"];
                let name = match text(&event["type"]).as_str() {
                    "ERROR" => {
                        failed = object["code"].as_u64().map(|code| (code as u16, text(&object["reason"])));
                        continue;
                    }
                    "BOOKMARK" if meta["annotations"]["k8s.io/initial-events-end"] == "true" => {
                        "initial-events-end".into()
                    }
                    _ => text(&meta["name"]),
                };
                shown.push((text(&event["type"]), name, number(&meta["resourceVersion"])));
            }
            let failed = failed.as_ref().map(|(code, reason)| (*code, reason.as_str()));
            // A watch whose timeout is over before its start can end after any event.
            let over = asked.timeout_seconds.as_deref() == Some("-1");
            let well = if over { events.starts_with(&shown) } else { *events == shown && failed == *error };
            (found.code != 200 || !well).then(|| format!("wanted: {wanted:?}\nshown:  {shown:?} {failed:?}"))
        }
    }
}
