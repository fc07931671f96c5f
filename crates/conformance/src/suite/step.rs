//! The steps of a case, as `cases/README.md` describes them.

use std::time::Duration;

use serde_json::{Map, Value};

use super::reader::Members;
use crate::value::matcher;
use crate::value::path::Path;

/// The largest number of repetitions or branches of one step.
const REPEAT_MAX: u64 = 10_000;

/// The default deadline of a step. It is below the interval of a server's HTTP/2 PING frames (30 s), with which a held
/// event would leave.
pub(crate) const STEP_WAIT: Duration = Duration::from_secs(15);

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Request(RequestStep),
    Create(WriteStep),
    Update(WriteStep),
    Watch(WatchStep),
    Events(EventsStep),
    Stop { watch: String },
    Repeat { times: u64, variable: String, steps: Vec<Step> },
    Parallel { branches: Vec<Vec<Step>>, variable: String },
    Assert { value: Value, expected: Value },
    Compact { to: String },
    Restart,
}

/// The protocol that a step requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// The protocol of the run.
    Default,
    Http1,
    Http2,
    WebSocket,
}

/// The encoding of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    Json,
    Yaml,
    Protobuf,
    Cbor,
    /// The text, unchanged.
    Raw,
}

/// A request, and the expectations of its response.
#[derive(Clone, Debug)]
pub(crate) struct RequestStep {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Map<String, Value>,
    pub(crate) headers: Map<String, Value>,
    pub(crate) body: Option<Value>,
    pub(crate) encoding: BodyEncoding,
    pub(crate) via: Via,
    /// The alternative expectations, of which one must be met.
    pub(crate) expect: Vec<Expectation>,
    /// If the response meets one of these expectations, the server does not support the tested capability.
    pub(crate) unsupported: Vec<Expectation>,
    /// If the response meets one of these expectations, the rule does not apply to the server, and the case is skipped.
    pub(crate) not_applicable: Vec<Expectation>,
    pub(crate) save: Vec<(String, Path)>,
    /// Whether the request is repeated until the response meets an expectation.
    pub(crate) eventually: bool,
    pub(crate) within: Duration,
}

/// The expected properties of a response. Every given property must match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expectation {
    /// The accepted codes. An empty list accepts any 2xx, or any code if `any_status` is set.
    pub(crate) status: Vec<u16>,
    pub(crate) any_status: bool,
    pub(crate) headers: Vec<(String, Value)>,
    pub(crate) body: Vec<(Path, Value)>,
    pub(crate) text: Option<Value>,
    pub(crate) http: Option<String>,
}

/// An object that is created or updated, and its version, which is saved as `rv.NAME`.
#[derive(Clone, Debug)]
pub(crate) struct WriteStep {
    pub(crate) name: String,
    /// A JSON merge patch (RFC 7396), which is applied to the object before the write.
    pub(crate) set: Value,
    pub(crate) save: Vec<(String, Path)>,
}

/// A watch that is opened in the background.
#[derive(Clone, Debug)]
pub(crate) struct WatchStep {
    pub(crate) watch: String,
    /// The request; the query has `watch=true` unless it sets another value.
    pub(crate) request: RequestStep,
}

/// The expected events of an open watch.
#[derive(Clone, Debug)]
pub(crate) struct EventsStep {
    pub(crate) watch: String,
    pub(crate) expected: Vec<ExpectedEvent>,
    /// Alternative sequences of events, of which one must match. They follow after `expected`.
    pub(crate) alternatives: Vec<Vec<ExpectedEvent>>,
    pub(crate) unordered: bool,
    /// Takes this number of further events, of any type except bookmarks.
    pub(crate) count: Option<Value>,
    pub(crate) until: Option<ExpectedEvent>,
    /// Whether the resource versions of the taken events must increase.
    pub(crate) increasing: bool,
    /// Applies the events to a list of names, and saves the names that remain, in order.
    pub(crate) replay: Option<(Value, String)>,
    /// Saves the taken events as `TYPE name version`.
    pub(crate) save: Option<String>,
    /// Whether the stream must end after these events.
    pub(crate) end: bool,
    pub(crate) within: Duration,
}

/// One expected event.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedEvent {
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) body: Vec<(Path, Value)>,
    pub(crate) save: Vec<(String, Path)>,
}

impl Step {
    /// Reads the steps of a list.
    pub(super) fn read_all(steps: &[Value], place: &str) -> Result<Vec<Step>, String> {
        steps.iter().enumerate().map(|(at, step)| Step::read(step, format!("{place}, step {}", at + 1))).collect()
    }

