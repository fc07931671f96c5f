//! Opens the watches of a case, and compares their events with the expected events.
//!
//! Bookmarks are optional and may come at any time. A bookmark is therefore skipped unless it is the expected event. A
//! bookmark on a watch that did not request bookmarks is a failure.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::context::{Context, show_request, version};
use super::failure::Stop;
use crate::suite::{EventsStep, Expectation, ExpectedEvent, RequestStep, Via, WatchStep};
use crate::transport::{
    Event, EventDecoder, Exchange, Outgoing, Stream, StreamResponse, websocket_events, websocket_headers,
};
use crate::value::matcher;
use crate::value::{compare_resource_versions, excerpt};

/// The time limit for the head of a watch's response. It is below the interval of a server's HTTP/2 PING frames (30 s),
/// with which a held head would leave.
const HEAD_WAIT: Duration = Duration::from_secs(15);
/// The number of bytes of an event that a failure shows.
const SHOWN_BYTES: usize = 600;

/// A watch in the background.
pub(super) struct OpenWatch {
    stream: Stream,
    wants_bookmarks: bool,
    request: String,
    /// The last events, for the text of a failure.
    seen: Vec<String>,
}

/// The number of events that a failure shows.
const SEEN_MAX: usize = 12;

impl Context {
    /// Opens a watch. The expectations of the step apply to the response header if the response is a stream, and
    /// otherwise to the whole response.
    pub(super) async fn open_watch(&mut self, step: &WatchStep) -> Result<(), Stop> {
        let request = &step.request;
        let name = self.text(&step.watch)?;
        let mut outgoing = self.outgoing(request)?;
        let upgrade = request.via == Via::WebSocket;
        if upgrade {
            let set = |name: &str| outgoing.headers.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
            let added: Vec<_> = websocket_headers().into_iter().filter(|(name, _)| !set(name)).collect();
            outgoing.headers.extend(added);
        }
        let shown = show_request(&outgoing);
        let opened = self.open(request, &outgoing, upgrade).await;
        let stream = opened.map_err(|stop| stop.with_exchange(|| shown.clone()))?;
        let wants_bookmarks = wants_bookmarks(&outgoing.path);
        if let Some(stream) = stream {
            self.watches.insert(name, OpenWatch { stream, wants_bookmarks, request: shown, seen: Vec::new() });
        }
        Ok(())
    }

    async fn open(
        &mut self,
        request: &RequestStep,
        outgoing: &Outgoing,
        upgrade: bool,
    ) -> Result<Option<Stream>, Stop> {
        let deadline = Instant::now() + HEAD_WAIT;
        loop {
            let response = timeout_at(deadline, self.session.open(outgoing, version(request.via))).await;
            let late = || format!("no head of a response within {} s", HEAD_WAIT.as_secs());
            let response = response.map_err(|_| Stop::failed(late()))??;
            let expects = |code: u16| request.expect.iter().any(|one| one.any_status || one.status.contains(&code));
            if response.status == 429 && !expects(429) && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            let is_stream = response.status == if upgrade { 101 } else { 200 };
            if !is_stream {
                return self.judge_refusal(request, response).await.map(|()| None);
            }
            self.judge_head(request, &response, upgrade)?;
            if upgrade {
                let (_, stream) = websocket_events(response).await?;
                return Ok(Some(stream));
            }
            let StreamResponse { headers, response, sender, .. } = response;
            let decoder = EventDecoder::new(&headers).map_err(Stop::failed)?;
            return Ok(Some(Stream::read(decoder, response.into_body(), sender)));
        }
    }

    /// Checks a response that is not a stream against the expectations of the step.
    async fn judge_refusal(&mut self, request: &RequestStep, response: StreamResponse) -> Result<(), Stop> {
        use http_body_util::BodyExt as _;
        let StreamResponse { status, headers, http, response, sender: _sender } = response;
        let body = tokio::time::timeout(HEAD_WAIT, response.into_body().collect()).await;
        let body = match body {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return Err(Stop::failed(format!("the code is {status}, and the body does not end"))),
        };
        self.judge(request, &Exchange { status, headers, http, body })
    }

