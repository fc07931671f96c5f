//! [`Context`]: executes the steps of one case.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use listwatch_wire::query::encode_path_segment;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::environment::Environment;
use super::failure::Stop;
use super::watches::OpenWatch;
use crate::suite::{BodyEncoding, Expectation, RequestStep, Step, TestResource, Via, WriteStep};
use crate::transport::{Exchange, HttpVersion, Outgoing, Session, decode, encode};
use crate::value::matcher;
use crate::value::shorten;
use crate::value::template::{Variables, merge};

/// The number of bytes of a body that a failure shows.
const SHOWN_BYTES: usize = 2048;
/// The pause between two attempts of a request that is repeated until it meets its expectations.
const TRY_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause that a server's `Retry-After` causes.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// The number of attempts of an update that fails with a conflict.
const CONFLICTS_MAX: usize = 50;

/// The objects that a case created. They are removed after the case.
pub(super) type Created = Arc<Mutex<Vec<CreatedObject>>>;

/// An object that a case created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedObject {
    pub(super) collection: String,
    pub(super) name: String,
    pub(super) has_finalizers: bool,
}

/// The state of a running case.
pub(super) struct Context {
    pub(super) session: Arc<Session>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) resource: Arc<TestResource>,
    pub(super) variables: Variables,
    pub(super) created: Created,
    pub(super) watches: HashMap<String, OpenWatch>,
}

type StepFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + Send + 'a>>;