    fn read(step: &Value, place: String) -> Result<Step, String> {
        let mut members = Members::new(step, place.clone())?;
        let known = [
            "request", "list", "get", "delete", "create", "update", "watch", "events", "stop", "repeat", "parallel",
            "assert", "compact", "restart",
        ];
        let mut actions = known.iter().filter(|name| members.has(name));
        let action = *actions.next().ok_or_else(|| members.error(format!("has none of {}", known.join(", "))))?;
        if let Some(second) = actions.next() {
            return Err(members.error(format!("has both {action} and {second}")));
        }
        let step = match action {
            "request" => {
                let line = members.required_text("request")?;
                let (method, path) = line.split_once(' ').ok_or_else(|| members.error("request is no METHOD PATH"))?;
                Step::Request(RequestStep::read(&mut members, method, path)?)
            }
            "list" => {
                let query = members.object("list")?.cloned().unwrap_or_default();
                let mut request = RequestStep::read(&mut members, "GET", "{{collection}}")?;
                request.query = query;
                Step::Request(request)
            }
            "get" | "delete" => {
                let name = members.required_text(if action == "get" { "get" } else { "delete" })?;
                let method = if action == "get" { "GET" } else { "DELETE" };
                let path = format!("{{{{collection}}}}/{name}");
                Step::Request(RequestStep::read(&mut members, method, &path)?)
            }
            "create" => Step::Create(WriteStep::read(&mut members, "create")?),
            "update" => Step::Update(WriteStep::read(&mut members, "update")?),
            "watch" => {
                let watch = members.required_text("watch")?;
                let path = members.text("path")?.unwrap_or_else(|| "{{collection}}".to_owned());
                let mut request = RequestStep::read(&mut members, "GET", &path)?;
                let watched = request.query.get("watch").cloned();
                match watched {
                    None => drop(request.query.insert("watch".to_owned(), Value::from("true"))),
                    Some(Value::Null) => drop(request.query.shift_remove("watch")),
                    Some(_) => {}
                }
                Step::Watch(WatchStep { watch, request })
            }
            "events" => Step::Events(EventsStep::read(&mut members)?),
            "stop" => Step::Stop { watch: members.required_text("stop")? },
            "repeat" => {
                let times = members.number("repeat")?.unwrap_or_default();
                if times == 0 || times > REPEAT_MAX {
                    return Err(members.error(format!("repeat is not between 1 and {REPEAT_MAX}")));
                }
                let variable = members.text("as")?.unwrap_or_else(|| "i".to_owned());
                let steps = Step::read_all(members.list("steps")?, &place)?;
                Step::Repeat { times, variable, steps }
            }
            "parallel" => Step::read_parallel(&mut members, &place)?,
            "assert" => {
                let value = members.take("assert").cloned().unwrap_or_default();
                let expected = members.take("is").cloned().ok_or_else(|| members.error("is is missing"))?;
                Step::Assert { value, expected: checked(&members, &expected)? }
            }
            "compact" => Step::Compact { to: members.required_text("compact")? },
            _ => {
                members.flag("restart")?;
                Step::Restart
            }
        };
        members.finish()?;
        Ok(step)
    }

    fn read_parallel(members: &mut Members<'_>, place: &str) -> Result<Step, String> {
        let variable = members.text("as")?.unwrap_or_else(|| "w".to_owned());
        let branches = match members.take("parallel") {
            Some(Value::Array(branches)) => {
                let lists = branches.iter().map(|branch| branch.as_array().map(Vec::as_slice).unwrap_or_default());
                lists.map(|steps| Step::read_all(steps, place)).collect::<Result<_, _>>()?
            }
            Some(Value::Number(number)) => {
                let count = number.as_u64().filter(|count| (1..=64).contains(count));
                let count = count.ok_or_else(|| members.error("parallel is not between 1 and 64"))?;
                let steps = Step::read_all(members.list("steps")?, place)?;
                (0..count).map(|_| steps.clone()).collect()
            }
            _ => return Err(members.error("parallel is neither a number nor a list of branches")),
        };
        Ok(Step::Parallel { branches, variable })
    }
}