    /// Checks the response header of a stream. Expectations about the body are ignored, because the body has not
    /// arrived.
    fn judge_head(&mut self, request: &RequestStep, response: &StreamResponse, upgrade: bool) -> Result<(), Stop> {
        let head = |one: &Expectation| {
            let mut one = one.clone();
            if upgrade && one.status.is_empty() {
                one.status = vec![101];
            }
            one.body = Vec::new();
            one.text = None;
            one
        };
        let mut request = request.clone();
        // A refusal that may be a stream instead has both as alternatives.
        request.expect = request.expect.iter().map(head).collect();
        request.unsupported.retain(|one| one.body.is_empty() && one.text.is_none());
        request.not_applicable.retain(|one| one.body.is_empty() && one.text.is_none());
        let (status, headers, http) = (response.status, response.headers.clone(), response.http);
        self.judge(&request, &Exchange { status, headers, http, body: bytes::Bytes::new() })
    }

    /// Compares the next events of a watch with the expected events.
    pub(super) async fn events(&mut self, step: &EventsStep) -> Result<(), Stop> {
        let name = self.text(&step.watch)?;
        let Some(mut watch) = self.watches.remove(&name) else {
            return Err(Stop::failed(format!("there is no open watch {name}")));
        };
        let compared = self.compare(step, &mut watch).await;
        let compared = compared.map_err(|stop| {
            let seen = if watch.seen.is_empty() { "none".to_owned() } else { watch.seen.join("\n") };
            stop.with_exchange(|| format!("{}\nevents of {name}, the last ones:\n{seen}", watch.request))
        });
        self.watches.insert(name, watch);
        compared
    }

    async fn compare(&mut self, step: &EventsStep, watch: &mut OpenWatch) -> Result<(), Stop> {
        let deadline = Instant::now() + step.within;
        let mut taken: Vec<Event> = Vec::new();
        if step.unordered {
            let mut rest: Vec<&ExpectedEvent> = step.expected.iter().collect();
            while !rest.is_empty() {
                let event = watch.next(deadline, false, &describe_all(&rest)).await?;
                let matching = rest.iter().position(|expected| self.matches(expected, &event).is_ok());
                let Some(at) = matching else {
                    let wanted = describe_all(&rest);
                    return Err(Stop::failed(format!("expected one of {wanted}, found {}", describe(&event))));
                };
                self.save(rest.remove(at), &event)?;
                taken.push(event);
            }
        } else {
            for expected in &step.expected {
                let event = watch.next(deadline, expected.kind == "BOOKMARK", &describe_expected(expected)).await?;
                self.matches(expected, &event).map_err(Stop::failed)?;
                self.save(expected, &event)?;
                taken.push(event);
            }
        }
        if !step.alternatives.is_empty() {
            self.one_of(&step.alternatives, watch, deadline, &mut taken).await?;
        }
        if let Some(count) = &step.count {
            let count = self.variables.value(count).map_err(Stop::failed)?;
            let count = count.as_u64().or_else(|| count.as_str().and_then(|text| text.parse().ok()));
            let count = count.ok_or_else(|| Stop::failed("count is not a number"))?;
            for number in 0..count {
                let what = format!("event {} of {count}", number + 1);
                taken.push(watch.next(deadline, false, &what).await?);
            }
        }
        if let Some(until) = &step.until {
            loop {
                let event = watch.next(deadline, until.kind == "BOOKMARK", &describe_expected(until)).await?;
                let found = self.matches(until, &event).is_ok();
                if found {
                    self.save(until, &event)?;
                }
                taken.push(event);
                if found {
                    break;
                }
            }
        }
        taken.retain(|event| event.kind != "BOOKMARK");
        if step.increasing {
            increasing(&taken)?;
        }
        if let Some((from, variable)) = &step.replay {
            let from = self.variables.value(from).map_err(Stop::failed)?;
            self.variables.set(variable.clone(), replay(&from, &taken)?);
        }
        if let Some(variable) = &step.save {
            let lines = taken.iter().filter(|event| event.kind != "BOOKMARK");
            let lines =
                lines.map(|event| Value::from(format!("{} {} {}", event.kind, event.name(), event.resource_version())));
            self.variables.set(variable.clone(), lines.collect::<Vec<_>>());
        }
        if step.end {
            watch.end(deadline).await?;
        }
        Ok(())
    }