impl Context {
    /// Executes steps in order.
    pub(super) fn run<'a>(&'a mut self, steps: &'a [Step]) -> StepFuture<'a> {
        Box::pin(async move {
            for (at, step) in steps.iter().enumerate() {
                self.step(step).await.map_err(|stop| stop.at(at + 1))?;
            }
            Ok(())
        })
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Request(request) => self.request(request).await,
            Step::Create(write) => self.create(write).await,
            Step::Update(write) => self.update(write).await,
            Step::Watch(watch) => self.open_watch(watch).await,
            Step::Events(events) => self.events(events).await,
            Step::Stop { watch } => {
                let name = self.text(watch)?;
                match self.watches.remove(&name) {
                    Some(_) => Ok(()),
                    None => Err(Stop::failed(format!("there is no watch {name}"))),
                }
            }
            Step::Repeat { times, variable, steps } => {
                for i in 0..*times {
                    self.variables.set(variable.clone(), i.to_string());
                    self.run(steps).await?;
                }
                Ok(())
            }
            Step::Parallel { branches, variable } => self.parallel(branches, variable).await,
            Step::Assert { value, expected } => {
                let value = self.variables.value(value).map_err(Stop::failed)?;
                let expected = self.variables.value(expected).map_err(Stop::failed)?;
                matcher::check(&expected, Some(&value)).map_err(Stop::failed)
            }
            Step::Compact { to } => {
                let to = self.text(to)?;
                let environment = self.environment.clone();
                match environment.compact(&to) {
                    Some(action) => action.await.map_err(Stop::failed),
                    None => Err(Stop::Skipped("nobody can compact the store's history".to_owned())),
                }
            }
            Step::Restart => {
                let environment = self.environment.clone();
                match environment.restart() {
                    Some(action) => action.await.map_err(Stop::failed)?,
                    None => return Err(Stop::Skipped("nobody can restart the server".to_owned())),
                }
                self.await_server().await
            }
        }
    }

    /// Runs branches concurrently. Each branch has a copy of the variables, and all branches share the connections of
    /// the case.
    async fn parallel(&mut self, branches: &[Vec<Step>], variable: &str) -> Result<(), Stop> {
        let running = branches.iter().enumerate().map(|(number, steps)| {
            let mut branch = self.branch();
            branch.variables.set(variable, number.to_string());
            async move { branch.run(steps).await.map_err(|stop| stop.at(number + 1)) }
        });
        futures_util::future::try_join_all(running).await.map(drop)
    }

    fn branch(&self) -> Context {
        Context {
            session: self.session.clone(),
            environment: self.environment.clone(),
            resource: self.resource.clone(),
            variables: self.variables.clone(),
            created: self.created.clone(),
            watches: HashMap::new(),
        }
    }

    /// Waits until a restarted server answers.
    async fn await_server(&self) -> Result<(), Stop> {
        let ready = Outgoing {
            method: "GET".to_owned(),
            path: "/readyz".to_owned(),
            headers: Vec::new(),
            body: bytes::Bytes::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.session.exchange(&ready, HttpVersion::Http1, Duration::from_secs(5)).await;
            // A server without this path answers with 404 and is up.
            if answer.as_ref().is_ok_and(|answer| answer.status == 200 || answer.status == 404) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Stop::failed("the server is not ready 60 s after its restart"));
            }
            tokio::time::sleep(TRY_PAUSE).await;
        }
    }

    pub(super) fn text(&self, text: &str) -> Result<String, Stop> {
        self.variables.text(text).map_err(Stop::failed)
    }

    /// The path of the case's resource in its namespace.
    fn collection(&self) -> Result<String, Stop> {
        self.text("{{collection}}")
    }

    async fn request(&mut self, step: &RequestStep) -> Result<(), Stop> {
        let deadline = Instant::now() + step.within;
        loop {
            let outgoing = self.outgoing(step)?;
            let wait = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
            let answer = self.session.exchange(&outgoing, version(step.via), wait).await;
            let answer = match answer {
                Err(_) if step.eventually && Instant::now() < deadline => {
                    tokio::time::sleep(TRY_PAUSE).await;
                    continue;
                }
                answer => answer.map_err(|error| Stop::from(error).with_exchange(|| show_request(&outgoing)))?,
            };
            self.track(&outgoing, &answer);
            let expects_429 = step.expect.iter().any(|one| one.any_status || one.status.contains(&429));
            if answer.status == 429 && !expects_429 && Instant::now() < deadline {
                tokio::time::sleep(retry_after(&answer.headers)).await;
                continue;
            }
            let judged = self.judge(step, &answer);
            // Also a server that does not support something may do so eventually, such as the loss of compacted history.
            if judged.is_err() && step.eventually && Instant::now() < deadline {
                tokio::time::sleep(TRY_PAUSE).await;
                continue;
            }
            return judged.map_err(|stop| stop.with_exchange(|| show(&outgoing, &answer)));
        }
    }

    /// Compares a response with the expectations of its step, and saves values.
    pub(super) fn judge(&mut self, step: &RequestStep, answer: &Exchange) -> Result<(), Stop> {
        let document = decode(&answer.headers, &answer.body);
        let matches = |conditions: &[Expectation]| {
            let document = document.as_ref().ok().and_then(Option::as_ref);
            conditions.iter().any(|condition| self.holds(condition, answer, document).is_ok())
        };
        if matches(&step.unsupported) {
            return Err(Stop::Unsupported(format!("the server answers with {}", summary(answer))));
        }
        if matches(&step.not_applicable) {
            return Err(Stop::Skipped(format!("does not apply: the server answers with {}", summary(answer))));
        }
        let document = document.map_err(Stop::failed)?;
        let mut reasons = Vec::new();
        let held = step.expect.iter().any(|expectation| {
            let held = self.holds(expectation, answer, document.as_ref());
            held.map_err(|why| reasons.push(why)).is_ok()
        });
        if !held {
            return Err(Stop::failed(reasons.join("; or: ")));
        }
        for (variable, path) in &step.save {
            let found = document.as_ref().and_then(|document| path.find(document));
            let value = found.ok_or_else(|| Stop::failed(format!("the response has no {path}")))?;
            self.variables.set(variable.clone(), value);
        }
        Ok(())
    }

    /// Checks whether a response meets an expectation. The error is the first difference.
    fn holds(&self, expectation: &Expectation, answer: &Exchange, document: Option<&Value>) -> Result<(), String> {
        let code = answer.status;
        let accepted = match expectation.status.as_slice() {
            [] => expectation.any_status || (200..300).contains(&code),
            codes => codes.contains(&code),
        };
        if !accepted {
            let codes: Vec<String> = expectation.status.iter().map(u16::to_string).collect();
            let wanted = if codes.is_empty() { "2xx".to_owned() } else { codes.join(" or ") };
            return Err(format!("expected the code {wanted}, found {}", summary(answer)));
        }
        if let Some(http) = &expectation.http
            && http != answer.http
        {
            return Err(format!("expected {http}, found {}", answer.http));
        }
        for (name, expected) in &expectation.headers {
            let values: Vec<&str> =
                answer.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
            let found = (!values.is_empty()).then(|| Value::from(values.join(", ")));
            let expected = self.variables.value(expected)?;
            matcher::check(&expected, found.as_ref()).map_err(|why| format!("the header {name}: {why}"))?;
        }
        for (path, expected) in &expectation.body {
            let found = document.and_then(|document| path.find(document));
            let expected = self.variables.value(expected)?;
            matcher::check(&expected, found.as_ref()).map_err(|why| format!("{path}: {why}"))?;
        }
        if let Some(text) = &expectation.text {
            let body = Value::from(String::from_utf8_lossy(&answer.body));
            let expected = self.variables.value(text)?;
            matcher::check(&expected, Some(&body)).map_err(|why| format!("the body: {why}"))?;
        }
        Ok(())
    }

    /// Builds a request from a step.
    pub(super) fn outgoing(&self, step: &RequestStep) -> Result<Outgoing, Stop> {
        let path = self.text(&step.path)?;
        let mut headers = Vec::new();
        for (name, value) in &step.headers {
            let Value::String(value) = self.variables.value(value).map_err(Stop::failed)? else {
                return Err(Stop::failed(format!("the header {name} is not text")));
            };
            headers.push((self.text(name)?.to_ascii_lowercase(), value));
        }
        let has =
            |headers: &[(String, String)], name: &http::HeaderName| headers.iter().any(|(n, _)| n == name.as_str());
        if !has(&headers, &ACCEPT) {
            headers.push((ACCEPT.to_string(), "application/json".to_owned()));
        }
        let mut body = bytes::Bytes::new();
        let document = step.body.as_ref().map(|document| self.variables.value(document)).transpose();
        // A variable that is null leaves the body out.
        if let Some(document) = document.map_err(Stop::failed)?.filter(|document| !document.is_null()) {
            let (encoded, media_type) = encode(&document, step.encoding).map_err(Stop::failed)?;
            body = encoded;
            if !has(&headers, &CONTENT_TYPE) {
                headers.push((CONTENT_TYPE.to_string(), media_type.to_owned()));
            }
        }
        // An empty header is a header that is not sent.
        headers.retain(|(_, value)| !value.is_empty());
        let path = with_query(path, &step.query, &self.variables)?;
        Ok(Outgoing { method: step.method.clone(), path, headers, body })
    }

    /// Records the object that a request created, for the removal after the case.
    fn track(&self, outgoing: &Outgoing, answer: &Exchange) {
        if answer.status != 201 || outgoing.path.contains("dryRun") {
            return;
        }
        let Ok(Some(document)) = decode(&answer.headers, &answer.body) else { return };
        let path = outgoing.path.split('?').next().unwrap_or_default();
        let metadata = &document["metadata"];
        let Some(name) = metadata["name"].as_str() else { return };
        let collection = match outgoing.method.as_str() {
            "POST" => path,
            _ => path.rsplit_once('/').map_or(path, |(collection, _)| collection),
        };
        let has_finalizers = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let created = CreatedObject { collection: collection.to_owned(), name: name.to_owned(), has_finalizers };
        self.created.lock().unwrap_or_else(PoisonError::into_inner).push(created);
    }

    /// Creates an object of the case's resource. Its metadata contains the namespace, as typed clients send it. A
    /// separate case omits the namespace.
    fn new_object(&self, name: &str, set: &Value) -> Value {
        let resource = &self.resource;
        let mut object = serde_json::json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": { "name": name, "namespace": "{{ns}}" },
        });
        merge(&mut object, &resource.template);
        merge(&mut object, set);
        object
    }

    async fn create(&mut self, step: &WriteStep) -> Result<(), Stop> {
        let name = self.text(&step.name)?;
        let set = self.variables.value(&step.set).map_err(Stop::failed)?;
        let mut object = self.new_object(&name, &set);
        object = self.variables.value(&object).map_err(Stop::failed)?;
        let answer = self.write("POST", self.collection()?, &object).await?;
        self.saved(&name, step, &answer)
    }

    async fn update(&mut self, step: &WriteStep) -> Result<(), Stop> {
        let name = self.text(&step.name)?;
        let set = self.variables.value(&step.set).map_err(Stop::failed)?;
        let path = format!("{}/{name}", self.collection()?);
        for _ in 0..CONFLICTS_MAX {
            let found = self.write("GET", path.clone(), &Value::Null).await?;
            let document = decode(&found.1.headers, &found.1.body).map_err(Stop::failed)?;
            let mut object = match document {
                Some(object) if found.1.status == 200 => object,
                _ => return self.saved(&name, step, &found),
            };
            merge(&mut object, &set);
            let answer = self.write("PUT", path.clone(), &object).await?;
            if answer.1.status != 409 {
                return self.saved(&name, step, &answer);
            }
        }
        Err(Stop::failed(format!("{name} was changed by others {CONFLICTS_MAX} times in a row")))
    }

    /// Sends a JSON document, and repeats the request after 429.
    async fn write(&self, method: &str, path: String, body: &Value) -> Result<(Outgoing, Exchange), Stop> {
        let json = |name: &http::HeaderName| (name.to_string(), "application/json".to_owned());
        let (body, mut headers) = match body {
            Value::Null => (bytes::Bytes::new(), Vec::new()),
            body => (encode(body, BodyEncoding::Json).map_err(Stop::failed)?.0, vec![json(&CONTENT_TYPE)]),
        };
        headers.push(json(&ACCEPT));
        let outgoing = Outgoing { method: method.to_owned(), path, headers, body };
        let deadline = Instant::now() + crate::suite::STEP_WAIT;
        loop {
            let answer = self.session.exchange(&outgoing, HttpVersion::Any, crate::suite::STEP_WAIT).await;
            let answer = answer.map_err(|error| Stop::from(error).with_exchange(|| show_request(&outgoing)))?;
            if answer.status == 429 && Instant::now() < deadline {
                tokio::time::sleep(retry_after(&answer.headers)).await;
                continue;
            }
            self.track(&outgoing, &answer);
            return Ok((outgoing, answer));
        }
    }

    /// Saves `rv.NAME`, `uid.NAME` and the variables of the step from a written object. Any code 2xx is accepted here,
    /// because other cases test the exact code.
    fn saved(&mut self, name: &str, step: &WriteStep, (outgoing, answer): &(Outgoing, Exchange)) -> Result<(), Stop> {
        let document = decode(&answer.headers, &answer.body).ok().flatten();
        let failed = |why: String| Stop::failed(why).with_exchange(|| show(outgoing, answer));
        if !(200..300).contains(&answer.status) {
            return Err(failed(format!("expected the code 2xx, found {}", summary(answer))));
        }
        let document = document.ok_or_else(|| failed("the response has no object".to_owned()))?;
        for member in ["resourceVersion", "uid"] {
            let Some(value) = document["metadata"][member].as_str() else { continue };
            let prefix = if member == "uid" { "uid" } else { "rv" };
            self.variables.set(format!("{prefix}.{name}"), value);
        }
        for (variable, path) in &step.save {
            let value = path.find(&document).ok_or_else(|| failed(format!("the written object has no {path}")))?;
            self.variables.set(variable.clone(), value);
        }
        Ok(())
    }
}