impl RequestStep {
    fn read(members: &mut Members<'_>, method: &str, path: &str) -> Result<Self, String> {
        let body = members.take("body").cloned();
        let encoding = match members.text("encoding")?.as_deref() {
            None | Some("json") => BodyEncoding::Json,
            Some("yaml") => BodyEncoding::Yaml,
            Some("protobuf") => BodyEncoding::Protobuf,
            Some("cbor") => BodyEncoding::Cbor,
            Some("raw") => BodyEncoding::Raw,
            Some(other) => return Err(members.error(format!("the encoding {other} is not known"))),
        };
        let via = match members.text("via")?.as_deref() {
            None => Via::Default,
            Some("http/1.1") => Via::Http1,
            Some("h2") => Via::Http2,
            Some("websocket") => Via::WebSocket,
            Some(other) => return Err(members.error(format!("{other} is neither http/1.1, h2 nor websocket"))),
        };
        let query = members.object("query")?.cloned().unwrap_or_default();
        let headers = members.object("headers")?.cloned().unwrap_or_default();
        let expect = match members.take("expect") {
            None => vec![Expectation::default()],
            Some(one) => vec![Expectation::read(one, &members.error("expect"))?],
        };
        let alternatives = Expectation::read_all(members.list("expect_any")?, &members.error("expect_any"))?;
        let expect = if alternatives.is_empty() { expect } else { alternatives };
        let eventually = members.number("eventually")?;
        let within = members.number("within")?.or(eventually).map_or(STEP_WAIT, Duration::from_secs);
        Ok(RequestStep {
            method: method.to_owned(),
            path: path.trim().to_owned(),
            query,
            headers,
            body,
            encoding,
            via,
            expect,
            unsupported: Expectation::read_all(members.list("unsupported")?, &members.error("unsupported"))?,
            not_applicable: Expectation::read_all(members.list("not_applicable")?, &members.error("not_applicable"))?,
            save: saves(members)?,
            eventually: eventually.is_some(),
            within,
        })
    }
}

impl Expectation {
    fn read_all(list: &[Value], place: &str) -> Result<Vec<Self>, String> {
        list.iter().map(|one| Expectation::read(one, place)).collect()
    }

    fn read(value: &Value, place: &str) -> Result<Self, String> {
        let mut members = Members::new(value, place)?;
        let code = |value: &Value| value.as_u64().and_then(|code| u16::try_from(code).ok());
        let mut any_status = false;
        let status = match members.take("status") {
            None => Some(Vec::new()),
            Some(Value::String(text)) if text == "any" => {
                any_status = true;
                Some(Vec::new())
            }
            Some(Value::Array(codes)) => codes.iter().map(code).collect(),
            Some(one) => code(one).map(|code| vec![code]),
        };
        let status = status.ok_or_else(|| members.error("status is neither a code, a list of codes nor any"))?;
        let mut headers = Vec::new();
        for (name, expected) in members.object("headers")?.into_iter().flatten() {
            headers.push((name.to_ascii_lowercase(), checked(&members, expected)?));
        }
        let mut body = paths(&mut members, "body")?;
        for (member, path) in [
            ("names", "items[*].metadata.name"),
            ("reason", "reason"),
            ("message", "message"),
            ("causes", "details.causes[*].reason"),
        ] {
            let expected = match member {
                "names" => members.take("names"),
                "reason" => members.take("reason"),
                "message" => members.take("message"),
                _ => members.take("causes"),
            };
            if let Some(expected) = expected {
                body.push((Path::parse(path)?, checked(&members, expected)?));
            }
        }
        let text = members.take("text").map(|text| checked(&members, text)).transpose()?;
        let http = members.text("http")?;
        members.finish()?;
        Ok(Expectation { status, any_status, headers, body, text, http })
    }
}

impl WriteStep {
    fn read(members: &mut Members<'_>, action: &'static str) -> Result<Self, String> {
        let name = members.required_text(action)?;
        let mut set = members.object("set")?.cloned().unwrap_or_default();
        let mut metadata = Map::new();
        for (member, value) in [
            ("labels", members.take("labels")),
            ("annotations", members.take("annotations")),
            ("finalizers", members.take("finalizers")),
        ] {
            if let Some(value) = value {
                metadata.insert(member.to_owned(), value.clone());
            }
        }
        if !metadata.is_empty() {
            let mut merged = Value::Object(set.clone());
            crate::value::template::merge(&mut merged, &serde_json::json!({ "metadata": metadata }));
            set = merged.as_object().cloned().unwrap_or_default();
        }
        Ok(WriteStep { name, set: Value::Object(set), save: saves(members)? })
    }
}