    /// Compares events with all alternative sequences at once, until one sequence is complete. A sequence that does not
    /// match is dropped.
    async fn one_of(
        &mut self,
        alternatives: &[Vec<ExpectedEvent>],
        watch: &mut OpenWatch,
        deadline: Instant,
        taken: &mut Vec<Event>,
    ) -> Result<(), Stop> {
        let mut left: Vec<&[ExpectedEvent]> = alternatives.iter().map(Vec::as_slice).collect();
        loop {
            let next: Vec<&ExpectedEvent> = left.iter().filter_map(|sequence| sequence.first()).collect();
            let takes_bookmark = next.iter().any(|expected| expected.kind == "BOOKMARK");
            let event = watch.next(deadline, takes_bookmark, &describe_all(&next)).await?;
            let mut why = None;
            left.retain(|sequence| match sequence.first().map(|expected| self.matches(expected, &event)) {
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    why.get_or_insert(error);
                    false
                }
                None => false,
            });
            let Some(first) = left.first().and_then(|sequence| sequence.first()) else {
                let failure = match (next.len(), why) {
                    (1, Some(why)) => why,
                    _ => format!("expected one of {}, found {}", describe_all(&next), describe(&event)),
                };
                return Err(Stop::failed(failure));
            };
            self.save(first, &event)?;
            taken.push(event);
            left.iter_mut().for_each(|sequence| *sequence = &sequence[1..]);
            if left.iter().any(|sequence| sequence.is_empty()) {
                return Ok(());
            }
        }
    }

    fn matches(&self, expected: &ExpectedEvent, event: &Event) -> Result<(), String> {
        let wanted = || describe_expected(expected);
        if expected.kind != event.kind {
            return Err(format!("expected {}, found {}", wanted(), describe(event)));
        }
        if let Some(name) = &expected.name
            && self.variables.text(name)? != event.name()
        {
            return Err(format!("expected {}, found {}", wanted(), describe(event)));
        }
        for (path, expected) in &expected.body {
            let expected = self.variables.value(expected)?;
            let checked = matcher::check(&expected, path.find(&event.object).as_ref());
            checked.map_err(|why| format!("{} with {path}: {why}", describe(event)))?;
        }
        Ok(())
    }

    fn save(&mut self, expected: &ExpectedEvent, event: &Event) -> Result<(), Stop> {
        for (variable, path) in &expected.save {
            let value = path.find(&event.object);
            let value = value.ok_or_else(|| Stop::failed(format!("{} has no {path}", describe(event))))?;
            self.variables.set(variable.clone(), value);
        }
        Ok(())
    }
}

impl OpenWatch {
    /// Returns the next event. Bookmarks are skipped unless `bookmark` is set.
    async fn next(&mut self, deadline: Instant, bookmark: bool, expected: &str) -> Result<Event, Stop> {
        loop {
            let event = match timeout_at(deadline, self.stream.next()).await {
                Err(_) => return Err(Stop::failed(format!("expected {expected}, and nothing came in time"))),
                Ok(None) => return Err(Stop::failed(format!("expected {expected}, and the stream ended"))),
                Ok(Some(Err(why))) => return Err(Stop::failed(why)),
                Ok(Some(Ok(event))) => event,
            };
            self.remember(&event);
            if event.kind != "BOOKMARK" {
                return Ok(event);
            }
            if !self.wants_bookmarks {
                return Err(Stop::failed("a bookmark came on a watch that did not ask for bookmarks"));
            }
            if bookmark {
                return Ok(event);
            }
        }
    }

    /// Waits for the end of the stream. Any further event except a bookmark is a failure.
    async fn end(&mut self, deadline: Instant) -> Result<(), Stop> {
        loop {
            match timeout_at(deadline, self.stream.next()).await {
                Err(_) => return Err(Stop::failed("expected the end of the stream, and it is still open")),
                Ok(None) => return Ok(()),
                Ok(Some(Err(why))) => return Err(Stop::failed(why)),
                Ok(Some(Ok(event))) => {
                    self.remember(&event);
                    if event.kind != "BOOKMARK" {
                        return Err(Stop::failed(format!(
                            "expected the end of the stream, found {}",
                            describe(&event)
                        )));
                    }
                }
            }
        }
    }