/// The HTTP version that a step requires.
pub(super) fn version(via: Via) -> HttpVersion {
    match via {
        Via::Default => HttpVersion::Any,
        Via::Http1 | Via::WebSocket => HttpVersion::Http1,
        Via::Http2 => HttpVersion::Http2,
    }
}

/// Appends parameters to the query of a path. A parameter with the value `null` is omitted.
fn with_query(mut path: String, query: &Map<String, Value>, variables: &Variables) -> Result<String, Stop> {
    for (name, value) in query {
        let values = match variables.value(value).map_err(Stop::failed)? {
            Value::Null => continue,
            Value::Array(values) => values,
            one => vec![one],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            path.push(if path.contains('?') { '&' } else { '?' });
            let _ = write!(path, "{name}={}", encode_path_segment(&text));
        }
    }
    Ok(path)
}

/// The pause that the header `Retry-After` requests, at least [`TRY_PAUSE`] and at most [`RETRY_AFTER_MAX`].
fn retry_after(headers: &http::HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).clamp(TRY_PAUSE, RETRY_AFTER_MAX)
}

/// Formats the code of a response, with the reason and the message of its Status.
fn summary(answer: &Exchange) -> String {
    let document = decode(&answer.headers, &answer.body).ok().flatten();
    let member = |name: &str| document.as_ref().and_then(|document| document[name].as_str()).unwrap_or_default();
    match (member("reason"), member("message")) {
        ("", "") => answer.status.to_string(),
        (reason, message) => format!("{} {reason} {:?}", answer.status, shorten(message, 200)),
    }
}

/// Formats a request for the text of a failure. Credentials are omitted.
pub(super) fn show_request(outgoing: &Outgoing) -> String {
    let mut text = format!("{} {}\n", outgoing.method, outgoing.path);
    for (name, value) in &outgoing.headers {
        let _ = writeln!(text, "{name}: {value}");
    }
    if !outgoing.body.is_empty() {
        let _ = writeln!(text, "\n{}", shorten(&String::from_utf8_lossy(&outgoing.body), SHOWN_BYTES));
    }
    text
}

/// Formats a request and its response for the text of a failure.
fn show(outgoing: &Outgoing, answer: &Exchange) -> String {
    let mut text = show_request(outgoing);
    let _ = writeln!(text, "\n{} {}", answer.http, answer.status);
    for (name, value) in &answer.headers {
        let _ = writeln!(text, "{name}: {}", value.to_str().unwrap_or("…"));
    }
    let body = match decode(&answer.headers, &answer.body) {
        Ok(Some(document)) => document.to_string(),
        _ => String::from_utf8_lossy(&answer.body).into_owned(),
    };
    let _ = write!(text, "\n{}", shorten(&body, SHOWN_BYTES));
    text
}