impl EventsStep {
    fn read(members: &mut Members<'_>) -> Result<Self, String> {
        let watch = members.required_text("events")?;
        let read_all = |events: &[Value], place: &str| -> Result<Vec<ExpectedEvent>, String> {
            events.iter().map(|event| ExpectedEvent::read(event, place)).collect()
        };
        let expected = read_all(members.list("expect")?, &members.error("expect"))?;
        let mut alternatives = Vec::new();
        for events in members.list("expect_any")? {
            let events = events.as_array().filter(|events| !events.is_empty());
            let events = events.ok_or_else(|| members.error("expect_any is not a list of sequences"))?;
            alternatives.push(read_all(events, &members.error("expect_any"))?);
        }
        let replay = match members.take("replay") {
            None => None,
            Some(replay) => {
                let mut replay = Members::new(replay, members.error("replay"))?;
                let from = replay.take("from").cloned().ok_or_else(|| replay.error("from is missing"))?;
                let save = replay.required_text("save")?;
                replay.finish()?;
                Some((from, save))
            }
        };
        let until = members.take("until").map(|event| ExpectedEvent::read(event, &members.error("until")));
        Ok(EventsStep {
            watch,
            expected,
            alternatives,
            unordered: members.flag("unordered")?,
            count: members.take("count").cloned(),
            until: until.transpose()?,
            increasing: members.flag("increasing")?,
            replay,
            save: members.text("save")?,
            end: members.flag("end")?,
            within: members.number("within")?.map_or(STEP_WAIT, Duration::from_secs),
        })
    }
}

/// The annotation of the bookmark after the initial events (KEP-3157).
const INITIAL_EVENTS_END: &str = "metadata.annotations['k8s.io/initial-events-end']";

impl ExpectedEvent {
    fn read(event: &Value, place: &str) -> Result<Self, String> {
        if let Some(text) = event.as_str() {
            let (kind, name) = match text.split_once(' ') {
                Some((kind, name)) => (kind, Some(name.trim().to_owned())),
                None => (text, None),
            };
            return ExpectedEvent { kind: kind.to_owned(), name, body: Vec::new(), save: Vec::new() }.completed(place);
        }
        let mut members = Members::new(event, place)?;
        let kind = members.required_text("type")?;
        let name = members.text("name")?;
        let body = paths(&mut members, "body")?;
        let save = saves(&mut members)?;
        members.finish()?;
        ExpectedEvent { kind, name, body, save }.completed(place)
    }

    /// Replaces the abbreviation `SYNC` by the bookmark after the initial events.
    fn completed(mut self, place: &str) -> Result<Self, String> {
        match self.kind.as_str() {
            "SYNC" => {
                self.kind = "BOOKMARK".to_owned();
                self.body.push((Path::parse(INITIAL_EVENTS_END)?, Value::from("true")));
            }
            "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR" => {}
            other => return Err(format!("{place}: {other} is no type of events")),
        }
        Ok(self)
    }
}

fn paths(members: &mut Members<'_>, name: &'static str) -> Result<Vec<(Path, Value)>, String> {
    let mut out = Vec::new();
    for (path, expected) in members.object(name)?.into_iter().flatten() {
        out.push((Path::parse(path).map_err(|why| members.error(why))?, checked(members, expected)?));
    }
    Ok(out)
}

fn saves(members: &mut Members<'_>) -> Result<Vec<(String, Path)>, String> {
    let mut out = Vec::new();
    for (name, path) in members.object("save")?.into_iter().flatten() {
        let path = path.as_str().ok_or_else(|| members.error("save has something that is not a path"))?;
        out.push((name.clone(), Path::parse(path).map_err(|why| members.error(why))?));
    }
    Ok(out)
}

/// Rejects unknown operators, because an expectation with a mistyped operator would never match.
fn checked(members: &Members<'_>, expected: &Value) -> Result<Value, String> {
    fn unknown(expected: &Value) -> Option<String> {
        match expected {
            Value::Object(object) => {
                let name = object.keys().find(|name| name.starts_with('$'));
                match name {
                    Some(name) if object.len() > 1 || !matcher::OPERATORS.contains(&name.as_str()) => {
                        Some(name.clone())
                    }
                    _ => object.values().find_map(unknown),
                }
            }
            Value::Array(elements) => elements.iter().find_map(unknown),
            _ => None,
        }
    }
    match unknown(expected) {
        Some(name) => Err(members.error(format!("{name} is no operator, or stands beside other members"))),
        None => Ok(expected.clone()),
    }
}