    fn remember(&mut self, event: &Event) {
        if self.seen.len() == SEEN_MAX {
            self.seen.remove(0);
        }
        self.seen.push(format!("{} {}", event.kind, excerpt(&event.object, SHOWN_BYTES)));
    }
}

/// Whether the request enables bookmarks, by the server's rule for booleans.
fn wants_bookmarks(path: &str) -> bool {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let value = query.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == "allowWatchBookmarks").then_some(value)
    });
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// Applies events to the names of a list, as an informer does. Returns the names that remain, in order.
fn replay(from: &Value, events: &[Event]) -> Result<Value, Stop> {
    let mut names = BTreeSet::new();
    for name in from.as_array().into_iter().flatten() {
        names.insert(name.as_str().unwrap_or_default().to_owned());
    }
    for event in events {
        let name = event.name();
        let holds = match event.kind.as_str() {
            "ADDED" => names.insert(name.to_owned()),
            "MODIFIED" => names.contains(name),
            "DELETED" => names.remove(name),
            _ => false,
        };
        if !holds {
            let known = if names.contains(name) { "is" } else { "is not" };
            return Err(Stop::failed(format!("{} came, and {name} {known} among the objects", describe(event))));
        }
    }
    Ok(names.into_iter().collect::<Vec<_>>().into())
}

/// Checks that the resource versions of the events increase strictly.
fn increasing(events: &[Event]) -> Result<(), Stop> {
    for pair in events.windows(2) {
        let (before, after) = (pair[0].resource_version(), pair[1].resource_version());
        let order = compare_resource_versions(before, after);
        if order != Some(std::cmp::Ordering::Less) {
            let (before, after) = (describe(&pair[0]), describe(&pair[1]));
            return Err(Stop::failed(format!("resource versions do not increase: {after} came after {before}")));
        }
    }
    Ok(())
}

fn describe(event: &Event) -> String {
    match event.kind.as_str() {
        "ERROR" => format!("ERROR {}", excerpt(&event.object, SHOWN_BYTES)),
        kind => format!("{kind} {} at {}", event.name(), event.resource_version()),
    }
}

fn describe_expected(expected: &ExpectedEvent) -> String {
    match &expected.name {
        Some(name) => format!("{} {name}", expected.kind),
        None => expected.kind.clone(),
    }
}

fn describe_all(expected: &[&ExpectedEvent]) -> String {
    expected.iter().map(|expected| describe_expected(expected)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(version: &str) -> Event {
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": version}});
        Event { kind: "MODIFIED".to_owned(), object }
    }

    #[test]
    fn equal_and_falling_resource_versions_are_failures() {
        assert!(increasing(&[event("9"), event("10")]).is_ok());
        assert!(increasing(&[event("10"), event("10")]).is_err());
        assert!(increasing(&[event("10"), event("9")]).is_err());
        assert!(increasing(&[event("10"), event("")]).is_err());
    }

    #[test]
    fn replay_rejects_an_event_that_contradicts_the_list() {
        let event = |kind: &str, name: &str| Event {
            kind: kind.to_owned(),
            object: json!({"metadata": {"name": name, "resourceVersion": "1"}}),
        };
        let known = json!(["a"]);
        assert_eq!(replay(&known, &[event("ADDED", "b"), event("DELETED", "a")]).unwrap(), json!(["b"]));
        for (kind, name) in [("ADDED", "a"), ("MODIFIED", "b"), ("DELETED", "b"), ("ERROR", "a")] {
            assert!(replay(&known, &[event(kind, name)]).is_err(), "{kind} {name}");
        }
    }

    #[test]
    fn booleans_of_a_query_are_read_as_the_server_reads_them() {
        for (query, expected) in [("", false), ("=true", true), ("=0", false), ("=False", false), ("=banana", true)] {
            assert_eq!(
                wants_bookmarks(&format!("/a?watch=1&allowWatchBookmarks{query}")),
                expected || query.is_empty()
            );
        }
        assert!(!wants_bookmarks("/a?watch=1"));
    }
}
